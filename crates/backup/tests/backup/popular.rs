//! A content that several sources have is stored once, found by every later backup, and removed once no backup of any
//! source needs it.

use std::collections::{BTreeMap, BTreeSet};

use onefold_backup::{Batch, PruneOptions, PrunedPopular, Result, prune_popular};
use onefold_format::backup::{BackupNumber, PackReference, SourceId};
use onefold_repository::{Access, KnownSource, NeededPacks};

use crate::{BLOCK, MemoryDisk, Rig, source};

pub(crate) const ALL_WASTE: PruneOptions = PruneOptions {
    wasted_percent: 0,
    rewrite_bytes_max: u64::MAX,
    level: 1,
};

/// A repository with several sources.
pub(crate) struct Estate {
    pub(crate) rig: Rig,
    pub(crate) sources: Vec<KnownSource>,
    /// The disks in the backups of each source, by backup number.
    pub(crate) backups: Vec<BTreeMap<u64, MemoryDisk>>,
}

impl Estate {
    pub(crate) fn new(sources: usize) -> Self {
        let rig = Rig::new(&Access::Passphrase(b"a passphrase".to_vec()));
        let names = (0..sources).map(|n| source(&format!("vm-{n}")));
        let sources: Vec<_> = names
            .map(|source| rig.repository.add_source(source).unwrap())
            .collect();
        Self {
            rig,
            backups: vec![BTreeMap::new(); sources.len()],
            sources,
        }
    }

    /// Backs up these sources in one command.
    pub(crate) fn create(&mut self, disks: &[(usize, &MemoryDisk)]) -> Batch {
        let mut copies: Vec<_> = disks.iter().map(|(_, disk)| (*disk).clone()).collect();
        let wanted = disks.iter().zip(&mut copies);
        let mut wanted: Vec<_> = wanted
            .map(|((n, _), disk)| (&self.sources[*n], disk))
            .collect();
        let batch = self.rig.create_batch(&mut wanted, None).unwrap();
        for ((n, disk), made) in disks.iter().zip(&batch.backups) {
            if let Ok(made) = made {
                self.backups[*n].insert(made.backup.0, (*disk).clone());
            }
        }
        batch
    }

    pub(crate) fn forget(&mut self, source: usize, backup: u64) {
        let repository = &self.rig.repository;
        let id = self.sources[source].id;
        repository.forget(id, BackupNumber(backup)).unwrap();
        self.backups[source].remove(&backup).unwrap();
    }

    pub(crate) fn popular(&self) -> KnownSource {
        self.rig.repository.sources().unwrap().popular.remove(0)
    }

    pub(crate) fn prune_popular(&self, now: u64, grace: u64) -> Result<PrunedPopular> {
        let repository = &self.rig.repository;
        let writer = repository.writer(self.popular().id, "prune")?;
        prune_popular(&writer, &ALL_WASTE, now, grace, &mut |_, _| Ok(()))
    }

    fn reference(&self, store: SourceId, number: u64) -> PackReference {
        let pack = self.rig.repository.pack(store, number, 0);
        pack.unwrap().reference()
    }

    pub(crate) fn stored_blocks(&self, store: SourceId) -> usize {
        let repository = &self.rig.repository;
        let packs = repository.pack_generations(store).unwrap().into_iter();
        let stored = packs.map(|(number, generation)| {
            let pack = repository.pack(store, number, generation).unwrap();
            pack.slots().iter().flat_map(|slot| slot.stored()).count()
        });
        stored.sum()
    }

