//! Repairs damaged backups of several disks, and cleans up after killed commands.

use crate::backup::backups;
use crate::harness::{Daemon, Scene, noise};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    scene
}

fn said(stdout: &[u8]) -> String {
    String::from_utf8_lossy(stdout).into_owned()
}

/// All files of the repository's packs.
fn packs(scene: &Scene) -> Vec<PathBuf> {
    fn walk(folder: PathBuf, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(path, found);
            } else if path.to_string_lossy().contains("/packs/") && !path.ends_with("source") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(scene.path("repository").into(), &mut found);
    found.sort();
    found
}

#[test]
fn what_several_disks_have_is_stored_once_and_what_is_damaged_comes_back() {
    let mut scene = scene();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let common = noise(1, 2 * MIB);
    let disks: Vec<_> = (2..5)
        .map(|seed| [&common[..], &noise(seed, MIB)].concat())
        .collect();
    let images = disks
        .iter()
        .enumerate()
        .map(|(n, disk)| scene.file(&format!("disk-{n}"), disk));
    let images: Vec<_> = images.collect();
    let wanted = |n: usize| format!("vm-{n}={}", images[n]);
    let made = scene.json(&["backup", "create", &wanted(0), &wanted(1)]);
    assert_eq!(made["new_popular_bytes"], 2 * MIB);
    for backup in made["backups"].as_array().unwrap() {
        assert_eq!(backup["popular_bytes"], 2 * MIB);
        assert_eq!(backup["new_bytes"], MIB);
    }
    let later = scene.json(&["backup", "create", &wanted(2)]);
    assert_eq!(later["backups"][0]["new_bytes"], MIB);
    let stat = scene.json(&["backup", "stat"]);
    assert_eq!(stat["logical_bytes"], 9 * MIB);
    assert_eq!(stat["content_bytes"], 5 * MIB);
    assert_eq!(stat["popular"][0]["content_bytes"], 2 * MIB);
    scene.ok(&["backup", "stat"]);

    // Damage a group of popular blocks and a group of one disk's own blocks.
    for pack in packs(&scene) {
        let mut bytes = fs::read(&pack).unwrap();
        bytes[5000] ^= 1;
        fs::write(&pack, bytes).unwrap();
    }
    let plan = scene.planned(&["backup", "repair"]);
    assert_eq!(plan["is_done"], false);
    let damaged = plan["sources"].as_array().unwrap().iter();
    let damaged =
        damaged.map(|source| (source["source"].clone(), source["damaged_blocks"].clone()));
    let expected = [json!("vm-0"), json!("vm-1"), json!("vm-2"), json!(null)];
    let expected = expected.map(|source| (source, json!(64)));
    let mut damaged: Vec<_> = damaged.collect();
    damaged.sort_by_key(|(source, _)| source.as_str().unwrap_or("~").to_owned());
    assert_eq!(damaged, expected);
    let of_popular = plan["findings"].as_array().unwrap().iter();
    let most = of_popular.map(|finding| finding["needed_by"].as_array().unwrap().len());
    assert_eq!(most.max(), Some(3));
    scene
        .run(&["backup", "restore", "vm-0@1", "-"])
        .is_refusal(1, &["damaged"]);

    let repaired = scene.run(&["backup", "repair", "--yes"]);
    assert_eq!(repaired.code, Some(3), "{repaired:?}");
    assert!(said(&repaired.stdout).contains("--full"), "{repaired:?}");
    // The disks still exist, so the next backups store the lost blocks again.
    scene.ok(&["backup", "create", &wanted(0), &wanted(1), &wanted(2)]);
    let repaired = scene.json(&["backup", "repair", "--yes"]);
    assert_eq!(repaired["findings"], json!([]));
    for (n, disk) in disks.iter().enumerate() {
        for backup in [1, 2] {
            let name = format!("vm-{n}@{backup}");
            let restored = scene.ok(&["backup", "restore", &name, "-"]);
            assert!(restored.stdout == *disk, "{name}");
        }
    }
    assert!(said(&scene.ok(&["backup", "repair"]).stdout).contains("nothing to repair"));
}

