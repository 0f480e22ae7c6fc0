//! Salvages damaged backups: intact parts are restored, lost parts are reported, and nothing is overwritten
//! in vain.

use crate::harness::{Daemon, Scene, noise, overwrite, qemu_img};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const BLOCK: usize = 4096;

/// An object of the only source of an unencrypted repository.
fn object(scene: &Scene, name: &str) -> PathBuf {
    let sources = fs::read_dir(scene.path("repository/sources")).unwrap();
    let paths = sources.map(|entry| entry.unwrap().path().join(name));
    let mut found = paths.filter(|path| path.is_file());
    found.next().unwrap()
}

fn flip(file: &PathBuf, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    scene
}

#[test]
fn a_damaged_backup_is_restored_but_for_what_is_damaged() {
    let scene = scene();
    // The disk does not end at a block boundary, and has groups of 64 blocks.
    let disk = noise(7, 200 * BLOCK - 1000);
    let image = scene.file("disk", &disk);
    scene.ok(&["backup", "create", &format!("web={image}")]);
    // Damage the second group.
    flip(&object(&scene, "packs/00/0.0"), 70 * BLOCK);
    let mut expected = disk.clone();
    expected[64 * BLOCK..128 * BLOCK].fill(0);
    let lost = json!([{"lba": 64, "blocks": 64, "offset_bytes": 64 * BLOCK, "bytes": 64 * BLOCK}]);

    let salvage = |target: &[&str]| {
        let map = scene.path("map");
        let restore = [
            "--format",
            "json",
            "backup",
            "restore",
            "web@1",
            "--salvage",
            "--map",
            &map,
        ];
        let restored = scene.run(&[&restore[..], target].concat());
        assert_eq!(restored.code, Some(3), "{restored:?}");
        let mapped = fs::read_to_string(&map).unwrap();
        let lines = mapped.lines().filter(|line| !line.starts_with('#'));
        let lines: Vec<_> = lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(
            lines,
            [
                ["0x00000000", "+", "1"],
                ["0x00000000", "0x00040000", "+"],
                ["0x00040000", "0x00040000", "-"],
                ["0x00080000", "0x00047C18", "+"],
            ]
        );
        fs::remove_file(&map).unwrap();
        restored
    };
    let (raw, qcow2) = (scene.path("raw"), scene.path("qcow2"));
    scene
        .run(&["backup", "restore", "web@1", &raw])
        .is_refusal(1, &["blocks 64 to 127", "--salvage"]);
    assert!(!PathBuf::from(&raw).exists());
    let reply = salvage(&[&raw]).json();
    assert_eq!(
        (&reply["lost"]["ranges"], &reply["lost"]["bytes"]),
        (&lost, &json!(64 * BLOCK))
    );
    assert_eq!(reply["written_bytes"], disk.len() - 64 * BLOCK);
    assert!(fs::read(&raw).unwrap() == expected);

    salvage(&["--image-format", "qcow2", &qcow2]);
    let copied = scene.path("copied");
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", &qcow2, &copied]);
    // QEMU supports only whole sectors.
    expected.resize(disk.len().next_multiple_of(512), 0);
    assert!(fs::read(&copied).unwrap() == expected);
    expected.truncate(disk.len());

    let piped = salvage(&["-"]);
    assert!(piped.stdout == expected);
    assert!(
        piped.stderr.contains("blocks 64 to 127"),
        "{}",
        piped.stderr
    );

    // Salvaging an intact backup loses nothing, and says so.
    fs::remove_file(&raw).unwrap();
    flip(&object(&scene, "packs/00/0.0"), 70 * BLOCK);
    let whole = scene.ok(&["backup", "restore", "web@1", "--salvage", &raw]);
    let said = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(said.contains("nothing was lost"), "{said}");
}

