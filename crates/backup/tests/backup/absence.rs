//! A missing object is damage unless another object says that it was removed: no absence makes a prune remove more.

use std::path::{Path, PathBuf};

use onefold_backup::Result;
use onefold_format::backup::{BackupNumber, Label, ObjectName, Place};
use onefold_repository::{Access, Repository, RepositoryErrorKind};

use crate::pruning::ALL_WASTE;
use crate::{MemoryDisk, Rig, source};

const ALL_PLACES: [Place; 4] = [
    Place::Manifests,
    Place::Recipes,
    Place::Packs,
    Place::Tombstones,
];

impl Rig {
    /// A source with three backups that have no content in common.
    fn with_three(access: &Access) -> (Self, [MemoryDisk; 3]) {
        let rig = Rig::new(access);
        let disks = [1, 301, 601].map(|first| MemoryDisk::new(first..first + 300));
        for disk in &disks {
            rig.create(&mut disk.clone(), None).unwrap();
        }
        (rig, disks)
    }

    pub(crate) fn path(&self, name: ObjectName) -> PathBuf {
        self.folder.path().join("r").join(name.path())
    }

    fn place(&self, place: Place) -> PathBuf {
        let folder = place.path(self.source.id);
        self.folder.path().join("r").join(folder)
    }

    #[track_caller]
    fn assert_not_pruned(&self, hint: &str) {
        let before = self.files();
        let error = self.prune(&ALL_WASTE).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
        assert_eq!(self.files(), before);
        let findings = self.verify(false).findings;
        assert!(
            findings
                .iter()
                .any(|finding| finding.message.contains(hint)),
            "{findings:?}"
        );
    }

    fn messages(&self) -> Vec<String> {
        let findings = self.verify(true).findings.into_iter();
        findings.map(|finding| finding.message).collect()
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("aside")
}

/// A number is not used again even if no object of its backup is left.
#[test]
fn a_number_is_never_used_again() {
    let (rig, disks) = Rig::with_three(&Access::Open);
    let id = rig.source.id;
    rig.forget([3]);
    std::fs::remove_file(rig.path(ObjectName::Recipe(id, BackupNumber(3)))).unwrap();
    std::fs::remove_file(rig.file("02/2.0")).unwrap();
    let made = rig.create(&mut disks[2].clone(), None).unwrap();
    assert_eq!(made.backup, BackupNumber(4));
    assert_eq!(made.manifest.own_packs[0].number, 3);
    rig.forget([4]);
    // Twice: the first prune folds the tombstones, and the second removes them.
    rig.prune(&ALL_WASTE).unwrap();
    rig.forget([2]);
    rig.prune(&ALL_WASTE).unwrap();
    assert!(
        !rig.path(ObjectName::Tombstone(id, BackupNumber(3)))
            .exists()
    );
    let made = rig.create(&mut disks[1].clone(), None).unwrap();
    assert_eq!(made.backup, BackupNumber(5));
    assert_eq!(made.manifest.own_packs[0].number, 4);
    assert_eq!(rig.messages(), [""; 0]);
}

/// The manifest of a forgotten backup may stay when the command is killed, or be restored from a copy.
#[test]
fn a_forgotten_backup_stays_forgotten() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let (rig, disks) = Rig::with_three(&access);
        let manifest = rig.path(ObjectName::Manifest(rig.source.id, BackupNumber(2)));
        let bytes = std::fs::read(&manifest).unwrap();
        rig.forget([2]);
        for _ in 0..2 {
            std::fs::write(&manifest, &bytes).unwrap();
            let backups = rig.repository.backups(rig.source.id).unwrap();
            assert_eq!(backups, [1, 3].map(BackupNumber));
            rig.prune(&ALL_WASTE).unwrap();
            assert!(!manifest.exists());
        }
        rig.assert_backups(&[(1, Some(&disks[0])), (3, Some(&disks[2]))]);
        assert_eq!(rig.messages(), [""; 0]);
    }
}

#[test]
fn a_missing_manifest_is_damage_until_it_is_said_to_be_meant() {
    for number in 1..=3 {
        let (rig, disks) = Rig::with_three(&Access::Open);
        let backup = BackupNumber(number);
        std::fs::remove_file(rig.path(ObjectName::Manifest(rig.source.id, backup))).unwrap();
        rig.assert_not_pruned(&format!("onefold backup forget disk@{number} --yes"));
        assert_eq!(
            rig.repository.history(rig.source.id).unwrap().missing,
            [backup]
        );
        // New backups are made all the same, with new numbers.
        let made = rig.create(&mut disks[0].clone(), None).unwrap();
        assert_eq!(made.backup, BackupNumber(4));
        rig.forget([number]);
        assert_eq!(
            rig.prune(&ALL_WASTE).unwrap().plan.dead_packs(),
            u64::from(number > 1)
        );
        assert_eq!(rig.messages(), [""; 0]);
    }
}

