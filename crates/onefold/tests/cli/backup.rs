//! Backups of volumes, snapshots and images, with a daemon and without.

use crate::harness::{Daemon, Scene, is_in_ceph, noise, overwrite, qemu_img, sparse_disk};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub(crate) const DISK_BYTES: usize = 8 << 20;
pub(crate) const DATA: [(usize, usize); 3] =
    [(0, 1 << 20), (3 << 20, 5000), (DISK_BYTES - 4096, 4096)];

pub(crate) fn repository(scene: &mut Scene) -> String {
    let passphrase = scene.secret("passphrase", b"a passphrase\nmore lines\n");
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    let made = scene.json(&["backup", "init", "--passphrase-file", &passphrase]);
    assert_eq!(made["encrypted"], true);
    assert!(made["recovery_key"].as_str().unwrap().len() > 64);
    passphrase
}

pub(crate) fn open_repository(scene: &mut Scene, name: &str) {
    scene.use_open_repository(name);
    scene.ok(&["backup", "init"]);
}

/// The names in this kind of list.
pub(crate) fn names(scene: &Scene, list: &[&str], kind: &str) -> Vec<String> {
    let list = scene.json(list);
    let list = list[kind].as_array().unwrap().iter();
    let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    list.map(name).collect()
}

pub(crate) fn snapshots(scene: &Scene) -> Vec<String> {
    names(scene, &["snapshot", "list"], "snapshots")
}

pub(crate) fn backups(scene: &Scene) -> Vec<String> {
    names(scene, &["backup", "list"], "backups")
}

/// Backs up a volume and checks that the backup has the volume's content. Returns how changes were found, and
/// how much was read and was new.
#[track_caller]
pub(crate) fn backed_up(scene: &Scene, volume: &str, options: &[&str]) -> Value {
    let made = scene.json(&[&["backup", "create", volume], options].concat());
    let made = &made["backups"][0];
    let name = made["name"].as_str().unwrap();
    let restored = scene.ok(&["backup", "restore", name, "-"]);
    assert!(restored.stdout == scene.content(volume), "{name}");
    json!([
        made["changed_by"],
        made["parent"],
        made["read_bytes"],
        made["new_bytes"]
    ])
}

/// Files whose path contains this part.
pub(crate) fn files_below(folder: &str, part: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = path.to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files_below(&text, part));
        } else if text.contains(part) {
            found.push(text);
        }
    }
    found.sort();
    found
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
    // The user's own snapshot and one base snapshot per volume are left.
    let left = snapshots(&scene);
    assert_eq!(left.len(), 3, "{left:?}");
    // Deleting a volume deletes the snapshots taken for its backups, but not the user's.
    scene
        .run(&["volume", "delete", "vm", "--yes"])
        .is_refusal(1, &["has snapshots", "vm@mine"]);
    assert_eq!(snapshots(&scene), left);
    for (volume, daemon) in [("other", Some(daemon)), ("vm", None)] {
        if daemon.is_none() {
            scene.ok(&["snapshot", "delete", "vm@mine", "--yes"]);
        }
        let planned = scene.run(&["volume", "delete", volume]);
        assert_eq!(planned.code, Some(2), "{planned:?}");
        let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
        let base = format!("delete snapshot '{volume}@onefold-backup-");
        assert!(planned.contains(&base), "{planned}");
        scene.ok(&["volume", "delete", volume, "--yes"]);
    }
    assert!(snapshots(&scene).is_empty());
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
    let wrong = scene.secret("wrong", b"another\n");
    let empty = scene.secret("empty", b"\n");
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
    let inside = scene.pool().join("backups");
    let inside = inside.to_str().unwrap();
    let init = ["backup", "init", "--no-encryption", "--repository", inside];
    // For a pool in Ceph, the run directory on this host is not the pool.
    if !is_in_ceph() {
        refused(&init, 2, &["inside the pool"]);
    }
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
    let source = sources.map(|entry| entry.unwrap().path()).next().unwrap();
    let pack = source.join("packs/00/0.0");
    let mut bytes = fs::read(&pack).unwrap();
    bytes[5000] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let json = ["--format", "json", "backup", "verify", "--data"];
    let found = scene.run(&[&json[..], &with_key[..]].concat());
    assert_eq!(found.code, Some(3), "{found:?}");
    let found = found.json();
    let needed_by = &found["findings"][0]["needed_by"][0];
    assert_eq!(
        (&needed_by["name"], &needed_by["places"][0]["first_block"]),
        (&"web@1".into(), &0.into())
    );
    let restored = scene.run(&[&["backup", "restore", "web@1", "-"], &with_key[..]].concat());
    restored.is_refusal(1, &["blocks 0 to 63 of the backup", "group 0", "--salvage"]);
}

