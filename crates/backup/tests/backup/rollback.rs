//! The storage of a source returns to an older state: a host that has seen a newer state notices, and once the user
//! accepts it, no number is used twice.

use onefold_format::backup::{BackupNumber, SourceId};
use onefold_repository::{Access, Reached};

use crate::history::three_disks;
use crate::pruning::ALL_WASTE;
use crate::{MemoryDisk, Rig};

impl Rig {
    /// How far the source has come, for a host that had seen `known`.
    fn remembered(&self, known: Reached) -> Reached {
        let course = self.repository.course(self.source.id, known).unwrap();
        known.max(course.proved)
    }

    fn has_gone_back(&self, known: Reached) -> bool {
        let course = self.repository.course(self.source.id, known).unwrap();
        !course.listed.is_as_far_as(known)
    }

    fn accept(&self, reached: Reached) {
        let writer = self.repository.writer(self.source.id, "test").unwrap();
        writer.accept_rollback(reached).unwrap();
    }
}

fn reached(next: u64, next_pack: u64) -> Reached {
    Reached { next, next_pack }
}

#[test]
fn a_source_that_went_back_goes_on_above_all_that_it_had_reached() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let rig = Rig::new(&access);
        let disks = three_disks();
        rig.create(&mut disks[0].clone(), None).unwrap();
        let known = rig.remembered(Reached::default());
        assert_eq!(known, reached(2, 1));
        let older = rig.copied(&access);
        rig.create(&mut disks[1].clone(), None).unwrap();
        rig.create(&mut disks[2].clone(), None).unwrap();
        let known = rig.remembered(known);
        assert_eq!(known, reached(4, 3));
        assert!(!rig.has_gone_back(known) && older.has_gone_back(known));

        older.accept(known);
        // A host that had seen a newer state notices, too.
        older.accept(reached(6, 2));
        assert!(!older.has_gone_back(reached(6, 3)));
        let history = older.repository.history(older.source.id).unwrap();
        assert_eq!((history.missing, history.next.0), (vec![], 6));
        let made = older.create(&mut disks[1].clone(), None).unwrap();
        assert_eq!(made.backup, BackupNumber(6));
        assert_eq!(made.manifest.own_packs[0].number, 3);
        older.assert_backups(&[(1, Some(&disks[0])), (6, Some(&disks[1]))]);
        assert_eq!(older.verify(true).findings.len(), 0);

        // Closing the gap survives pruning, and the loss of either object.
        let [first, second] = [2, 3].map(|generation| {
            let folder = format!("sources/{}/closed/{generation}", older.source.id);
            older.folder.path().join("r").join(folder)
        });
        for lost in [&first, &second] {
            let bytes = std::fs::read(lost).unwrap();
            std::fs::remove_file(lost).unwrap();
            assert!(!older.has_gone_back(reached(6, 3)), "{lost:?}");
            std::fs::write(lost, bytes).unwrap();
        }
        older
            .repository
            .forget(older.source.id, made.backup)
            .unwrap();
        older.prune(&ALL_WASTE).unwrap();
        assert!(!older.has_gone_back(reached(7, 4)));
        assert_eq!(older.verify(true).findings.len(), 0);
    }
}

#[test]
fn what_is_forgotten_or_damaged_has_not_gone_back_and_what_is_hidden_has() {
    let rig = Rig::new(&Access::KeyFile(b"a key".to_vec()));
    let id = rig.source.id;
    for disk in three_disks() {
        rig.create(&mut disk.clone(), None).unwrap();
    }
    let known = rig.remembered(Reached::default());
    let (manifest, pack) = (rig.file("backups/3"), rig.file("packs/02/2.0"));
    let good = std::fs::read(&manifest).unwrap();
    // This is damage, which `verify` reports, and not a rollback.
    std::fs::write(&manifest, &good[..100]).unwrap();
    assert!(!rig.has_gone_back(known));
    std::fs::write(&manifest, &good).unwrap();
    let pack_bytes = std::fs::read(&pack).unwrap();
    std::fs::remove_file(&pack).unwrap();
    assert!(!rig.has_gone_back(known));
    std::fs::write(&pack, pack_bytes).unwrap();
    // Without the manifest, its recipe and packs do not hide the rollback.
    std::fs::remove_file(&manifest).unwrap();
    rig.file("recipes/3");
    assert!(rig.has_gone_back(known));
    std::fs::write(&manifest, good).unwrap();

    // Another host forgets the backup, without this one noticing.
    rig.repository.forget(id, BackupNumber(3)).unwrap();
    assert!(!rig.has_gone_back(known));
    rig.prune(&ALL_WASTE).unwrap();
    assert!(!rig.has_gone_back(known));
    rig.prune(&ALL_WASTE).unwrap();
    assert!(!rig.has_gone_back(known));
    assert!(rig.repository.has_source(id).unwrap());
    assert!(!rig.repository.has_source(SourceId(id.0 ^ 1)).unwrap());
}

/// Anyone can create a name: if names were remembered, removing one would look like a rollback, and numbers would
/// continue above it.
#[test]
fn a_name_that_was_made_up_is_not_remembered() {
    let rig = Rig::new(&Access::Open);
    rig.create(&mut MemoryDisk::new(1..=10), None).unwrap();
    for planted in ["999999", "4611686018427387903"] {
        let beside = rig.file("backups/1").with_file_name(planted);
        std::fs::write(beside, b"not a manifest").unwrap();
        let pack = rig.file("packs/00/0.0");
        std::fs::write(pack.with_file_name("1024.0"), b"not a pack").unwrap();
        assert_eq!(rig.remembered(Reached::default()), reached(2, 1));
        assert_eq!(rig.remembered(reached(2, 1)), reached(2, 1));
    }
}
