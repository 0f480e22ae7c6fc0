//! Duplicates: found by imports, by `pool dedup` and by a daemon; counted, and kept apart by domain.

use crate::harness::{Daemon, Scene, is_left_out_in_ceph, noise, run, wait_until};
use serde_json::Value;
use std::collections::HashSet;

const BLOCK: usize = 4096;

/// An image of blocks chosen by number: equal numbers, equal blocks; 0 is a block of zeros.
fn image(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let block = |number| match number {
        0 => vec![0; BLOCK],
        _ => noise(number, BLOCK),
    };
    numbers.into_iter().flat_map(block).collect()
}

/// Asserts that the pool stores each distinct content of the volumes once.
#[track_caller]
fn assert_stored_once(scene: &Scene, contents: &[&[u8]]) -> Value {
    let blocks = || contents.iter().flat_map(|content| content.chunks(BLOCK));
    let data = blocks().filter(|block| block.iter().any(|byte| *byte != 0));
    let logical = data.clone().count();
    let distinct = data.collect::<HashSet<_>>().len();
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["logical_blocks"], logical, "{stat}");
    assert_eq!(stat["physical_blocks"], distinct, "{stat}");
    assert_eq!(stat["saved_bytes"], (logical - distinct) * BLOCK, "{stat}");
    let ratio = stat["dedup_ratio"].as_f64().unwrap();
    assert!(
        (ratio - logical as f64 / distinct as f64).abs() < 1e-9,
        "{stat}"
    );
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    stat
}

fn with_and_without_daemon(test: impl Fn(&Scene)) {
    for (index, through_daemon) in [
        ("hash", false),
        ("hash", true),
        ("btree", true),
        ("memory", true),
    ] {
        let scene = Scene::with_pool_options(&["--index", index]);
        let _daemon: Option<Daemon> = through_daemon.then(|| scene.daemon());
        test(&scene);
    }
}

#[test]
fn an_import_stores_only_what_is_not_there() {
    with_and_without_daemon(|scene| {
        let first = image((1..=1000).chain([0, 0, 1, 2, 3]));
        let second = image((500..=1500).chain([0, 7, 7]));
        let file = scene.file("first", &first);
        let imported = scene.json(&["volume", "import", "first", &file]);
        assert_eq!(imported["unique_blocks"], 1000, "{imported}");
        assert_eq!(imported["duplicate_blocks"], 3, "{imported}");
        assert_eq!(imported["sharing_failure"], Value::Null);
        let file = scene.file("second", &second);
        let imported = scene.json(&["volume", "import", "second", &file]);
        assert_eq!(imported["unique_blocks"], 500, "{imported}");
        assert_eq!(imported["duplicate_blocks"], 503, "{imported}");
        let stat = assert_stored_once(scene, &[&first, &second]);
        assert_eq!(stat["private_blocks"], 0, "{stat}");
        assert_eq!(stat["pending_dedup_blocks"], 0, "{stat}");
        assert!(scene.content("first") == first);
        assert!(scene.content("second") == second);
    });
}

#[test]
fn an_import_of_many_batches_is_shared_to_its_end() {
    let scene = Scene::new();
    // More than the writer may be ahead, and not a whole number of batches.
    let numbers = || (1..=15_000).chain(1..=15_000).chain([3]);
    let content = image(numbers());
    let file = scene.file("image", &content);
    let imported = scene.json(&["volume", "import", "vm", &file]);
    assert_eq!(imported["unique_blocks"], 15_000, "{imported}");
    assert_eq!(imported["duplicate_blocks"], 15_001, "{imported}");
    assert_stored_once(&scene, &[&content]);
    assert!(scene.content("vm") == content);
}

