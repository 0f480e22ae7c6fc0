//! This host's memory of repositories: the storage chooses neither the protection, nor the repository, nor
//! how far its history goes.

use crate::backup::backups;
use crate::harness::{Outcome, PATIENCE, Scene, noise};
use onefold_format::backup::{RepositoryObject, Sealing};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

const RESTORE_LATEST: [&str; 4] = ["backup", "restore", "d@latest", "-"];

/// Backs up a disk with this content as `d`.
fn back_up(scene: &Scene, seed: u64, options: &[&str]) -> Outcome {
    let image = scene.file("disk", &noise(seed, 64 << 10));
    let disk = format!("d={image}");
    scene.run(&[&["backup", "create", &disk], options].concat())
}

#[track_caller]
fn ok(outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

fn rename(scene: &Scene, from: &str, to: &str) {
    fs::rename(scene.path(from), scene.path(to)).unwrap();
}

fn copy(scene: &Scene, from: &str, to: &str) {
    let mut copy = Command::new("cp");
    let copied = copy.args(["-a", &scene.path(from), &scene.path(to)]);
    assert!(copied.status().unwrap().success());
}

#[test]
fn the_storage_does_not_choose_the_protection_or_the_repository() {
    let mut scene = Scene::new();
    let key = scene.secret("key", &noise(1, 64));
    let with_key = ["--key-file", key.as_str()];
    let open = ["--no-encryption"];
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    scene.ok(&[&["backup", "init"], &with_key[..]].concat());
    ok(&back_up(&scene, 1, &with_key));
    let both = [&["backup", "list"], &with_key[..], &open].concat();
    scene
        .run(&both)
        .is_refusal(2, &["--no-encryption", "excludes"]);
    let refused = scene.run(&["backup", "list", "--no-encryption"]);
    refused.is_refusal(2, &["is encrypted", "--key-file"]);

    // The repository is changed to look unencrypted.
    let objects = ["repository/repository", "repository/keys/repository"];
    let write = |bytes: &[u8]| {
        let objects = objects.iter();
        objects.for_each(|object| fs::write(scene.path(object), bytes).unwrap());
    };
    let encrypted = fs::read(scene.path(objects[0])).unwrap();
    let plain = RepositoryObject {
        sealing: Sealing::Authenticated,
        ..RepositoryObject::decode(&encrypted).unwrap()
    };
    write(&plain.encode());
    for options in [&with_key[..], &open] {
        back_up(&scene, 1, options).is_refusal(1, &["is encrypted", "nothing was read or written"]);
    }
    // A host that has not used the repository before trusts only its user.
    let other = scene.path("state-of-another-host");
    let elsewhere = ["--no-encryption", "--state", &other];
    let refused = scene.run(&["backup", "list", "--state", &other]);
    refused.is_refusal(
        2,
        &["ONEFOLD_NO_ENCRYPTION=1", "nothing was read or written"],
    );
    write(&encrypted);

    // Another repository takes its place, with a source of the same name.
    rename(&scene, "repository", "original");
    let made = scene.json(&[&["backup", "init"], &elsewhere[..]].concat());
    let trust = format!("--trust {}", made["id"].as_str().unwrap());
    ok(&back_up(&scene, 2, &elsewhere));
    let restored = scene.run(&[&RESTORE_LATEST[..], &open].concat());
    for refused in [restored, back_up(&scene, 1, &open)] {
        refused.is_refusal(2, &[&trust, "nothing was read or written"]);
    }
    // A secret in the environment counts like one in an option.
    rename(&scene, "repository", "replaced");
    rename(&scene, "original", "repository");
    scene.set("ONEFOLD_KEY_FILE", key);
    let restored = scene.ok(&RESTORE_LATEST);
    assert!(restored.stdout == noise(1, 64 << 10));
}

#[test]
fn each_of_two_disks_at_one_place_is_trusted_once() {
    let mut scene = Scene::new();
    scene.use_open_repository("mnt");
    scene.ok(&["backup", "init"]);
    rename(&scene, "mnt", "first");
    let made = scene.json(&["backup", "init", "--state", &scene.path("other")]);
    let second = made["id"].as_str().unwrap().to_owned();
    let list = ["backup", "list"];
    scene.run(&list).is_refusal(2, &["--trust", &second]);
    let wrong = "00112233445566778899aabbccddeeff";
    let trust = |id| scene.run(&["backup", "list", "--trust", id]);
    trust(wrong).is_refusal(2, &[wrong, &second]);
    ok(&trust(&second));
    for (leaves, comes) in [("second", "first"), ("first", "second")] {
        rename(&scene, "mnt", leaves);
        rename(&scene, comes, "mnt");
        assert_eq!(scene.ok(&list).stderr, "");
    }
    // The first repository is recognised at another path.
    scene.set("ONEFOLD_REPOSITORY", scene.path("first"));
    assert_eq!(scene.ok(&list).stderr, "");
}

/// The file system may not keep two hosts apart, so the user has to name the writing host on each host.
#[test]
fn a_repository_with_one_writer_is_written_by_the_host_that_is_meant() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    let made = scene.json(&["backup", "init", "--one-writer"]);
    assert_eq!(made["one_writer"], true);
    let trust = ["--trust", made["id"].as_str().unwrap()];
    ok(&back_up(&scene, 1, &[]));

    let state = scene.path("state-of-another-host");
    let other = ["--state", state.as_str()];
    // Reading does not make a host the writer.
    for _ in 0..2 {
        scene.ok(&[&["backup", "list"], &other[..]].concat());
        back_up(&scene, 2, &other).is_refusal(2, &["one writer", "--trust", trust[1]]);
    }
    let listed = scene.json(&["backup", "list", "d"]);
    assert_eq!(listed["backups"].as_array().unwrap().len(), 1, "{listed}");
    ok(&back_up(&scene, 2, &[other, trust].concat()));
    ok(&back_up(&scene, 3, &other));
}

