//! Backups of volumes, snapshots and images, with a daemon and without.

use crate::harness::{Daemon, Outcome, Scene, is_in_ceph, noise, overwrite, qemu_img, sparse_disk};
use onefold_format::backup::{RepositoryObject, Sealing};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const DISK_BYTES: usize = 8 << 20;
const DATA: [(usize, usize); 3] = [(0, 1 << 20), (3 << 20, 5000), (DISK_BYTES - 4096, 4096)];

fn repository(scene: &mut Scene) -> String {
    let passphrase = scene.secret("passphrase", b"a passphrase\nmore lines\n");
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    let made = scene.json(&["backup", "init", "--passphrase-file", &passphrase]);
    assert_eq!(made["encrypted"], true);
    assert!(made["recovery_key"].as_str().unwrap().len() > 64);
    passphrase
}

fn open_repository(scene: &mut Scene, name: &str) {
    scene.use_open_repository(name);
    scene.ok(&["backup", "init"]);
}

/// The names in this kind of list.
fn names(scene: &Scene, list: &[&str], kind: &str) -> Vec<String> {
    let list = scene.json(list);
    let list = list[kind].as_array().unwrap().iter();
    let name = |entry: &Value| entry["name"].as_str().unwrap().to_owned();
    list.map(name).collect()
}

fn snapshots(scene: &Scene) -> Vec<String> {
    names(scene, &["snapshot", "list"], "snapshots")
}

pub(crate) fn backups(scene: &Scene) -> Vec<String> {
    names(scene, &["backup", "list"], "backups")
}

/// Backs up a volume and checks that the backup has the volume's content. Returns how changes were found, and
/// how much was read and was new.
#[track_caller]
fn backed_up(scene: &Scene, volume: &str, options: &[&str]) -> Value {
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

/// Scheduling classes, as in sched(7).
const SCHED_OTHER: i32 = 0;
const SCHED_IDLE: i32 = 5;

/// A process's scheduling class.
fn policy(process: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name, which may contain spaces, is in parentheses; the fields after it start with the third.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(41 - 3).unwrap().parse().unwrap()
}

/// The names of a process's threads that may use only one processor.
fn threads_on_one_processor(process: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let names = threads.flatten().filter_map(|thread| {
        // The thread may have ended.
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let processors = field("Cpus_allowed_list:")?.trim();
        let is_one = !processors.contains([',', '-']);
        is_one.then(|| field("Name:").unwrap_or_default().trim().to_owned())
    });
    names.collect()
}

/// Whether a command writes to any source.
fn is_lease_held(scene: &Scene) -> bool {
    let sources = Path::new(&scene.path("repository")).join("sources");
    let sources = fs::read_dir(sources).into_iter().flatten().flatten();
    sources
        .map(|source| source.path().join("writer"))
        .any(|folder| fs::read_dir(folder).is_ok_and(|mut holders| holders.next().is_some()))
}

#[test]
fn reading_for_a_backup_is_a_job_that_can_be_paused() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let data_bytes = (8 << 20) + 3 * 4096;
    let mut content = noise(1, data_bytes);
    content.resize(16 << 20, 0);
    let image = scene.file("disk", &content);
    scene.ok(&["volume", "import", "vm", &image]);
    let other = scene.file("other", &noise(2, 1 << 20));
    for _ in 0..2 {
        scene.ok(&["backup", "create", &format!("other={other}")]);
    }
    let daemon = scene.daemon();
    scene.ok(&["job", "pause", "copying"]);
    let create = ["backup", "create", "vm"];
    let mut child = scene.command(&create).spawn().unwrap();
    let job = || {
        let list = scene.json(&["job", "list"]);
        let jobs = list["jobs"].as_array().unwrap().clone();
        jobs.into_iter().find(|job| job["job"] == "copying")
    };
    // The command takes the lease before it reads. In the idle class this may take a while.
    crate::harness::wait_until("the backup waits", || {
        is_lease_held(&scene) && job().is_some_and(|job| job["state"] == "paused")
    });
    if std::thread::available_parallelism().unwrap().get() > 1 {
        crate::harness::wait_until("one thread keeps to one processor", || {
            threads_on_one_processor(daemon.pid()) == ["nbd-client-1"]
        });
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    assert_eq!(policy(child.id()), SCHED_IDLE);
    assert_eq!(job().unwrap()["bytes"], 0);
    // Other sources are pruned while the backup waits.
    scene.ok(&["backup", "forget", "other@1", "--yes"]);
    let prune = ["--format", "json", "backup", "prune", "--yes"];
    let pruned = scene.run(&prune);
    assert_eq!(pruned.code, Some(1), "{pruned:?}");
    let pruned = pruned.json();
    assert_eq!(pruned["sources"][0]["source"], "other");
    assert!(
        pruned["left"][0]
            .as_str()
            .unwrap()
            .contains("'vm' is in use")
    );
    scene.ok(&["job", "resume", "copying"]);
    let done = Outcome::of(child);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stderr.contains("onefold job resume copying"),
        "{done:?}"
    );
    // New data is read twice, and blocks without data are not read at all.
    assert_eq!(job().unwrap()["bytes"], 2 * data_bytes);
    assert_eq!(backups(&scene), ["other@2", "vm@1"]);
}

