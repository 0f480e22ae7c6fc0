//! Snapshots: creating, listing, reading and deleting them, with and without a daemon.

use crate::harness::{Scene, noise, overwrite, qemu_img, wait_until};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

fn names(scene: &Scene) -> Vec<String> {
    let list = scene.json(&["snapshot", "list"]);
    let names = list["snapshots"].as_array().unwrap().iter();
    names
        .map(|snapshot| snapshot["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_snapshot_keeps_what_was_there() {
    for index in ["hash", "memory"] {
        let scene = Scene::with_pool_options(&["--index", index]);
        let before = noise(1, 4 * MIB);
        let file = scene.file("image", &before);
        for name in ["a", "b"] {
            scene.ok(&["volume", "import", name, &file]);
        }
        let daemon = scene.daemon();
        let made = scene.json(&["snapshot", "create", "a@one", "b@one"]);
        assert_eq!(made["snapshots"].as_array().unwrap().len(), 2, "{made}");
        assert_eq!(names(&scene), ["a@one", "b@one"]);
        overwrite(&scene, "a", MIB + 5000, 7, 10_000);
        overwrite(&scene, "a", 3 * MIB, 0, MIB / 2);
        let mut after = before.clone();
        after[MIB + 5000..MIB + 15_000].fill(7);
        after[3 * MIB..3 * MIB + MIB / 2].fill(0);
        scene.ok(&["snapshot", "create", "a@two"]);
        overwrite(&scene, "a", 0, 9, 4096);
        let mut last = after.clone();
        last[..4096].fill(9);
        scene.ok(&["pool", "dedup"]);
        let is_right = |scene: &Scene| {
            for (name, content) in [
                ("a@one", &before),
                ("b@one", &before),
                ("b", &before),
                ("a@two", &after),
                ("a", &last),
            ] {
                assert!(scene.content(name) == **content, "{name}");
            }
            assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
        };
        is_right(&scene);
        daemon.kill();
        is_right(&scene);
        scene.ok(&["volume", "rename", "a", "c"]);
        assert_eq!(names(&scene), ["b@one", "c@one", "c@two"]);
        scene.ok(&["snapshot", "delete", "c@one", "--yes"]);
        assert!(scene.content("c@two") == after);
        assert!(scene.content("c") == last);
        scene.ok(&["snapshot", "delete", "c@two", "--yes"]);
        scene.ok(&["snapshot", "delete", "b@one", "--yes"]);
        assert!(scene.content("c") == last);
        assert!(names(&scene).is_empty());
        scene.ok(&["pool", "dedup"]);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
        let stat = scene.json(&["pool", "stat"]);
        // Only the current content of both volumes is left: blocks of snapshots alone are gone.
        let blocks = |content: &[u8]| {
            let blocks = content.chunks(4096);
            blocks
                .filter(|block| block.iter().any(|byte| *byte != 0))
                .count()
        };
        assert_eq!(
            stat["logical_blocks"],
            blocks(&last) + blocks(&before),
            "{stat}"
        );
    }
}

#[test]
fn a_snapshot_is_read_only_and_refusals_change_nothing() {
    let scene = Scene::new();
    let content = noise(2, MIB);
    let file = scene.file("image", &content);
    scene.ok(&["volume", "import", "a", &file]);
    let _daemon = scene.daemon();
    scene.ok(&["snapshot", "create", "a@one"]);
    let list = scene.json(&["snapshot", "list", "a"]);
    let uri = list["snapshots"][0]["nbd_uri"].as_str().unwrap().to_owned();
    let out = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4096", &uri])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(said.contains("Permission denied"), "{said}");
    for (arguments, code, words) in [
        (&["snapshot", "create", "a@one"][..], 1, "exists already"),
        (&["snapshot", "create", "a@two", "a@three"], 2, "twice"),
        (&["snapshot", "create", "a@two", "x@two"], 1, "x"),
        (&["snapshot", "create", "a"], 2, "VOLUME@SNAPSHOT"),
        (&["snapshot", "create", "a@b@c"], 2, "b@c"),
        (&["snapshot", "create", "a@one@two"], 2, "one@two"),
        (&["snapshot", "create"], 2, "VOLUME@SNAPSHOT"),
        (&["snapshot", "list", "x"], 1, "x"),
        (&["snapshot", "delete", "a@x", "--yes"], 1, "a@x"),
        (&["volume", "delete", "a", "--yes"], 1, "one"),
        (&["volume", "delete", "a@one", "--yes"], 2, "snapshot"),
        (
            &["volume", "resize", "a@one", "--size", "2M"],
            2,
            "snapshot",
        ),
        (&["volume", "rename", "a@one", "b"], 2, "snapshot"),
        (&["volume", "set", "a@one", "--dedup", "off"], 2, "snapshot"),
    ] {
        scene.run(arguments).is_refusal(code, &[words]);
    }
    let planned = scene.run(&["snapshot", "delete", "a@one"]);
    assert_eq!(planned.code, Some(2), "{planned:?}");
    assert!(planned.stderr.contains("--yes"), "{planned:?}");
    assert_eq!(names(&scene), ["a@one"]);
    assert_eq!(scene.volumes(), ["a"]);
    assert!(scene.content("a@one") == content);
    assert!(scene.content("a") == content);
}

#[test]
fn what_a_deletion_frees_is_said_before() {
    let scene = Scene::new();
    let file = scene.file("image", &noise(1, 4 * MIB));
    for name in ["a", "b"] {
        scene.ok(&["volume", "import", name, &file]);
    }
    let file = scene.file("other", &noise(2, 2 * MIB));
    scene.ok(&["volume", "import", "c", &file]);
    let _daemon = scene.daemon();
    let stat = |name: &str| scene.json(&["volume", "stat", name]);
    for field in [
        "exclusive_bytes",
        "shared_bytes",
        "freed_if_deleted_bytes",
        "usage_as_of",
    ] {
        assert!(stat("a")[field].is_null(), "{field}");
    }
    // Equal blocks must not be shared, so that counts are as written.
    scene.ok(&["job", "pause", "finder"]);
    scene.ok(&["snapshot", "create", "a@one", "c@one"]);
    overwrite(&scene, "a", MIB, 7, MIB);
    overwrite(&scene, "c", 0, 9, MIB);
    scene.json(&["volume", "stat", "a", "--exact"]);
    let figures = |name: &str| {
        let stat = stat(name);
        assert!(
            stat["usage_as_of"].as_u64().unwrap() > 1_700_000_000,
            "{stat}"
        );
        ["exclusive_bytes", "shared_bytes", "freed_if_deleted_bytes"]
            .map(|field| stat[field].as_u64().unwrap() as usize / MIB)
    };
    assert_eq!(figures("a"), [1, 0, 1]);
    assert_eq!(figures("a@one"), [0, 4, 0]);
    assert_eq!(figures("b"), [0, 4, 0]);
    assert_eq!(figures("c"), [1, 0, 1]);
    assert_eq!(figures("c@one"), [2, 0, 1]);
    // Deleting c with its snapshot frees all of c; deleting a frees only the part that b does not use.
    let with_snapshots = |name: &str| stat(name)["freed_with_snapshots_bytes"].clone();
    assert_eq!(with_snapshots("c"), 3 * MIB);
    assert_eq!(with_snapshots("a"), MIB);
    assert!(with_snapshots("c@one").is_null());
    let text = String::from_utf8(scene.ok(&["volume", "stat", "c"]).stdout).unwrap();
    assert!(
        text.contains("1 MiB freed if deleted, 3 MiB with its snapshots, as of"),
        "{text}"
    );
    let planned = scene.run(&["volume", "delete", "c", "--snapshots"]);
    let plan = String::from_utf8(planned.stdout).unwrap();
    assert!(plan.contains("plan: free 3 MiB of the pool"), "{plan}");
    let list = scene.json(&["snapshot", "list", "c"]);
    assert_eq!(list["snapshots"][0]["freed_if_deleted_bytes"], MIB);
    let text = String::from_utf8(scene.ok(&["volume", "stat", "c@one"]).stdout).unwrap();
    assert!(
        text.contains("2 MiB, 0 B with others, 1 MiB freed if deleted"),
        "{text}"
    );

    // The number of free blocks also changes while free blocks are returned to the host.
    let in_use = || {
        scene.json(&["pool", "stat"])["physical_blocks"]
            .as_u64()
            .unwrap()
    };
    let deletions: [(&[&str], usize); 3] = [
        (&["snapshot", "delete", "c@one", "--yes"], MIB),
        (&["volume", "delete", "c", "--yes"], 2 * MIB),
        (&["volume", "delete", "b", "--yes"], 0),
    ];
    for (command, freed) in deletions {
        let name = command[2];
        scene.ok(&["volume", "stat", name, "--exact"]);
        assert_eq!(stat(name)["freed_if_deleted_bytes"], freed, "{name}");
        let before = in_use();
        scene.ok(command);
        let wanted = before - freed as u64 / 4096;
        wait_until("it is free", || in_use() == wanted);
    }
}

#[track_caller]
fn diff(scene: &Scene, since: &str, name: &str) -> Value {
    let diff = scene.json(&["snapshot", "diff", since, name]);
    assert_eq!(diff["since"], since);
    checked_extents(&diff, name)
}

/// The data of every volume and snapshot.
#[track_caller]
fn data(scene: &Scene, name: &str) -> Value {
    let data = scene.json(&["snapshot", "diff", name]);
    assert_eq!(
        (&data["since"], &data["since_size_bytes"]),
        (&Value::Null, &Value::Null)
    );
    checked_extents(&data, name)
}

#[track_caller]
fn checked_extents(diff: &Value, name: &str) -> Value {
    let sum = |content: &str| {
        let extents = diff["extents"].as_array().unwrap().iter();
        let of_kind = extents.filter(|extent| extent["content"] == content);
        of_kind
            .map(|extent| extent["length"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(diff["data_bytes"], sum("data"));
    assert_eq!(diff["zero_bytes"], sum("zero"));
    assert_eq!(diff["name"], name);
    diff["extents"].clone()
}

fn extents(list: &[(usize, usize, &str)]) -> Value {
    let extents = list.iter();
    extents
        .map(|(offset, length, content)| {
            json!({"offset": offset, "length": length, "content": content})
        })
        .collect()
}

#[test]
fn a_diff_lists_what_was_written_in_between() {
    let scene = Scene::new();
    let file = scene.file("image", &noise(3, 4 * MIB));
    scene.ok(&["volume", "import", "a", &file]);
    scene.ok(&["volume", "create", "b", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "a@one"]);
    let daemon = scene.daemon();
    overwrite(&scene, "a", MIB + 5000, 7, 10_000);
    overwrite(&scene, "a", 3 * MIB, 0, MIB / 2);
    scene.ok(&["snapshot", "create", "a@two"]);
    overwrite(&scene, "a", 0, 9, 4096);
    let is_right = |scene: &Scene| {
        let (written, zeroed) = ((MIB + 4096, 12_288), (3 * MIB, MIB / 2));
        let first = [(written.0, written.1, "data"), (zeroed.0, zeroed.1, "zero")];
        let back = first.map(|(offset, length, _)| (offset, length, "data"));
        let latest = (0, 4096, "data");
        assert_eq!(diff(scene, "a@one", "a@two"), extents(&first));
        assert_eq!(diff(scene, "a@two", "a@one"), extents(&back));
        assert_eq!(diff(scene, "a@two", "a"), extents(&[latest]));
        assert_eq!(
            diff(scene, "a@one", "a"),
            extents(&[latest, first[0], first[1]])
        );
        assert_eq!(diff(scene, "a@two", "a@two"), extents(&[]));
        let before = (0, 4 * MIB, "data");
        assert_eq!(data(scene, "a@one"), extents(&[before]));
        let zeroed_end = 3 * MIB + MIB / 2;
        let after = [(0, 3 * MIB, "data"), (zeroed_end, MIB / 2, "data")];
        assert_eq!(data(scene, "a@two"), extents(&after));
        assert_eq!(data(scene, "b"), extents(&[]));
        let text = scene.ok(&["snapshot", "diff", "a@two"]).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.ends_with("2 extents of 'a@two': 3.5 MiB of data\n"),
            "{text}"
        );
        let text = scene.ok(&["snapshot", "diff", "a@one", "a@two"]).stdout;
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["OFFSET", "LENGTH", "CONTENT"]);
        assert_eq!(lines[1], ["1052672", "12288", "data"]);
        assert_eq!(lines[2], ["3145728", "524288", "zero"]);
        assert!(text.contains("12 KiB of data, 512 KiB of zeros"), "{text}");
        for (arguments, code, word) in [
            (["snapshot", "diff", "a@one", "b"], 2, "in common"),
            (["snapshot", "diff", "a@three", "a"], 1, "a@three"),
            (["snapshot", "diff", "a", "c"], 1, "c"),
        ] {
            scene.run(&arguments).is_refusal(code, &[word]);
        }
        let missing = scene.run(&["snapshot", "diff", "a@three"]);
        missing.is_refusal(1, &["a@three"]);
    };
    is_right(&scene);
    scene.ok(&["pool", "dedup"]);
    is_right(&scene);
    daemon.terminate();
    is_right(&scene);
    scene.ok(&["volume", "resize", "a", "--size", "5M"]);
    let beyond = (4 * MIB, MIB, "zero");
    let listed = [(0, 4096, "data"), beyond];
    assert_eq!(diff(&scene, "a@two", "a"), extents(&listed));
    assert_eq!(diff(&scene, "a", "a@two"), extents(&listed));
    scene.ok(&["snapshot", "delete", "a@one", "--yes"]);
    assert_eq!(diff(&scene, "a@two", "a"), extents(&listed));
}

#[test]
fn a_long_diff_comes_in_pages() {
    // Every other block, and more than the store looks up at a time.
    let (block, blocks) = (4096, 10_000);
    let mut image = noise(4, blocks * block);
    for block in image.chunks_mut(2 * block) {
        block[4096..].fill(0);
    }
    let scene = Scene::new();
    let file = scene.file("image", &image);
    scene.ok(&["volume", "create", "a", "--size", "40M"]);
    scene.ok(&["snapshot", "create", "a@empty"]);
    let daemon = scene.daemon();
    let stat = scene.json(&["volume", "stat", "a"]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", &file, uri]);
    let expected: Vec<_> = (0..blocks / 2)
        .map(|n| (2 * n * block, block, "data"))
        .collect();
    let is_right = |scene: &Scene| {
        assert!(diff(scene, "a@empty", "a") == extents(&expected));
        assert!(data(scene, "a") == extents(&expected));
        assert_eq!(data(scene, "a@empty"), extents(&[]));
    };
    is_right(&scene);
    daemon.terminate();
    is_right(&scene);
}

#[test]
fn what_a_smaller_volume_lost_stays_with_its_snapshot_only() {
    let scene = Scene::new();
    let content = noise(3, 2 * MIB);
    let file = scene.file("image", &content);
    scene.ok(&["volume", "import", "a", &file]);
    scene.ok(&["snapshot", "create", "a@one"]);
    scene.ok(&["volume", "resize", "a", "--size", "1M", "--yes"]);
    scene.ok(&["snapshot", "create", "a@two"]);
    scene.ok(&["volume", "resize", "a", "--size", "3M"]);
    let cut = [&content[..MIB], &vec![0; 2 * MIB]].concat();
    for deleted in ["one", "two", ""] {
        assert!(scene.content("a") == cut, "before {deleted} went");
        match deleted {
            "one" => {
                assert!(scene.content("a@one") == content);
                assert!(scene.content("a@two") == content[..MIB]);
            }
            "two" => assert!(scene.content("a@two") == content[..MIB]),
            _ => break,
        }
        scene.ok(&["snapshot", "delete", &format!("a@{deleted}"), "--yes"]);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn lists_and_plans_say_what_the_user_has_and_loses() {
    let scene = Scene::new();
    scene.ok(&[
        "volume",
        "import",
        "web",
        &scene.file("image", &noise(1, 3 << 19)),
    ]);
    scene.ok(&["snapshot", "create", "web@before"]);
    let text = |arguments: &[&str]| String::from_utf8(scene.run(arguments).stdout).unwrap();
    let listed = |arguments: &[&str], name: &str| {
        let table = text(arguments);
        let line = table.lines().find(|line| line.starts_with(name)).unwrap();
        line.split("  ")
            .filter(|cell| !cell.is_empty())
            .map(str::trim)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // Columns: name, size, data, new, exclusive.
    assert_eq!(
        listed(&["volume", "list"], "web")[..5],
        ["web", "1.5 MiB", "1.5 MiB", "0 B", "-"]
    );
    let snapshot = listed(&["snapshot", "list"], "web@before");
    assert_eq!(
        snapshot[..5],
        ["web@before", "1.5 MiB", "1.5 MiB", "1.5 MiB", "-"]
    );

    scene.ok(&["volume", "clone", "web@before", "copy"]);
    scene.ok(&["volume", "resize", "web", "--size", "2M"]);
    let other = scene.file("other", &noise(2, 256 << 10));
    let daemon = scene.daemon();
    for command in [
        format!("write -s {other} 128k 256k"),
        "discard 1M 64k".to_owned(),
    ] {
        let uri = scene.json(&["volume", "stat", "web"])["nbd_uri"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut qemu_io = std::process::Command::new("qemu-io");
        let done = qemu_io
            .args(["-f", "raw", "-c", &command, &uri])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    daemon.terminate();
    let web = scene.json(&["volume", "stat", "web"]);
    assert_eq!(web["data_bytes"], (3 << 19) - (64 << 10));
    assert_eq!(
        (&web["new_bytes"], &web["data_as_of"]),
        (&(256 << 10).into(), &serde_json::Value::Null)
    );
    scene.ok(&["volume", "stat", "web", "--exact"]);

    for (arguments, plan) in [
        (
            &["volume", "delete", "copy"][..],
            "plan: delete volume 'copy' of 1.5 MiB with 1.5 MiB of data\n",
        ),
        (
            &["volume", "delete", "web", "--snapshots"],
            "plan: delete volume 'web' of 2 MiB with 1.4 MiB of data\n\
             plan: delete snapshot 'web@before' with 1.5 MiB of data\n",
        ),
        (
            &["snapshot", "rollback", "web@before"],
            "plan: take volume 'web' with 1.4 MiB of data back to 'web@before' with 1.5 MiB of data\n\
             plan: discard the data written since, 256 KiB, and bring back the data trimmed since, 64 KiB\n\
             plan: resize it from 2 MiB to 1.5 MiB\n",
        ),
        (
            &["snapshot", "delete", "web@before"],
            "plan: delete snapshot 'web@before' with 1.5 MiB of data, of which at most 1.5 MiB is in no other\n",
        ),
    ] {
        assert_eq!(text(arguments), plan);
    }
    assert!(text(&["pool", "stat"]).contains("web  1.4 MiB of 2 MiB"));
}