/// A file system check, an incomplete sync or a user's mistake may move a folder away.
#[test]
fn nothing_is_pruned_while_a_folder_is_away() {
    for place in ALL_PLACES {
        let (rig, disks) = Rig::with_three(&Access::Open);
        rig.forget([2]);
        let folder = rig.place(place);
        std::fs::rename(&folder, aside(&folder)).unwrap();
        rig.assert_not_pruned("it is not there");
        // An empty folder in its place does not count as the old one.
        std::fs::create_dir(&folder).unwrap();
        let writer = rig.repository.writer(rig.source.id, "test").unwrap();
        let mended = writer.mend_copies().unwrap();
        drop(writer);
        if place == Place::Tombstones {
            assert_eq!(mended, 1);
            rig.assert_not_pruned("onefold backup forget disk@2 --yes");
        } else {
            assert_eq!(mended, 0, "{place:?}");
            rig.assert_not_pruned("it is not there");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::rename(aside(&folder), &folder).unwrap();
        assert_eq!(
            rig.prune(&ALL_WASTE).unwrap().plan.dead_packs(),
            1,
            "{place:?}"
        );
        rig.assert_backups(&[(1, Some(&disks[0])), (3, Some(&disks[2]))]);
        assert_eq!(rig.messages(), [""; 0]);
    }
}

/// Only the packs are left of everything that shows which numbers were used.
#[test]
fn packs_without_any_backup_are_not_taken_for_waste() {
    let (rig, _) = Rig::with_three(&Access::Open);
    for place in [Place::Manifests, Place::Recipes] {
        let folder = rig.place(place);
        std::fs::rename(&folder, aside(&folder)).unwrap();
    }
    rig.assert_not_pruned("it is not there");
}

#[test]
fn the_object_of_a_source_has_copies() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let (rig, disks) = Rig::with_three(&access);
        let id = rig.source.id;
        let copies = ALL_PLACES.map(|place| ObjectName::Copy(id, place));
        let names = [&[ObjectName::Source(id)][..], &copies].concat();
        for name in &names {
            let path = rig.path(*name);
            let bytes = std::fs::read(&path).unwrap();
            for damaged in [None, Some(&bytes[..bytes.len() / 2]), Some(&[0; 200][..])] {
                match damaged {
                    None => std::fs::remove_file(&path).unwrap(),
                    Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                }
                let known = rig.repository.source("disk").unwrap().unwrap();
                assert_eq!(known.source, source("disk"));
                assert_eq!(rig.repository.sources().unwrap().disks.len(), 1);
                rig.assert_backups(&[(1, Some(&disks[0]))]);
                assert!(rig.messages()[0].contains(&name.path()));
                let writer = rig.repository.writer(id, "test").unwrap();
                assert_eq!(writer.mend_copies().unwrap(), 1);
                assert_eq!(rig.messages(), [""; 0]);
            }
        }
        // Without either object the source has no name, and the repository reports that.
        for name in &names {
            std::fs::remove_file(rig.path(*name)).unwrap();
        }
        let sources = rig.repository.sources().unwrap();
        assert_eq!((sources.disks.len(), sources.damaged.len()), (0, 1));
        assert_eq!(sources.damaged[0].kind(), RepositoryErrorKind::Damaged);
        assert_eq!(rig.verify(false).findings.len(), 1);
    }
}

/// If the newest label is damaged, the one before it counts until the source is renamed or repaired.
#[test]
fn a_damaged_label_costs_one_change_of_the_name() {
    let (rig, disks) = Rig::with_three(&Access::Open);
    let id = rig.source.id;
    let rename = |name: &str| {
        let mut writer = rig.repository.writer(id, "test").unwrap();
        let (name, origin) = (name.to_owned(), None);
        writer.set_label(Label { name, origin })
    };
    for name in ["first", "second", "third"] {
        rename(name).unwrap();
        assert_eq!(rig.repository.source(name).unwrap().unwrap().id, id);
    }
    assert!(!rig.path(ObjectName::Label(id, 1)).exists());
    for damaged in [&b""[..], &[0; 300]] {
        std::fs::write(rig.path(ObjectName::Label(id, 3)), damaged).unwrap();
        assert!(rig.repository.source("third").unwrap().is_none());
        assert_eq!(rig.repository.source("second").unwrap().unwrap().id, id);
        rig.assert_backups(&[(1, Some(&disks[0]))]);
        assert!(rig.messages()[0].contains("the source is called 'second'"));
    }
    let writer = rig.repository.writer(id, "test").unwrap();
    assert_eq!(writer.mend_copies().unwrap(), 1);
    drop(writer);
    assert_eq!(rig.messages(), [""; 0]);
    rename("third").unwrap();
    assert_eq!(rig.repository.source("third").unwrap().unwrap().id, id);
}