#[test]
fn only_what_changed_since_the_last_backup_is_read() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &sparse_disk(DISK_BYTES, &DATA));
    scene.ok(&["volume", "import", "vm", &image]);
    let data = 1_048_576 + 8192 + 4096;
    let first = backed_up(&scene, "vm", &[]);
    assert_eq!(first, json!(["nobody", null, data, data]));
    let daemon = scene.daemon();
    overwrite(&scene, "vm", 8192, 1, 4096);
    overwrite(&scene, "vm", 65536, 0, 8192);
    let second = backed_up(&scene, "vm", &[]);
    assert_eq!(second, json!(["layers", 1, 4096, 4096]));
    assert_eq!(snapshots(&scene).len(), 1, "the base");
    let nothing = backed_up(&scene, "vm", &[]);
    assert_eq!(nothing, json!(["layers", 2, 0, 0]));
    // Content that was removed from the disk and returns is found in the repository.
    overwrite(&scene, "vm", 8192, 2, 4096);
    backed_up(&scene, "vm", &[]);
    overwrite(&scene, "vm", 8192, 1, 4096);
    let back = backed_up(&scene, "vm", &[]);
    assert_eq!(back, json!(["layers", 4, 4096, 0]));
    let full = backed_up(&scene, "vm", &["--full"]);
    assert_eq!((&full[0], &full[3]), (&json!("nobody"), &json!(0)));
    drop(daemon);
    let without = backed_up(&scene, "vm", &[]);
    assert_eq!(without, json!(["layers", 6, 0, 0]));

    let dropped = backed_up(&scene, "vm", &["--base", "drop"]);
    assert_eq!(dropped, json!(["layers", 7, 0, 0]));
    assert!(snapshots(&scene).is_empty());
    let all = backed_up(&scene, "vm", &[]);
    assert_eq!((&all[0], &all[3]), (&json!("nobody"), &json!(0)));
    let verified = scene.json(&["backup", "verify", "--data"]);
    assert_eq!(verified["findings"], json!([]));
}

/// A damaged backup does not become a parent, because later backups would inherit the damage.
#[test]
fn all_is_read_where_the_last_backup_is_damaged() {
    type Damage = fn(&Path);
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &sparse_disk(DISK_BYTES, &DATA));
    scene.ok(&["volume", "import", "vm", &image]);
    let data = 1_048_576 + 8192 + 4096;
    let _daemon = scene.daemon();
    backed_up(&scene, "vm", &[]);
    let folder = Path::new(&scene.path("repository")).join("sources");
    let mut sources = fs::read_dir(folder).unwrap();
    let source = sources.next().unwrap().unwrap().path();
    let ways: [(&str, Damage); 4] = [
        ("packs/00/0.0", |file| fs::remove_file(file).unwrap()),
        ("recipes/3", |file| fs::write(file, b"").unwrap()),
        ("recipes/5", |file| fs::remove_file(file).unwrap()),
        ("backups/7", |file| {
            fs::write(file, b"nothing of ours").unwrap()
        }),
    ];
    for (n, (object, damage)) in (2..).zip(ways) {
        damage(&source.join(object));
        overwrite(&scene, "vm", 8192, n, 4096);
        let made = backed_up(&scene, "vm", &[]);
        assert_eq!(
            (&made[0], &made[2]),
            (&json!("nobody"), &json!(data)),
            "{object}"
        );
        assert_eq!(backed_up(&scene, "vm", &[])[0], "layers", "{object}");
    }
}

