//! Copying shared blocks of volumes: the plan, the work, and interruptions.

use crate::harness::{Daemon, Outcome, Scene, noise};
use rustix::process::{Pid, Signal, kill_process};

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

/// Every other block is a block of the first image, in another order.
fn scattered(base: &[u8]) -> Vec<u8> {
    let blocks: Vec<&[u8]> = base.chunks(BLOCK).collect();
    let own = noise(2, base.len());
    let pairs = own.chunks(BLOCK).enumerate();
    let content = pairs.flat_map(|(n, own)| match n % 2 {
        0 => blocks[n * 7 % blocks.len()].to_vec(),
        _ => own.to_vec(),
    });
    content.collect()
}

/// A pool with volumes `base` and `v`, which shares single blocks with it.
fn scene(options: &[&str], base: &[u8]) -> (Scene, Vec<u8>) {
    let scene = Scene::with_pool_options(options);
    let v = scattered(base);
    for (name, content) in [("base", base), ("v", &v[..])] {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file]);
    }
    (scene, v)
}

#[track_caller]
fn assert_clean(scene: &Scene) {
    let check = scene.json(&["pool", "check"]);
    assert_eq!(check["findings"], 0, "{check}");
}

#[test]
fn short_runs_and_then_all_blocks_become_the_volumes_own() {
    for has_daemon in [false, true] {
        let base = noise(1, 2 * MIB);
        let (scene, v) = scene(&["--size", "64M"], &base);
        let _daemon: Option<Daemon> = has_daemon.then(|| scene.daemon());
        let before = scene.json(&["volume", "stat", "v"]);
        assert_eq!(before["extents"], 512, "{before}");
        assert_eq!(before["blocks_per_extent"], 1.0, "{before}");

        let planned = scene.run(&["volume", "defrag", "v"]);
        assert_eq!(planned.code, Some(2), "{planned:?}");
        let text = String::from_utf8(planned.stdout).unwrap();
        for words in [
            "plan: copy 2 MiB, 512 blocks, that volume 'v' shares in runs of fewer than 4 blocks",
            "plan: use 2 MiB of the ",
            "plan: change the data that a reader finds from 512 extents to",
            "plan: lower the pool's dedup ratio from 1.33 to 0.80",
        ] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
        let planned = scene.run(&["--format", "json", "volume", "unshare", "v"]);
        assert_eq!(planned.code, Some(2), "{planned:?}");
        assert_eq!(scene.json(&["volume", "stat", "v"])["shared_blocks"], 512);

        let done = scene.json(&["volume", "defrag", "v", "--yes"]);
        assert_eq!(
            (&done["done"], &done["copied_blocks"]),
            (&true.into(), &512.into())
        );
        assert!(done["extents_after"].as_u64().unwrap() < 32, "{done}");
        let after = scene.json(&["volume", "stat", "v"]);
        assert_eq!(after["extents"], done["extents_after"]);
        assert_eq!(after["mapped_bytes"], before["mapped_bytes"]);
        assert_eq!(
            (&after["private_blocks"], &after["shared_blocks"]),
            (&512.into(), &0.into())
        );
        // The finder does not share the copies again.
        assert_eq!(scene.json(&["pool", "dedup"])["scanned"], 0);
        assert_eq!(scene.json(&["pool", "stat"])["physical_blocks"], 1024);

        // Defrag leaves long runs shared; unshare does not.
        let done = scene.json(&["volume", "defrag", "base", "--min-run", "256", "--yes"]);
        assert_eq!(
            (&done["done"], &done["copied_blocks"]),
            (&true.into(), &0.into())
        );
        let done = scene.json(&["volume", "unshare", "base", "--yes"]);
        assert_eq!(done["copied_blocks"], 512, "{done}");
        let again = scene.ok(&["volume", "unshare", "base"]);
        let text = String::from_utf8(again.stdout).unwrap();
        assert!(
            text.starts_with("done: leave volume 'base' as it is"),
            "{text}"
        );
        scene.ok(&["pool", "dedup"]);
        assert_eq!(scene.json(&["pool", "stat"])["physical_blocks"], 1024);
        assert!(scene.content("v") == v && scene.content("base") == base);
        assert_clean(&scene);
    }
}