#[test]
fn pool_dedup_finds_what_was_imported_without() {
    with_and_without_daemon(|scene| {
        let contents = [image(1..=300), image(200..=400)];
        for (name, content) in ["a", "b"].iter().zip(&contents) {
            let file = scene.file("image", content);
            let imported = scene.json(&["volume", "import", name, &file, "--dedup", "off"]);
            assert_eq!(imported["duplicate_blocks"], 0);
        }
        let stat = scene.json(&["pool", "stat"]);
        assert_eq!(stat["private_blocks"], 501, "{stat}");
        assert_eq!(stat["dedup_ratio"], 1.0);
        assert_eq!(stat["volumes"][0]["dedup"], "off");

        // Unless they are named, volumes without dedup are skipped.
        let dedup = scene.json(&["pool", "dedup"]);
        assert_eq!(dedup["scanned"], 0, "{dedup}");
        let dedup = scene.json(&["pool", "dedup", "--volume", "a"]);
        assert_eq!(
            (&dedup["unique"], &dedup["duplicates"]),
            (&300.into(), &0.into())
        );
        let dedup = scene.json(&["pool", "dedup", "--volume", "b"]);
        assert_eq!(
            (&dedup["unique"], &dedup["duplicates"]),
            (&100.into(), &101.into())
        );
        assert!(dedup["seconds"].as_f64().unwrap() > 0.0);
        assert_stored_once(scene, &[&contents[0], &contents[1]]);
        assert_eq!(
            scene.json(&["pool", "dedup", "--volume", "b"])["scanned"],
            0
        );

        let refused = scene.run(&["pool", "dedup", "--volume", "gone"]);
        refused.is_refusal(1, &["gone"]);
    });
}

#[test]
fn what_is_deleted_is_given_back_when_nobody_else_has_it() {
    let scene = Scene::new();
    let keep = image(1..=100);
    let file = scene.file("image", &keep);
    scene.ok(&["volume", "import", "keep", &file]);
    let file = scene.file("image", &image(50..=200));
    scene.ok(&["volume", "import", "drop", &file]);
    scene.ok(&["volume", "delete", "drop", "--yes"]);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(stat["pending_release_blocks"], 151, "{stat}");
    let dedup = scene.json(&["pool", "dedup"]);
    assert_eq!(dedup["released"], 151, "{dedup}");
    assert_eq!(dedup["freed"], 100, "{dedup}");
    assert_eq!(dedup["quarantined"], 0, "{dedup}");
    let stat = assert_stored_once(&scene, &[&keep]);
    assert_eq!(stat["pending_release_blocks"], 0, "{stat}");
    assert!(scene.content("keep") == keep);
}

#[test]
fn domains_share_nothing() {
    with_and_without_daemon(|scene| {
        let content = image(1..=100);
        let file = scene.file("image", &content);
        for (name, domain) in [("a", "left"), ("b", "right"), ("c", "left")] {
            let options = ["volume", "import", name, &file, "--domain", domain];
            scene.ok(&options);
            assert_eq!(scene.json(&["volume", "stat", name])["domain"], domain);
        }
        scene.ok(&["pool", "dedup"]);
        let stat = scene.json(&["pool", "stat"]);
        assert_eq!(stat["logical_blocks"], 300, "{stat}");
        assert_eq!(stat["physical_blocks"], 200, "{stat}");
        assert_eq!(stat["shared_blocks"], 100, "of the two on the left: {stat}");
        assert_eq!(
            stat["unique_blocks"], 100,
            "of the one on the right: {stat}"
        );
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    });
}

#[test]
fn options_are_kept_and_can_be_changed() {
    with_and_without_daemon(|scene| {
        let made = scene.json(&["volume", "create", "plain", "--size", "1M"]);
        let defaults = [
            ("dedup", Value::from("offline")),
            ("domain", "default".into()),
            ("verify", false.into()),
            ("cold_passes", 2.into()),
            ("interval_seconds", 10.into()),
            ("hash_cache_bytes", 0.into()),
            ("quota_bytes", 0.into()),
            ("reservation_bytes", 0.into()),
        ];
        for (name, value) in defaults {
            assert_eq!(made[name], value, "{name} in {made}");
        }
        let options = [
            "--dedup",
            "off",
            "--domain",
            "d1",
            "--verify",
            "--cold-passes",
            "16",
            "--hash-cache",
            "4M",
            "--quota",
            "2M",
            "--reservation",
            "1M",
        ];
        let create = [
            "volume",
            "create",
            "odd",
            "--size",
            "1M",
            "--interval",
            "86400",
        ];
        let made = scene.json(&[&create[..], &options].concat());
        let wanted = [
            ("dedup", Value::from("off")),
            ("domain", "d1".into()),
            ("verify", true.into()),
            ("cold_passes", 16.into()),
            ("interval_seconds", 86_400.into()),
            ("hash_cache_bytes", (4_u64 << 20).into()),
            ("quota_bytes", (2_u64 << 20).into()),
            ("reservation_bytes", (1_u64 << 20).into()),
        ];
        for (name, value) in wanted {
            assert_eq!(made[name], value, "{name} in {made}");
        }
        let change = [
            "--dedup",
            "offline",
            "--verify",
            "off",
            "--cold-passes",
            "1",
        ];
        let changed = scene.json(&[&["volume", "set", "odd"][..], &change].concat());
        assert_eq!(changed["dedup"], "offline");
        assert_eq!(changed["verify"], false);
        assert_eq!(changed["cold_passes"], 1);
        assert_eq!(changed["interval_seconds"], 86_400, "was not named");
        scene.ok(&["volume", "set", "odd", "--hash-cache", "0"]);
        scene.ok(&["volume", "set", "odd", "--interval", "7"]);
        scene.ok(&["volume", "set", "odd", "--quota", "3M"]);
        scene.ok(&["volume", "set", "odd", "--reservation", "0"]);
        let stat = scene.json(&["volume", "stat", "odd"]);
        assert_eq!(stat["interval_seconds"], 7);
        assert_eq!(stat["hash_cache_bytes"], 0);
        assert_eq!(stat["quota_bytes"], 3_u64 << 20);
        assert_eq!(stat["reservation_bytes"], 0);
        assert_eq!(stat["reserved_unused_bytes"], 0);
        assert_eq!(stat["cold_passes"], 1);
        scene
            .run(&["volume", "set", "gone", "--cold-passes", "1"])
            .is_refusal(1, &["gone"]);
    });
}