#[test]
fn a_repository_that_went_back_is_used_only_once_that_is_accepted() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    ok(&back_up(&scene, 1, &[]));
    copy(&scene, "repository", "older");
    ok(&back_up(&scene, 2, &[]));
    ok(&back_up(&scene, 3, &[]));

    // Forgetting and pruning by another host is not a rollback.
    copy(&scene, "repository", "newer");
    let other = ["--yes", "--state", &scene.path("state-of-another-host")];
    scene.ok(&[&["backup", "forget", "d@3"], &other[..]].concat());
    scene.ok(&[&["backup", "prune"], &other[..]].concat());
    assert_eq!(scene.ok(&["backup", "list"]).stderr, "");
    fs::remove_dir_all(scene.path("repository")).unwrap();
    rename(&scene, "older", "repository");

    let listed = scene.run(&["backup", "list"]);
    assert_eq!(listed.code, Some(3), "{listed:?}");
    let said = "of 'd' this host has seen backup 3, and the newest is backup 1 now";
    assert!(listed.stderr.contains(said), "{listed:?}");
    assert!(listed.stderr.contains("--accept-rollback"), "{listed:?}");
    let restored = scene.ok(&["backup", "restore", "d@1", "-"]);
    assert!(restored.stdout == noise(1, 64 << 10));
    assert!(restored.stderr.contains(said), "{restored:?}");
    let latest = scene.run(&RESTORE_LATEST);
    assert_eq!((latest.code, latest.stdout.len()), (Some(1), 0));
    back_up(&scene, 4, &[]).is_refusal(1, &[said, "--accept-rollback"]);
    for writing in [
        &["forget", "d@1", "--yes"][..],
        &["forget", "--keep-last", "1", "--yes"],
        &["protect", "d@1"],
        &["rename", "d", "e"],
        &["remove", "d", "--yes"],
        &["prune", "--yes"],
        &["repair", "--yes"],
    ] {
        let refused = scene.run(&[&["backup"], writing].concat());
        refused.is_refusal(1, &[said, "--accept-rollback"]);
    }

    ok(&back_up(&scene, 4, &["--accept-rollback"]));
    assert_eq!(backups(&scene), ["d@1", "d@4"]);
    let latest = scene.ok(&RESTORE_LATEST);
    assert!(latest.stdout == noise(4, 64 << 10));
    assert_eq!(latest.stderr, "");
    scene.ok(&["backup", "verify", "--data"]);
    // For this host, the copy without the accepted rollback has gone back, too.
    fs::remove_dir_all(scene.path("repository")).unwrap();
    rename(&scene, "newer", "repository");
    scene
        .run(&["backup", "protect", "d@3"])
        .is_refusal(1, &["backup 4", "backup 3 now"]);
}