#[test]
fn whatever_happens_to_a_volume_its_backup_is_what_it_holds() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "one");
    let image = scene.file("disk", &sparse_disk(DISK_BYTES, &DATA));
    scene.ok(&["volume", "import", "vm", &image]);
    let _daemon = scene.daemon();
    let changed_by = |made: Value| made[0].as_str().unwrap().to_owned();
    scene.ok(&["snapshot", "create", "vm@old"]);
    overwrite(&scene, "vm", 0, 7, 65536);
    backed_up(&scene, "vm", &[]);
    overwrite(&scene, "vm", 131_072, 8, 65536);
    // Roll back to before the volume's base.
    scene.ok(&["snapshot", "rollback", "vm@old", "--yes"]);
    overwrite(&scene, "vm", 262_144, 9, 4096);
    backed_up(&scene, "vm", &[]);
    // Grow and shrink the volume, with data in the part that is added and removed.
    scene.ok(&["volume", "resize", "vm", "--size", "12M"]);
    overwrite(&scene, "vm", 11 << 20, 3, 65536);
    backed_up(&scene, "vm", &[]);
    scene.ok(&["volume", "resize", "vm", "--size", "1M", "--yes"]);
    scene.ok(&["volume", "resize", "vm", "--size", "9M"]);
    let grown = backed_up(&scene, "vm", &[]);
    assert_eq!(changed_by(grown), "layers");

    // A user's snapshot serves as a base while it exists.
    overwrite(&scene, "vm", 0, 4, 4096);
    scene.ok(&["snapshot", "create", "vm@mine"]);
    scene.ok(&["backup", "create", "vm@mine"]);
    overwrite(&scene, "vm", 4096, 5, 4096);
    let since_mine = backed_up(&scene, "vm", &[]);
    assert_eq!(since_mine[2], 4096);
    // Another repository has its own base and leaves this repository's base alone.
    open_repository(&mut scene, "two");
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "nobody");
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "layers");
    scene.set("ONEFOLD_REPOSITORY", scene.path("one"));
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "layers");
    // Without the latest base an older one is used; without any, all is read.
    let delete_bases = || {
        let bases = snapshots(&scene);
        for base in bases.iter().filter(|name| name.contains("onefold-backup-")) {
            scene.ok(&["snapshot", "delete", base, "--yes"]);
        }
    };
    delete_bases();
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "layers");
    delete_bases();
    scene.ok(&["snapshot", "delete", "vm@mine", "--yes"]);
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "nobody");
    // The next backup deletes the snapshot that a killed command left.
    let base = snapshots(&scene).pop().unwrap();
    let left = format!("{}-left", base);
    scene.ok(&["snapshot", "create", &left]);
    assert_eq!(changed_by(backed_up(&scene, "vm", &[])), "layers");
    assert!(!snapshots(&scene).contains(&left));
    // A command that fails deletes its snapshot and keeps the base.
    let before = snapshots(&scene);
    fs::rename(scene.path("one"), scene.path("away")).unwrap();
    assert_ne!(scene.run(&["backup", "create", "vm"]).code, Some(0));
    fs::rename(scene.path("away"), scene.path("one")).unwrap();
    let one_failed = scene.run(&["backup", "create", "vm", "missing=/nowhere"]);
    assert_eq!(one_failed.code, Some(1), "{one_failed:?}");
    assert!(one_failed.stderr.contains("/nowhere"), "{one_failed:?}");
    assert_eq!(snapshots(&scene).len(), before.len());
    // The renamed volume keeps its source.
    scene.ok(&["volume", "rename", "vm", "guest"]);
    assert_eq!(changed_by(backed_up(&scene, "guest", &[])), "layers");
}