    #[track_caller]
    pub(crate) fn assert_whole(&self) {
        for (source, backups) in self.sources.iter().zip(&self.backups) {
            let listed = self.rig.repository.backups(source.id).unwrap();
            assert!(listed.iter().map(|backup| &backup.0).eq(backups.keys()));
            for (backup, disk) in backups {
                let restored = self.rig.restore_of(source, BackupNumber(*backup)).unwrap();
                assert!(restored == disk.bytes(), "{}@{backup}", source.source.name);
            }
        }
        let findings = self.rig.verify(true).findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

pub(crate) fn contents(disk: &MemoryDisk) -> BTreeSet<u64> {
    let contents = disk.contents.iter().copied();
    contents.filter(|content| *content != 0).collect()
}

/// Disks that share some of their contents with each other, and repeat some of their own.
pub(crate) fn related(seed: u64, disks: usize, blocks: usize) -> Vec<MemoryDisk> {
    let mut random = fastrand::Rng::with_seed(seed);
    let each = (1..=disks as u64).map(|own| {
        MemoryDisk::new((0..blocks).map(|n| match random.u8(..8) {
            0 => 0,
            1..5 => 1 + random.u64(..blocks as u64),
            5 => own << 20 | random.u64(..20),
            _ => own << 20 | (n as u64 + 100),
        }))
    });
    each.collect()
}

#[test]
fn what_several_disks_have_is_stored_once_and_later_found() {
    let mut estate = Estate::new(5);
    // The last disk is so large that its blocks are in several recipe pages and packs.
    let mut disks = related(1, 4, 3000);
    disks.push(related(2, 1, 40_000).remove(0));
    let first: Vec<_> = disks.iter().enumerate().skip(1).collect();
    let batch = estate.create(&first);

    let mut holders: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (n, disk) in &first {
        for content in contents(disk) {
            holders.entry(content).or_default().insert(*n);
        }
    }
    let popular: BTreeSet<_> = holders
        .iter()
        .filter(|(_, holders)| holders.len() > 1)
        .map(|(content, _)| *content)
        .collect();
    assert_eq!(batch.new_popular_blocks, popular.len() as u64);
    assert_eq!(estate.stored_blocks(estate.popular().id), popular.len());
    for ((n, disk), made) in first.iter().zip(&batch.backups) {
        let counts = made.as_ref().unwrap().manifest.counts;
        let own = contents(disk).difference(&popular).count();
        assert_eq!(counts.new_blocks, own as u64);
        assert_eq!(estate.stored_blocks(estate.sources[*n].id), own);
        let blocks = disk.contents.iter();
        let of_popular = blocks.filter(|content| popular.contains(content)).count();
        assert_eq!(counts.popular_blocks, of_popular as u64);
    }
    estate.assert_whole();

    // The first disk alone, later.
    let batch = estate.create(&[(0, &disks[0])]);
    let own = contents(&disks[0]).difference(&popular).count() as u64;
    let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
    assert_eq!((counts.new_blocks, batch.new_popular_blocks), (own, 0));
    // All disks again: nothing is new, and nothing moves.
    let all: Vec<_> = disks.iter().enumerate().collect();
    let batch = estate.create(&all);
    assert_eq!((batch.new_popular_blocks, batch.popular_bytes), (0, 0));
    for (source, made) in estate.sources.iter().zip(&batch.backups) {
        let made = made.as_ref().unwrap();
        assert_eq!(made.manifest.counts.new_blocks, 0);
        let repository = &estate.rig.repository;
        let before = BackupNumber(made.backup.0 - 1);
        let before = repository.manifest(source.id, before).unwrap();
        assert_eq!(made.manifest.popular, before.popular);
        assert_eq!(made.manifest.own, before.own);
    }
    estate.assert_whole();
}

#[test]
fn sources_of_other_domains_share_nothing() {
    let mut estate = Estate::new(2);
    let repository = &estate.rig.repository;
    let other = onefold_format::backup::Source {
        domain: "other".to_owned(),
        ..source("vm-2")
    };
    estate.sources.push(repository.add_source(other).unwrap());
    estate.backups.push(BTreeMap::new());
    let disk = MemoryDisk::new(1..=500);
    let batch = estate.create(&[(0, &disk), (1, &disk)]);
    assert_eq!(batch.new_popular_blocks, 500);
    let batch = estate.create(&[(2, &disk)]);
    let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
    assert_eq!((counts.new_blocks, counts.popular_blocks), (500, 0));
    estate.assert_whole();
}

#[test]
fn a_disk_that_fails_leaves_the_others_their_backups() {
    let mut estate = Estate::new(3);
    let mut disks = related(3, 3, 500);
    disks[1].unreadable = true;
    let all: Vec<_> = disks.iter().enumerate().collect();
    let batch = estate.create(&all);
    let failed: Vec<_> = batch.backups.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false]);
    let error = batch.backups[1].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("'vm-1': cannot read"), "{error}");
    estate.assert_whole();
    disks[1].unreadable = false;
    let all: Vec<_> = disks.iter().enumerate().collect();
    estate.create(&all);
    estate.assert_whole();
}

