//! Blocks that decay on disk: found, reported, kept from clients, and repaired.

use crate::harness::{Scene, noise, wait_until};
use serde_json::Value;
use std::process::Command;

const BLOCK: usize = 4096;

/// The block that holds these bytes.
fn block_with(scene: &Scene, content: &[u8]) -> u64 {
    let data = scene.stored();
    let found = data.chunks(BLOCK).position(|block| block == content);
    found.expect("it is stored") as u64
}

/// Overwrites some bytes of a block behind the pool's back.
fn damage(scene: &Scene, pba: u64) {
    scene.overwrite_stored(pba * BLOCK as u64 + 99, b"rot");
}

/// Reads one block of an export.
fn read_block(scene: &Scene, volume: &str, lba: u64) -> bool {
    let uri = scene.json(&["volume", "stat", volume])["nbd_uri"].clone();
    let read = format!("read {}k 4k", lba * 4);
    let done = Command::new("qemu-io")
        .args(["-r", "-f", "raw", "-c", &read, uri.as_str().unwrap()])
        .output()
        .expect("qemu-io is needed (Debian: qemu-utils)");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        said.contains("read 4096/4096") || said.contains("read failed"),
        "{done:?}"
    );
    said.contains("read 4096/4096")
}

/// The output of a scrub, and whether it found damage.
#[track_caller]
fn scrub(scene: &Scene, arguments: &[&str]) -> (Value, bool) {
    let mut all = vec!["--format", "json", "pool", "scrub"];
    all.extend(arguments);
    let outcome = scene.run(&all);
    assert!(matches!(outcome.code, Some(0 | 3)), "{outcome:?}");
    (outcome.json(), outcome.code == Some(3))
}

#[test]
fn a_block_that_decayed_is_found_named_and_healed() {
    for through_daemon in [false, true] {
        let scene = Scene::new();
        let content = noise(1, 100 * BLOCK);
        let image = scene.file("image", &content);
        scene.ok(&["volume", "import", "a", &image]);
        let other = scene.file("other", &noise(1, 60 * BLOCK));
        scene.ok(&["volume", "import", "b", &other]);
        assert!(!scrub(&scene, &[]).1);
        let bad = &content[50 * BLOCK..51 * BLOCK];
        let pba = block_with(&scene, bad);
        damage(&scene, pba);
        let mut daemon = scene.daemon();
        assert!(read_block(&scene, "a", 50), "nobody knows yet");
        if !through_daemon {
            assert!(daemon_stops(daemon));
            scrub(&scene, &[]);
            daemon = scene.daemon();
        }
        let (found, is_damaged) = scrub(&scene, &[]);
        assert!(is_damaged, "{found}");
        assert_eq!(found["left_blocks"], 0, "{found}");
        let block = &found["bad_blocks"][0];
        assert_eq!(block["pba"], pba, "{found}");
        assert_eq!(
            (&block["fault"], &block["repairable"]),
            (&"changed".into(), &true.into())
        );
        let users = block["places"].as_array().unwrap();
        assert_eq!(users.len(), 2, "{found}");
        for (user, volume) in users.iter().zip(["a", "b"]) {
            assert_eq!(
                (&user["volume"], &user["lba"]),
                (&volume.into(), &50.into())
            );
        }
        // Its readers get an error that the log names; all others are served.
        assert!(!read_block(&scene, "a", 50));
        let line = daemon.wait_for_line("ERROR onefold_store::volume");
        for part in [
            "'a'",
            "block 50 of the volume",
            &format!("{pba} of the pool"),
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert!(read_block(&scene, "a", 49) && read_block(&scene, "b", 51));
        assert_eq!(scene.run(&["pool", "check"]).code, Some(3));
        // The same content is imported again, into another volume.
        let cure = scene.file("cure", bad);
        scene.ok(&["volume", "import", "cure", &cure]);
        assert!(read_block(&scene, "a", 50));
        let (healed, is_damaged) = scrub(&scene, &["--list"]);
        assert!(
            !is_damaged && healed["bad_blocks"] == Value::Array(vec![]),
            "{healed}"
        );
        assert!(daemon_stops(daemon));
        assert!(scene.content("a") == content);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
        assert!(!scrub(&scene, &[]).1);
    }
}

fn daemon_stops(daemon: crate::harness::Daemon) -> bool {
    daemon.terminate().success()
}

#[test]
fn a_daemons_scrub_is_a_job_that_outlives_command_and_daemon() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(2, 4000 * BLOCK));
    scene.ok(&["volume", "import", "a", &image]);
    let daemon = scene.daemon();
    let job = |document: &Value| {
        let jobs = document["jobs"].as_array().unwrap().iter();
        let found = jobs.into_iter().find(|job| job["job"] == "scrub");
        found.cloned().unwrap_or(Value::Null)
    };
    assert_eq!(job(&scene.json(&["job", "list"])), Value::Null);
    // Interrupting the command leaves the job running. At this rate it takes longer than the rest of the
    // test.
    let mut command = scene.command(&["pool", "scrub", "--rate", "4K"]);
    let mut command = command.spawn().unwrap();
    wait_until("the scrub runs", || {
        let scanned = &job(&scene.json(&["job", "list"]))["scanned"];
        scanned.as_u64().is_some_and(|blocks| blocks > 0)
    });
    command.kill().unwrap();
    command.wait().unwrap();
    let paused = scene.json(&["job", "pause", "scrub"]);
    assert_eq!(job(&paused)["state"], "paused", "{paused}");
    let backlog = job(&paused)["backlog_blocks"].as_u64().unwrap();
    assert!(backlog > 0);
    let refused = scene.run(&["pool", "scrub"]);
    refused.is_refusal(1, &["paused", "job resume scrub"]);
    assert!(daemon_stops(daemon));
    // The run belongs to the pool: the next daemon continues it.
    let (list, _) = scrub(&scene, &["--list"]);
    assert_eq!(list["left_blocks"], backlog, "{list}");
    let _daemon = scene.daemon();
    let (done, is_damaged) = scrub(&scene, &[]);
    assert!(done["left_blocks"] == 0 && !is_damaged, "{done}");
    assert!(
        job(&scene.json(&["job", "list"]))["scanned"]
            .as_u64()
            .unwrap()
            <= backlog
    );
    let (part, _) = scrub(&scene, &["--percent", "10"]);
    assert_eq!(
        part["next_block"].as_u64(),
        Some((4 << 30) / BLOCK as u64 / 10 + 1),
        "{part}"
    );
    for wrong in [["--percent", "0"], ["--percent", "101"], ["--rate", "fast"]] {
        let arguments = [&["pool", "scrub"][..], &wrong].concat();
        assert_eq!(scene.run(&arguments).code, Some(2));
    }
}