#[test]
fn a_volume_keeps_what_cannot_be_restored_and_all_of_it_without_salvage() {
    let scene = scene();
    let mut disk = noise(7, 256 * BLOCK);
    let image = scene.file("disk", &disk);
    scene.ok(&["volume", "import", "vm", &image]);
    scene.ok(&["backup", "create", "vm"]);
    let daemon = scene.daemon();
    overwrite(&scene, "vm", 70 * BLOCK, 3, BLOCK);
    overwrite(&scene, "vm", 150 * BLOCK, 4, BLOCK);
    drop(daemon);
    let before = scene.content("vm");
    let pack = object(&scene, "packs/00/0.0");
    let content = fs::read(&pack).unwrap();

    // Without the pack nothing is overwritten or created.
    fs::remove_file(&pack).unwrap();
    let into = ["backup", "restore", "vm@1", "--into", "vm", "--yes"];
    let new = ["backup", "restore", "vm@1", "--volume", "new"];
    for command in [&into[..], &new] {
        scene
            .run(command)
            .is_refusal(1, &["packs/00/0.0", "nothing was written", "--salvage"]);
    }
    assert!(scene.content("vm") == before);
    assert_eq!(scene.volumes(), ["vm"]);

    fs::write(&pack, content).unwrap();
    flip(&pack, 70 * BLOCK);
    disk[64 * BLOCK..128 * BLOCK].copy_from_slice(&before[64 * BLOCK..128 * BLOCK]);
    for has_daemon in [true, false] {
        let daemon = has_daemon.then(|| scene.daemon());
        let restored = scene.run(&[&["--format", "json"], &into[..], &["--salvage"]].concat());
        assert_eq!(restored.code, Some(3), "{restored:?}");
        let reply = restored.json();
        assert_eq!(reply["written_bytes"], if has_daemon { BLOCK } else { 0 });
        assert_eq!(reply["lost"]["ranges"][0]["lba"], 64);
        drop(daemon);
        assert!(scene.content("vm") == disk);
    }
    let restored = scene.run(&[&new[..], &["--salvage"]].concat());
    assert_eq!(restored.code, Some(3), "{restored:?}");
    disk[64 * BLOCK..128 * BLOCK].fill(0);
    assert!(scene.content("new") == disk);

    // Without its manifest or its recipe, the whole backup is lost.
    flip(&object(&scene, "recipes/1"), 20);
    let salvaged = [&new[..4], &["other", "--salvage"]].concat();
    scene
        .run(&salvaged)
        .is_refusal(1, &["recipes/1", "all of vm@1 is lost"]);
    flip(&object(&scene, "backups/1"), 100);
    scene
        .run(&salvaged)
        .is_refusal(1, &["backups/1", "all of vm@1 is lost"]);
}

#[test]
fn a_disk_that_ends_within_a_sector_is_restored_whole() {
    let scene = scene();
    let disk = noise(7, 5000);
    let image = scene.file("disk", &disk);
    scene.ok(&["backup", "create", &format!("web={image}")]);
    let (raw, qcow2, copied) = (scene.path("raw"), scene.path("qcow2"), scene.path("copied"));
    scene.ok(&["backup", "restore", "web@1", &raw]);
    assert!(fs::read(&raw).unwrap() == disk);
    assert!(scene.ok(&["backup", "restore", "web@1", "-"]).stdout == disk);
    scene.ok(&[
        "backup",
        "restore",
        "web@1",
        "--image-format",
        "qcow2",
        &qcow2,
    ]);
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", &qcow2, &copied]);
    let copied = fs::read(&copied).unwrap();
    assert_eq!(copied.len(), 5120);
    assert!(copied[..5000] == disk && copied[5000..] == [0; 120]);
}

#[test]
fn a_mount_serves_what_is_whole_and_names_what_is_lost_once() {
    let scene = scene();
    let mut disk = noise(7, 256 * BLOCK);
    let image = scene.file("disk", &disk);
    scene.ok(&["backup", "create", &format!("web={image}")]);
    flip(&object(&scene, "packs/00/0.0"), 70 * BLOCK);
    let socket = scene.path("backup.sock");
    let address = format!("unix:{socket}");
    let mount = ["backup", "mount", "--nbd", &address, "--memory"];
    let little = scene.run(&[&mount[..], &["7M"]].concat());
    little.is_refusal(2, &["--memory 7 MiB", "8 MiB", "14 clients"]);
    let mut mounted = Daemon::start(&mut scene.command(&[&mount[..], &["8M"]].concat()));
    mounted.wait_for_line("served on");
    let uri = format!("nbd+unix:///web@1?socket={socket}");
    let copied = scene.path("copied");
    for _ in 0..2 {
        qemu_img(&[
            "convert",
            "--salvage",
            "-f",
            "raw",
            "-O",
            "raw",
            &uri,
            &copied,
        ]);
        disk[64 * BLOCK..128 * BLOCK].fill(0);
        assert!(fs::read(&copied).unwrap() == disk);
    }
    let read = Command::new("qemu-io")
        .args([
            "-f",
            "raw",
            "-r",
            "-c",
            &format!("read {} 4096", 80 * BLOCK),
            &uri,
        ])
        .output();
    let said = format!("{read:?}");
    assert!(said.contains("Input/output error"), "{said}");

    let lines = mounted.end_and_lines();
    let lost = lines
        .iter()
        .filter(|line| line.contains("blocks 64 to 127 of the backup"));
    assert_eq!(lost.count(), 1, "{lines:?}");
}
