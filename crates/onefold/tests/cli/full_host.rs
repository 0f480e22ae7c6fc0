//! A daemon on a file system that has no space left, for data or for names.

use crate::full::io_ok;
use crate::harness::{Scene, is_left_out_in_ceph, noise};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A separate file system, unmounted on drop.
struct Mount {
    directory: TempDir,
    /// Keeps the file that contains the file system.
    _image: TempDir,
}

impl Mount {
    /// A small ext4 file system. A directory takes a block there, but a socket does not.
    fn ext4() -> Option<Self> {
        let image = TempDir::with_prefix("onefold-test-").unwrap();
        let path = image.path().join("ext4");
        File::create(&path).unwrap().set_len(128 << 20).unwrap();
        let path = path.to_str().unwrap();
        succeeds(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", path]))?;
        Self::with(image, &["-t", "ext4", "-o", "loop", path])
    }

    /// A file system in memory with few inodes.
    fn with_few_inodes() -> Option<Self> {
        let image = TempDir::with_prefix("onefold-test-").unwrap();
        let options = "size=128m,nr_inodes=40";
        Self::with(image, &["-t", "tmpfs", "-o", options, "onefold-test"])
    }

    /// A file system in memory with little space.
    fn small() -> Option<Self> {
        let image = TempDir::with_prefix("onefold-test-").unwrap();
        Self::with(image, &["-t", "tmpfs", "-o", "size=20m", "onefold-test"])
    }

    fn with(image: TempDir, arguments: &[&str]) -> Option<Self> {
        let directory = TempDir::with_prefix("onefold-test-").unwrap();
        succeeds(Command::new("mount").args(arguments).arg(directory.path()))?;
        Some(Self {
            directory,
            _image: image,
        })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Takes all bytes that are free.
    fn fill_bytes(&self) {
        let mut fill = File::create(self.path().join("fill")).unwrap();
        for piece in [1 << 20, 4096, 1024] {
            while let Ok(()) = fill
                .write_all(&vec![7; piece])
                .and_then(|()| fill.sync_all())
            {}
        }
    }

    /// Takes all inodes that are free.
    fn fill_inodes(&self) {
        let error = (0..1000).find_map(|n| File::create(self.path().join(n.to_string())).err());
        assert_eq!(error.unwrap().kind(), io::ErrorKind::StorageFull);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn succeeds(command: &mut Command) -> Option<()> {
    let output = command.output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(());
    }
    println!("skipped: {command:?} is not possible here: {output:?}");
    None
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// A pool of 8 MiB with 4 MiB in volume `vm`.
fn scene_in(mount: &Mount) -> Scene {
    let scene = Scene::in_directory(mount.path(), &["--size", "8M"]);
    let elsewhere = TempDir::with_prefix("onefold-test-").unwrap();
    let image = elsewhere.path().join("image");
    fs::write(&image, noise(1, 4 << 20)).unwrap();
    scene.ok(&["volume", "import", "vm", image.to_str().unwrap()]);
    scene
}

/// Asserts that guests read, trim and flush, and that commands answer.
#[track_caller]
fn assert_served(scene: &Scene) {
    let done = ["read 0 1M", "discard 0 1M", "read -P 0 0 1M", "flush"];
    io_ok(scene, "vm", &done);
    assert_eq!(scene.volumes(), ["vm"]);
    let content = scene.content("vm");
    assert!(content[..1 << 20].iter().all(|byte| *byte == 0));
    assert!(content[1 << 20..] == noise(1, 4 << 20)[1 << 20..]);
}

#[test]
fn a_daemon_starts_where_not_a_byte_is_free() {
    if is_left_out_in_ceph("it fills the file system that the pool is on") {
        return;
    }
    let Some(mount) = Mount::ext4() else { return };
    let scene = scene_in(&mount);
    mount.fill_bytes();
    let daemon = scene.daemon();
    assert!(is_socket(&scene.pool().join("control.sock")));
    assert_served(&scene);
    // And again, with the first daemon's sockets left behind.
    daemon.kill();
    let daemon = scene.daemon();
    assert_served(&scene);
    daemon.kill();
    fs::remove_file(mount.path().join("fill")).unwrap();
    assert_eq!(scene.json(&["pool", "check"])["findings"], 0);
}

#[test]
fn a_daemon_starts_where_no_file_can_be_made() {
    if is_left_out_in_ceph("it fills the file system that the pool is on") {
        return;
    }
    let Some(mount) = Mount::with_few_inodes() else {
        return;
    };
    let mut scene = scene_in(&mount);
    let runtime = TempDir::with_prefix("onefold-test-").unwrap();
    let path = runtime.path().to_str().unwrap().to_owned();
    scene.set("XDG_RUNTIME_DIR", path);

    // The socket names of a killed daemon are reused.
    scene.daemon().kill();
    mount.fill_inodes();
    let daemon = scene.daemon();
    assert_served(&scene);
    assert!(is_socket(&scene.pool().join("control.sock")));
    assert!(is_socket(&scene.pool().join("nbd.sock")));
    assert!(daemon.terminate().success());

    // If there are no inodes, the sockets are elsewhere, and commands find them.
    mount.fill_inodes();
    let mut daemon = scene.starting_daemon(&[]);
    daemon.wait_for_line("commands find the daemon at");
    let line = daemon.wait_for_line("clients find the daemon at");
    assert!(line.contains(runtime.path().to_str().unwrap()), "{line}");
    daemon.wait_for_line("serving");
    assert!(!is_socket(&scene.pool().join("control.sock")));
    assert_served(&scene);
    assert!(daemon.terminate().success());
    assert_eq!(scene.volumes(), ["vm"]);
}

#[test]
fn a_repository_is_pruned_where_not_a_byte_is_free() {
    let Some(mount) = Mount::small() else { return };
    let mut scene = Scene::new();
    let repository = mount.path().join("repository");
    scene.set(
        "ONEFOLD_REPOSITORY",
        repository.to_str().unwrap().to_owned(),
    );
    scene.set("ONEFOLD_NO_ENCRYPTION", "1".to_owned());
    let made = scene.json(&["backup", "init"]);
    assert_eq!(made["aside_bytes"], 8 << 20);
    let reserve = repository.join("reserve");
    assert!(reserve.exists());
    let images = [1, 2].map(|seed| noise(seed, 5 << 20));
    for image in &images {
        scene.file("image", image);
        let disk = format!("vm={}", scene.path("image"));
        scene.ok(&["backup", "create", &disk]);
    }
    mount.fill_bytes();
    // There would be no space for the tombstone or the lease.
    scene.ok(&["backup", "forget", "vm@1", "--yes"]);
    scene.ok(&["backup", "prune", "--yes"]);
    let restored = scene.path("restored");
    scene.ok(&["backup", "restore", "vm@2", &restored]);
    assert!(fs::read(restored).unwrap() == images[1]);
    // Now there is space, and it is reserved again.
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 8 << 20);
    assert_eq!(
        scene.json(&["backup", "verify"])["foreign"],
        serde_json::json!([])
    );
}