#[test]
fn a_backup_that_is_mounted_is_not_forgotten() {
    let mut scene = scene();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let image = scene.file("disk", &noise(1, MIB));
    scene.ok(&["backup", "create", &format!("vm={image}")]);
    let socket = scene.path("backup.sock");
    let address = format!("unix:{socket}");
    let mount = || {
        let mut command = scene.command(&["backup", "mount", "--nbd", &address]);
        let mut mounted = Daemon::start(&mut command);
        mounted.wait_for_line("served on");
        mounted
    };
    let forget = ["backup", "forget", "vm@1", "--yes"];
    for is_killed in [false, true] {
        let mounted = mount();
        let uri = format!("nbd+unix:///vm@1?socket={socket}");
        let mut client = std::process::Command::new("qemu-io")
            .args(["-f", "raw", "-r", &uri])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        crate::harness::wait_until("the client is attached", || {
            let refused = scene.run(&["backup", "forget", "vm@2", "--yes"]);
            assert_ne!(refused.code, Some(0));
            fs::read_dir(scene.path("repository/sources"))
                .unwrap()
                .any(|entry| {
                    let readers = fs::read_dir(entry.unwrap().path().join("readers/1"));
                    readers.is_ok_and(|mut readers| readers.next().is_some())
                })
        });
        // For a moment the mount's lease does not name its process yet.
        crate::harness::wait_until("the mount says who it is", || {
            let refused = scene.run(&forget);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            !refused.stderr.contains("being read by another process")
        });
        scene
            .run(&forget)
            .is_refusal(1, &["'vm'", "being read by process", "backup mount"]);
        if is_killed {
            // The dead process's lease blocks no other command; a few files are left.
            mounted.kill();
            client.wait().unwrap();
            assert_eq!(scene.planned(&["backup", "repair"])["leftovers"], 2);
            scene.ok(&["backup", "repair", "--yes"]);
            assert_eq!(scene.json(&["backup", "repair"])["leftovers"], 0);
            scene.ok(&forget);
        } else {
            drop(client.stdin.take());
            client.wait().unwrap();
            assert!(mounted.terminate().success());
        }
    }
    assert!(backups(&scene).is_empty());
}

/// Leases after a power cut: it is unknown whether their holders are alive.
#[test]
fn a_command_says_what_it_waits_for_and_ends_when_it_is_told_to() {
    let mut scene = scene();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let image = scene.file("disk", &noise(1, MIB));
    scene.ok(&["backup", "create", &format!("vm={image}")]);
    let of_source = fs::read_dir(scene.path("repository/sources"))
        .unwrap()
        .next();
    let of_source = of_source.unwrap().unwrap().path();
    let image = format!("vm={image}");
    for (folder, arguments) in [
        ("readers/1", vec!["backup", "forget", "vm@1", "--yes"]),
        ("writer", vec!["backup", "create", &image]),
        ("writer", vec!["backup", "prune", "--yes"]),
        ("writer", vec!["backup", "rename", "vm", "other"]),
    ] {
        let lease = of_source.join(folder).join("0000000000000001");
        fs::create_dir_all(&lease).unwrap();
        let mut command = Daemon::start(&mut scene.command(&arguments));
        command.wait_for_line("waiting up to 120 s for a sign of life of another process");
        command.signal(rustix::process::Signal::TERM);
        command.wait_for_line("interrupted while waiting for a sign of life");
        assert!(!command.terminate().success(), "{arguments:?}");
        assert!(lease.exists());
        fs::remove_dir(&lease).unwrap();
    }
    assert_eq!(backups(&scene).len(), 1);
}

#[test]
fn an_exported_key_opens_the_repository_until_it_is_removed() {
    let scene = scene();
    let passphrase = scene.secret("passphrase", b"a passphrase\n");
    scene.ok(&["backup", "init", "--passphrase-file", &passphrase]);
    let exported = scene.path("exported.key");
    let with_key = ["--passphrase-file", passphrase.as_str()];
    let export = [&["backup", "key", "export", &exported], &with_key[..]].concat();
    let before = scene.json(&[&["backup", "key", "list"], &with_key[..]].concat());
    let after = scene.json(&export);
    scene.run(&export).is_refusal(1, &["exported.key"]);
    scene.ok(&["backup", "list", "--key-file", &exported]);
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&exported).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let keys = |reply: &serde_json::Value| reply["keys"].as_array().unwrap().clone();
    let known = keys(&before);
    let new = keys(&after)
        .into_iter()
        .find(|key| !known.contains(key))
        .unwrap();
    let number = new["key"].as_str().unwrap();
    scene.ok(&[&["backup", "key", "remove", number, "--yes"], &with_key[..]].concat());
    scene
        .run(&["backup", "list", "--key-file", &exported])
        .is_refusal(1, &["opens no key"]);
}

