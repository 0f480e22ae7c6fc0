//! Shrinks pools while they are served, stopped or filled, and reverts this.

use crate::harness::{Daemon, Scene, is_in_ceph, noise, wait_until};
use std::process::Command;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// Writes a pattern through a client and reads it back.
fn write(scene: &Scene, volume: &str, pattern: u8, offset: usize, len: usize) {
    let stat = scene.json(&["volume", "stat", volume]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    let commands = [
        format!("write -P {pattern} {offset} {len}"),
        "flush".to_owned(),
        format!("read -P {pattern} {offset} {len}"),
    ];
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw"]);
    for command in &commands {
        client.args(["-c", command]);
    }
    let out = client.arg(uri).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && !said.contains("failed"), "{out:?}");
}

/// Whether the pool's data has exactly this length; in Ceph, where only written ranges have objects, whether
/// it is not longer.
fn has_data_bytes(scene: &Scene, bytes: u64) -> bool {
    let found = scene.data_bytes();
    found == bytes || is_in_ceph() && found < bytes
}

/// A pool of 128 MiB with volumes `a` and `b`, which are partly equal, and a snapshot, all beyond the first
/// 32 MiB.
fn scene() -> (Scene, Vec<u8>, Vec<u8>) {
    let scene = Scene::with_pool_options(&["--size", "128M"]);
    let filler = scene.file("filler", &noise(9, 48 * MIB));
    scene.ok(&["volume", "import", "filler", &filler]);
    let a = noise(1, 12 * MIB);
    let b = [noise(1, 6 * MIB), noise(2, 6 * MIB)].concat();
    for (name, content) in [("a", &a), ("b", &b)] {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file]);
    }
    scene.ok(&["snapshot", "create", "a@one"]);
    scene.ok(&["volume", "delete", "filler", "--yes"]);
    (scene, a, b)
}

#[test]
fn a_pool_shrinks_with_and_without_a_daemon() {
    for has_daemon in [false, true] {
        let (scene, a, b) = scene();
        let _daemon: Option<Daemon> = has_daemon.then(|| scene.daemon());
        let planned = scene.run(&["pool", "resize", "--size", "32M"]);
        assert_eq!(planned.code, Some(2), "{planned:?}");
        let plan = String::from_utf8(planned.stdout).unwrap();
        assert!(plan.starts_with("plan: shrink"), "{plan}");
        for (size, word) in [("4K", "small"), ("16M", "free"), ("65M1", "size")] {
            let refused = scene.run(&["pool", "resize", "--size", size, "--yes"]);
            assert!(matches!(refused.code, Some(1 | 2)), "{refused:?}");
            assert!(refused.stderr.contains(word), "{refused:?}");
        }
        assert!(has_data_bytes(&scene, 128 << 20));

        let done = scene.json(&["pool", "resize", "--size", "32M", "--yes"]);
        assert_eq!(done["done"], true, "{done}");
        assert!(has_data_bytes(&scene, 32 << 20));
        let stat = scene.json(&["pool", "stat"]);
        assert_eq!(stat["pool_blocks"], 8192);
        assert!(scene.content("a") == a && scene.content("b") == b);
        assert!(scene.content("a@one") == a);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
        // Blocks that were shared before are shared again.
        scene.ok(&["pool", "dedup"]);
        assert_eq!(scene.json(&["pool", "stat"])["physical_blocks"], 18 * 256);

        scene.ok(&["pool", "resize", "--size", "256M"]);
        assert!(scene.content("b") == b);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn a_pool_shrinks_under_load() {
    let (scene, a, b) = scene();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "busy", "--size", "8M"]);
    let mut shrink = scene.command(&["pool", "resize", "--size", "32M", "--yes"]);
    let mut shrink = shrink.spawn().unwrap();
    let mut rounds = 0;
    while shrink.try_wait().unwrap().is_none() || rounds < 3 {
        let pattern = 1 + rounds % 100;
        write(&scene, "busy", pattern, 0, 4 * MIB);
        write(&scene, "b", pattern, 2 * MIB, MIB);
        rounds += 1;
    }
    assert!(shrink.wait().unwrap().success());
    assert!(has_data_bytes(&scene, 32 << 20));
    let last = 1 + (rounds - 1) % 100;
    let b = [&b[..2 * MIB], &vec![last; MIB], &b[3 * MIB..]].concat();
    assert!(scene.content("a") == a && scene.content("b") == b);
    assert!(scene.content("a@one") == a);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn a_shrinking_that_is_killed_goes_on() {
    // Measure the whole duration first, so that on any machine most commands are killed midway.
    let whole = {
        let (scene, ..) = scene();
        let started = Instant::now();
        scene.ok(&["pool", "resize", "--size", "32M", "--yes"]);
        started.elapsed()
    };
    for round in 0..20 {
        let (scene, a, b) = scene();
        let has_daemon = round % 2 == 0;
        let daemon = has_daemon.then(|| scene.daemon());
        let arguments = ["pool", "resize", "--size", "32M", "--yes"];
        let mut shrink = scene.command(&arguments).spawn().unwrap();
        std::thread::sleep(whole * round / 16);
        match daemon {
            Some(daemon) => daemon.kill(),
            None => shrink.kill().unwrap(),
        }
        shrink.wait().unwrap();
        if has_daemon {
            let _daemon = scene.daemon();
            let begun = scene.json(&["pool", "stat"])["shrinking_to_blocks"].is_u64();
            if begun || has_data_bytes(&scene, 32 << 20) {
                wait_until("the daemon has gone on", || {
                    scene.json(&["pool", "stat"])["pool_blocks"] == 8192
                });
            } else {
                scene.ok(&arguments);
            }
            assert!(scene.content("a") == a && scene.content("a@one") == a);
        } else if scene.json(&["pool", "stat"])["pool_blocks"] != 8192 {
            scene.ok(&arguments);
        }
        assert!(scene.content("a") == a && scene.content("b") == b);
        assert!(scene.content("a@one") == a);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
        assert_eq!(scene.json(&["pool", "stat"])["pool_blocks"], 8192);
    }
}

#[test]
fn a_pool_of_clones_shrinks_in_stages() {
    let scene = Scene::with_pool_options(&["--size", "256M"]);
    let filler = scene.file("filler", &noise(9, 96 * MIB));
    scene.ok(&["volume", "import", "filler", &filler]);
    let content = noise(1, 8 * MIB);
    let file = scene.file("image", &content);
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        scene.ok(&["volume", "import", name, &file]);
    }
    scene.ok(&["volume", "delete", "filler", "--yes"]);
    let arguments = ["pool", "resize", "--size", "20M", "--yes"];
    let done = scene.json(&arguments);
    assert!(done["plan"].to_string().contains("first"), "{done}");
    assert_eq!(scene.json(&["pool", "stat"])["pool_blocks"], 20 * 256);
    for name in names {
        assert!(scene.content(name) == content, "{name}");
    }
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}