#[test]
fn a_shortest_run_of_the_volume_is_the_usual_one() {
    let base = noise(1, MIB);
    let scene = Scene::with_pool_options(&["--size", "64M"]);
    // Runs of eight.
    let chunks: Vec<&[u8]> = base.chunks(8 * BLOCK).rev().collect();
    let v = chunks.concat();
    for (name, content) in [("base", &base), ("v", &v)] {
        let file = scene.file("image", content);
        scene.ok(&["volume", "import", name, &file]);
    }
    assert_eq!(
        scene.json(&["volume", "stat", "v"])["blocks_per_extent"],
        8.0
    );
    assert_eq!(scene.json(&["volume", "defrag", "v"])["copied_blocks"], 0);
    scene.ok(&["volume", "set", "v", "--min-run", "9"]);
    let done = scene.json(&["volume", "defrag", "v", "--yes"]);
    assert_eq!(done["copied_blocks"], 256, "{done}");
    for wrong in ["0", "1", "257"] {
        let refused = scene.run(&["volume", "defrag", "v", "--min-run", wrong]);
        refused.is_refusal(2, &["2..=256"]);
    }
    scene
        .run(&["volume", "unshare", "missing", "--yes"])
        .is_refusal(1, &["missing"]);
    assert!(scene.content("v") == v);
    assert_clean(&scene);
}

#[test]
fn a_full_pool_ends_it_and_what_was_copied_stays() {
    for has_daemon in [false, true] {
        let base = noise(1, 12 * MIB);
        let scene = Scene::with_pool_options(&["--size", "32M"]);
        for name in ["base", "v"] {
            let file = scene.file("image", &base);
            scene.ok(&["volume", "import", name, &file]);
        }
        let filler = scene.file("filler", &noise(9, 14 * MIB));
        scene.ok(&["volume", "import", "filler", &filler]);
        scene.ok(&["pool", "dedup"]);
        let _daemon: Option<Daemon> = has_daemon.then(|| scene.daemon());
        let planned = scene.run(&["volume", "unshare", "v"]);
        let text = String::from_utf8(planned.stdout).unwrap();
        assert!(text.contains("plan: stop when no more is free"), "{text}");
        let ended = scene.run(&["volume", "unshare", "v", "--yes"]);
        ended.is_refusal(1, &["blocks copied before this", "make room"]);
        let stat = scene.json(&["volume", "stat", "v"]);
        let private = stat["private_blocks"].as_u64().unwrap();
        assert!((1000..2048).contains(&private), "{stat}");
        // The reserve is left for guests.
        let stat = scene.json(&["pool", "stat"]);
        assert!(
            stat["free_blocks"].as_u64() >= stat["reserve_blocks"].as_u64(),
            "{stat}"
        );
        assert!(scene.content("v") == base && scene.content("base") == base);
        assert_clean(&scene);
        scene.ok(&["volume", "delete", "filler", "--yes"]);
        scene.ok(&["pool", "dedup"]);
        let done = scene.json(&["volume", "unshare", "v", "--yes"]);
        assert_eq!(done["copied_blocks"], 3072 - private, "{done}");
        assert!(scene.content("v") == base);
        assert_clean(&scene);
    }
}

/// Interrupted by the end of the command, and by the death of the daemon.
#[test]
fn an_interrupted_copying_goes_on_with_what_is_left() {
    for round in 0..6 {
        let base = noise(1, 24 * MIB);
        let scene = Scene::with_pool_options(&["--size", "128M"]);
        for name in ["base", "v"] {
            let file = scene.file("image", &base);
            scene.ok(&["volume", "import", name, &file]);
        }
        let mut daemon = Some(scene.daemon());
        let command = scene
            .command(&["volume", "unshare", "v", "--yes"])
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(command.id().cast_signed()).unwrap();
        let is_under_way = || {
            let stat = scene.json(&["volume", "stat", "v"]);
            stat["private_blocks"].as_u64().unwrap() > 512 * round
        };
        crate::harness::wait_until("it copies", is_under_way);
        match round % 3 {
            0 => kill_process(pid, Signal::INT).unwrap(),
            1 => daemon.take().unwrap().kill(),
            _ => {
                daemon.take().unwrap().terminate();
            }
        }
        // The work may be done already.
        let _ended = Outcome::of(command);
        if daemon.is_none() {
            daemon = Some(scene.daemon());
        }
        let left = scene.json(&["volume", "stat", "v"]);
        assert!(
            left["private_blocks"].as_u64().unwrap() > 512 * round,
            "{left}"
        );
        assert_clean(&scene);
        let done = scene.json(&["volume", "unshare", "v", "--yes"]);
        assert!(
            done["copied_blocks"].as_u64().unwrap() <= 6144 - 512 * round,
            "{done}"
        );
        assert_eq!(scene.json(&["volume", "stat", "v"])["shared_blocks"], 0);
        assert!(scene.content("v") == base && scene.content("base") == base);
        drop(daemon);
        assert_clean(&scene);
    }
}
