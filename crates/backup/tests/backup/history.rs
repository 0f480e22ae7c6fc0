//! Backups name the packs that they need: if a pack is lost, or a different one is in its place, reading fails and
//! never returns other data.

use std::path::{Path, PathBuf};

use onefold_backup::{Difference, RepairPlan, Restore, Result, check_parent};
use onefold_format::backup::{BackupNumber, ObjectName, Slot};
use onefold_repository::{Access, Repository, RepositoryErrorKind};

use crate::{MemoryDisk, Rig, source};

pub(crate) const ALL_ACCESS: fn() -> [Access; 2] =
    || [Access::Open, Access::KeyFile(b"a key".to_vec())];

impl Rig {
    /// The only file whose path ends with `end`, except copies of tables.
    #[track_caller]
    pub(crate) fn file(&self, end: &str) -> PathBuf {
        let mut files = self.files();
        files.retain(|file| {
            let file = file.to_string_lossy();
            file.ends_with(end) && !file.contains("/tables/")
        });
        assert_eq!(files.len(), 1, "{end}: {files:?}");
        files.remove(0)
    }

    /// A copy of the repository, which from here on has a history of its own.
    pub(crate) fn copied(&self, access: &Access) -> Rig {
        let folder = crate::scratch();
        copy(self.folder.path(), folder.path());
        let host = crate::scratch();
        copy(self.host.path(), host.path());
        let repository = Repository::open(&folder.path().join("r"), access).unwrap();
        Rig {
            source: repository.source("disk").unwrap().unwrap(),
            repository: repository.into(),
            folder,
            host,
        }
    }

    /// The backups that need damaged objects.
    fn concerned(&self, data: bool) -> Vec<u64> {
        let findings = self.verify(data).findings;
        let needed_by = findings.iter().flat_map(|finding| &finding.needed_by);
        let numbers = needed_by.map(|needed| needed.name.rsplit_once('@').unwrap().1);
        let mut concerned: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
        concerned.sort_unstable();
        concerned.dedup();
        concerned
    }

    #[track_caller]
    pub(crate) fn assert_backups(&self, backups: &[(u64, Option<&MemoryDisk>)]) {
        for (n, disk) in backups {
            match (self.restore(BackupNumber(*n)), disk) {
                (Ok(bytes), Some(disk)) => assert!(bytes == disk.bytes(), "backup {n}"),
                (Err(error), None) => assert!(error.to_string().contains("damaged"), "{error}"),
                (restored, _) => panic!("backup {n}: {:?}", restored.map(|_| "restored")),
            }
        }
    }
}

/// The copy of the table of a pack.
pub(crate) fn table_of(pack: &Path) -> PathBuf {
    pack.to_string_lossy().replace("/packs/", "/tables/").into()
}

/// Disks without common content.
pub(crate) fn three_disks() -> [MemoryDisk; 3] {
    [1, 301, 601].map(|first| MemoryDisk::new(first..first + 300))
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_numbers_of_a_lost_pack_are_not_used_again() {
    for access in ALL_ACCESS() {
        let rig = Rig::new(&access);
        let disks = three_disks();
        rig.create(&mut disks[0].clone(), None).unwrap();
        rig.create(&mut disks[1].clone(), None).unwrap();
        std::fs::remove_file(rig.file("packs/01/1.0")).unwrap();
        assert_eq!(rig.concerned(true), [2]);
        rig.create(&mut disks[2].clone(), None).unwrap();
        rig.file("packs/02/2.0");
        rig.assert_backups(&[(1, Some(&disks[0])), (2, None), (3, Some(&disks[2]))]);
        assert_eq!(rig.concerned(false), [2]);
        // Lost content is stored again, but older backups stay damaged until a repair.
        rig.create(&mut disks[1].clone(), None).unwrap();
        rig.assert_backups(&[(2, None), (4, Some(&disks[1]))]);
        assert_eq!(rig.concerned(true), [2]);
    }
}

/// The storage returns to an older state, from which the source continues differently: two authentic packs have the
/// same name.
#[test]
fn a_different_pack_with_the_same_number_is_not_used() {
    for access in ALL_ACCESS() {
        let rig = Rig::new(&access);
        let disks = three_disks();
        rig.create(&mut disks[0].clone(), None).unwrap();
        let other = rig.copied(&access);
        rig.create(&mut disks[1].clone(), None).unwrap();
        other.create(&mut disks[2].clone(), None).unwrap();
        std::fs::copy(other.file("packs/01/1.0"), rig.file("packs/01/1.0")).unwrap();

        rig.assert_backups(&[(1, Some(&disks[0])), (2, None)]);
        assert_eq!(
            (rig.concerned(false), rig.concerned(true)),
            (vec![2], vec![2])
        );
        let refused = rig.check_parent(&rig.source, BackupNumber(2)).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("a different one with the same number"),
            "{refused}"
        );

        // Neither the lost pack's contents nor the other pack's count as stored.
        let both = MemoryDisk::new((301..=310).chain(601..=610));
        let made = rig.create(&mut both.clone(), None).unwrap();
        assert_eq!(made.manifest.counts.new_blocks, 20);
        rig.assert_backups(&[(2, None), (3, Some(&both))]);
        // A child of the damaged backup needs the pack that its parent needs.
        let mut child = disks[1].clone();
        child.contents[0] = 7777;
        let made = rig
            .create(&mut child.since(&disks[1]), Some(BackupNumber(2)))
            .unwrap();
        rig.assert_backups(&[(made.backup.0, None)]);
        assert_eq!(rig.concerned(true), [2, made.backup.0]);
        // A repair neither mends nor worsens this.
        let plan = RepairPlan::new(&rig.repository, &mut |_, _| Ok(())).unwrap();
        assert!(
            plan.sick
                .iter()
                .all(|sick| sick.expected.mended_blocks == 0)
        );
        std::fs::remove_file(rig.file("packs/01/1.0")).unwrap();
        rig.assert_backups(&[(1, Some(&disks[0])), (2, None), (3, Some(&both))]);
    }
}