#[test]
fn a_name_is_that_of_one_source() {
    let rig = Rig::new(&Access::Open);
    let repository = &rig.repository;
    let other = repository.add_source(source("other")).unwrap();
    let refused = repository.add_source(source("disk")).unwrap_err();
    assert_eq!(refused.kind(), RepositoryErrorKind::InUse);
    assert_eq!(repository.sources().unwrap().disks.len(), 2);
    let label = |name: &str| Label {
        name: name.to_owned(),
        origin: None,
    };
    let mut writer = repository.writer(other.id, "test").unwrap();
    let refused = writer.set_label(label("disk")).unwrap_err();
    assert_eq!(refused.kind(), RepositoryErrorKind::Exists);
    drop(writer);
    // A network file system may return stale listings, so two hosts may still give the same name concurrently.
    let away = aside(&rig.path(ObjectName::Source(other.id)));
    let folder = rig.place(Place::Manifests).parent().unwrap().to_owned();
    std::fs::rename(&folder, &away).unwrap();
    let mut writer = repository.writer(other.id, "test").unwrap();
    writer.set_label(label("disk")).unwrap();
    drop(writer);
    std::fs::rename(&away, &folder).unwrap();
    let refused = repository.source("disk").unwrap_err();
    assert_eq!(refused.kind(), RepositoryErrorKind::Invalid);
    for id in [rig.source.id, other.id] {
        let named = repository.source(&id.to_string()).unwrap();
        assert_eq!(named.unwrap().id, id);
    }
}

