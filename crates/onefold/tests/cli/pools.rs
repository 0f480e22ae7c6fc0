//! `pool create`, `pool stat` and `pool check`, and all kinds of faults of a pool.

use crate::harness::{
    Daemon, Outcome, Scene, contents, is_in_ceph, is_left_out_in_ceph, noise, run, wait_until,
};
use std::fs;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

#[test]
fn a_new_pool_is_empty_and_sound() {
    let scene = Scene::new();
    let stat = scene.json(&["pool", "stat"]);
    for field in [
        "logical_blocks",
        "physical_blocks",
        "private_blocks",
        "unsettled_blocks",
        "unique_blocks",
        "shared_blocks",
        "pending_free_blocks",
        "pending_release_blocks",
        "pending_dedup_blocks",
        "saved_bytes",
    ] {
        assert_eq!(stat[field], 0, "{field} in {stat}");
    }
    assert_eq!(stat["block_size"], 4096);
    assert_eq!(stat["volumes"], serde_json::json!([]));
    assert!(stat["free_blocks"].as_u64().unwrap() > 0);
    assert!(stat["metadata_bytes_on_disk"].as_u64().unwrap() > 0);
    assert!(stat["pool_bytes_on_disk"].is_u64());
    assert!(stat["dedup_ratio"].is_f64());
    let check = scene.json(&["pool", "check"]);
    assert_eq!(check["findings"], 0);
}

