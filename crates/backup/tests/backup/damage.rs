//! Damage that a verification found is recorded: no later backup refers to it, and commands in any order heal it.

use std::path::PathBuf;

use onefold_backup::verify;
use onefold_format::backup::{BackupNumber, ObjectName, SourceId};
use onefold_repository::Access;

use crate::history::ALL_ACCESS;
use crate::repairing::flip;
use crate::{MemoryDisk, Rig, source};

const FIRST: BackupNumber = BackupNumber(1);

impl Rig {
    /// The objects that record damage of a source.
    fn memories(&self, of: SourceId) -> Vec<PathBuf> {
        let folder = self.folder.path().join("r").join(ObjectName::damage(of));
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| !file.ends_with("source"));
        files
    }

    fn check_first(&self) -> Result<(), String> {
        let checked = self.check_parent(&self.source, FIRST);
        checked.map_err(|error| error.to_string())
    }
}

/// A backup of 300 blocks whose first group is damaged.
fn damaged(access: &Access) -> (Rig, MemoryDisk) {
    let rig = Rig::new(access);
    let disk = MemoryDisk::new(1..=300);
    rig.create(&mut disk.clone(), None).unwrap();
    flip(&rig.packs()[0], 90);
    (rig, disk)
}

#[test]
fn nothing_refers_to_what_was_found_and_one_round_heals() {
    for access in ALL_ACCESS() {
        let (rig, disk) = damaged(&access);
        // The damaged block has not been read yet.
        rig.check_first().unwrap();
        assert!(rig.verify(false).findings.is_empty());
        assert_eq!(rig.verify(true).findings.len(), 1);
        let refused = rig.check_first().unwrap_err();
        assert!(refused.contains("block 0 was found damaged"), "{refused}");
        let known = rig.verify(false).findings;
        assert_eq!(known.len(), 1, "{known:?}");
        assert_eq!(known[0].needed_by[0].blocks, 64);
        let made = rig.create(&mut disk.clone(), None).unwrap();
        assert_eq!(made.manifest.counts.new_blocks, 64);
        assert!(rig.restore(made.backup).unwrap() == disk.bytes());
        let repaired = rig.repair();
        assert_eq!((repaired.mended_blocks, repaired.missing_blocks), (64, 0));
        assert!(rig.restore(FIRST).unwrap() == disk.bytes());
        assert!(rig.verify(false).findings.is_empty());
        assert!(rig.verify(true).findings.is_empty());
        assert_eq!(rig.memories(rig.source.id).len(), 0);
        rig.check_first().unwrap();
    }
}

#[test]
fn what_is_proved_whole_is_forgotten() {
    let (rig, _) = damaged(&Access::Open);
    rig.verify(true);
    let before = rig.memories(rig.source.id);
    assert_eq!(before.len(), 1);
    // A second verification that finds the same damage does not write it again.
    rig.verify(true);
    assert_eq!(rig.memories(rig.source.id), before);
    flip(&rig.packs()[0], 90);
    rig.check_first().unwrap_err();
    assert!(rig.verify(true).findings.is_empty());
    assert_eq!(rig.memories(rig.source.id).len(), 0);
    rig.check_first().unwrap();
}

#[test]
fn what_several_verifications_remember_counts_together() {
    let (rig, _) = damaged(&Access::Open);
    rig.verify(true);
    let first = rig.memories(rig.source.id).remove(0);
    let kept = std::fs::read(&first).unwrap();
    let pack = &rig.packs()[0];
    let len = std::fs::metadata(pack).unwrap().len() as usize;
    flip(pack, len / 2);
    rig.verify(true);
    // The other verification ends only now.
    std::fs::write(&first, kept).unwrap();
    let known = rig.repository.known_damage(rig.source.id).unwrap();
    assert_eq!(rig.memories(rig.source.id).len(), 2);
    // A damaged record is reported, and its blocks count as intact until they are read again.
    flip(&first, 85);
    let message = rig.verify(false).findings.remove(0).message;
    assert!(message.contains("/damage/"), "{message}");
    assert_eq!(known.wrong().count(), 0);
    rig.verify(true);
    assert_eq!(rig.memories(rig.source.id).len(), 1);
    let found = rig.verify(false).findings;
    assert!(
        found
            .iter()
            .all(|finding| !finding.message.contains("/damage/"))
    );
    assert_eq!(found.len(), 2);
}

#[test]
fn damaged_popular_blocks_are_stored_again() {
    let rig = Rig::new(&Access::Open);
    let [second, third] = ["second", "third"].map(|name| {
        let added = rig.repository.add_source(source(name));
        added.unwrap()
    });
    let disk = MemoryDisk::new(1..=300);
    let (mut one, mut two) = (disk.clone(), disk.clone());
    let batch = rig.create_batch(&mut [(&rig.source, &mut one), (&second, &mut two)], None);
    assert_eq!(batch.unwrap().new_popular_blocks, 300);
    let popular = rig.repository.popular_id(&rig.source.source);
    flip(&rig.packs()[0], 90);
    // Compares the popular blocks that this source needs, and no own packs.
    let found = verify(&rig.repository, Some(&second), true, &mut |_, _| Ok(()));
    assert_eq!(found.unwrap().findings.len(), 1);
    assert_eq!(rig.memories(popular).len(), 1);
    // The other source needs none of them, so its verification proves nothing about them.
    verify(&rig.repository, Some(&third), true, &mut |_, _| Ok(())).unwrap();
    assert_eq!(rig.memories(popular).len(), 1);
    rig.check_first().unwrap_err();
    for of in [&third, &rig.source] {
        let made = rig.create_batch(&mut [(of, &mut disk.clone())], None);
        let made = made.unwrap().backups.remove(0).unwrap();
        assert_eq!(made.manifest.counts.new_blocks, 64);
        assert!(rig.restore_of(of, made.backup).unwrap() == disk.bytes());
    }
    assert_eq!(rig.repair().mended_blocks, 64);
    assert!(rig.verify(true).findings.is_empty());
    assert_eq!(rig.memories(popular).len(), 0);
    assert!(rig.restore_of(&second, FIRST).unwrap() == disk.bytes());
}

#[test]
fn a_source_goes_with_what_is_remembered_of_it() {
    let (rig, _) = damaged(&Access::Open);
    rig.verify(true);
    rig.repository.remove_source(rig.source.id).unwrap();
    assert!(rig.repository.sources().unwrap().disks.is_empty());
    let left = rig
        .folder
        .path()
        .join(format!("r/sources/{}", rig.source.id));
    assert!(!left.exists());
}

#[test]
fn what_repair_leaves_in_place_stays_known() {
    let (rig, disk) = damaged(&Access::Open);
    let pack = &rig.packs()[0];
    let good = std::fs::read(pack).unwrap();
    std::fs::write(pack, &good[..good.len() / 2]).unwrap();
    rig.verify(true);
    // No block of the pack can be put back, so it stays as it is, with its damaged group.
    assert_eq!(rig.repair().damaged_blocks, 0);
    assert_eq!(rig.memories(rig.source.id).len(), 1);
    let made = rig.create(&mut disk.clone(), None).unwrap();
    assert!(rig.restore(made.backup).unwrap() == disk.bytes());
}
