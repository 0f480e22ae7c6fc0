//! Background jobs: listing, pausing, resuming, and their work.

use crate::harness::{Scene, noise, run, wait_until};
use serde_json::Value;

/// The jobs with this name in a document.
fn jobs_named<'a>(document: &'a Value, name: &str) -> Vec<&'a Value> {
    let jobs = document["jobs"].as_array().unwrap().iter();
    jobs.filter(|job| job["job"] == name).collect()
}

/// The finder of one volume.
#[track_caller]
fn finder<'a>(document: &'a Value, volume: &str) -> &'a Value {
    let mut finders = jobs_named(document, "finder").into_iter();
    let found = finders.find(|job| job["volume"] == volume);
    found.unwrap_or_else(|| panic!("no finder of {volume} in {document}"))
}

/// Makes a volume of `blocks` blocks that a daemon's finder scans as often as possible.
fn import_for_the_finder(scene: &Scene, name: &str, blocks: usize) {
    let image = scene.file("image", &noise(1, blocks * 4096));
    scene.ok(&["volume", "import", name, &image, "--dedup", "off"]);
    let set = ["volume", "set", name, "--dedup", "offline"];
    scene.ok(&[&set[..], &["--cold-passes", "1", "--interval", "1"]].concat());
}

fn dirty_blocks(scene: &Scene, volume: &str) -> u64 {
    let stat = scene.json(&["volume", "stat", volume]);
    stat["pending_dedup_blocks"].as_u64().unwrap()
}

#[test]
fn a_daemon_finds_and_releases_by_itself() {
    for index in ["hash", "btree", "memory"] {
        let scene = Scene::with_pool_options(&["--index", index]);
        let _daemon = scene.daemon_with(&["--latency-budget", "100ms"]);
        import_for_the_finder(&scene, "a", 500);
        import_for_the_finder(&scene, "b", 400);
        wait_until("all is shared", || {
            scene.json(&["pool", "stat"])["physical_blocks"] == 500
        });
        wait_until("the finder is done", || {
            let jobs = scene.json(&["job", "list"]);
            let finders = jobs_named(&jobs, "finder").into_iter();
            finders
                .map(|job| job["scanned"].as_u64().unwrap())
                .sum::<u64>()
                == 900
        });
        let jobs = scene.json(&["job", "list"]);
        for (volume, blocks) in [("a", 500), ("b", 400)] {
            let job = finder(&jobs, volume);
            assert_eq!(job["scanned"], blocks, "{job}");
            assert_eq!(job["backlog_blocks"], 0, "{job}");
        }
        scene.ok(&["volume", "delete", "a", "--yes"]);
        wait_until("what was given up is released", || {
            let jobs = scene.json(&["job", "list"]);
            assert_eq!(jobs_named(&jobs, "finder").len(), 1, "{jobs}");
            let collector = jobs_named(&jobs, "collector")[0];
            collector["released"] == 500 && collector["freed"] == 100
        });
        assert_eq!(scene.json(&["pool", "stat"])["physical_blocks"], 400);
        assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    }
}

#[test]
fn a_paused_finder_leaves_its_volume_alone() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["job", "pause"]);
    import_for_the_finder(&scene, "still", 100);
    import_for_the_finder(&scene, "moving", 100);
    let paused = scene.json(&["job", "pause", "--volume", "still"]);
    assert_eq!(finder(&paused, "still")["state"], "paused");
    assert_eq!(finder(&paused, "moving")["state"], "paused");
    assert_eq!(jobs_named(&paused, "collector")[0]["state"], "paused");
    scene
        .run(&["job", "resume", "--volume", "moving"])
        .is_refusal(1, &["paused for all volumes"]);

    // Finders that were paused together are resumed together, so the one that must rest is paused again.
    scene.ok(&["job", "resume", "collector"]);
    scene.ok(&["job", "pause", "finder"]);
    scene.ok(&["volume", "set", "still", "--interval", "86400"]);
    scene.ok(&["job", "resume", "finder"]);
    scene.ok(&["job", "pause", "finder", "--volume", "still"]);
    let dirty = dirty_blocks(&scene, "still");
    wait_until("the other volume is done", || {
        let jobs = scene.json(&["job", "list"]);
        finder(&jobs, "moving")["backlog_blocks"] == 0
    });
    let jobs = scene.json(&["job", "list"]);
    assert_eq!(finder(&jobs, "still")["state"], "paused");
    assert_eq!(dirty_blocks(&scene, "still"), dirty);
    // On request, the work is done even while the job is paused.
    scene.ok(&["pool", "dedup"]);
    assert_eq!(dirty_blocks(&scene, "still"), 0);
    let resumed = scene.json(&["job", "resume", "--volume", "still"]);
    assert_ne!(finder(&resumed, "still")["state"], "paused");
}

