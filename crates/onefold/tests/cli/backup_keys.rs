//! Keys and secrets of repositories.

use crate::backup::{open_repository, repository};
use crate::harness::{Scene, noise};
use onefold_format::backup::{RepositoryObject, Sealing};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Anybody who can write to the folder can replace the repository, or make it look unencrypted.
#[test]
fn a_secret_that_is_not_needed_is_refused() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let key = scene.secret("key", &[7; 32]);
    let image = scene.file("disk", &noise(9, 1 << 20));
    let web = format!("web={image}");
    scene.ok(&["backup", "create", &web, "--passphrase-file", &passphrase]);
    let object = Path::new(&scene.path("repository")).join("repository");
    let known = RepositoryObject::decode(&fs::read(&object).unwrap()).unwrap();
    let plain = RepositoryObject {
        sealing: Sealing::Authenticated,
        ..known
    };
    // Changing only one of the two objects is not accepted either.
    fs::write(&object, plain.encode()).unwrap();
    let create = ["backup", "create", &web, "--passphrase-file", &passphrase];
    scene
        .run(&create)
        .is_refusal(1, &["contradict each other", "nothing was"]);
    let copy = Path::new(&scene.path("repository")).join("keys/repository");
    fs::write(&copy, plain.encode()).unwrap();
    // A host that has used the repository before notices the change.
    scene.set("ONEFOLD_STATE", scene.path("state-of-another-host"));
    let secrets = [("--passphrase-file", &passphrase), ("--key-file", &key)];
    for (option, file) in secrets {
        for arguments in [
            &["create", &web][..],
            &["list"],
            &["restore", "web@1", "-"],
            &["stat"],
            &["prune", "--yes"],
        ] {
            let all = [&["backup"], arguments, &[option, file.as_str()]].concat();
            scene
                .run(&all)
                .is_refusal(2, &["not encrypted", "nothing was"]);
        }
    }
}

#[test]
fn keys_are_added_and_removed_and_one_is_always_left() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let image = scene.file("disk", &noise(9, 1 << 20));
    let web = format!("web={image}");
    scene.ok(&[&["backup", "create", &web], &with_key[..]].concat());
    let keys = |access: &[&str]| {
        let list = scene.json(&[&["backup", "key", "list"], access].concat());
        let list = list["keys"].as_array().unwrap().clone();
        let key = |entry: &Value| {
            (
                entry["key"].as_str().unwrap().to_owned(),
                entry["kind"].clone(),
            )
        };
        list.iter().map(key).collect::<Vec<_>>()
    };
    let first = keys(&with_key);
    let kinds: BTreeSet<_> = first.iter().map(|key| key.1.as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["passphrase", "recovery key"]));
    let short = scene.secret("short", b" 31 bytes are not enough to use.\n");
    let add = ["backup", "key", "add", "--new-key-file", &short];
    scene
        .run(&[&add[..], &with_key[..]].concat())
        .is_refusal(2, &["31 bytes", "openssl rand"]);
    let file = scene.secret("key", &noise(5, 64));
    let add = ["backup", "key", "add", "--new-key-file", &file];
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let added = scene.ok(&[&add[..], &with_key[..]].concat());
    assert!(added.stderr.contains("chmod go="), "{added:?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let with_file = ["--key-file", file.as_str()];
    let three = keys(&with_file);
    assert_eq!(three.len(), 3);
    let added = three.iter().find(|key| !first.contains(key)).unwrap();
    assert_eq!(added.1, "key file");
    let remove = |key: &str, options: &[&str]| {
        let command = ["backup", "key", "remove", key];
        scene.run(&[&command[..], options].concat())
    };
    let passphrase_key = &three.iter().find(|key| key.1 == "passphrase").unwrap().0;
    let plan = remove(passphrase_key, &with_file);
    plan.is_refusal(2, &[passphrase_key, "--yes"]);
    let own = [&["--yes"], &with_key[..]].concat();
    remove(passphrase_key, &own).is_refusal(2, &[passphrase_key, "opened the repository just now"]);
    assert_eq!(keys(&with_key).len(), 3);
    let yes = ["--yes", "--key-file", file.as_str()];
    assert_eq!(remove(passphrase_key, &yes).code, Some(0));
    let list = [&["backup", "list"], &with_key[..]].concat();
    scene.run(&list).is_refusal(1, &["opens no key"]);
    let recovery = keys(&with_file)
        .into_iter()
        .find(|key| key.0 != added.0)
        .unwrap();
    assert_eq!(remove(&recovery.0, &yes).code, Some(0));
    remove(&added.0, &yes).is_refusal(2, &["the only one"]);
    remove(&recovery.0, &yes).is_refusal(1, &["no key"]);
    scene.ok(&[&["backup", "restore", "web@1", "-"], &with_file[..]].concat());

    open_repository(&mut scene, "open");
    let list = scene.run(&["backup", "key", "list"]);
    list.is_refusal(2, &["not encrypted"]);
}