#[test]
fn changes_outlast_the_daemon() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&[
        "volume",
        "set",
        "vm",
        "--dedup",
        "off",
        "--cold-passes",
        "5",
    ]);
    daemon.kill();
    let stat = scene.json(&["volume", "stat", "vm"]);
    assert_eq!(
        (&stat["dedup"], &stat["cold_passes"]),
        (&"off".into(), &5.into())
    );
}

#[test]
fn nonsense_is_refused() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let file = scene.file("image", &noise(1, BLOCK));
    let long = "x".repeat(64);
    let bad_options: [(&str, &str); 15] = [
        ("--dedup", "sometimes"),
        ("--dedup", ""),
        ("--domain", ""),
        ("--domain", "a b"),
        ("--domain", "a/b"),
        ("--domain", "-x"),
        ("--domain", &long),
        ("--cold-passes", "0"),
        ("--cold-passes", "17"),
        ("--cold-passes", "-1"),
        ("--min-run", "0"),
        ("--min-run", "257"),
        ("--interval", "0"),
        ("--interval", "86401"),
        ("--interval", "1s"),
    ];
    for (name, value) in bad_options {
        let option = format!("{name}={value}");
        for verb in [
            &["volume", "create", "new", "--size", "1M"][..],
            &["volume", "import", "new", &file],
        ] {
            scene.run(&[verb, &[&option]].concat()).is_refusal(2, &[]);
        }
        if name != "--domain" {
            let set = ["volume", "set", "vm", &option];
            scene.run(&set).is_refusal(2, &[name]);
        }
    }
    scene
        .run(&["volume", "set", "vm"])
        .is_refusal(2, &["--dedup", "--interval"]);
    scene
        .run(&["volume", "set", "vm", "--verify"])
        .is_refusal(2, &["--verify"]);
    scene
        .run(&["volume", "set", "vm", "--domain", "d"])
        .is_refusal(2, &["--domain"]);
    scene.run(&["volume", "set"]).is_refusal(2, &["NAME"]);
    let other = scene.path("other");
    run(&["pool", "create", &other, "--index", "tree"]).is_refusal(2, &["--index"]);
    assert!(!std::fs::exists(&other).unwrap());
    assert_eq!(scene.volumes(), ["vm"]);
}

#[test]
fn a_pool_says_which_index_it_has() {
    for index in ["hash", "btree", "memory"] {
        let scene = Scene::with_pool_options(&["--index", index]);
        let stat = scene.json(&["pool", "stat"]);
        assert_eq!(stat["index"], index);
        assert_eq!(stat["index_rebuilding"], false);
        assert!(stat["index_bytes_on_disk"].is_u64());
        let text = String::from_utf8(scene.ok(&["pool", "stat"]).stdout).unwrap();
        assert!(text.contains(index), "{text}");
    }
}

#[test]
fn an_index_that_was_lost_with_its_process_is_counted_again() {
    let scene = Scene::with_pool_options(&["--index", "memory"]);
    let contents = [image(1..=200), image(100..=300)];
    let daemon = scene.daemon();
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file]);
    }
    daemon.kill();
    let daemon = scene.daemon();
    wait_until("the index is counted", || {
        scene.json(&["pool", "stat"])["index_rebuilding"] == false
    });
    daemon.kill();
    // Without a daemon, a command that needs the index rebuilds it.
    let file = scene.file("image", &contents[0]);
    let imported = scene.json(&["volume", "import", "c", &file]);
    assert_eq!(imported["duplicate_blocks"], 200, "{imported}");
    assert_stored_once(&scene, &[&contents[0], &contents[1], &contents[0]]);
}