#[test]
fn what_no_backup_of_any_source_needs_is_given_back_and_nothing_else() {
    let mut estate = Estate::new(3);
    let days = [
        related(4, 3, 9000),
        related(5, 3, 9000),
        related(6, 3, 9000),
    ];
    let mut popular = BTreeSet::new();
    for day in &days {
        let all: Vec<_> = day.iter().enumerate().collect();
        estate.create(&all);
        for (n, disk) in day.iter().enumerate() {
            let others = day.iter().enumerate().filter(|(other, _)| *other != n);
            let others: BTreeSet<_> = others.flat_map(|(_, other)| contents(other)).collect();
            popular.extend(contents(disk).intersection(&others).copied());
        }
    }
    for (source, backup) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)] {
        estate.forget(source, backup);
    }
    // Not all needed contents: a source's backups keep their own blocks that became popular later.
    let mut needed = BTreeSet::new();
    for (source, backups) in estate.sources.iter().zip(&estate.backups) {
        for backup in backups.keys() {
            let manifest = estate
                .rig
                .repository
                .manifest(source.id, BackupNumber(*backup));
            for run in manifest.unwrap().popular {
                needed.extend(run.first..run.first + run.blocks);
            }
        }
    }
    let store = estate.popular().id;
    let before = estate.stored_blocks(store);
    assert!(needed.len() < before && before <= popular.len());
    let pruned = estate.prune_popular(10, 0).unwrap();
    assert_eq!(pruned.plan.needed_blocks, needed.len() as u64);
    assert_eq!(pruned.freed_blocks, (before - needed.len()) as u64);
    assert_eq!(pruned.waiting_blocks, 0);
    assert_eq!(estate.stored_blocks(store), needed.len());
    assert!(estate.rig.repository.condemned(store).unwrap().is_none());
    estate.assert_whole();
    let again = estate.prune_popular(10, 0).unwrap();
    assert_eq!((again.freed_blocks, again.plan.wasted_blocks), (0, 0));
    // Removed contents are stored again.
    let all: Vec<_> = days[0].iter().enumerate().collect();
    estate.create(&all);
    estate.assert_whole();
}

