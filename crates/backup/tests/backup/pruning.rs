//! After backups are forgotten and their source is pruned, exactly the blocks that the remaining backups need are left.

use std::collections::BTreeSet;

use onefold_backup::{
    BackupError, PruneOptions, PrunePlan, Pruned, Restore, Result, prune, verify,
};
use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{BackupNumber, ObjectName};
use onefold_repository::{Access, Repository, RepositoryErrorKind};

use crate::{BLOCK, MemoryDisk, Rig, days};

pub(crate) const ALL_WASTE: PruneOptions = PruneOptions {
    wasted_percent: 0,
    rewrite_bytes_max: u64::MAX,
    level: 1,
};

impl Rig {
    pub(crate) fn forget(&self, backups: impl IntoIterator<Item = u64>) {
        for backup in backups {
            let backup = BackupNumber(backup);
            self.repository.forget(self.source.id, backup).unwrap();
        }
    }

    pub(crate) fn prune(&self, options: &PruneOptions) -> Result<Pruned> {
        self.prune_until(options, u32::MAX)
    }

    /// Prunes, and is interrupted at the report with number `reports`.
    fn prune_until(&self, options: &PruneOptions, reports: u32) -> Result<Pruned> {
        let mut left = reports;
        let writer = self.repository.writer(self.source.id, "prune")?;
        prune(&writer, options, &mut |_, _| match left {
            0 => Err(BackupError::Receiver("interrupted".to_owned())),
            _ => {
                left -= 1;
                Ok(())
            }
        })
    }

    /// How many blocks the packs of all generations have.
    fn stored_blocks(&self) -> u64 {
        let packs = self.repository.pack_generations(self.source.id).unwrap();
        let stored = packs.into_iter().map(|(number, generation)| {
            let pack = self.repository.pack(self.source.id, number, generation);
            let pack = pack.unwrap();
            let slots = pack.slots().iter();
            slots.filter(|slot| slot.stored().is_some()).count() as u64
        });
        stored.sum()
    }