#[test]
fn backups_are_served_over_nbd_straight_from_the_repository() {
    let mut scene = Scene::new();
    let passphrase = repository(&mut scene);
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let mut disk = sparse_disk(DISK_BYTES, &DATA);
    // The disk does not end at a block boundary.
    disk.truncate(DISK_BYTES - 512);
    let image = scene.file("disk", &disk);
    let web = format!("web={image}");
    scene.ok(&[&["backup", "create", &web], &with_key[..]].concat());
    let mut later = disk.clone();
    later[4096..12_288].copy_from_slice(&noise(9, 8192));
    later[65_536..131_072].fill(0);
    fs::write(&image, &later).unwrap();
    scene.ok(&[&["backup", "create", &web], &with_key[..]].concat());

    let diff = scene.json(&[&["backup", "diff", "web@1", "web@2"], &with_key[..]].concat());
    let extents = json!([
        {"offset": 4096, "length": 8192, "content": "data"},
        {"offset": 65_536, "length": 65_536, "content": "zero"},
    ]);
    assert_eq!(diff["extents"], extents);
    assert_eq!(
        (&diff["data_bytes"], &diff["zero_bytes"]),
        (&json!(8192), &json!(65_536))
    );

    let socket = scene.path("backup.sock");
    let address = format!("unix:{socket}");
    let mount = |names: &[&str]| {
        let mut arguments = vec!["backup", "mount", "--nbd", &address];
        arguments.extend(names);
        arguments.extend(with_key);
        let mut mounted = Daemon::start(&mut scene.command(&arguments));
        mounted.wait_for_line("served on");
        mounted
    };
    let mounted = mount(&[]);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={socket}");
    for (name, content) in [("web@1", &disk), ("web@2", &later), ("web@latest", &later)] {
        let copied = scene.path("copied");
        qemu_img(&["convert", "-f", "raw", "-O", "raw", &uri(name), &copied]);
        assert!(fs::read(&copied).unwrap() == *content, "{name}");
    }
    let map = qemu_img(&["map", "-f", "raw", "--output=json", &uri("web@2")]);
    let map: Value = serde_json::from_str(&map).unwrap();
    let data = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|run| run["data"] == true);
    let bytes: u64 = data.map(|run| run["length"].as_u64().unwrap()).sum();
    assert_eq!(bytes, (1 << 20) - 65_536 + 8192 + 4096 - 512);
    // A client that wants to write is refused.
    let refused = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4096", &uri("web@1")])
        .output();
    let refused = refused.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).to_lowercase();
    assert!(said.contains("permission denied"), "{refused:?}");
    assert!(mounted.terminate().success());

    // Only the named backups are served.
    let mounted = mount(&["web@1"]);
    qemu_img(&["info", "-f", "raw", &uri("web@1")]);
    let other = std::process::Command::new("qemu-img")
        .args(["info", "-f", "raw", &uri("web@2")])
        .output();
    assert!(!other.unwrap().status.success());
    drop(mounted);
    let missing = [
        &["backup", "mount", "--nbd", &address, "web@9"],
        &with_key[..],
    ]
    .concat();
    scene.run(&missing).is_refusal(1, &["no backup web@9"]);
}

#[test]
fn a_backup_that_is_killed_leaves_the_others_whole_and_nothing_behind() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &noise(1, 16 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    let _daemon = scene.daemon();
    let mut known: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..14_u64 {
        // Later rounds read less, and are killed sooner.
        let offset = (round as usize % 8) << 21;
        overwrite(&scene, "vm", offset, round as u8 + 1, 1 << 20);
        let content = scene.content("vm");
        let mut child = scene.command(&["backup", "create", "vm"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round * 23 % 160));
        // The command may have ended already.
        let _ = child.kill();
        child.wait().unwrap();
        for name in backups(&scene) {
            if !known.iter().any(|(backup, _)| *backup == name) {
                known.push((name, content.clone()));
            }
        }
        for (name, content) in &known {
            let restored = scene.ok(&["backup", "restore", name, "-"]);
            assert!(restored.stdout == *content, "{name} after round {round}");
        }
    }
    backed_up(&scene, "vm", &[]);
    assert_eq!(snapshots(&scene).len(), 1, "only the base");
    let verified = scene.json(&["backup", "verify", "--data"]);
    assert_eq!(verified["findings"], json!([]));
    assert_eq!(verified["backups"], backups(&scene).len());
    assert!(backups(&scene).len() > known.len());
}