/// A backup that began before blocks were condemned may need them; one that began later must not.
#[test]
fn condemned_blocks_stay_as_long_as_a_backup_may_need_them() {
    let mut estate = Estate::new(4);
    let shared = MemoryDisk::new(1..=2000);
    estate.create(&[(0, &shared), (1, &shared)]);
    let store = estate.popular().id;
    estate.forget(0, 1);
    estate.forget(1, 1);

    // The third source is being backed up, and its backup has already read the popular blocks.
    let repository = std::sync::Arc::clone(&estate.rig.repository);
    let third = estate.sources[2].clone();
    let writer = repository.writer(third.id, "backup create").unwrap();
    let pruned = estate.prune_popular(10, 0).unwrap();
    assert_eq!((pruned.freed_blocks, pruned.waiting_blocks), (0, 2000));

    // The backup of the fourth source begins now, and stores all of its blocks itself.
    let batch = estate.create(&[(3, &shared)]);
    let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
    assert_eq!((counts.new_blocks, counts.popular_blocks), (2000, 0));

    // The backup of the third source is published with some of the condemned blocks.
    let popular = onefold_format::backup::NumberRun {
        first: repository.packs(store).unwrap()[0].0 * 16_384,
        blocks: 1000,
    };
    let manifest = repository.manifest(estate.sources[3].id, BackupNumber(1));
    let manifest = onefold_format::backup::Manifest {
        size_bytes: (1000 * BLOCK) as u64,
        own: Vec::new(),
        own_packs: Vec::new(),
        popular_packs: vec![estate.reference(store, popular.first / 16_384)],
        popular: vec![popular],
        recipe_pages: vec![0],
        ..manifest.unwrap()
    };
    writer
        .publish(BackupNumber(1), &manifest, &NeededPacks::default())
        .unwrap();
    let waits = estate.prune_popular(11, 0).unwrap();
    assert_eq!((waits.freed_blocks, waits.waiting_blocks), (0, 2000));
    drop(writer);
    // The lease has ended, but a folder listing may be stale for longer than that.
    let waits = estate.prune_popular(12, 100).unwrap();
    assert_eq!((waits.freed_blocks, waits.waiting_blocks), (0, 2000));
    let pruned = estate.prune_popular(110, 100).unwrap();
    assert_eq!((pruned.freed_blocks, pruned.waiting_blocks), (1000, 0));
    assert_eq!(estate.stored_blocks(store), 1000);
}

/// If the list is unreadable, backups treat all popular blocks as absent.
#[test]
fn a_damaged_list_of_condemned_blocks_costs_sharing_and_no_backup() {
    let mut estate = Estate::new(3);
    let shared = MemoryDisk::new(1..=500);
    estate.create(&[(0, &shared), (1, &shared)]);
    estate.forget(0, 1);
    estate.forget(1, 1);
    let repository = std::sync::Arc::clone(&estate.rig.repository);
    let busy = repository.writer(estate.sources[2].id, "test").unwrap();
    assert_eq!(estate.prune_popular(10, 0).unwrap().waiting_blocks, 500);
    drop(busy);
    let files = estate.rig.files();
    let list = files
        .iter()
        .find(|file| file.ends_with("condemned"))
        .unwrap();
    let mut bytes = std::fs::read(list).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(list, bytes).unwrap();
    let batch = estate.create(&[(2, &shared)]);
    assert!(
        batch.damaged[0].contains("condemned"),
        "{:?}",
        batch.damaged
    );
    let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
    assert_eq!((counts.new_blocks, counts.popular_blocks), (500, 0));
    assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 500);
    estate.assert_whole();
}

#[test]
fn interrupted_at_any_moment_all_backups_are_as_they_were() {
    let mut estate = Estate::new(3);
    let days = [related(7, 3, 20_000), related(8, 3, 4_000)];
    for day in &days {
        let all: Vec<_> = day.iter().enumerate().collect();
        estate.create(&all);
    }
    for source in 0..3 {
        estate.forget(source, 1);
    }
    let store = estate.popular().id;
    let mut interruptions = 0;
    loop {
        let writer = estate.rig.repository.writer(store, "prune").unwrap();
        let mut left = interruptions;
        let pruned = prune_popular(&writer, &ALL_WASTE, 10, 0, &mut |_, _| match left {
            0 => Err(onefold_backup::BackupError::Receiver(
                "interrupted".to_owned(),
            )),
            _ => {
                left -= 1;
                Ok(())
            }
        });
        drop(writer);
        estate.assert_whole();
        if pruned.is_ok() {
            break;
        }
        interruptions += 1;
        // A backup in between, of blocks that are about to be removed.
        if interruptions == 1 {
            estate.create(&[(0, &days[0][0])]);
        }
    }
    assert!(interruptions > 1, "{interruptions}");
    estate.assert_whole();
}
