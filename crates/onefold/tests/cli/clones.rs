//! Clones and rollbacks to snapshots, with and without a daemon, and killed midway.

use crate::harness::{Daemon, Scene, noise, overwrite, wait_until};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn being_deleted(scene: &Scene) -> Vec<serde_json::Value> {
    let stat = scene.json(&["pool", "stat"]);
    stat["being_deleted"].as_array().unwrap().clone()
}

#[track_caller]
fn holds(scene: &Scene, expected: &[(&str, &[u8])]) {
    for (name, content) in expected {
        assert!(scene.content(name) == *content, "{name}");
    }
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn clones_are_written_on_their_own_and_outlive_what_they_came_from() {
    let scene = Scene::new();
    let content = noise(1, 4 * MIB);
    scene.ok(&["volume", "import", "a", &scene.file("image", &content)]);
    scene.ok(&["snapshot", "create", "a@s"]);
    scene.ok(&["volume", "clone", "a@s", "b"]);
    let daemon = scene.daemon();
    overwrite(&scene, "a", MIB, 1, MIB);
    let reply = scene.json(&["volume", "clone", "a", "c"]);
    assert_eq!(
        (&reply["name"], &reply["size_bytes"]),
        (&"c".into(), &(4 * MIB).into())
    );
    scene.ok(&["volume", "clone", "c", "d"]);
    overwrite(&scene, "b", 0, 2, 8192);
    overwrite(&scene, "c", 2 * MIB, 3, 5000);
    let mut a = content.clone();
    a[MIB..2 * MIB].fill(1);
    let (mut b, mut c, d) = (content.clone(), a.clone(), a.clone());
    b[..8192].fill(2);
    c[2 * MIB..2 * MIB + 5000].fill(3);
    holds(
        &scene,
        &[
            ("a", &a),
            ("b", &b),
            ("c", &c),
            ("d", &d),
            ("a@s", &content),
        ],
    );
    daemon.kill();
    holds(
        &scene,
        &[
            ("a", &a),
            ("b", &b),
            ("c", &c),
            ("d", &d),
            ("a@s", &content),
        ],
    );

    // Deleted volumes are gone, even if others need their blocks.
    let _daemon = scene.daemon();
    scene
        .run(&["volume", "delete", "a", "--yes"])
        .is_refusal(1, &["a@s"]);
    scene.ok(&["volume", "delete", "a", "--snapshots", "--yes"]);
    assert_eq!(scene.volumes(), ["b", "c", "d"]);
    scene.ok(&["pool", "dedup"]);
    let left = being_deleted(&scene);
    assert!(!left.is_empty(), "b and c have a layer in common");
    for deletion in &left {
        let needed_by = deletion["needed_by"].as_array().unwrap();
        assert!(needed_by.len() >= 2, "{deletion}");
    }
    holds(&scene, &[("b", &b), ("c", &c), ("d", &d)]);
    scene.ok(&["volume", "create", "a", "--size", "1M"]);
    for name in ["b", "d"] {
        scene.ok(&["volume", "delete", name, "--yes"]);
    }
    wait_until("the deletions are done", || {
        being_deleted(&scene).is_empty()
    });
    scene.ok(&["pool", "dedup"]);
    holds(&scene, &[("c", &c)]);
    let stat = scene.json(&["pool", "stat"]);
    let different = |pattern: u8| {
        c.chunks(4096)
            .filter(|chunk| **chunk == [pattern; 4096])
            .count()
    };
    assert_eq!(stat["logical_blocks"], 1024, "{stat}");
    assert_eq!(stat["physical_blocks"], 1024 + 1 - different(1), "{stat}");
}

#[test]
fn a_volume_goes_back_to_its_snapshot() {
    let scene = Scene::new();
    let old = noise(2, 2 * MIB);
    scene.ok(&["volume", "import", "a", &scene.file("image", &old)]);
    let daemon = scene.daemon();
    scene.ok(&["snapshot", "create", "a@old"]);
    overwrite(&scene, "a", 4096, 1, MIB);
    scene.ok(&["snapshot", "create", "a@new"]);
    scene.ok(&["volume", "resize", "a", "--size", "3M"]);
    overwrite(&scene, "a", 2 * MIB, 2, MIB);
    let mut new = old.clone();
    new[4096..4096 + MIB].fill(1);

    let plan = scene.run(&["snapshot", "rollback", "a@old"]);
    assert_eq!(plan.code, Some(2), "{plan:?}");
    assert_eq!(scene.content("a").len(), 3 * MIB, "a plan changes nothing");
    scene.ok(&["snapshot", "rollback", "a@old", "--yes"]);
    holds(&scene, &[("a", &old), ("a@old", &old), ("a@new", &new)]);
    overwrite(&scene, "a", 0, 3, 4096);
    scene.ok(&["snapshot", "rollback", "a@new", "--yes"]);
    holds(&scene, &[("a", &new), ("a@old", &old)]);
    daemon.kill();
    holds(&scene, &[("a", &new), ("a@old", &old), ("a@new", &new)]);
    scene.ok(&["snapshot", "rollback", "a@old", "--yes"]);
    assert_eq!(being_deleted(&scene).len(), 0);
    scene.ok(&["volume", "delete", "a", "--yes", "--snapshots"]);
    scene.ok(&["pool", "dedup"]);
    let stat = scene.json(&["pool", "stat"]);
    assert_eq!(
        (&stat["logical_blocks"], &stat["physical_blocks"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn refusals_change_nothing() {
    let scene = Scene::new();
    let content = noise(3, MIB);
    scene.ok(&["volume", "import", "a", &scene.file("image", &content)]);
    scene.ok(&["snapshot", "create", "a@s"]);
    for (arguments, code, words) in [
        (&["volume", "clone", "a", "a"][..], 1, "exists"),
        (&["volume", "clone", "x", "b"], 1, "x"),
        (&["volume", "clone", "a@x", "b"], 1, "a@x"),
        (&["volume", "clone", "a@s", "b@s"], 2, "b@s"),
        (&["volume", "clone", "a@s"], 2, "NAME"),
        (&["snapshot", "rollback", "a@x", "--yes"], 1, "a@x"),
        (
            &["snapshot", "rollback", "a", "--yes"],
            2,
            "VOLUME@SNAPSHOT",
        ),
    ] {
        scene.run(arguments).is_refusal(code, &[words]);
    }
    let daemon = scene.daemon();
    let (import, pipe) = scene.import_from_open_pipe("half", &content);
    wait_until("the import has begun", || {
        let outcome = scene.run(&["volume", "create", "half", "--size", "1M"]);
        outcome.stderr.contains("being imported")
    });
    for arguments in [
        &["snapshot", "create", "half@s"][..],
        &["volume", "clone", "half", "b"],
    ] {
        scene
            .run(arguments)
            .is_refusal(1, &["half", "being imported"]);
    }
    drop(pipe);
    drop(import);
    daemon.kill();
    assert_eq!(scene.volumes()[0], "a");
    holds(&scene, &[("a", &content), ("a@s", &content)]);
}

#[test]
fn clones_of_clones_go_32_deep() {
    let scene = Scene::new();
    let mut content = noise(4, MIB);
    scene.ok(&["volume", "import", "v0", &scene.file("image", &content)]);
    let _daemon = scene.daemon();
    let mut contents = vec![content.clone()];
    for n in 0..32_usize {
        scene.ok(&["volume", "clone", &format!("v{n}"), &format!("v{}", n + 1)]);
        let range = n * 8192..n * 8192 + 4096;
        content[range.clone()].fill(n as u8 + 1);
        let name = format!("v{}", n + 1);
        overwrite(&scene, &name, range.start, n as u8 + 1, 4096);
        contents.push(content.clone());
    }
    let names: Vec<String> = (0..contents.len()).map(|n| format!("v{n}")).collect();
    let all: Vec<(&str, &[u8])> = names
        .iter()
        .zip(&contents)
        .map(|(name, content)| (name.as_str(), &content[..]))
        .collect();
    holds(&scene, &all);
    for name in &names[..32] {
        scene.ok(&["volume", "delete", name, "--yes"]);
    }
    wait_until("the deletions are done", || {
        being_deleted(&scene).is_empty()
    });
    holds(&scene, &all[32..]);
    assert_eq!(scene.json(&["pool", "stat"])["logical_blocks"], 256);
}

/// Runs a command and kills the daemon during it or during the work that it leaves; then starts another
/// daemon.
fn killed(scene: &Scene, daemon: Daemon, after: Duration, arguments: &[&str]) -> Daemon {
    let mut command = scene.command(arguments).spawn().unwrap();
    thread::sleep(after);
    daemon.kill();
    command.wait().unwrap();
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    scene.daemon()
}

#[test]
fn snapshots_of_a_group_rollbacks_and_deletions_bear_being_killed() {
    let scene = Scene::new();
    let content = noise(5, 8 * MIB);
    let file = scene.file("image", &content);
    for name in ["a", "b"] {
        scene.ok(&["volume", "import", name, &file]);
    }
    let mut daemon = scene.daemon();
    for n in 0..20_u64 {
        // From before the command is read to after all of its work is done.
        let after = Duration::from_micros(n * n * 150 + 500);
        for (name, pattern) in [("a", 1), ("b", 2)] {
            overwrite(&scene, name, 0, pattern, 4 * MIB);
        }
        let (a, b) = (format!("a@s{n}"), format!("b@s{n}"));
        daemon = killed(&scene, daemon, after, &["snapshot", "create", &a, &b]);
        let listed = |name: &str| {
            let outcome = scene.json(&["snapshot", "list"]);
            let snapshots = outcome["snapshots"].as_array().unwrap().clone();
            snapshots.iter().any(|snapshot| snapshot["name"] == name)
        };
        assert_eq!(listed(&a), listed(&b), "after {after:?}");
        if !listed(&a) {
            scene.ok(&["snapshot", "create", &a, &b]);
        }
        overwrite(&scene, "a", 2 * MIB, 3, 4 * MIB);
        daemon = killed(
            &scene,
            daemon,
            after,
            &["snapshot", "rollback", &a, "--yes"],
        );
        let mut before = content.clone();
        before[..4 * MIB].fill(1);
        let mut after_it = before.clone();
        after_it[2 * MIB..6 * MIB].fill(3);
        let found = scene.content("a");
        assert!(found == before || found == after_it, "after {after:?}");
        scene.ok(&["snapshot", "rollback", &a, "--yes"]);
        daemon = killed(&scene, daemon, after, &["snapshot", "delete", &a, "--yes"]);
        if listed(&a) {
            scene.ok(&["snapshot", "delete", &a, "--yes"]);
        }
        scene.ok(&["snapshot", "delete", &b, "--yes"]);
        assert!(scene.content("a") == before, "after {after:?}");
    }
    wait_until("the deletions are done", || {
        being_deleted(&scene).is_empty()
    });
    scene.ok(&["pool", "dedup"]);
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
    drop(daemon);
    assert_eq!(scene.json(&["pool", "stat"])["logical_blocks"], 4096);
}
