//! The source of a disk is determined by its origin, not by its name alone.

use crate::backup::backups;
use crate::harness::{Scene, noise};
use serde_json::json;
use std::fs;

const DISK_BYTES: usize = 1 << 20;

/// A pool with the volume `web`, and a repository.
fn scene(repository: &str, content: &[u8]) -> Scene {
    let mut scene = Scene::new();
    scene.use_open_repository(repository);
    let image = scene.file("content", content);
    scene.ok(&["volume", "import", "web", &image]);
    scene
}

#[test]
fn two_pools_with_a_volume_of_the_same_name_have_a_source_each() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let repository = repository.to_str().unwrap();
    let contents = [noise(1, DISK_BYTES), noise(2, DISK_BYTES)];
    let [one, two] = contents
        .each_ref()
        .map(|content| scene(repository, content));
    one.ok(&["backup", "init"]);
    one.ok(&["backup", "create", "web"]);

    assert_eq!(backups(&two), ["web@1"]);
    let refused = two.run(&["backup", "create", "web"]);
    refused.is_refusal(1, &["'web'", "volume", "pool", "--as", "--adopt"]);
    let made = two.json(&["backup", "create", "web", "--as", "web-two"]);
    assert_eq!(made["backups"][0]["name"], "web-two@1");
    assert_eq!(made["backups"][0]["disk"], "web");
    one.ok(&["backup", "create", "web"]);
    // Now the disk is known by its origin, but its name belongs to another disk, so the source has to be
    // named.
    let refused = two.run(&["backup", "create", "web"]);
    refused.is_refusal(1, &["its own source is 'web-two'"]);
    two.ok(&["backup", "create", "web", "--as", "web-two"]);

    two.ok(&["backup", "forget", "--keep-daily", "7", "--yes"]);
    assert_eq!(backups(&two), ["web@2", "web-two@2"]);
    for (name, content) in ["web@latest", "web-two@latest"].iter().zip(&contents) {
        assert!(two.ok(&["backup", "restore", name, "-"]).stdout == *content);
    }
    let listed = two.json(&["backup", "list"]);
    let origins = [0, 1].map(|n| listed["backups"][n]["origin"].clone());
    assert_ne!(origins[0]["pool"], origins[1]["pool"]);
    assert!(listed["backups"][0]["host"].as_str().unwrap() != "");
}

#[test]
fn a_volume_that_is_renamed_continues_its_source_and_one_made_again_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let content = noise(1, DISK_BYTES);
    let scene = scene(repository.to_str().unwrap(), &content);
    scene.ok(&["backup", "init"]);
    scene.ok(&["backup", "create", "web"]);
    scene.ok(&["volume", "rename", "web", "shop"]);
    let made = scene.run(&["--format", "json", "backup", "create", "shop"]);
    assert!(made.stderr.contains("'shop' continues the source 'web'"));
    let made = &made.json()["backups"][0];
    assert_eq!(made["name"], "web@2");
    assert_eq!(made["changed_by"], "layers");
    scene.ok(&["backup", "rename", "web", "shop"]);
    assert_eq!(backups(&scene), ["shop@1", "shop@2"]);
    let taken = scene.run(&["backup", "rename", "shop", "no@name"]);
    taken.is_refusal(2, &["no@name"]);

    // A recreated volume has another number.
    for snapshot in scene.json(&["snapshot", "list"])["snapshots"]
        .as_array()
        .unwrap()
    {
        let name = snapshot["name"].as_str().unwrap();
        scene.ok(&["snapshot", "delete", name, "--yes"]);
    }
    scene.ok(&["volume", "delete", "shop", "--yes"]);
    scene.ok(&["volume", "import", "shop", &scene.path("content")]);
    let refused = scene.run(&["backup", "create", "shop"]);
    refused.is_refusal(1, &["--adopt"]);
    let made = scene.json(&["backup", "create", "shop", "--adopt"]);
    assert_eq!(made["backups"][0]["name"], "shop@3");
    assert_eq!(made["backups"][0]["new_bytes"], 0);
    scene.ok(&["backup", "create", "shop"]);
    assert!(scene.ok(&["backup", "restore", "shop@latest", "-"]).stdout == content);
}

#[test]
fn an_image_is_known_by_its_path() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let image = scene.file("disk", &noise(1, DISK_BYTES));
    let create = |disk: &str, options: &[&str]| {
        scene.run(&[&["--format", "json", "backup", "create", disk], options].concat())
    };
    let name_of = |made: crate::harness::Outcome| made.json()["backups"][0]["name"].clone();
    assert_eq!(name_of(create(&format!("web={image}"), &[])), "web@1");
    // The same disk under another name keeps its source, unless another source is requested.
    assert_eq!(name_of(create(&format!("shop={image}"), &[])), "web@2");
    let twice = scene.run(&[
        "backup",
        "create",
        &format!("web={image}"),
        &format!("b={image}"),
    ]);
    assert_eq!(twice.code, Some(1), "{twice:?}");
    assert!(twice.stderr.contains("'web' and 'b' are the same disk"));
    assert_eq!(
        name_of(create(&format!("web={image}"), &["--as", "copy"])),
        "copy@1"
    );

    let moved = scene.path("moved");
    fs::rename(&image, &moved).unwrap();
    let refused = create(&format!("web={moved}"), &[]);
    refused.is_refusal(1, &[&image, &moved, "--adopt"]);
    assert_eq!(
        name_of(create(&format!("web={moved}"), &["--adopt"])),
        "web@4"
    );
    assert_eq!(name_of(create(&format!("web={moved}"), &[])), "web@5");
    assert_eq!(backups(&scene).len(), 6);
}

#[test]
fn the_latest_backup_is_that_of_the_latest_moment() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let old = noise(1, DISK_BYTES);
    let scene = scene(repository.to_str().unwrap(), &old);
    scene.ok(&["backup", "init"]);
    scene.ok(&["snapshot", "create", "web@old"]);
    // Times have a resolution of seconds.
    let before = scene.json(&["snapshot", "list"])["snapshots"][0]["created_unix_seconds"].clone();
    crate::harness::wait_until("the next second", || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs() > before.as_u64().unwrap()
    });
    let daemon = scene.daemon();
    crate::harness::overwrite(&scene, "web", 0, 7, 4096);
    scene.ok(&["backup", "create", "web"]);
    scene.ok(&["backup", "create", "web@old"]);
    drop(daemon);
    let latest = scene.json(&["backup", "show", "web@latest"]);
    assert_eq!(
        (&latest["name"], &latest["snapshot"]),
        (&json!("web@1"), &json!(null))
    );
    let of_old = scene.json(&["backup", "show", "web@2"]);
    assert_eq!(of_old["snapshot"], "old");
    assert!(scene.ok(&["backup", "restore", "web@2", "-"]).stdout == old);
}