/// Kills every command that changes a repository at random moments. Each time all backups must be intact and
/// the next command must work; in the end nothing is left behind.
#[test]
fn commands_that_are_killed_harm_no_backup() {
    let scene = scene();
    let passphrase = scene.secret("passphrase", b"a passphrase\n");
    let with_key = ["--passphrase-file", passphrase.as_str()];
    scene.ok(&[&["backup", "init"], &with_key[..]].concat());
    let draws = noise(7, 4096);
    let mut draws = draws.chunks(4);
    let mut draw = |end: usize| {
        let bytes = draws.next().unwrap().try_into().unwrap();
        u32::from_le_bytes(bytes) as usize % end
    };
    let common = noise(1, 2 * MIB);
    let mut disks: Vec<Vec<u8>> = (2..4)
        .map(|seed| [&common[..], &noise(seed, 2 * MIB)].concat())
        .collect();
    let mut known: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for point in 0..48_u64 {
        for disk in &mut disks {
            let at = draw(disk.len() - 65_536);
            disk[at..at + 65_536].copy_from_slice(&noise(100 + point, 65_536));
        }
        let wanted: Vec<_> = disks
            .iter()
            .enumerate()
            .map(|(n, disk)| format!("vm-{n}={}", scene.file(&format!("disk-{n}"), disk)))
            .collect();
        // One by one, so that each stores the common content, and `share` has something to do.
        let create = |n: usize| ["backup", "create", wanted[n].as_str()];
        let (first, second) = (create(0), create(1));
        let command: &[&str] = match point % 6 {
            0 => &first,
            1 => &second,
            2 => &["backup", "forget", "--keep-last", "2", "--yes"],
            3 => &["backup", "share", "--yes"],
            4 => &["backup", "prune", "--wasted", "0%", "--yes"],
            _ => &["backup", "key", "add", "--new-passphrase-file", &passphrase],
        };
        let mut child = scene
            .command(&[command, &with_key[..]].concat())
            .spawn()
            .unwrap();
        // Deriving the key takes most of a short command's time.
        std::thread::sleep(Duration::from_millis(40 + draw(220) as u64));
        let _ = child.kill();
        child.wait().unwrap();
        let listed = scene.json(&[&["backup", "list"], &with_key[..]].concat());
        let listed: Vec<_> = listed["backups"].as_array().unwrap().clone();
        let mut now = BTreeMap::new();
        for backup in listed {
            let name = backup["name"].as_str().unwrap().to_owned();
            let disk = usize::from(name.starts_with("vm-1"));
            let content = known.remove(&name).unwrap_or_else(|| disks[disk].clone());
            now.insert(name, content);
        }
        // A backup disappears only by being forgotten.
        assert!(
            point % 6 == 2 || known.is_empty(),
            "lost {:?}",
            known.keys()
        );
        known = now;
        if point % 4 == 3 {
            let verified = scene.json(&[&["backup", "verify", "--data"], &with_key[..]].concat());
            assert_eq!(verified["findings"], json!([]), "point {point}");
            for (name, content) in &known {
                let restored =
                    scene.ok(&[&["backup", "restore", name, "-"], &with_key[..]].concat());
                assert!(restored.stdout == *content, "{name} after point {point}");
            }
        }
    }
    let images: Vec<_> = (0..2)
        .map(|n| format!("vm-{n}={}", scene.path(&format!("disk-{n}"))))
        .collect();
    scene.ok(&[&["backup", "create", &images[0], &images[1]], &with_key[..]].concat());
    scene.ok(&[
        &["backup", "forget", "--keep-last", "1", "--yes"],
        &with_key[..],
    ]
    .concat());
    scene.ok(&[
        &["backup", "prune", "--wasted", "0%", "--yes"],
        &with_key[..],
    ]
    .concat());
    scene.ok(&[&["backup", "repair", "--yes"], &with_key[..]].concat());
    let left = scene.json(&[&["backup", "repair"], &with_key[..]].concat());
    assert_eq!(
        (&left["leftovers"], &left["findings"]),
        (&json!(0), &json!([]))
    );
    let stat = scene.json(&[&["backup", "stat"], &with_key[..]].concat());
    let prune = scene.json(&[&["backup", "prune", "--wasted", "0%"], &with_key[..]].concat());
    assert_eq!(prune["popular"][0]["wasted_bytes"], 0, "{prune} {stat}");
}
