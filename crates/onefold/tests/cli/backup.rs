//! Backups of volumes, snapshots and images, with a daemon and without.

use crate::harness::{Scene, noise, sparse_disk};
use std::fs;

const DISK_BYTES: usize = 8 << 20;
const DATA: [(usize, usize); 3] = [(0, 1 << 20), (3 << 20, 5000), (DISK_BYTES - 4096, 4096)];

fn repository(scene: &mut Scene) -> String {
    let passphrase = scene.file("passphrase", b"a passphrase\nmore lines\n");
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    let made = scene.json(&["backup", "init", "--passphrase-file", &passphrase]);
    assert_eq!(made["encrypted"], true);
    assert!(made["recovery_key"].as_str().unwrap().len() > 64);
    passphrase
}

#[test]
fn an_image_is_backed_up_day_by_day_and_restored() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let disk = sparse_disk(DISK_BYTES, &DATA);
    let image = scene.file("disk", &disk);
    let name = format!("web={image}");
    let create = |extra: &[&str]| {
        let made = scene.json(&[&["backup", "create", &name], &with_key[..], extra].concat());
        made["backups"][0].clone()
    };
    let first = create(&[]);
    assert_eq!(first["name"], "web@1");
    assert_eq!(first["new_bytes"], first["logical_bytes"]);
    let mut later = disk.clone();
    later[..4096].copy_from_slice(&noise(9, 4096));
    fs::write(&image, &later).unwrap();
    let second = create(&["--tag", "after"]);
    assert_eq!(
        (&second["name"], &second["new_bytes"]),
        (&"web@2".into(), &4096.into())
    );

    for (backup, content) in [("web@1", &disk), ("web@2", &later), ("web@latest", &later)] {
        let restored = scene.path("restored");
        scene.ok(&[&["backup", "restore", backup, &restored], &with_key[..]].concat());
        assert!(fs::read(&restored).unwrap() == *content, "{backup}");
        fs::remove_file(&restored).unwrap();
        let piped = scene.ok(&[&["backup", "restore", backup, "-"], &with_key[..]].concat());
        assert!(piped.stdout == *content, "{backup}");
    }
    scene.ok(&[
        &["backup", "restore", "web@1", "--volume", "again"],
        &with_key[..],
    ]
    .concat());
    assert!(scene.content("again") == disk);

    let list = scene.json(&[&["backup", "list"], &with_key[..]].concat());
    assert_eq!(list["backups"][1]["tags"][0], "after");
    let shown = scene.json(&[&["backup", "show", "web@2"], &with_key[..]].concat());
    assert_eq!(shown["size_bytes"], DISK_BYTES);
    let verified = scene.json(&[&["backup", "verify", "--data"], &with_key[..]].concat());
    assert_eq!(
        (&verified["backups"], &verified["findings"]),
        (&2.into(), &serde_json::json!([]))
    );
}

#[test]
fn volumes_and_snapshots_are_backed_up_with_a_daemon_and_without() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let disk = sparse_disk(DISK_BYTES, &DATA);
    let image = scene.file("disk", &disk);
    scene.ok(&["volume", "import", "vm", &image]);
    scene.ok(&["volume", "import", "other", &image]);
    scene.ok(&["snapshot", "create", "vm@mine"]);
    let create = |sources: &[&str]| {
        let made = scene.json(&[&["backup", "create"], sources, &with_key[..]].concat());
        made["backups"].clone()
    };
    let made = create(&["vm", "other"]);
    assert_eq!(
        (&made[0]["name"], &made[1]["name"]),
        (&"vm@1".into(), &"other@1".into())
    );
    let daemon = scene.daemon();
    let again = create(&["vm@mine"]);
    assert_eq!(
        (&again[0]["name"], &again[0]["new_bytes"]),
        (&"vm@2".into(), &0.into())
    );
    create(&["vm"]);
    // Only the user's own snapshot is left.
    let snapshots = scene.json(&["snapshot", "list"]);
    let snapshots = snapshots["snapshots"].as_array().unwrap().clone();
    assert_eq!(snapshots.len(), 1, "{snapshots:?}");
    drop(daemon);
    for backup in ["vm@1", "vm@2", "vm@3", "other@1"] {
        let restored = scene.ok(&[&["backup", "restore", backup, "-"], &with_key[..]].concat());
        assert!(restored.stdout == disk, "{backup}");
    }
}

#[test]
fn what_cannot_be_done_is_said_in_a_line() {
    let mut scene = Scene::new();
    let image = scene.file("disk", &noise(9, 1 << 20));
    let web = format!("web={image}");
    scene
        .run(&["backup", "list"])
        .is_refusal(2, &["--repository"]);
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let wrong = scene.file("wrong", b"another\n");
    let empty = scene.file("empty", b"\n");
    let refused = |arguments: &[&str], code, words: &[&str]| {
        scene.run(arguments).is_refusal(code, words);
    };
    refused(
        &["backup", "list", "--passphrase-file", &wrong],
        1,
        &["opens no key"],
    );
    refused(
        &["backup", "list", "--passphrase-file", &empty],
        2,
        &["empty"],
    );
    refused(&["backup", "list"], 1, &["encrypted", "--passphrase-file"]);
    refused(&["backup", "init", "--no-encryption"], 1, &["not empty"]);
    let with = |arguments: &[&str]| [arguments, &with_key[..]].concat().join("\0");
    let refused_with = |arguments: &[&str], code, words: &[&str]| {
        let all = with(arguments);
        refused(&all.split('\0').collect::<Vec<_>>(), code, words);
    };
    refused_with(
        &["backup", "restore", "web@1", "-"],
        1,
        &["no source 'web'"],
    );
    refused_with(&["backup", "create", &web, &web], 2, &["twice"]);
    refused_with(&["backup", "create", "web=/nowhere"], 1, &["/nowhere"]);
    refused_with(&["backup", "create", "missing"], 1, &["missing"]);
    let create = with(&["backup", "create", &web]);
    scene.ok(&create.split('\0').collect::<Vec<_>>());
    refused_with(
        &["backup", "restore", "web@2", "-"],
        1,
        &["no backup web@2"],
    );
    refused_with(&["backup", "restore", "web", "-"], 2, &["SOURCE@N"]);
    scene.set("ONEFOLD_REPOSITORY", scene.path("elsewhere"));
    scene
        .run(&["backup", "list"])
        .is_refusal(1, &["no repository", "backup init"]);
}

#[test]
fn damage_is_named_with_the_backups_that_need_it() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let image = scene.file("disk", &noise(9, 1 << 20));
    let web = format!("web={image}");
    scene.ok(&[&["backup", "create", &web], &with_key[..]].concat());
    let sources = fs::read_dir(scene.path("repository/sources")).unwrap();
    let source = sources.map(|it| it.unwrap().path()).next().unwrap();
    let pack = source.join("packs/00/0.0");
    let mut bytes = fs::read(&pack).unwrap();
    bytes[5000] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let json = ["--format", "json", "backup", "verify", "--data"];
    let found = scene.run(&[&json[..], &with_key[..]].concat());
    assert_eq!(found.code, Some(3), "{found:?}");
    let found = found.json();
    assert_eq!(found["findings"][0]["backups"], serde_json::json!([1]));
    let restored = scene.run(&[&["backup", "restore", "web@1", "-"], &with_key[..]].concat());
    restored.is_refusal(1, &["block 0 of the backup", "group 0"]);
}
