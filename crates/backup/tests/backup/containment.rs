//! A repository is one folder: commands touch nothing outside of it, and remove nothing inside of it but its own
//! objects.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use onefold_backup::{RepairPlan, verify};
use onefold_format::backup::{BackupNumber, ObjectName, SourceId};
use onefold_repository::{Access, Foreign, RepositoryErrorKind};

use crate::history::ALL_ACCESS;
use crate::pruning::ALL_WASTE;
use crate::{MemoryDisk, Rig, source};

/// Lists a folder: names, and contents of files.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut tree = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            tree.extend(self::tree(&path));
            tree.insert(path, None);
        } else {
            let content = std::fs::read(&path).unwrap_or_default();
            tree.insert(path, Some(content));
        }
    }
    tree
}

impl Rig {
    /// A rig with two backups and a forgotten one, so that there is something to prune.
    fn with_waste() -> Self {
        let rig = Rig::new(&Access::KeyFile(b"a key".to_vec()));
        for first in [1, 301, 601] {
            rig.create(&mut MemoryDisk::new(first..first + 300), None)
                .unwrap();
        }
        rig.repository
            .protect(rig.source.id, BackupNumber(2), true)
            .unwrap();
        rig.forget([1]);
        rig
    }

    /// Creates a folder elsewhere, with names like a repository's.
    fn with_victim(&self) -> PathBuf {
        let victim = self.folder.path().join("victim");
        for folder in [
            "00000000deadbeef/deep",
            "00",
            "3",
            ".gone-0000000000000001",
            "packs",
        ] {
            std::fs::create_dir_all(victim.join(folder)).unwrap();
        }
        for file in [
            "00000000deadbeef/deep/file",
            "00000000deadbeef/lease",
            "1",
            "17",
            "0.0",
            "256.0",
            "lease",
            "sign",
            "backup",
            "0000000000000001",
            ".incomplete-0000000000000001",
            ".gone-0000000000000001/sign",
        ] {
            let path = victim.join(file);
            std::fs::write(&path, b"precious").unwrap();
            let old = std::time::SystemTime::now() - std::time::Duration::from_secs(1 << 18);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(old).unwrap();
        }
        victim
    }

    /// Runs every command that changes a repository. Each may fail.
    fn do_everything(&self) {
        let _ = self.create(&mut MemoryDisk::new(901..1000), None);
        let _ = self.repository.forget(self.source.id, BackupNumber(3));
        let _ = self
            .repository
            .protect(self.source.id, BackupNumber(2), false);
        let _ = self.prune(&ALL_WASTE);
        let _ = verify(&self.repository, None, true, &mut |_, _| Ok(()));
        let _ = RepairPlan::new(&self.repository, &mut |_, _| Ok(()));
        if let Ok(writer) = self.repository.writer(self.source.id, "test") {
            let _ = writer.mend_copies();
        }
        let _ = self.repository.remove_leftovers();
        let access = Access::KeyFile(b"another".to_vec());
        let added = self.repository.add_key(&access, 2);
        let _ = added.and_then(|number| self.repository.remove_key(number));
        let _ = self.restore(BackupNumber(2));
    }
}

#[test]
fn no_link_is_followed_out_of_the_repository() {
    let template = Rig::with_waste();
    for path in [
        "keys",
        "sources",
        "sources/ID",
        "sources/ID/writer",
        "sources/ID/packs",
        "sources/ID/packs/00",
        "sources/ID/packs/03",
        "sources/ID/recipes",
        "sources/ID/recipes/1",
        "sources/ID/backups",
        "sources/ID/backups/2",
        "sources/ID/forgotten",
        "sources/ID/closed",
        "sources/ID/protected",
        "sources/ID/readers",
        "sources/ID/readers/3",
        "sources/ID/source",
        "sources/ID/.gone-0000000000000007",
        ".incomplete-0000000000000007",
    ] {
        for target in ["", "17"] {
            let rig = template.copied(&Access::KeyFile(b"a key".to_vec()));
            let root = rig.folder.path().join("r");
            let victim = rig.with_victim();
            let link = root.join(path.replace("ID", &rig.source.id.to_string()));
            let _ = std::fs::remove_file(&link);
            let _ = std::fs::remove_dir_all(&link);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            let up = "../".repeat(path.split('/').count());
            symlink(format!("{up}victim/{target}"), &link).unwrap();
            let before = tree(&victim);
            rig.do_everything();
            assert_eq!(tree(&victim), before, "{path} is a link to {target:?}");
        }
    }
}