#[test]
fn stat_counts_every_block() {
    for block_size in [4096, 65536] {
        let scene = Scene::with_pool_options(&["--block-size", &block_size.to_string()]);
        let image = scene.file("image", &noise(1, 40 * block_size));
        scene.ok(&["volume", "import", "first", &image]);
        let half = [noise(2, 10 * block_size), vec![0; 30 * block_size]].concat();
        let image = scene.file("image", &half);
        scene.ok(&["volume", "import", "second", &image]);
        let stat = scene.json(&["pool", "stat"]);
        assert_eq!(stat["block_size"], block_size);
        for field in ["logical_blocks", "physical_blocks", "unique_blocks"] {
            assert_eq!(stat[field], 50, "{field} in {stat}");
        }
        assert_eq!(stat["dedup_ratio"], 1.0);
        let names: Vec<_> = stat["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| &v["name"])
            .collect();
        assert_eq!(names, ["first", "second"]);
        let second = &stat["volumes"][1];
        assert_eq!(second["size_bytes"], 40 * block_size);
        assert_eq!(second["logical_blocks"], 10);
        assert_eq!(second["dedup"], "offline");
        assert!(second["nbd_uri"].is_null());
        assert_eq!(scene.json(&["pool", "check"])["mapped_blocks"], 50);
    }
}

#[test]
fn creation_is_refused_without_a_trace() {
    let scene = Scene::new();
    let pool = scene.pool();
    let before = contents(&pool);
    run(&["pool", "create", pool.to_str().unwrap()]).is_refusal(1, &["not empty"]);
    assert_eq!(contents(&pool), before);

    let orphan = scene.path("no/such/parent");
    run(&["pool", "create", &orphan]).is_refusal(1, &["no/such/parent"]);
    let new = scene.path("new");
    for arguments in [
        ["--block-size", "5K"],
        ["--block-size", "2K"],
        ["--size", "0"],
        ["--size", "many"],
        ["--size", "15E"],
        ["--log-size", "0"],
        ["--log-size", "15E"],
    ] {
        let outcome = run(&["pool", "create", &new, arguments[0], arguments[1]]);
        outcome.is_refusal(2, &[]);
        assert!(
            !fs::exists(&new).unwrap(),
            "{arguments:?} left something behind"
        );
    }
    run(&["pool", "create"]).is_refusal(2, &["<POOL>"]);
}

#[test]
fn a_pool_that_is_larger_than_its_file_system_is_created_with_a_note() {
    let scene = Scene::new();
    let json = |outcome: &Outcome| -> serde_json::Value {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        serde_json::from_slice(&outcome.stdout).unwrap()
    };
    let create = |name: &str, size: u64| {
        let (pool, size) = (scene.path(name), size.to_string());
        run(&["--format", "json", "pool", "create", &pool, "--size", &size])
    };
    let small = create("small", 1 << 20);
    assert!(!small.stderr.contains("less than"), "{small:?}");
    let host_free = json(&small)["host_free_bytes"].as_u64().unwrap();
    // File systems differ in their longest file.
    let size = (host_free / 4096 * 4096 * 2).min(15 << 40);
    let large = create("large", size);
    let host_free = json(&large)["host_free_bytes"].as_u64().unwrap();
    let is_noted = large.stderr.contains("less than");
    assert_eq!(is_noted, host_free < size, "{large:?}");
    let pool = scene.path("large");
    let stat = json(&run(&["--format", "json", "--pool", &pool, "pool", "stat"]));
    let blocks = |field: &str| stat[field].as_u64().unwrap();
    assert!(blocks("available_blocks") * 4096 <= size.min(blocks("host_free_bytes") + (1 << 20)));
    assert_eq!(blocks("free_blocks"), size / 4096 - 1);
}

#[test]
fn trimming_gives_back_what_a_killed_daemon_had_not() {
    if is_left_out_in_ceph("it counts the blocks of a file") {
        return;
    }
    for has_daemon in [false, true] {
        let scene = Scene::with_pool_options(&["--size", "1G"]);
        let image = scene.file("image", &noise(1, 8 << 20));
        scene.ok(&["volume", "import", "a", &image, "--dedup", "off"]);
        // A killed process has not returned any space.
        let daemon = scene.daemon();
        scene.ok(&["volume", "delete", "a", "--yes"]);
        daemon.kill();
        let _daemon = has_daemon.then(|| scene.daemon());
        wait_until("the volume is gone", || {
            let stat = scene.json(&["pool", "stat"]);
            let reclaimed = stat["physical_blocks"] == 0 && stat["pending_free_blocks"] == 0;
            reclaimed || !has_daemon && scene.json(&["pool", "dedup"])["freed"].is_u64()
        });
        let trimmed = scene.json(&["pool", "trim"]);
        // The file system may keep a block or two to map the rest.
        let left = trimmed["free_bytes_on_disk"].as_u64().unwrap();
        assert!(left <= 16 << 10, "{trimmed}");
        let stat = scene.json(&["pool", "stat"]);
        assert!(
            stat["pool_bytes_on_disk"].as_u64().unwrap() <= 64 << 10,
            "{stat}"
        );
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn a_pool_grows_with_and_without_a_daemon() {
    for has_daemon in [false, true] {
        let scene = Scene::with_pool_options(&["--size", "16M"]);
        let _daemon = has_daemon.then(|| scene.daemon());
        let first = scene.file("image", &noise(1, 12 << 20));
        scene.ok(&["volume", "import", "first", &first]);
        let second = scene.file("second", &noise(2, 12 << 20));
        scene
            .run(&["volume", "import", "second", &second])
            .is_refusal(1, &["free"]);
        for (size, words) in [("0", "0"), ("15E", "large"), ("8M", "in use")] {
            let refused = scene.run(&["pool", "resize", "--size", size]);
            assert!(matches!(refused.code, Some(1 | 2)), "{refused:?}");
            assert!(refused.stderr.contains(words), "{refused:?}");
        }
        let same = scene.json(&["pool", "resize", "--size", "16M"]);
        assert!(same["plan"][0].as_str().unwrap().contains("has this size"));
        assert_eq!(scene.json(&["pool", "stat"])["pool_blocks"], 4096);

        let grown = scene.json(&["pool", "resize", "--size", "200M"]);
        assert_eq!(grown["done"], true);
        assert_eq!(scene.json(&["pool", "stat"])["pool_blocks"], 51_200);
        if !is_in_ceph() {
            assert_eq!(scene.data_bytes(), 200 << 20);
        }
        scene.ok(&["volume", "import", "second", &second]);
        assert!(scene.content("first") == noise(1, 12 << 20));
        assert!(scene.content("second") == noise(2, 12 << 20));
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn blocks_may_live_in_a_file_elsewhere_but_not_in_one_that_exists() {
    let scene = Scene::new();
    let pool = scene.path("split");
    let elsewhere = scene.path("elsewhere");
    let created = run(&[
        "pool", "create", &pool, "--size", "1G", "--data", &elsewhere,
    ]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert!(fs::metadata(&elsewhere).unwrap().is_file());

    let precious = scene.file("precious", b"do not touch");
    let other = scene.path("other");
    let outcome = run(&[
        "pool", "create", &other, "--size", "1G", "--data", &precious,
    ]);
    outcome.is_refusal(1, &["precious"]);
    assert_eq!(fs::read(&precious).unwrap(), b"do not touch");
    assert!(!fs::exists(&other).unwrap());
}

#[test]
fn a_directory_that_is_no_pool_stays_as_it_is() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_str().unwrap();
    for verb in [
        &["pool", "stat"][..],
        &["pool", "check"],
        &["volume", "list"],
        &["serve"],
    ] {
        run(&[verb, &["--pool", path]].concat()).is_refusal(1, &["there is no pool", path]);
        run(&[verb, &["--pool", "/no/such/place"]].concat()).is_refusal(1, &["/no/such/place"]);
        run(verb).is_refusal(2, &["--pool"]);
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_lost_file_is_named() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    for part in ["superblock", "meta", "log", "data", "secret"] {
        let scene = Scene::new();
        fs::remove_file(scene.pool().join(part)).unwrap();
        let before = contents(&scene.pool());
        let outcome = scene.run(&["volume", "list"]);
        outcome.is_refusal(1, &[part]);
        let without_lock = |files: Vec<(std::path::PathBuf, Vec<u8>)>| -> Vec<_> {
            files
                .into_iter()
                .filter(|(path, _)| !path.ends_with("lock"))
                .collect()
        };
        assert_eq!(without_lock(contents(&scene.pool())), without_lock(before));
    }
}

#[test]
fn without_its_index_a_pool_only_cannot_share() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = Scene::new();
    let image = scene.file(
        "image",
        &[noise(1, 40 * 4096), noise(1, 40 * 4096)].concat(),
    );
    scene.ok(&["volume", "import", "vm", &image]);
    fs::remove_file(scene.pool().join("index")).unwrap();
    assert_eq!(scene.volumes(), ["vm"]);
    assert!(scene.content("vm") == fs::read(&image).unwrap());
    scene
        .run(&["pool", "dedup"])
        .is_refusal(1, &["index", "--repair"]);
    let outcome = scene.run(&["volume", "import", "other", &image]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stderr.contains("warning: not all duplicates"),
        "{outcome:?}"
    );

    let check = scene.run(&["pool", "check"]);
    assert_eq!(check.code, Some(3), "{check:?}");
    let repaired = scene.json(&["pool", "check", "--repair"]);
    assert_eq!(repaired["findings"], repaired["repaired"]);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    scene.ok(&["pool", "dedup"]);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(
        (&stat["logical_blocks"], &stat["physical_blocks"]),
        (&160.into(), &40.into())
    );
}

#[test]
fn a_damaged_superblock_is_found() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = Scene::new();
    let path = scene.pool().join("superblock");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 40).unwrap();
    file.write_all_at(&[!byte[0]], 40).unwrap();
    scene
        .run(&["volume", "list"])
        .is_refusal(1, &["superblock"]);
    let check = scene.run(&["--format", "json", "pool", "check"]);
    assert_eq!(check.code, Some(3), "{check:?}");
    let document = check.json();
    assert_eq!(document["findings"], 1);
    let message = document["listed"][0]["message"].as_str().unwrap();
    assert!(message.contains("superblock"), "{message}");
}

#[test]
fn a_pool_in_use_is_left_alone() {
    let scene = Scene::new();
    let (mut import, pipe) = scene.import_from_open_pipe("busy", &noise(1, 4 << 20));
    // The lock file contains the holder's process id as soon as the import holds the lock.
    let holder = import.id().to_string();
    crate::harness::wait_until("the import holds the lock", || {
        fs::read_to_string(scene.pool().join("lock")).is_ok_and(|pid| pid.trim() == holder)
    });
    for verb in [&["pool", "stat"][..], &["volume", "list"], &["serve"]] {
        scene
            .run(verb)
            .is_refusal(1, &["in use", &format!("process {holder}")]);
    }
    import.kill().unwrap();
    import.wait().unwrap();
    drop(pipe);
    assert_eq!(scene.volumes(), [""; 0]);
}

#[test]
fn wrong_arguments_get_one_line() {
    run(&["volume", "paint"]).is_refusal(2, &["paint"]);
    run(&["--format", "xml", "pool", "stat"]).is_refusal(2, &["xml"]);
    run(&["volume", "create", "name"]).is_refusal(2, &["--size"]);
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.stderr.is_empty() && !help.stdout.is_empty());
    assert_eq!(run(&["pool"]).code, Some(2));
}

/// CRC-32C, bit by bit, of a page whose checksum is zero.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    };
    !bytes.iter().fold(!0, step)
}

/// Sets the minor version of a part's pages.
pub(crate) fn set_minor(scene: &Scene, part: &str, pages: usize, minor: u8) {
    let file = scene.pool().join(part);
    let mut bytes = fs::read(&file).unwrap();
    for page in bytes.chunks_mut(4096).take(pages) {
        // A root slot that was never written is zeros.
        if page[5] == 0 {
            continue;
        }
        page[6] = minor;
        page[60..64].fill(0);
        let checksum = crc32c(page);
        page[60..64].copy_from_slice(&checksum.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
}

/// The minor versions of both roots: releases that know only a lower one can only read the pool.
fn minors(scene: &Scene) -> [u8; 2] {
    let meta = fs::read(scene.pool().join("meta")).unwrap();
    [meta[6], meta[4096 + 6]]
}

#[test]
fn a_pool_keeps_its_format_until_it_needs_another() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 20 * 4096));
    scene.ok(&["volume", "import", "vm", &image]);
    let make_older = || {
        set_minor(&scene, "superblock", 1, 0);
        set_minor(&scene, "meta", 2, 0);
    };
    make_older();
    scene.ok(&["volume", "list"]);
    assert_eq!(scene.json(&["pool", "stat"])["format"], "1.0");
    let daemon = scene.daemon();
    scene.ok(&["snapshot", "create", "vm@s"]);
    scene.ok(&["volume", "create", "other", "--size", "1M"]);
    scene.ok(&["volume", "set", "vm", "--interval", "7"]);
    scene.ok(&["pool", "dedup"]);
    scene.ok(&["pool", "scrub"]);
    daemon.terminate();
    scene.ok(&["pool", "check"]);
    assert_eq!(minors(&scene), [0, 0]);

    let plan = scene.run(&["pool", "upgrade"]);
    assert_eq!(plan.code, Some(2), "{plan:?}");
    assert!(String::from_utf8_lossy(&plan.stdout).contains("would get 1.2"));
    assert_eq!(minors(&scene), [0, 0]);
    scene.ok(&["pool", "upgrade", "--yes"]);
    assert_eq!(scene.json(&["pool", "stat"])["format"], "1.2");
    assert!(minors(&scene).contains(&2));

    let odd = scene.file("odd", &noise(2, 4096 + 512));
    for (minor, needs) in [
        (
            1,
            &["volume", "create", "i", "--size", "1M", "--dedup", "inline"][..],
        ),
        (1, &["volume", "set", "other", "--dedup", "auto"]),
        (1, &["volume", "set", "vm", "--min-run", "4"]),
        (2, &["volume", "create", "o", "--size", "1049088"]),
        (2, &["volume", "resize", "other", "--size", "2097664"]),
        (2, &["volume", "import", "odd", &odd]),
    ] {
        scene.ok(&["volume", "set", "vm", "--min-run", "1"]);
        scene.ok(&["volume", "set", "other", "--dedup", "offline"]);
        make_older();
        scene.ok(&["pool", "stat"]);
        assert_eq!(minors(&scene), [0, 0]);
        scene.ok(needs);
        assert_eq!(minors(&scene).into_iter().max(), Some(minor), "{needs:?}");
    }
    scene.ok(&["pool", "check"]);
}

