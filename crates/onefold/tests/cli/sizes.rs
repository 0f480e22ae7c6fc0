//! Disks that end inside a block keep their exact size.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::harness::{Scene, noise, overwrite, qemu_img, run};

/// A disk of this size with data at its start and end.
fn disk(scene: &Scene, name: &str, bytes: u64) -> String {
    let path = scene.path(name);
    let file = File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    file.write_all_at(&noise(1, 40_000), 8192).unwrap();
    let end = noise(2, 33 * 512);
    file.write_all_at(&end, bytes - end.len() as u64).unwrap();
    path
}

fn is_same(one: &str, other: &str) {
    assert_eq!(
        fs::metadata(one).unwrap().len(),
        fs::metadata(other).unwrap().len()
    );
    qemu_img(&["compare", "-f", "raw", "-F", "raw", one, other]);
}

#[test]
fn a_disk_of_whole_sectors_comes_back_as_it_was() {
    for (block_size, bytes) in [
        ("4K", (4 << 20) + 512),
        ("4K", 41_126_400),
        ("64K", 528 << 10),
        ("64K", 1_000_204_886_016_u64),
    ] {
        let mut scene = Scene::with_pool_options(&["--block-size", block_size]);
        scene.use_open_repository("repository");
        scene.ok(&["backup", "init"]);
        let image = disk(&scene, "image", bytes);
        let imported = scene.ok(&["volume", "import", "vm", &image]);
        assert!(!imported.stderr.contains("rounded"), "{imported:?}");
        assert_eq!(scene.json(&["volume", "stat", "vm"])["size_bytes"], bytes);
        let exported = scene.path("exported");
        scene.ok(&["volume", "export", "vm", &exported]);
        is_same(&image, &exported);

        scene.ok(&["backup", "create", "vm"]);
        let daemon = scene.daemon();
        let stat = scene.json(&["volume", "stat", "vm"]);
        let uri = stat["nbd_uri"].as_str().unwrap();
        qemu_img(&["compare", "-f", "raw", "-F", "raw", &image, uri]);
        overwrite(&scene, "vm", bytes as usize - 512, 9, 512);
        overwrite(&scene, "vm", 8192, 0, 512);
        let into = ["backup", "restore", "vm@1", "--into", "vm", "--yes"];
        let restored = scene.json(&into);
        assert!(restored["written_bytes"].as_u64().unwrap() <= 8192);
        daemon.terminate();
        fs::remove_file(&exported).unwrap();
        scene.ok(&["volume", "export", "vm", &exported]);
        is_same(&image, &exported);
        assert_eq!(scene.json(&into)["written_bytes"], 0);

        scene.ok(&["backup", "restore", "vm@1", "--volume", "again"]);
        let stat = scene.json(&["volume", "stat", "again"]);
        assert_eq!(stat["size_bytes"], bytes);
        scene.ok(&["pool", "dedup"]);
        scene.ok(&["pool", "check"]);
    }
}

#[test]
fn what_a_volume_no_longer_has_does_not_come_back() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(3, 5 * 4096));
    scene.ok(&["volume", "import", "vm", &image]);
    let mut disk = noise(3, 5 * 4096);
    for size in [4 * 4096 + 1024_usize, 4 * 4096 + 512, 2 * 4096 + 3584] {
        let arguments = size.to_string();
        scene.ok(&["volume", "resize", "vm", "--size", &arguments, "--yes"]);
        disk.truncate(size);
        assert!(scene.content("vm") == disk);
        scene.ok(&["volume", "resize", "vm", "--size", "20480"]);
        disk.resize(20_480, 0);
        assert!(scene.content("vm") == disk);
    }
    scene.ok(&["pool", "check"]);
}

#[test]
fn the_end_inside_a_block_is_written_trimmed_and_zeroed() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "10752"]);
    let daemon = scene.daemon();
    let stat = scene.json(&["volume", "stat", "vm"]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    let io = |commands: &[&str]| {
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", "-d", "unmap"]);
        for command in commands {
            io.args(["-c", command]);
        }
        let out = io.arg(uri).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    };
    let logical = || scene.json(&["volume", "stat", "vm"])["logical_blocks"].clone();
    io(&["write -P 7 0 10752", "flush", "read -P 7 0 10752"]);
    assert_eq!(logical(), 3);
    io(&["write -z -u 8192 2560", "read -P 0 8192 2560", "flush"]);
    assert_eq!(logical(), 2);
    io(&["write -P 7 10240 512", "discard 4096 6656", "flush"]);
    assert_eq!(logical(), 1);
    io(&["read -P 0 4096 6656", "read -P 7 0 4096"]);
    daemon.terminate();
    assert_eq!(
        run(&["--pool", &scene.place(), "pool", "check"]).code,
        Some(0)
    );
}

#[test]
fn an_image_that_ends_inside_a_sector_restores_into_a_volume() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let image = scene.file("image", &noise(4, 10_001));
    scene.ok(&["backup", "create", &format!("image={image}")]);
    scene.ok(&["volume", "create", "vm", "--size", "10240"]);
    let full = scene.file("full", &noise(5, 10_240));
    scene.ok(&["volume", "import", "other", &full]);
    for volume in ["vm", "other"] {
        scene.ok(&["backup", "restore", "image@1", "--into", volume, "--yes"]);
        let mut disk = noise(4, 10_001);
        disk.resize(10_240, 0);
        assert!(scene.content(volume) == disk, "{volume}");
    }
}