/// Equal numbers of different packs are different content.
#[test]
fn backups_that_need_different_packs_with_the_same_number_differ() {
    let rig = Rig::new(&Access::Open);
    let disks = three_disks();
    rig.create(&mut disks[0].clone(), None).unwrap();
    let other = rig.copied(&Access::Open);
    rig.create(&mut disks[1].clone(), None).unwrap();
    other.create(&mut disks[0].clone(), None).unwrap();
    other.create(&mut disks[2].clone(), None).unwrap();
    for (object, beside) in [("recipes/3", "recipes/1"), ("backups/3", "backups/1")] {
        let target = rig.file(beside).with_file_name("3");
        std::fs::copy(other.file(object), target).unwrap();
    }
    assert_eq!(rig.recipe(BackupNumber(2)), rig.recipe(BackupNumber(3)));
    let blocks = rig.blocks();
    let open = |n| Restore::open(&blocks, &rig.source, BackupNumber(n), "test").unwrap();
    let (second, third) = (open(2), open(3));
    let all = 0..disks[1].size_bytes();
    let what = |now: &Restore, before: &Restore| {
        let runs = now.differences(before, &all, 10).unwrap();
        runs.iter().map(|run| run.what).collect::<Vec<_>>()
    };
    assert_eq!(what(&third, &second), [Difference::Data]);
    assert_eq!(what(&third, &open(3)), [Difference::Same]);
}

#[test]
fn a_different_popular_pack_with_the_same_number_is_not_used() {
    let rig = Rig::new(&Access::Open);
    let second = rig.repository.add_source(source("second")).unwrap();
    let batch = |rig: &Rig, first: u64| {
        let disk = MemoryDisk::new(first..first + 100);
        let mut both = [
            (&rig.source, &mut disk.clone()),
            (&second, &mut disk.clone()),
        ];
        let batch = rig.create_batch(&mut both, None).unwrap();
        assert!(batch.backups.iter().all(Result::is_ok));
        disk
    };
    let disk = batch(&rig, 1);
    let popular = rig.file(".0");
    let (name, folder) = (popular.file_name().unwrap(), popular.parent().unwrap());
    let number = name
        .to_string_lossy()
        .trim_end_matches(".0")
        .parse()
        .unwrap();
    // A different, authentic pack with this number.
    let store = rig.repository.sources().unwrap().popular.remove(0);
    let other = rig.copied(&Access::Open);
    let of_other = other.repository.sources().unwrap().popular.remove(0);
    let replaced = other.file(".0");
    std::fs::remove_file(table_of(&replaced)).unwrap();
    std::fs::remove_file(replaced).unwrap();
    let writer = other.repository.writer(of_other.id, "test").unwrap();
    let mut pack = writer.new_pack(&of_other, number).unwrap();
    let content: Vec<u8> = (901..1029).flat_map(crate::block).collect();
    for (group, blocks) in (0..).zip(content.chunks(64 * crate::BLOCK)) {
        let sealed = pack.sealer(1).seal(group, blocks).unwrap();
        pack.push(&sealed, [Slot::Stored([9; 16]); 64]).unwrap();
    }
    pack.finish().unwrap();
    rig.assert_backups(&[(1, Some(&disk))]);
    std::fs::copy(other.file(".0"), folder.join(name)).unwrap();
    assert!(
        rig.repository.pack(store.id, number, 0).is_ok(),
        "it is authentic"
    );
    rig.assert_backups(&[(1, None)]);
    assert_eq!(rig.concerned(false), [1]);
    let made = rig.create(&mut disk.clone(), None).unwrap();
    assert_eq!(made.manifest.counts.new_blocks, 100);
    rig.assert_backups(&[(2, Some(&disk))]);
}