#[test]
fn a_later_format_is_only_read() {
    if is_left_out_in_ceph("it changes the file of a part") {
        return;
    }
    let scene = Scene::new();
    let upgraded = serde_json::json!({"schema_version": 1, "format": "1.2", "newest": "1.2", "upgraded": false});
    assert_eq!(scene.json(&["pool", "upgrade"]), upgraded);
    let daemon = scene.daemon();
    assert_eq!(scene.json(&["pool", "upgrade"]), upgraded);
    daemon.terminate();
    let superblock = scene.pool().join("superblock");
    let page = fs::read(&superblock).unwrap();
    for (at, version, words) in [
        (5, 2, "format version 2.2: onefold 2.x or later can read it"),
        (6, 4, "a later version of onefold wrote it"),
    ] {
        let mut later = page.clone();
        later[at] = version;
        later[60..64].fill(0);
        let checksum = crc32c(&later);
        later[60..64].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&superblock, &later).unwrap();
        scene.run(&["pool", "upgrade"]).is_refusal(1, &[words]);
    }
}

#[test]
fn a_pool_is_made_only_where_a_daemon_can_serve_it() {
    if is_left_out_in_ceph("its pool is in a directory") {
        return;
    }
    let scene = Scene::new();
    let inside = scene.pool().join("inside");
    let inside = inside.to_str().unwrap();
    let words = ["is inside the pool at", "outside it"];
    scene.run(&["pool", "create", inside]).is_refusal(2, &words);
    let data = scene.pool().join("other-data");
    let other = scene.path("other");
    let create = ["pool", "create", &other, "--data", data.to_str().unwrap()];
    scene.run(&create).is_refusal(2, &words);
    let fits = 106 - "/control.sock".len();
    let begin = scene.path("").len();
    let longest = scene.path(&"x".repeat(fits - begin));
    assert_eq!(longest.len(), fits);
    let too_long = format!("{longest}x");
    let words = ["94 bytes", "more than 93", "control socket"];
    scene
        .run(&["pool", "create", &too_long])
        .is_refusal(2, &words);
    assert!(!fs::exists(&too_long).unwrap() && !fs::exists(&other).unwrap());
    scene.ok(&["pool", "create", &longest]);
    let mut daemon = Daemon::start(&mut scene.command(&["--pool", &longest, "serve"]));
    daemon.wait_for_line("serving");
    scene.ok(&["--pool", &longest, "volume", "list"]);
}