#[test]
fn a_snapshot_of_the_users_is_copied_after_guests_and_in_use_meanwhile() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &noise(1, 8 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    scene.ok(&["snapshot", "create", "vm@mine"]);
    let _daemon = scene.daemon();
    scene.ok(&["job", "pause", "copying"]);
    let create = ["backup", "create", "vm@mine"];
    let child = scene.command(&create).spawn().unwrap();
    let clients = || {
        let snapshots = scene.json(&["snapshot", "list", "vm"]);
        snapshots["snapshots"][0]["clients"]
            .as_array()
            .map(Vec::len)
    };
    crate::harness::wait_until("the backup is attached", || clients() == Some(1));
    let delete = ["snapshot", "delete", "vm@mine", "--yes"];
    scene.run(&delete).is_refusal(1, &["is attached to"]);
    scene.ok(&["job", "resume", "copying"]);
    let done = Outcome::of(child);
    assert_eq!(done.code, Some(0), "{done:?}");
    let list = scene.json(&["job", "list"]);
    let jobs = list["jobs"].as_array().unwrap();
    let copying = jobs.iter().find(|job| job["job"] == "copying").unwrap();
    assert_eq!(copying["bytes"], 16 << 20);
    assert_eq!(backups(&scene), ["vm@1"]);
}

#[test]
fn two_backups_of_one_volume_at_once_do_not_disturb_each_other() {
    let mut scene = Scene::new();
    open_repository(&mut scene, "repository");
    let image = scene.file("disk", &noise(1, 64 << 20));
    scene.ok(&["volume", "import", "vm", &image]);
    let _daemon = scene.daemon();
    scene.ok(&["volume", "create", "other", "--size", "1M"]);
    let create = ["backup", "create", "vm", "--hurry"];
    let mut first = scene.command(&create).spawn().unwrap();
    let first_id = first.id().to_string();
    while !is_lease_held(&scene) {
        let ended = first.try_wait().unwrap();
        assert!(ended.is_none(), "it ended before it was seen");
    }
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &first_id]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    assert_eq!(policy(first.id()), SCHED_OTHER);
    // The command reports the first error and backs up the rest.
    let second = scene.run(&["backup", "create", "other", "vm"]);
    signal("-CONT");
    let process = format!("process {first_id}");
    assert_eq!(second.code, Some(1), "{second:?}");
    for word in ["'vm' is in use by", &process, "backup create"] {
        assert!(second.stderr.contains(word), "{second:?}");
    }
    assert!(first.wait().unwrap().success());
    assert_eq!(backups(&scene), ["other@1", "vm@1"]);
    assert_eq!(snapshots(&scene).len(), 2, "only the bases");
    overwrite(&scene, "vm", 0, 9, 4096);
    let made = backed_up(&scene, "vm", &[]);
    assert_eq!(made, json!(["layers", 1, 4096, 4096]));
    scene.ok(&["backup", "create", "other"]);
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

/// Files whose path contains this part.
fn files_below(folder: &str, part: &str) -> Vec<String> {
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