    #[track_caller]
    fn assert_whole(&self, kept: &BTreeSet<u64>, days: &[MemoryDisk]) {
        let backups = self.repository.backups(self.source.id).unwrap();
        assert_eq!(
            backups
                .iter()
                .map(|backup| backup.0)
                .collect::<BTreeSet<_>>(),
            *kept
        );
        for backup in kept {
            let restored = self.restore(BackupNumber(*backup)).unwrap();
            assert!(
                restored == days[*backup as usize - 1].bytes(),
                "backup {backup}"
            );
        }
        let findings = self.verify(true).findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// How many distinct contents the kept disks have.
fn distinct(kept: &BTreeSet<u64>, days: &[MemoryDisk]) -> u64 {
    let kept = kept
        .iter()
        .flat_map(|backup| &days[*backup as usize - 1].contents);
    let contents: BTreeSet<_> = kept.filter(|content| **content != 0).collect();
    contents.len() as u64
}

#[test]
fn what_is_left_is_exactly_what_the_others_need() {
    // The first case writes several packs a day.
    for (seed, blocks, forgotten) in [
        (1, 20_000, vec![1]),
        (2, 4_000, vec![5]),
        (3, 4_000, vec![1, 2, 3]),
        (4, 4_000, vec![2, 4]),
        (5, 4_000, vec![1, 2, 3, 4, 5]),
    ] {
        let rig = Rig::new(&Access::Passphrase(b"a passphrase".to_vec()));
        let mut days = days(seed, blocks, 6);
        let added = days.pop().unwrap();
        for day in &days {
            rig.create(&mut day.clone(), None).unwrap();
        }
        rig.forget(forgotten.iter().copied());
        let kept: BTreeSet<u64> = (1..=5)
            .filter(|backup| !forgotten.contains(backup))
            .collect();
        let before = rig.stored_blocks();
        let plan = PrunePlan::new(&rig.repository, &rig.source, &ALL_WASTE).unwrap();
        assert_eq!(plan.needed_blocks, distinct(&kept, &days));
        assert_eq!(plan.needed_blocks + plan.wasted_blocks, before);
        rig.assert_whole(&kept, &days);

        let pruned = rig.prune(&ALL_WASTE).unwrap();
        assert_eq!(pruned.plan.freed_blocks, before - distinct(&kept, &days));
        assert_eq!(rig.stored_blocks(), distinct(&kept, &days));
        rig.assert_whole(&kept, &days);
        assert!(
            PrunePlan::new(&rig.repository, &rig.source, &ALL_WASTE)
                .unwrap()
                .is_empty()
        );

        // The next backup has a new number, and finds the blocks that are stored.
        let known: BTreeSet<_> = kept
            .iter()
            .flat_map(|backup| &days[*backup as usize - 1].contents)
            .collect();
        let contents: BTreeSet<_> = added
            .contents
            .iter()
            .filter(|content| **content != 0)
            .collect();
        let new = contents.difference(&known).count() as u64;
        let created = rig.create(&mut added.clone(), None).unwrap();
        assert_eq!(created.backup, BackupNumber(6));
        assert_eq!(created.manifest.counts.new_blocks, new);
        assert!(rig.restore(created.backup).unwrap() == added.bytes());
    }
}

#[test]
fn numbers_are_not_used_again_by_whoever_knew_the_source_before() {
    let rig = Rig::new(&Access::Open);
    let first = rig.create(&mut MemoryDisk::new(1..100), None).unwrap();
    rig.forget([1]);
    rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(rig.stored_blocks(), 0);
    // The rig has the source as it was when it was created.
    let second = rig.create(&mut MemoryDisk::new(1..100), None).unwrap();
    assert_eq!(second.backup, BackupNumber(2));
    let numbers = |created: &onefold_backup::Created| created.manifest.own[0].first;
    assert!(numbers(&second) > numbers(&first));
}

#[test]
fn a_reader_finds_the_packs_that_were_written_again_meanwhile() {
    let rig = Rig::new(&Access::Open);
    let blocks = 3 * BLOCKS_PER_PACK;
    let whole = MemoryDisk::new(1..blocks);
    // One block of each group is changed.
    let changed = (1..blocks).map(|n| n + if n % 64 == 5 { 1 << 24 } else { 0 });
    let changed = MemoryDisk::new(changed);
    rig.create(&mut whole.clone(), None).unwrap();
    rig.create(&mut changed.clone(), None).unwrap();
    let reader = Restore::open(&rig.blocks(), &rig.source, BackupNumber(2), "test").unwrap();
    let mut bytes = vec![0; BLOCK];
    let mut read = |at: u64| {
        reader.read(at * BLOCK as u64, &mut bytes).unwrap();
        assert!(
            bytes == crate::block(changed.contents[at as usize]),
            "block {at}"
        );
    };
    read(0);
    rig.forget([1]);
    rig.prune(&ALL_WASTE).unwrap();
    for at in (0..blocks - 1).step_by(1000) {
        read(at);
    }
}

#[test]
fn pruning_meanwhile_is_no_damage_for_verify() {
    let rig = Rig::new(&Access::Open);
    for first in [1, 5000, 9000] {
        rig.create(&mut MemoryDisk::new(first..first + 1000), None)
            .unwrap();
        rig.create(&mut MemoryDisk::new(first..first + 500), None)
            .unwrap();
    }
    // After verify has read the first pack, a prune rewrites the second and removes the third.
    rig.forget([3, 5, 6]);
    let mut is_pruned = false;
    let verified = verify(&rig.repository, Some(&rig.source), true, &mut |_, _| {
        if !std::mem::replace(&mut is_pruned, true) {
            rig.prune(&ALL_WASTE)?;
        }
        Ok(())
    });
    let verified = verified.unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
    assert_eq!(rig.stored_blocks(), 1500);
    assert_eq!(verified.compared_bytes, 1500 * BLOCK as u64);
}

#[test]
fn little_waste_stays_and_dead_packs_go() {
    let rig = Rig::new(&Access::Open);
    let days = [
        MemoryDisk::new(1..1001),
        MemoryDisk::new(301..1301),
        MemoryDisk::new(5000..5500),
    ];
    for day in &days {
        rig.create(&mut day.clone(), None).unwrap();
    }
    // Unneeded are 300 of 1000 blocks of the first pack, and all of the third.
    rig.forget([1, 3]);
    let options = |wasted_percent, rewrite_bytes_max| PruneOptions {
        wasted_percent,
        rewrite_bytes_max,
        level: 1,
    };
    let freed = |options| {
        let plan = PrunePlan::new(&rig.repository, &rig.source, &options).unwrap();
        (plan.freed_blocks, plan.dead_packs(), plan.rewritten_packs())
    };
    assert_eq!(freed(options(31, u64::MAX)), (500, 1, 0));
    assert_eq!(freed(options(30, u64::MAX)), (800, 1, 1));
    assert_eq!(freed(options(0, 1000)), (500, 1, 0));
    rig.prune(&options(31, u64::MAX)).unwrap();
    assert_eq!(rig.stored_blocks(), 1300);
    // Unneeded blocks that are still stored are found all the same.
    let again = rig.create(&mut days[0].clone(), None).unwrap();
    assert_eq!(again.manifest.counts.new_blocks, 0);
    assert!(rig.restore(again.backup).unwrap() == days[0].bytes());
}

#[test]
fn an_interrupted_prune_leaves_all_backups_and_is_done_again() {
    let made = Rig::new(&Access::Open);
    let days = days(9, 5_000, 6);
    for day in &days {
        made.create(&mut day.clone(), None).unwrap();
    }
    made.forget([1, 3, 5]);
    for reports in [0, 1, 2, 3, 5, 8, 11] {
        let rig = made.copied(&Access::Open);
        let kept = BTreeSet::from([2, 4, 6]);
        let ended = rig.prune_until(&ALL_WASTE, reports);
        rig.assert_whole(&kept, &days);
        rig.prune(&ALL_WASTE).unwrap();
        rig.assert_whole(&kept, &days);
        assert_eq!(
            rig.stored_blocks(),
            distinct(&kept, &days),
            "interrupted after {reports}"
        );
        if reports == 0 {
            assert!(ended.is_err());
        }
    }
}

#[test]
fn without_a_manifest_that_can_be_read_nothing_goes() {
    let rig = Rig::new(&Access::Open);
    for day in &days(3, 1000, 3) {
        rig.create(&mut day.clone(), None).unwrap();
    }
    rig.forget([1]);
    let path = ObjectName::Manifest(rig.source.id, BackupNumber(2)).path();
    let path = rig.folder.path().join("r").join(path);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let files = rig.files();
    assert!(rig.prune(&ALL_WASTE).is_err());
    assert_eq!(rig.files(), files);
}

#[test]
fn a_damaged_pack_stays_and_the_others_are_pruned() {
    let rig = Rig::new(&Access::Open);
    for first in [1, 2000, 4000] {
        rig.create(&mut MemoryDisk::new(first..first + 1000), None)
            .unwrap();
        rig.create(&mut MemoryDisk::new(first..first + 500), None)
            .unwrap();
    }
    rig.forget([1, 3, 5]);
    let (pack, generation) = rig.repository.packs(rig.source.id).unwrap()[1];
    let name = ObjectName::Pack {
        source: rig.source.id,
        number: pack,
        generation,
    };
    let path = rig.folder.path().join("r").join(name.path());
    let mut bytes = std::fs::read(&path).unwrap();
    // In the pack's first group.
    bytes[200] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let pruned = rig.prune(&ALL_WASTE).unwrap();
    assert_eq!(pruned.plan.damaged.len(), 1);
    assert_eq!(rig.stored_blocks(), 500 + 1000 + 500);
    for (backup, first) in [(2, 1), (6, 4000)] {
        let disk = MemoryDisk::new(first..first + 500);
        assert!(rig.restore(BackupNumber(backup)).unwrap() == disk.bytes());
    }
}

#[test]
fn one_process_at_a_time_changes_a_source() {
    let rig = Rig::new(&Access::Open);
    let writer = rig.repository.writer(rig.source.id, "prune").unwrap();
    let refused = rig.create(&mut MemoryDisk::new(1..10), None).unwrap_err();
    let said = refused.to_string();
    assert!(
        said.contains("in use by process") && said.contains("(prune)"),
        "{said}"
    );
    assert!(
        matches!(refused, BackupError::Repository(e) if e.kind() == RepositoryErrorKind::InUse)
    );
    drop(writer);
    rig.create(&mut MemoryDisk::new(1..10), None).unwrap();
    let names = |repository: &Repository| repository.backups(rig.source.id).unwrap().len();
    assert_eq!(names(&rig.repository), 1);
    assert_eq!(rig.stored_blocks() as usize * BLOCK, 9 * BLOCK);
}

#[test]
fn a_protected_backup_is_not_forgotten() {
    let rig = Rig::new(&Access::Open);
    let backup = rig
        .create(&mut MemoryDisk::new(1..10), None)
        .unwrap()
        .backup;
    let protect = |is_protected| rig.repository.protect(rig.source.id, backup, is_protected);
    protect(true).unwrap();
    protect(true).unwrap();
    assert!(rig.repository.forget(rig.source.id, backup).is_err());
    protect(false).unwrap();
    rig.forget([1]);
    assert!(rig.repository.backups(rig.source.id).unwrap().is_empty());
}