#[test]
fn a_volume_has_a_finder_while_its_dedup_is_on() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&["volume", "create", "off", "--size", "1M", "--dedup", "off"]);
    let jobs = scene.json(&["job", "list"]);
    assert_eq!(jobs_named(&jobs, "finder").len(), 1, "{jobs}");
    assert_eq!(finder(&jobs, "vm")["state"], "idle");
    for volume in ["off", "gone"] {
        for verb in ["pause", "resume"] {
            scene
                .run(&["job", verb, "--volume", volume])
                .is_refusal(1, &["no finder", volume]);
        }
    }
    scene.ok(&["volume", "set", "off", "--dedup", "offline"]);
    scene.ok(&["volume", "set", "vm", "--dedup", "off"]);
    scene.ok(&["volume", "rename", "off", "on"]);
    let jobs = scene.json(&["job", "list"]);
    assert_eq!(jobs_named(&jobs, "finder").len(), 1, "{jobs}");
    finder(&jobs, "on");
    let text = String::from_utf8(scene.ok(&["job", "list"]).stdout).unwrap();
    assert!(
        text.contains("finder") && text.contains("collector"),
        "{text}"
    );
}

#[test]
fn jobs_need_a_daemon() {
    let scene = Scene::new();
    for verb in ["list", "pause", "resume"] {
        scene.run(&["job", verb]).is_refusal(1, &["no daemon"]);
        run(&["job", verb]).is_refusal(2, &["--pool"]);
    }
    // The pool was not opened even for a moment.
    let outcome = scene.ok(&["volume", "list"]);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn nonsense_is_refused() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    scene
        .run(&["job", "pause", "collector", "--volume", "vm"])
        .is_refusal(2, &["--volume"]);
    scene
        .run(&["job", "pause", "rebuild"])
        .is_refusal(2, &["rebuild"]);
    scene.run(&["job", "stop"]).is_refusal(2, &["stop"]);
    for budget in ["0", "0ms", "2", "fast", "-1ms"] {
        let budget = format!("--latency-budget={budget}");
        run(&["serve", "--pool", "/x", &budget]).is_refusal(2, &["--latency-budget"]);
    }
}

#[test]
fn a_daemon_with_work_stops_cleanly() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    import_for_the_finder(&scene, "vm", 20_000);
    wait_until("the finder is at work", || {
        dirty_blocks(&scene, "vm") < 20_000
    });
    assert_eq!(daemon.terminate().code(), Some(0));
    let outcome = scene.ok(&["volume", "list"]);
    assert_eq!(outcome.stderr, "", "a clean pool opens without remarks");
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    scene.ok(&["pool", "dedup"]);
    assert_eq!(dirty_blocks(&scene, "vm"), 0);
    assert!(scene.content("vm") == noise(1, 20_000 * 4096));
}

#[test]
fn idle_finders_of_snapshots_are_counted_and_not_listed() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "vm@one"]);
    scene.ok(&["snapshot", "create", "vm@two"]);
    let _daemon = scene.daemon();
    let text = || String::from_utf8(scene.ok(&["job", "list"]).stdout).unwrap();
    wait_until("both are idle", || {
        text().contains("and 2 finders of snapshots, idle")
    });
    assert!(!text().contains("vm@"), "{}", text());
    scene.ok(&["job", "pause", "finder"]);
    assert!(
        text().contains("vm@one") && text().contains("vm@two"),
        "{}",
        text()
    );
    let list = scene.json(&["job", "list"]);
    let finders = list["jobs"].as_array().unwrap().iter();
    assert_eq!(finders.filter(|job| job["job"] == "finder").count(), 3);
}