/// A damaged backup is not used as a parent, because all backups after it would have the same holes.
#[test]
fn a_damaged_backup_is_not_continued() {
    for access in ALL_ACCESS() {
        let rig = Rig::new(&access);
        let made = rig.create(&mut MemoryDisk::new(1..=300), None).unwrap();
        let check = || rig.check_parent(&rig.source, made.backup);
        let read = || check_parent(&rig.repository, &rig.source, made.backup, None);
        check().unwrap();
        // The table of the pack is damaged together with its copy.
        let pack = rig.file("packs/00/0.0");
        let copy = std::fs::read(table_of(&pack)).unwrap();
        for end in ["packs/00/0.0", "recipes/1", "backups/1"] {
            let file = rig.file(end);
            let good = std::fs::read(&file).unwrap();
            let mut flipped = good.clone();
            // In a pack, this offset is in the table.
            let at = good.len() - 100;
            flipped[at] ^= 1;
            for bad in [Some(flipped), Some(good[..good.len() / 2].to_vec()), None] {
                let has_all_bytes = bad.as_ref().is_some_and(|bad| bad.len() == good.len());
                match bad {
                    Some(bad) => std::fs::write(&file, bad).unwrap(),
                    None => std::fs::remove_file(&file).unwrap(),
                }
                if file == pack {
                    std::fs::remove_file(table_of(&pack)).unwrap();
                }
                // A host that has the table in its cache notices only missing bytes.
                let is_noticed = check().is_err();
                assert_eq!(is_noticed, end != "packs/00/0.0" || !has_all_bytes, "{end}");
                let refused = read().unwrap_err();
                let refused = match &refused {
                    onefold_backup::BackupError::Repository(error) => error,
                    other => panic!("{end}: {other}"),
                };
                let kinds = [RepositoryErrorKind::Damaged, RepositoryErrorKind::NotFound];
                assert!(kinds.contains(&refused.kind()), "{end}: {refused}");
                std::fs::write(table_of(&pack), &copy).unwrap();
            }
            std::fs::write(&file, &good).unwrap();
            check().unwrap();
        }
        // A backup that lacks a block is no parent, either.
        let bytes = std::fs::read(&pack).unwrap();
        std::fs::write(&pack, &bytes[..bytes.len() / 2]).unwrap();
        let refused = check().unwrap_err().to_string();
        assert!(refused.contains("was damaged and is lost"), "{refused}");
    }
}

#[test]
fn a_recipe_of_another_backup_with_the_number_is_not_read() {
    for access in ALL_ACCESS() {
        let rig = Rig::new(&access);
        let [first, second, _] = three_disks();
        let recipe = rig.path(ObjectName::Recipe(rig.source.id, BackupNumber(1)));
        let manifest = rig.path(ObjectName::Manifest(rig.source.id, BackupNumber(1)));
        let folder = rig.copied(&access);
        // In a copy with its own history, the number belongs to a different backup. All sizes are the same.
        rig.create(&mut first.clone(), None).unwrap();
        folder.create(&mut second.clone(), None).unwrap();
        let other = folder.path(ObjectName::Recipe(rig.source.id, BackupNumber(1)));
        std::fs::copy(other, &recipe).unwrap();
        let refused = rig.restore(BackupNumber(1)).unwrap_err().to_string();
        assert!(refused.contains("a different one"), "{refused}");
        assert_eq!(rig.verify(false).findings.len(), 1);
        assert!(manifest.exists());
    }
}