/// If either a tombstone or the object that tombstones were folded into is lost, the number stays closed by the other
/// one, or the backup counts as missing.
#[test]
fn a_damaged_tombstone_opens_no_number() {
    let (rig, _) = Rig::with_three(&Access::Open);
    rig.forget([1]);
    rig.prune(&ALL_WASTE).unwrap();
    rig.forget([2]);
    rig.prune(&ALL_WASTE).unwrap();
    let id = rig.source.id;
    let closing = [
        ObjectName::Tombstone(id, BackupNumber(2)),
        ObjectName::Closed(id, 0),
        ObjectName::Closed(id, 1),
    ];
    for name in closing {
        let path = rig.path(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let history = rig.repository.history(id).unwrap();
        assert_eq!(history.missing, []);
        assert_eq!(history.next, BackupNumber(4));
        assert_eq!(history.damaged.len(), 1);
        assert!(rig.messages()[0].contains(&name.path()));
        std::fs::write(&path, &bytes).unwrap();
    }
}

/// A missing source may need popular blocks.
#[test]
fn popular_blocks_stay_while_a_source_is_away() {
    let rig = Rig::new(&Access::Open);
    let other = rig.repository.add_source(source("other")).unwrap();
    let disk = MemoryDisk::new(1..=100);
    let (mut one, mut two) = (disk.clone(), disk.clone());
    let batch = rig.create_batch(&mut [(&rig.source, &mut one), (&other, &mut two)], None);
    batch.unwrap().backups.into_iter().for_each(|made| {
        made.unwrap();
    });
    rig.forget([1]);
    let folder = rig.folder.path().join(format!("r/sources/{}", other.id));
    let away = rig.folder.path().join("away");
    std::fs::rename(&folder, &away).unwrap();
    let prune = || -> Result<_> {
        let popular = rig.repository.sources().unwrap().popular.remove(0);
        let writer = rig.repository.writer(popular.id, "prune")?;
        onefold_backup::prune_popular(&writer, &ALL_WASTE, 10, 0, &mut |_, _| Ok(()))
    };
    let error = prune().unwrap_err().to_string();
    assert!(error.contains(&other.id.to_string()), "{error}");
    assert!(rig.messages()[0].contains(&other.id.to_string()));
    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(prune().unwrap().freed_blocks, 0);
    let restored = rig.restore_of(&other, BackupNumber(1)).unwrap();
    assert!(restored == disk.bytes());
}

/// A file with a number for a name, or a dangling link, must not exhaust memory or time.
#[test]
fn planted_names_stop_pruning_and_nothing_else() {
    let (rig, disks) = Rig::with_three(&Access::Open);
    let id = rig.source.id;
    let manifests = rig.place(Place::Manifests);
    std::fs::write(manifests.join(u64::MAX.to_string()), b"").unwrap();
    rig.forget([1]);
    rig.prune(&ALL_WASTE).unwrap();
    let high = manifests.join(((1_u64 << 62) - 2).to_string());
    std::fs::write(&high, b"").unwrap();
    let link = rig.path(ObjectName::Closed(id, 7));
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    let history = rig.repository.history(id).unwrap();
    assert_eq!((history.missing.len(), history.damaged.len()), (1000, 0));
    rig.prune(&ALL_WASTE).unwrap_err();
    rig.assert_backups(&[(2, Some(&disks[1])), (3, Some(&disks[2]))]);
    std::fs::remove_file(&high).unwrap();
    std::fs::remove_file(&link).unwrap();
    rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(rig.messages(), [""; 0]);
}

/// Network file systems and their clients leave files that are not objects.
#[test]
fn foreign_files_are_ignored() {
    let (rig, disks) = Rig::with_three(&Access::Open);
    let root = rig.folder.path().join("r");
    let of_source = root.join(format!("sources/{}", rig.source.id));
    for folder in [
        root.clone(),
        root.join("sources"),
        of_source.clone(),
        of_source.join("backups"),
        of_source.join("recipes"),
        of_source.join("packs"),
        of_source.join("packs/00"),
        of_source.join("forgotten"),
        of_source.join("writer"),
    ] {
        for name in [".DS_Store", "Thumbs.db", ".nfs000000000003", "007"] {
            std::fs::write(folder.join(name), b"foreign").unwrap();
        }
        std::fs::create_dir(folder.join("@eaDir")).unwrap();
    }
    let made = rig.create(&mut disks[0].clone(), None).unwrap();
    assert_eq!(made.backup, BackupNumber(4));
    rig.forget([2]);
    assert_eq!(rig.prune(&ALL_WASTE).unwrap().plan.dead_packs(), 1);
    rig.assert_backups(&[
        (1, Some(&disks[0])),
        (3, Some(&disks[2])),
        (4, Some(&disks[0])),
    ]);
    assert_eq!(rig.messages(), [""; 0]);
}

/// A repository survives the loss of its 128 bytes of identity.
#[test]
fn the_object_of_the_repository_has_a_copy() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let (rig, disks) = Rig::with_three(&access);
        let root = rig.folder.path().join("r");
        let names = [ObjectName::Repository, ObjectName::RepositoryCopy];
        let good = std::fs::read(rig.path(names[0])).unwrap();
        assert!(std::fs::read(rig.path(names[1])).unwrap() == good);
        for name in names {
            let mut flipped = good.clone();
            flipped[9] ^= 1;
            for damaged in [None, Some(&good[..100]), Some(&flipped[..])] {
                match damaged {
                    None => std::fs::remove_file(rig.path(name)).unwrap(),
                    Some(bytes) => std::fs::write(rig.path(name), bytes).unwrap(),
                }
                let opened = Repository::open(&root, &access).unwrap();
                let [(wrong, error)] = &opened.wrong_identity()[..] else {
                    panic!("{:?}", opened.wrong_identity());
                };
                assert_eq!((*wrong, error.kind()), (name, RepositoryErrorKind::Damaged));
                assert_eq!(rig.messages(), [error.to_string()]);
                rig.assert_backups(&[(1, Some(&disks[0]))]);
                assert_eq!(opened.mend_identity().unwrap(), 1);
                assert!(std::fs::read(rig.path(name)).unwrap() == good);
                assert_eq!(rig.messages(), [""; 0]);
            }
        }
        // Without both it is not known how the repository is protected.
        for name in names {
            std::fs::remove_file(rig.path(name)).unwrap();
        }
        let refused = Repository::open(&root, &access).unwrap_err();
        assert_eq!(refused.kind(), RepositoryErrorKind::NotFound);
    }
}

#[test]
fn objects_of_the_repository_that_contradict_each_other_are_refused() {
    let access = Access::KeyFile(b"a key".to_vec());
    let (rig, _) = Rig::with_three(&access);
    let other = Rig::new(&access);
    let open = Rig::new(&Access::Open);
    let root = rig.folder.path().join("r");
    for name in [ObjectName::Repository, ObjectName::RepositoryCopy] {
        let good = std::fs::read(rig.path(name)).unwrap();
        for forger in [&other, &open] {
            std::fs::copy(forger.path(name), rig.path(name)).unwrap();
            for refused in [
                Repository::open(&root, &access).err(),
                Repository::find(&root).err(),
            ] {
                let refused = refused.unwrap();
                assert_eq!(refused.kind(), RepositoryErrorKind::Damaged);
                assert!(refused.to_string().contains("contradict"), "{refused}");
            }
        }
        std::fs::write(rig.path(name), good).unwrap();
        Repository::open(&root, &access).unwrap();
    }
}
