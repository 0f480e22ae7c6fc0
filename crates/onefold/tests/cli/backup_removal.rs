//! Removing a source removes all of its objects, and none of other sources.

use crate::backup::backups;
use crate::harness::{Scene, noise};
use std::fs;

const MIB: usize = 1 << 20;

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    scene
}

/// Number of source folders, including the folders of popular blocks.
fn sources(scene: &Scene) -> usize {
    let sources = fs::read_dir(scene.path("repository/sources"));
    sources.map_or(0, |entries| {
        let folders = entries.filter(|entry| entry.as_ref().unwrap().path().is_dir());
        folders.count()
    })
}

#[test]
fn a_source_goes_with_its_backups_and_the_others_stay() {
    let scene = scene();
    // Half of each disk is common to both.
    let disk = |own| [noise(1, MIB), noise(own, MIB)].concat();
    let (web, db) = (disk(2), disk(3));
    let images = [scene.file("web", &web), scene.file("db", &db)];
    let disks = [format!("web={}", images[0]), format!("db={}", images[1])];
    for _ in 0..2 {
        scene.ok(&["backup", "create", &disks[0], &disks[1]]);
    }
    let remove = ["backup", "remove", "web"];
    scene.ok(&["backup", "protect", "web@1"]);
    scene
        .run(&[&remove[..], &["--yes"]].concat())
        .is_refusal(2, &["web@1 is protected", "unprotect"]);
    scene.ok(&["backup", "unprotect", "web@1"]);
    let plan = scene.planned(&remove);
    assert_eq!(plan["backups"], serde_json::json!(["web@1", "web@2"]));
    assert!(plan["stored_bytes"].as_u64().unwrap() > MIB as u64);
    assert_eq!(backups(&scene), ["db@1", "db@2", "web@1", "web@2"]);

    let removed = scene.json(&[&remove[..], &["--yes"]].concat());
    assert_eq!(removed["is_done"], true);
    assert_eq!(backups(&scene), ["db@1", "db@2"]);
    assert!(scene.ok(&["backup", "restore", "db@2", "-"]).stdout == db);
    scene.ok(&["backup", "verify", "--data"]);
    assert_eq!(sources(&scene), 2, "db, and what is popular");
    scene
        .run(&[&remove[..], &["--yes"]].concat())
        .is_refusal(1, &["no source 'web'"]);
    // Another source now has the name, and uses the popular blocks.
    let made = scene.json(&["backup", "create", &disks[0]]);
    assert_eq!(made["backups"][0]["name"], "web@1");
    assert_eq!(made["backups"][0]["new_bytes"], MIB);
    // Without sources there are no popular blocks.
    for source in ["web", "db"] {
        scene.ok(&["backup", "remove", source, "--yes"]);
    }
    scene.ok(&["backup", "prune", "--yes"]);
    scene.ok(&["backup", "verify", "--data"]);
    assert_eq!(
        scene.json(&["backup", "stat"])["sources"],
        serde_json::json!([])
    );
}

#[test]
fn a_first_backup_that_fails_leaves_no_source() {
    let scene = scene();
    let image = scene.file("disk", &noise(1, MIB));
    let failed = [
        "backup",
        "create",
        &format!("web={image}"),
        "--image-format",
        "qcow2",
    ];
    assert_eq!(scene.run(&failed).code, Some(1));
    assert_eq!(sources(&scene), 0);
    // A source that has backups is kept.
    scene.ok(&failed[..3]);
    assert_eq!(scene.run(&failed).code, Some(1));
    assert_eq!(backups(&scene), ["web@1"]);
}
