//! A pack's table has a copy: if only the groups of a pack are readable, the pack can still be read, and if the pack is
//! gone, its blocks are still known.

use std::path::Path;

use onefold_backup::{Repaired, prune_popular};
use onefold_format::backup::{BackupNumber, ObjectName, Slot};
use onefold_repository::{Access, KnownSource};

use crate::history::{ALL_ACCESS, table_of, three_disks};
use crate::pruning::ALL_WASTE;
use crate::repairing::flip;
use crate::{MemoryDisk, Rig, source};

/// Three backups that have no content in common, each with a pack.
fn scene(access: &Access) -> (Rig, [MemoryDisk; 3]) {
    let rig = Rig::new(access);
    let disks = three_disks();
    for disk in &disks {
        rig.create(&mut disk.clone(), None).unwrap();
    }
    (rig, disks)
}

impl Rig {
    #[track_caller]
    fn assert_all_three(&self, disks: &[MemoryDisk; 3]) {
        let [one, two, three] = disks;
        self.assert_backups(&[(1, Some(one)), (2, Some(two)), (3, Some(three))]);
        let findings = self.verify(true).findings;
        assert!(findings.is_empty(), "{findings:?}");
    }

    /// The only finding of a verification.
    #[track_caller]
    fn finding(&self) -> String {
        let mut findings = self.verify(true).findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0).message
    }
}

fn cut(file: &Path, len: impl FnOnce(usize) -> usize) {
    let bytes = std::fs::read(file).unwrap();
    std::fs::write(file, &bytes[..len(bytes.len())]).unwrap();
}

#[test]
fn a_pack_is_read_by_the_copy_of_its_table() {
    for access in ALL_ACCESS() {
        let (made, disks) = scene(&access);
        let len = std::fs::metadata(made.file("01/1.0")).unwrap().len() as usize;
        // In the header, its magic and its salt; then the table and the trailer.
        for at in [3, 50, len - 2000, len - 5] {
            let rig = made.copied(&access);
            flip(&rig.file("01/1.0"), at);
            let message = rig.finding();
            assert!(
                message.contains("the copy of its table serves"),
                "{message}"
            );
            rig.assert_backups(&[(2, Some(&disks[1]))]);
            rig.check_parent(&rig.source, BackupNumber(2)).unwrap();
            let made = rig.create(&mut disks[1].clone(), None).unwrap();
            assert_eq!(made.manifest.counts.new_blocks, 0);
            let repaired = rig.repair();
            let only_tables = Repaired {
                tables: 1,
                ..Repaired::default()
            };
            assert_eq!(repaired, only_tables, "byte {at}");
            rig.assert_all_three(&disks);
            assert!(rig.plan_repair().sick.is_empty());
            // A pack with a damaged header cannot be distinguished from a foreign file.
            assert_eq!(
                rig.prune(&ALL_WASTE).unwrap().plan.foreign.len(),
                usize::from(at < 80)
            );
        }
    }
}

#[test]
fn a_pack_that_is_gone_is_mended_by_what_is_stored_again() {
    for access in ALL_ACCESS() {
        let (rig, disks) = scene(&access);
        // For the last pack, too, only the copy has the fingerprints.
        for end in ["01/1.0", "02/2.0"] {
            std::fs::remove_file(rig.file(end)).unwrap();
        }
        rig.assert_backups(&[(2, None), (3, None)]);
        // No other block has the content.
        let missing = Repaired {
            missing_blocks: 600,
            ..Repaired::default()
        };
        assert_eq!(rig.repair(), missing);
        let both = MemoryDisk::new(301..=900);
        let made = rig.create(&mut both.clone(), None).unwrap();
        assert_eq!(made.manifest.counts.new_blocks, 600);
        assert_eq!(made.manifest.own_packs[0].number, 3);
        let mended = Repaired {
            mended_blocks: 600,
            tables: 0,
            ..Repaired::default()
        };
        assert_eq!(rig.repair(), mended);
        rig.assert_all_three(&disks);
        rig.prune(&ALL_WASTE).unwrap();
        rig.assert_all_three(&disks);
    }
}