/// A deleted volume or a mistyped name does not affect other disks' backups, and leaves nothing behind.
#[test]
fn a_disk_that_is_not_there_costs_only_itself() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let image = scene.file("disk", &noise(9, 1 << 20));
    let disk = format!("disk={image}");
    let create = [
        "--format",
        "json",
        "backup",
        "create",
        "gone",
        "lost=/nowhere",
        "vm",
        "vm2@none",
        &disk,
    ];
    let made = scene.run(&create);
    assert_eq!(made.code, Some(1), "{made:?}");
    let made = made.json();
    let names = made["backups"].as_array().unwrap().iter();
    let mut names: Vec<_> = names
        .map(|backup| backup["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["disk@1", "vm@1"]);
    let failures = made["failures"].as_array().unwrap();
    for (failure, hint) in failures.iter().zip(["gone", "/nowhere", "vm2"]) {
        assert!(failure.as_str().unwrap().contains(hint), "{failure}");
    }
    assert_eq!(failures.len(), 3);
    let stat = scene.json(&["backup", "stat"]);
    assert_eq!(stat["sources"].as_array().unwrap().len(), 2, "{stat}");
}

/// Damage is reported, all other work is done, and the printed remedies work.
#[test]
fn one_damaged_object_costs_only_itself() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let [web, db] = ["web", "db"].map(|name| {
        let image = scene.file(name, &noise(9, 1 << 20));
        format!("{name}={image}")
    });
    for _ in 0..3 {
        scene.ok(&["backup", "create", &web]);
        scene.ok(&["backup", "create", &db]);
    }
    let manifests = files_below(&scene.path("repository"), "/backups/");
    let of_two = manifests.iter().filter(|path| path.ends_with("/2"));
    let of_two: Vec<_> = of_two.collect();
    let (damaged, missing) = (of_two[0], of_two[1]);
    let bytes = fs::read(damaged).unwrap();
    fs::write(damaged, &bytes[..bytes.len() - 1]).unwrap();
    fs::remove_file(missing).unwrap();

    let listed = scene.run(&["--format", "json", "backup", "list"]);
    assert_eq!(listed.code, Some(3), "{listed:?}");
    assert_eq!(listed.json()["backups"].as_array().unwrap().len(), 4);
    assert!(listed.stderr.contains("is damaged"), "{listed:?}");
    assert!(listed.stderr.contains("is missing"), "{listed:?}");
    assert_eq!(scene.run(&["backup", "verify"]).code, Some(3));
    scene.ok(&["backup", "create", &web]);
    scene.ok(&["backup", "create", &db]);
    let forgotten = scene.run(&["backup", "forget", "--keep-last", "2", "--yes"]);
    assert_eq!(forgotten.code, Some(3), "{forgotten:?}");
    let pruned = scene.run(&["--format", "json", "backup", "prune", "--yes"]);
    assert_eq!(pruned.code, Some(1), "{pruned:?}");

    for name in ["web@2", "db@2"] {
        scene.ok(&["backup", "forget", name, "--yes"]);
    }
    scene.ok(&["backup", "prune", "--yes"]);
    scene.ok(&["backup", "verify", "--data"]);
    let listed = scene.json(&["backup", "list"]);
    let names = listed["backups"].as_array().unwrap().iter();
    let names: Vec<_> = names
        .map(|backup| backup["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["db@3", "db@4", "web@3", "web@4"]);
}

#[test]
fn a_volume_goes_back_to_a_backup_and_only_what_differs_is_written() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let disk = sparse_disk(DISK_BYTES, &DATA);
    let image = scene.file("disk", &disk);
    scene.ok(&["volume", "import", "vm", &image]);
    backed_up(&scene, "vm", &[]);
    let into = ["backup", "restore", "vm@1", "--into", "vm"];
    for has_daemon in [true, false] {
        let daemon = scene.daemon();
        overwrite(&scene, "vm", 8192, 1, 4096);
        overwrite(&scene, "vm", 2 << 20, 7, 65_536);
        overwrite(&scene, "vm", 131_072, 0, 8192);
        let daemon = has_daemon.then_some(daemon);
        let planned = scene.run(&into);
        assert_eq!(planned.code, Some(2), "{planned:?}");
        // The daemon was killed, so the plan has to recover the pool, and says so.
        let said = planned.stderr.lines().last().unwrap_or_default();
        let words = ["error: ", "'vm'", "vm@1", "--yes"];
        assert!(words.iter().all(|word| said.contains(word)), "{planned:?}");
        let restored = scene.json(&[&into[..], &["--yes"]].concat());
        assert_eq!(restored["written_bytes"], 4096 + 65_536 + 8192);
        assert!(scene.content("vm") == disk);
        let again = scene.json(&[&into[..], &["--yes"]].concat());
        assert_eq!(again["written_bytes"], 0);
        drop(daemon);
    }
    scene.ok(&["volume", "resize", "vm", "--size", "16M"]);
    scene
        .run(&["backup", "restore", "vm@1", "--into", "vm", "--yes"])
        .is_refusal(2, &["16777216", "volume resize"]);
}