#[test]
fn amounts_have_units() {
    let scene = Scene::with_pool_options(&["--size", "64M"]);
    let image = scene.file("image", &[noise(1, 2 << 20), noise(1, 1 << 20)].concat());
    let imported = scene.ok(&["volume", "import", "vm", &image]).stdout;
    let imported = String::from_utf8(imported).unwrap();
    let words = "imported: 3 MiB, 3 MiB of it data, of which 1 MiB were there already";
    assert!(imported.contains(words), "{imported}");
    scene
        .run(&["volume", "set", "vm", "--reservation", "100T"])
        .is_refusal(1, &["'vm'", "100 TiB cannot be kept free", "MiB are free"]);
    let large = scene.file("large", &noise(2, 40 << 20));
    scene.ok(&["volume", "import", "large", &large, "--dedup", "off"]);
    scene
        .run(&["pool", "resize", "--size", "1M"])
        .is_refusal(1, &["42 MiB are in use", "a pool of 1 MiB", "16 KiB free"]);
    scene.run(&["pool", "resize", "--size", "1K"]).is_refusal(
        2,
        &["a pool of 4 KiB is too small: with blocks of 4 KiB it has 8 KiB to 4 PiB"],
    );
    scene
        .run(&["volume", "create", "huge", "--size", "9E"])
        .is_refusal(2, &["a volume of 9 EiB exceeds the largest possible, "]);
    scene.ok(&["volume", "set", "large", "--dedup", "offline"]);
    let list = String::from_utf8(scene.ok(&["volume", "list"]).stdout).unwrap();
    let large = list.lines().find(|line| line.starts_with("large")).unwrap();
    assert!(large.contains("offline      40 MiB"), "{list}");
    let dedup = String::from_utf8(scene.ok(&["pool", "dedup"]).stdout).unwrap();
    let words = "40 MiB scanned: 40 MiB new, 0 B duplicate";
    assert!(dedup.contains(words), "{dedup}");
}