#[test]
fn what_a_pack_lost_at_its_end_is_known() {
    let (rig, disks) = scene(&Access::Open);
    cut(&rig.file("01/1.0"), |len| len / 2);
    rig.assert_backups(&[(2, None)]);
    let refused = rig.check_parent(&rig.source, BackupNumber(2));
    refused.unwrap_err();
    let made = rig.create(&mut disks[1].clone(), None).unwrap();
    let new = made.manifest.counts.new_blocks;
    assert!((64..300).contains(&new), "{new}");
    let repaired = Repaired {
        mended_blocks: new,
        tables: 1,
        ..Repaired::default()
    };
    assert_eq!(rig.repair(), repaired);
    rig.assert_all_three(&disks);
}

#[test]
fn a_copy_that_is_damaged_or_missing_is_named_and_made_again() {
    for access in ALL_ACCESS() {
        let (made, disks) = scene(&access);
        for damage in 0..4 {
            let rig = made.copied(&access);
            let pack = rig.file("01/1.0");
            let copy = table_of(&pack);
            let good = std::fs::read(&copy).unwrap();
            match damage {
                0 => std::fs::remove_file(&copy).unwrap(),
                1 => flip(&copy, 100),
                2 => cut(&copy, |len| len / 2),
                // An authentic copy, but for a pack that was never completed.
                _ => {
                    std::fs::remove_file(&copy).unwrap();
                    let writer = rig.repository.writer(rig.source.id, "test").unwrap();
                    let pack = std::fs::read(&pack).unwrap();
                    std::fs::remove_file(rig.file("01/1.0")).unwrap();
                    let mut other = writer.new_pack(writer.source(), 1).unwrap();
                    let sealed = other.sealer(1).seal(0, &crate::block(5)).unwrap();
                    let slot = Slot::Stored([5; 16]);
                    other.push(&sealed, [slot]).unwrap();
                    other.finish().unwrap();
                    std::fs::write(rig.file("01/1.0"), pack).unwrap();
                }
            }
            rig.assert_backups(&[(2, Some(&disks[1]))]);
            let message = rig.finding();
            assert!(message.contains("tables/01/1.0"), "{message}");
            let repaired = rig.repair();
            assert_eq!((repaired.tables, repaired.damaged_blocks), (1, 0));
            rig.assert_all_three(&disks);
            // The new copy is as long as the old one.
            assert_eq!(std::fs::read(&copy).unwrap().len(), good.len());
            flip(&pack, std::fs::metadata(&pack).unwrap().len() as usize - 5);
            rig.assert_backups(&[(2, Some(&disks[1]))]);
        }
    }
}

#[test]
fn without_table_and_copy_nothing_is_known_of_a_pack() {
    let (rig, disks) = scene(&Access::Open);
    let pack = rig.file("01/1.0");
    flip(&pack, std::fs::metadata(&pack).unwrap().len() as usize - 5);
    flip(&table_of(&pack), 100);
    rig.assert_backups(&[(1, Some(&disks[0])), (2, None)]);
    rig.create(&mut disks[1].clone(), None).unwrap();
    assert_eq!(rig.repair(), Repaired::default());
    rig.assert_backups(&[(2, None), (4, Some(&disks[1]))]);
    assert_eq!(rig.verify(true).findings[0].needed_by.len(), 1);
}

