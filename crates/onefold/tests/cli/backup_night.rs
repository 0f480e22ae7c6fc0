//! A command that backs up everything each night, whatever happens to disks and daemon.

use crate::backup::backups;
use crate::harness::{Outcome, Scene, noise, wait_until};
use serde_json::{Value, json};

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    scene
}

#[test]
fn all_volumes_are_backed_up_but_those_that_are_left_out() {
    let scene = scene();
    let image = scene.file("disk", &noise(1, 1 << 20));
    for name in ["web", "db-1", "db-2", "scratch-3"] {
        scene.ok(&["volume", "import", name, &image]);
    }
    let other = scene.file("other", &noise(2, 1 << 20));
    let other = format!("other={other}");
    let all = ["backup", "create", "--all", "--exclude", "scratch-*"];
    let made = scene.json(&[&all[..], &["--exclude", "db-2", &other]].concat());
    let made = made["backups"].as_array().unwrap().iter();
    let names: Vec<_> = made
        .map(|backup| backup["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["other@1", "db-1@1", "web@1"]);
    // A new volume is in tonight's backup, and a volume that is also named is backed up only once.
    scene.ok(&["volume", "create", "new", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "web@mine"]);
    let made = scene.json(&[&all[..], &["web@mine"]].concat());
    assert_eq!(made["backups"].as_array().unwrap().len(), 4, "{made}");
    assert_eq!(made["failures"], json!([]));
    assert_eq!(
        backups(&scene),
        [
            "db-1@1", "db-1@2", "db-2@1", "new@1", "other@1", "web@1", "web@2"
        ]
    );
    let one = scene.run(&[&all[..], &["--as", "name"]].concat());
    one.is_refusal(2, &["--as"]);
    scene
        .run(&["backup", "create", "--exclude", "x", "web"])
        .is_refusal(2, &["--all"]);
}

#[test]
fn a_daemon_that_restarts_is_waited_for() {
    let scene = scene();
    let content = noise(1, 8 << 20);
    let image = scene.file("disk", &content);
    scene.ok(&["volume", "import", "vm", &image]);
    let daemon = scene.daemon();
    scene.ok(&["job", "pause", "copying"]);
    let mut child = scene.command(&["backup", "create", "vm"]).spawn().unwrap();
    let is_waiting = || {
        let list = scene.json(&["job", "list"]);
        let copying = |job: &&Value| job["job"] == "copying" && job["state"] == "paused";
        let clients = scene.json(&["snapshot", "list"]);
        let clients = clients["snapshots"][0]["clients"].as_array().map(Vec::len);
        list["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .any(|job| copying(&job))
            && clients == Some(1)
    };
    wait_until("the backup reads", is_waiting);
    daemon.kill();
    let _daemon = scene.daemon();
    scene.run(&["job", "resume", "copying"]);
    wait_until("the backup ends", || child.try_wait().unwrap().is_some());
    let made = Outcome::of(child);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.stderr.contains("waits up to 5 minutes"), "{made:?}");
    assert!(scene.ok(&["backup", "restore", "vm@1", "-"]).stdout == content);
    assert_eq!(
        scene.json(&["snapshot", "list"])["snapshots"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