/// The user may give a link as the repository's folder.
#[test]
fn the_folder_of_a_repository_may_be_a_link() {
    let rig = Rig::with_waste();
    let link = rig.folder.path().join("link");
    symlink("r", &link).unwrap();
    let access = Access::KeyFile(b"a key".to_vec());
    let repository = onefold_repository::Repository::open(&link, &access).unwrap();
    assert_eq!(repository.backups(rig.source.id).unwrap().len(), 2);
}

#[test]
fn what_is_not_of_the_repository_is_never_removed() {
    let rig = Rig::with_waste();
    let root = rig.folder.path().join("r");
    rig.prune(&ALL_WASTE).unwrap();
    let of_source = format!("sources/{}", rig.source.id);
    // Foreign files with the names of objects that prune would remove for a forgotten backup.
    let forgotten = [
        format!("{of_source}/recipes/1"),
        format!("{of_source}/backups/1"),
    ];
    let mut of_others = [
        format!("{of_source}/.gone-0000000000000001/photo"),
        format!("{of_source}/readers/3/00000000deadbeef/photo"),
        format!("{of_source}/packs/Thumbs.db"),
        format!("{of_source}/packs/01/007.0"),
        "keys/.DS_Store".to_owned(),
    ];
    for path in forgotten.iter().chain(&of_others) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"precious").unwrap();
    }
    let named = rig.prune(&ALL_WASTE).unwrap().plan.foreign;
    for (path, message) in forgotten.iter().zip(&named) {
        assert!(message.contains(path), "{message}");
    }
    rig.do_everything();
    for path in forgotten.iter().chain(&of_others) {
        assert_eq!(std::fs::read(root.join(path)).unwrap(), b"precious");
    }
    of_others.sort();
    let expected = Foreign {
        names: of_others.to_vec(),
        has_more: false,
    };
    let foreign = rig.repository.foreign(None).unwrap();
    assert_eq!(foreign, expected);
    assert!(rig.verify(true).findings.is_empty());
}

/// A damaged manifest cannot be distinguished from a foreign file. Its backup can be forgotten all the same.
#[test]
fn a_damaged_manifest_is_forgotten_and_stays() {
    let rig = Rig::with_waste();
    let name = ObjectName::Manifest(rig.source.id, BackupNumber(3));
    let path = rig.folder.path().join("r").join(name.path());
    std::fs::write(&path, b"damaged").unwrap();
    rig.forget([3]);
    let pruned = rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(pruned.plan.dead_packs(), 2);
    assert!(pruned.plan.foreign[0].contains(&name.path()));
    let backups = rig.repository.backups(rig.source.id).unwrap();
    assert_eq!(backups, [BackupNumber(2)]);
    let refused = rig.repository.check_removable(name).unwrap_err();
    assert_eq!(refused.kind(), RepositoryErrorKind::Damaged);
}

#[test]
fn objects_of_another_source_or_another_repository_are_refused() {
    for access in ALL_ACCESS() {
        let (rig, elsewhere) = (Rig::new(&access), Rig::new(&access));
        let other = rig.repository.add_source(source("other")).unwrap();
        let disks = [1, 301, 601].map(|first| MemoryDisk::new(first..first + 300));
        let [mut own, mut others, mut far] = disks.clone();
        rig.create(&mut own, None).unwrap();
        rig.create_batch(&mut [(&other, &mut others)], None)
            .unwrap();
        elsewhere.create(&mut far, None).unwrap();
        let first = BackupNumber(1);
        let named = |source: SourceId| {
            let (number, generation) = (0, 0);
            [
                ObjectName::Source(source),
                ObjectName::Manifest(source, first),
                ObjectName::Recipe(source, first),
                ObjectName::Pack {
                    source,
                    number,
                    generation,
                },
                ObjectName::Table {
                    source,
                    number,
                    generation,
                },
            ]
        };
        for (from, of) in [(&rig, other.id), (&elsewhere, elsewhere.source.id)] {
            for (foreign, name) in named(of).into_iter().zip(named(rig.source.id)) {
                let path = rig.path(name);
                let good = std::fs::read(&path).unwrap();
                std::fs::copy(from.path(foreign), &path).unwrap();
                let restored = rig.restore(first);
                assert!(restored.is_err() || restored.unwrap() == disks[0].bytes());
                assert!(!rig.verify(false).findings.is_empty(), "{name:?}");
                std::fs::write(&path, good).unwrap();
            }
        }
        assert!(rig.restore(first).unwrap() == disks[0].bytes());
        assert!(rig.verify(true).findings.is_empty());
    }
}