#[test]
fn copies_go_with_their_packs_and_numbers_stay_used() {
    let (rig, disks) = scene(&Access::Open);
    let tables = || rig.repository.tables(rig.source.id).unwrap();
    assert_eq!(tables(), [(0, 0), (1, 0), (2, 0)]);
    // A needed pack that is lost stays known; an unneeded one does not.
    for end in ["01/1.0", "02/2.0"] {
        std::fs::remove_file(rig.file(end)).unwrap();
    }
    rig.forget([1, 3]);
    let pruned = rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(pruned.plan.dead_packs(), 1);
    assert_eq!(tables(), [(1, 0)]);
    assert!(rig.prune(&ALL_WASTE).unwrap().plan.is_empty());
    let made = rig.create(&mut disks[2].clone(), None).unwrap();
    assert_eq!(made.manifest.own_packs[0].number, 3);
    // Rewritten packs have new copies.
    let half = MemoryDisk::new(601..=700);
    rig.create(&mut half.clone(), None).unwrap();
    rig.forget([4]);
    rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(tables(), [(1, 0), (3, 1)]);
    rig.assert_backups(&[(5, Some(&half))]);
}

/// Only the copy shows that the pack was written.
#[test]
fn the_number_of_a_pack_of_which_only_the_copy_is_left_is_not_used_again() {
    let (rig, disks) = scene(&Access::Open);
    std::fs::remove_file(rig.file("02/2.0")).unwrap();
    let name = ObjectName::Manifest(rig.source.id, BackupNumber(3));
    flip(&rig.folder.path().join("r").join(name.path()), 100);
    let made = rig.create(&mut disks[0].clone(), None).unwrap();
    assert!(made.manifest.own_packs.iter().all(|pack| pack.number == 0));
    let made = rig.create(&mut disks[2].clone(), None).unwrap();
    assert_eq!(made.manifest.own_packs[0].number, 3);
}

/// The pack that belongs to a copy may be about to appear.
#[test]
fn a_copy_without_a_popular_pack_stays_as_long_as_anybody_may_write_the_pack() {
    let rig = Rig::new(&Access::Open);
    let other = rig.repository.add_source(source("other")).unwrap();
    let disk = MemoryDisk::new(1..=100);
    let create = |sources: [&KnownSource; 2]| {
        let mut copies = [disk.clone(), disk.clone()];
        let mut disks: Vec<_> = sources.into_iter().zip(&mut copies).collect();
        rig.create_batch(&mut disks, None).unwrap();
    };
    create([&rig.source, &other]);
    let popular = rig.repository.sources().unwrap().popular.remove(0);
    let [(number, 0)] = rig.repository.tables(popular.id).unwrap()[..] else {
        panic!("one pack");
    };
    // A process that died after writing the copy leaves this, or one that is still running.
    let copy = table_of(&rig.file(&format!("/{number}.0")));
    let stray = rig.repository.writer(other.id, "test").unwrap();
    let mut pack = stray.new_pack(&popular, number + 1).unwrap();
    let sealed = pack.sealer(1).seal(0, &crate::block(5)).unwrap();
    pack.push(&sealed, [Slot::Stored([5; 16])]).unwrap();
    pack.finish().unwrap();
    std::fs::remove_file(rig.file(&format!("/{}.0", number + 1))).unwrap();
    let tables = || rig.repository.tables(popular.id).unwrap().len();
    let prune = || {
        let writer = rig.repository.writer(popular.id, "prune").unwrap();
        prune_popular(&writer, &ALL_WASTE, 10, 0, &mut |_, _| Ok(())).unwrap()
    };
    prune();
    assert_eq!(tables(), 2);
    drop(stray);
    prune();
    assert_eq!(tables(), 1);
    assert!(copy.exists());
}

#[test]
fn a_pack_that_comes_back_is_as_it_was() {
    let (made, disks) = scene(&Access::Open);
    let is_cut = |file: &Path| cut(file, |len| len / 2);
    let is_gone = |file: &Path| std::fs::remove_file(file).unwrap();
    for (damage, tables) in [(&is_cut as &dyn Fn(&Path), 1), (&is_gone, 0)] {
        let rig = made.copied(&Access::Open);
        let pack = rig.file("01/1.0");
        let good = std::fs::read(&pack).unwrap();
        damage(&pack);
        let repaired = rig.repair();
        assert!(repaired.missing_blocks > 0 && repaired.tables <= tables);
        std::fs::write(&pack, good).unwrap();
        rig.assert_all_three(&disks);
    }
}