#[test]
fn an_index_is_converted_and_rebuilt_with_and_without_daemon() {
    let scene = Scene::with_pool_options(&["--index", "btree"]);
    let contents = [image(1..=200), image(100..=300)];
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file]);
    }
    let mut expected = scene.json(&["index", "stat"]);
    assert_eq!(expected["kind"], "btree");
    assert_eq!(expected["unique_blocks"].as_u64().unwrap(), 199);
    assert_eq!(expected["shared_blocks"].as_u64().unwrap(), 101);
    assert_eq!(expected["references"], 401);
    assert_eq!(expected["needs_rebuild"], false);
    for through_daemon in [false, true] {
        let _daemon = through_daemon.then(|| scene.daemon());
        for kind in ["hash", "memory", "btree", "hash"] {
            scene.ok(&["index", "convert", "--to", kind]);
            scene.ok(&["index", "rebuild"]);
            let stat = scene.json(&["index", "stat"]);
            expected["kind"] = kind.into();
            expected["bytes_on_disk"] = stat["bytes_on_disk"].clone();
            expected["memory_bytes_max"] = stat["memory_bytes_max"].clone();
            assert_eq!(stat, expected);
            assert_eq!(scene.json(&["pool", "stat"])["index"], kind);
            scene.ok(&["pool", "check"]);
        }
    }
    assert_stored_once(&scene, &[&contents[0], &contents[1]]);
    scene.run(&["index", "convert"]).is_refusal(2, &["--to"]);
}

#[test]
fn a_conversion_goes_on_after_a_kill() {
    if is_left_out_in_ceph("it sees from a file that the conversion has begun") {
        return;
    }
    let scene = Scene::with_pool_options(&["--index", "hash"]);
    let content = image(1..=30_000);
    let file = scene.file("image", &content);
    scene.ok(&["volume", "import", "a", &file]);
    let next = scene.pool().join("index-next");
    let mut convert = scene.command(&["index", "convert", "--to", "btree"]);
    let mut convert = convert.spawn().unwrap();
    // The header is written first; before that, nothing has begun.
    wait_until("it has begun", || {
        next.metadata().is_ok_and(|metadata| metadata.len() > 0)
    });
    convert.kill().unwrap();
    convert.wait().unwrap();
    // The old index exists and is used until the conversion is done.
    let stat = scene.json(&["index", "stat"]);
    assert_eq!(stat["kind"], "hash", "{stat}");
    assert_eq!(stat["converting_to"], "btree", "{stat}");
    assert_eq!(stat["unique_blocks"], 30_000, "{stat}");
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    let daemon = scene.daemon();
    wait_until("it is done", || {
        scene.json(&["index", "stat"])["kind"] == "btree"
    });
    assert!(!next.exists());
    daemon.kill();
    let stat = scene.json(&["index", "stat"]);
    assert_eq!(stat["converting_to"], Value::Null, "{stat}");
    assert_eq!(stat["references"], 30_000, "{stat}");
    let imported = scene.json(&["volume", "import", "b", &file]);
    assert_eq!(imported["duplicate_blocks"], 30_000, "{imported}");
    assert_stored_once(&scene, &[&content, &content]);
}

#[test]
fn dedup_goes_on_after_a_kill() {
    let scene = Scene::new();
    let contents = [image(1..=20_000), image(10_000..=30_000)];
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file, "--dedup", "off"]);
        scene.ok(&[
            "volume",
            "set",
            name,
            "--dedup",
            "offline",
            "--interval",
            "86400",
        ]);
    }
    let daemon = scene.daemon();
    let mut command = scene.command(&["pool", "dedup"]);
    let command = command.spawn().unwrap();
    wait_until("some are shared", || {
        let stat = scene.json(&["pool", "stat"]);
        stat["unique_blocks"].as_u64().unwrap() + stat["shared_blocks"].as_u64().unwrap() > 0
    });
    daemon.kill();
    let _ = crate::harness::Outcome::of(command);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    scene.ok(&["pool", "dedup"]);
    assert_stored_once(&scene, &[&contents[0], &contents[1]]);
    assert!(scene.content("a") == contents[0]);
    assert!(scene.content("b") == contents[1]);
}
