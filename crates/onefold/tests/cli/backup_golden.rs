//! Every version can open repositories of all earlier releases.
//!
//! `testdata` has a repository of each version of the format, without its empty folders.
//! `ONEFOLD_WRITE_GOLDEN=1 cargo test -p onefold --test cli golden` writes the one of this version again,
//! which is allowed only for a format that no release has written yet.

use crate::harness::{Scene, noise};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The version that this build writes.
const NEWEST: &str = "repository-v2";

/// Versions that this build reads.
const VERSIONS: [&str; 1] = [NEWEST];

const PASSPHRASE: &[u8] = b"as good as gold\n";
const KEY: &[u8] = b"a key file of the golden repositories\n";
const DISK_BYTES: usize = 256 << 10;

/// Names of the disks, and the number of unique parts of each.
const DISKS: [(&str, u64); 2] = [("a", 2), ("b", 3)];

fn testdata(version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/testdata").join(version)
}

/// A disk on a given day: much of it is the same on all disks, some of it is unique, and some of that
/// changes.
fn disk(own: u64, day: u64) -> Vec<u8> {
    let mut disk = vec![0; DISK_BYTES];
    let changed_at = 128 + 8 * day as usize;
    let pieces = [(0, 1, 40), (64, own, 24), (changed_at, 100 * own + day, 12)];
    for (at, seed, len) in pieces {
        disk[at << 10..][..len << 10].copy_from_slice(&noise(seed, len << 10));
    }
    disk
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A repository in a scene, and its key.
struct Opened {
    scene: Scene,
    key: [String; 2],
}

impl Opened {
    fn new() -> Self {
        let mut scene = Scene::new();
        scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
        let passphrase = scene.secret("passphrase", PASSPHRASE);
        let key = ["--passphrase-file".to_owned(), passphrase];
        Self { scene, key }
    }

    fn folder(&self) -> PathBuf {
        self.scene.path("repository").into()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> Vec<u8> {
        let [option, file] = &self.key;
        let arguments = [&["backup"], arguments, &[option, file]].concat();
        self.scene.ok(&arguments).stdout
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let [option, file] = &self.key;
        let arguments = [&["backup"], arguments, &[option, file]].concat();
        self.scene.json(&arguments)
    }

    /// Backs up both disks with their content of a given day.
    fn create(&self, day: u64, options: &[&str]) -> Value {
        let sources = DISKS.map(|(name, own)| {
            let image = self.scene.path(name);
            fs::write(&image, disk(own, day)).unwrap();
            format!("{name}={image}")
        });
        let [a, b] = &sources;
        self.json(&[&["create", a, b], options].concat())
    }

    fn backups(&self) -> Vec<String> {
        let list = self.json(&["list"]);
        let list = list["backups"].as_array().unwrap().iter();
        list.map(|backup| backup["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn restores(&self, backup: &str, content: &[u8]) {
        assert!(self.ok(&["restore", backup, "-"]) == content, "{backup}");
    }
}

/// Writes a repository with popular and own blocks, a pruned pack, a protected backup, a renamed source, and
/// two keys.
fn write_golden() {
    let made = Opened::new();
    let key = made.scene.secret("key", KEY);
    made.ok(&["init"]);
    made.ok(&["key", "add", "--new-key-file", &key]);
    for day in 1..=3 {
        made.create(day, &["--tag", &format!("day-{day}")]);
    }
    made.ok(&["rename", "b", "c"]);
    made.ok(&["rename", "c", "b"]);
    made.ok(&["protect", "b@2"]);
    made.ok(&["forget", "a@1", "b@1", "--yes"]);
    made.ok(&["prune", "--wasted", "0%", "--yes"]);
    let golden = testdata(NEWEST);
    if golden.exists() {
        fs::remove_dir_all(&golden).unwrap();
    }
    copy(&made.folder(), &golden);
    // Reserved space for a full disk; any command that makes room reserves it again.
    fs::remove_file(golden.join("reserve")).unwrap();
}

#[test]
fn golden_repositories_restore_and_go_on() {
    if std::env::var_os("ONEFOLD_WRITE_GOLDEN").is_some_and(|set| set == "1") {
        write_golden();
    }
    for version in VERSIONS {
        let mut opened = Opened::new();
        copy(&testdata(version), &opened.folder());
        assert_eq!(opened.backups(), ["a@2", "a@3", "b@2", "b@3"], "{version}");
        let verified = opened.json(&["verify", "--data"]);
        assert_eq!(verified["findings"].as_array().unwrap().len(), 0);
        for (name, own) in DISKS {
            for day in [2, 3] {
                opened.restores(&format!("{name}@{day}"), &disk(own, day));
            }
        }

        // Content that the earlier version stored is found, and removed when it is no longer needed.
        let made = opened.create(3, &["--full", "--adopt"]);
        for backup in made["backups"].as_array().unwrap() {
            assert_eq!(backup["new_bytes"], 0, "{version}: {backup}");
            assert_eq!(backup["popular_bytes"], 40 << 10, "{version}: {backup}");
        }
        opened.ok(&["forget", "--keep-last", "1", "--yes"]);
        opened.ok(&["prune", "--wasted", "0%", "--yes"]);
        assert_eq!(opened.backups(), ["a@4", "b@2", "b@4"], "{version}");
        opened.restores("a@4", &disk(2, 3));
        opened.key = ["--key-file".to_owned(), opened.scene.secret("key", KEY)];
        opened.restores("b@2", &disk(3, 2));
    }
}