/// A source of the same name that was created again is a different source.
#[test]
fn a_source_that_is_gone_is_not_begun_anew_unnoticed() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    copy(&scene, "repository", "older");
    ok(&back_up(&scene, 1, &[]));
    fs::remove_dir_all(scene.path("repository")).unwrap();
    rename(&scene, "older", "repository");
    back_up(&scene, 1, &[]).is_refusal(1, &["is gone", "--accept-rollback"]);
    // A host that does not know the history creates the backup, so it is not this host's latest one.
    ok(&back_up(
        &scene,
        2,
        &["--state", &scene.path("state-of-another-host")],
    ));
    for _ in 0..2 {
        let latest = scene.run(&RESTORE_LATEST);
        assert_eq!((latest.code, latest.stdout.len()), (Some(1), 0));
        assert!(latest.stderr.contains("is gone"), "{latest:?}");
    }
    ok(&back_up(&scene, 1, &["--accept-rollback"]));
    assert_eq!(scene.ok(&RESTORE_LATEST).stderr, "");
}

#[test]
fn without_memory_a_repository_is_trusted_and_with_a_damaged_one_it_is_not() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let state = Path::new(&scene.path("state")).join("repositories");
    let files = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let file = files.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    let file = file.last().unwrap();
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    let name = file.to_str().unwrap();
    back_up(&scene, 1, &[]).is_refusal(1, &[name, "mend it, or remove it"]);
    // If the memory has no folder, a warning is printed once.
    fs::remove_file(&file).unwrap();
    let first = back_up(&scene, 1, &[]);
    assert_eq!((first.code, first.stderr.lines().count()), (Some(0), 1));
    assert!(
        first.stderr.contains("has not used the repository"),
        "{first:?}"
    );
    assert_eq!(back_up(&scene, 1, &[]).stderr, "");
    // The folder of the memory cannot be created.
    scene.set(
        "ONEFOLD_STATE",
        format!("{}/state", scene.file("file", b"")),
    );
    let listed = scene.ok(&["backup", "list"]);
    assert_eq!(listed.stderr.lines().count(), 1, "{listed:?}");
    assert!(listed.stderr.contains("is not remembered"), "{listed:?}");
}

/// The host's cache is used if possible, and a backup without it has the same content.
#[test]
fn a_cache_that_cannot_be_used_is_a_note() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let cached = |scene: &Scene| {
        let folder = scene.path("cache/tables");
        let repositories = fs::read_dir(folder).map_or(0, Iterator::count);
        repositories > 0
    };
    assert_eq!(back_up(&scene, 1, &["--no-cache"]).stderr, "");
    assert!(!cached(&scene));
    assert_eq!(back_up(&scene, 2, &[]).stderr, "");
    assert!(cached(&scene));
    scene.set(
        "ONEFOLD_CACHE",
        format!("{}/cache", scene.file("no-folder", b"")),
    );
    let made = back_up(&scene, 3, &[]);
    assert_eq!((made.code, made.stderr.lines().count()), (Some(0), 1));
    assert!(
        made.stderr.contains("the cache of tables is not used"),
        "{made:?}"
    );
}

/// `script` provides a terminal.
#[test]
fn a_terminal_is_asked_for_the_passphrase_and_does_not_show_it() {
    let mut scene = Scene::new();
    let passphrase = scene.secret("passphrase", b"correct horse\n");
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    scene.ok(&["backup", "init", "--passphrase-file", &passphrase]);
    let refused = scene.run(&["backup", "stat"]);
    refused.is_refusal(1, &["encrypted", "--passphrase-file"]);
    let stat = scene.command(&["backup", "stat"]);
    let command = format!("{} backup stat", stat.get_program().to_str().unwrap());
    let mut script = Command::new("script");
    let environment = stat
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    script.envs(environment);
    script.args(["--echo", "always", "-qec", &command, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().expect("script is needed (Debian: bsdutils)");
    let (mut keyboard, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (sender, shown) = channel();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            let _ = sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
        }
    });
    let mut all = String::new();
    while !all.contains("passphrase of the repository in") {
        all += &shown.recv_timeout(PATIENCE).unwrap();
    }
    keyboard.write_all(b"correct horse\n").unwrap();
    let ended = script.wait().unwrap();
    reader.join().unwrap();
    all.extend(shown.iter());
    assert!(ended.success(), "{all}");
    assert!(all.contains("SOURCE") && !all.contains("horse"), "{all}");
}
