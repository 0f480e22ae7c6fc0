//! In whatever order sources were backed up, sharing and pruning leave each content stored once; and at every moment in
//! between, all backups stay intact.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use onefold_backup::{
    BackupError, PrunePlan, Relatives, Result, ShareOptions, SharePlan, Shared, plan_share, prune,
    relatives, share,
};
use onefold_format::backup::{BackupNumber, Condemned, ObjectName, SourceId};
use onefold_repository::KnownSource;

use crate::history::table_of;
use crate::popular::{ALL_WASTE, Estate, contents, related};
use crate::{MemoryDisk, source};

/// Memory so small that contents take several partitions.
const MEMORY: usize = 1 << 16;

impl Estate {
    fn relatives(&self) -> Vec<Relatives> {
        let sources = self.sources.clone();
        relatives(&self.rig.repository, sources)
    }

    fn plan_share(&self) -> SharePlan {
        let [only] = &self.relatives()[..] else {
            panic!("several domains");
        };
        plan_share(&self.rig.repository, only, MEMORY, &mut |_, _| Ok(())).unwrap()
    }

    fn share_until(&self, relatives: &Relatives, reports: u32) -> Result<Shared> {
        let repository = &self.rig.repository;
        let popular = repository.popular(&relatives.sources[0].source)?;
        assert_eq!(popular.id, relatives.popular);
        let writer = repository.writer(popular.id, "backup share")?;
        let options = ShareOptions {
            level: 1,
            threads: 2,
            memory_bytes: MEMORY,
        };
        let mut left = reports;
        share(&writer, relatives, &options, &mut |_, _| match left {
            0 => Err(BackupError::Receiver("interrupted".to_owned())),
            _ => {
                left -= 1;
                Ok(())
            }
        })
    }

    pub(crate) fn share(&self) -> Vec<Shared> {
        let each = self.relatives().into_iter();
        let shared = each.map(|relatives| self.share_until(&relatives, u32::MAX));
        shared.collect::<Result<_>>().unwrap()
    }

    fn prune(&self, source: usize) {
        let writer = self.rig.repository.writer(self.sources[source].id, "prune");
        let pruned = prune(&writer.unwrap(), &ALL_WASTE, &mut |_, _| Ok(()));
        pruned.unwrap();
    }

    pub(crate) fn prune_all(&self) {
        for source in 0..self.sources.len() {
            self.prune(source);
        }
        self.prune_popular(10, 0).unwrap();
    }

    /// How many blocks all packs have.
    fn all_stored(&self) -> usize {
        let own = self
            .sources
            .iter()
            .map(|source| self.stored_blocks(source.id));
        let popular = self.rig.repository.sources().unwrap().popular;
        let popular = popular.iter().map(|source| self.stored_blocks(source.id));
        own.chain(popular).sum()
    }

    /// How many contents the disks of all backups have.
    fn distinct(&self) -> usize {
        let disks = self.backups.iter().flat_map(BTreeMap::values);
        disks.flat_map(contents).collect::<BTreeSet<u64>>().len()
    }

    /// Recipes and manifests, which never change.
    fn written_once(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = self.rig.files().into_iter();
        let files = files.filter(|path| {
            let path = path.to_string_lossy();
            path.contains("/recipes/") || path.contains("/backups/")
        });
        files
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }

    fn packs(&self) -> Vec<PathBuf> {
        let mut files = self.rig.files();
        files.retain(|path| path.to_string_lossy().contains("/packs/"));
        files
    }

    pub(crate) fn pack_file(&self, store: SourceId, n: usize) -> PathBuf {
        let (number, generation) = self.rig.repository.packs(store).unwrap()[n];
        let name = ObjectName::Pack {
            source: store,
            number,
            generation,
        };
        self.rig.folder.path().join("r").join(name.path())
    }

    fn moved_blocks(&self, source: &KnownSource) -> usize {
        let packs = self.rig.repository.packs(source.id).unwrap().into_iter();
        let moved = packs.map(|(number, generation)| {
            let pack = self.rig.repository.pack(source.id, number, generation);
            let slots = pack.unwrap().slots().to_vec();
            slots.iter().filter(|slot| slot.moved().is_some()).count()
        });
        moved.sum()
    }
}

/// Backs up disks; each element of `order` lists the disks of one command.
pub(crate) fn backed_up(disks: &[MemoryDisk], order: &[&[usize]]) -> Estate {
    let mut estate = Estate::new(disks.len());
    for command in order {
        let named: Vec<_> = command.iter().map(|n| (*n, &disks[*n])).collect();
        estate.create(&named);
    }
    estate
}

#[test]
fn whatever_the_order_each_content_is_stored_once() {
    let disks = related(1, 5, 250);
    let orders: [&[&[usize]]; 3] = [
        &[&[0], &[1], &[2], &[3], &[4]],
        &[&[4], &[2, 3], &[1], &[0], &[4, 0]],
        &[&[3, 1], &[0, 1, 2, 4]],
    ];
    for order in orders {
        let mut estate = backed_up(&disks, order);
        let (stored, distinct) = (estate.all_stored(), estate.distinct());
        assert!(stored > distinct, "{stored} of {distinct}");
        let before = estate.written_once();

        let plan = estate.plan_share();
        let expected = stored - distinct;
        assert_eq!(plan.freed_blocks - plan.copied_blocks, expected as u64);
        assert_eq!(plan.damaged, Vec::<String>::new());
        let shared = estate.share().remove(0);
        assert_eq!(shared.plan, plan);
        assert_eq!(shared.copied_blocks, plan.copied_blocks);
        assert_eq!(estate.all_stored(), stored + plan.copied_blocks as usize);
        estate.assert_whole();

        // Sharing again does nothing.
        let packs = estate.packs();
        let again = estate.share().remove(0);
        assert_eq!((again.copied_blocks, again.stored_bytes), (0, 0));
        assert_eq!(again.plan.freed_blocks, plan.freed_blocks);
        assert_eq!(estate.packs(), packs);

        for source in 0..estate.sources.len() {
            let known = &estate.sources[source];
            let plan = PrunePlan::new(&estate.rig.repository, known, &ALL_WASTE).unwrap();
            assert_eq!(plan.freed_blocks, plan.movable_blocks);
            estate.prune(source);
            assert_eq!(estate.moved_blocks(known) as u64, plan.movable_blocks);
            estate.assert_whole();
        }
        estate.prune_popular(10, 0).unwrap();
        assert_eq!(estate.all_stored(), distinct);
        estate.assert_whole();
        assert!(estate.written_once() == before, "recipes and manifests");
        assert_eq!(estate.plan_share(), SharePlan::default());
        let packs = estate.packs();
        estate.share();
        estate.prune_all();
        assert_eq!(estate.packs(), packs);

        // Blocks that a source has stored stay its own in later backups: no recipe changes.
        let repository = std::sync::Arc::clone(&estate.rig.repository);
        for (n, disk) in disks.iter().enumerate() {
            let id = estate.sources[n].id;
            let last = repository.backups(id).unwrap().pop().unwrap();
            estate.rig.check_parent(&estate.sources[n], last).unwrap();
            let last = repository.manifest(id, last).unwrap();
            let batch = estate.create(&[(n, disk)]);
            let made = &batch.backups[0].as_ref().unwrap().manifest;
            assert_eq!(made.counts.new_blocks, 0);
            assert_eq!((&made.own, &made.popular), (&last.own, &last.popular));
        }
        assert_eq!(estate.all_stored(), distinct);
        estate.assert_whole();
    }
}

#[test]
fn sources_of_other_domains_are_not_shared() {
    let mut estate = Estate::new(2);
    let other = onefold_format::backup::Source {
        domain: "other".to_owned(),
        ..source("vm-2")
    };
    let other = estate.rig.repository.add_source(other).unwrap();
    estate.sources.push(other);
    estate.backups.push(BTreeMap::new());
    let disk = MemoryDisk::new(1..=500);
    for n in 0..3 {
        estate.create(&[(n, &disk)]);
    }
    assert_eq!(estate.relatives().len(), 2);
    let shared = estate.share();
    let copied: Vec<_> = shared.iter().map(|share| share.copied_blocks).collect();
    assert_eq!(copied, [500, 0]);
    for n in 0..3 {
        estate.prune(n);
    }
    let own = estate.sources.iter();
    let own: Vec<_> = own.map(|source| estate.stored_blocks(source.id)).collect();
    assert_eq!(own, [0, 0, 500]);
    estate.assert_whole();
}

/// Popular blocks stay while sources have moved blocks to them, or still can; unneeded ones are removed.
#[test]
fn popular_blocks_stay_as_long_as_anything_was_or_may_be_moved_to_them() {
    let shared = MemoryDisk::new(1..=2000);
    let mut estate = Estate::new(3);
    for n in 0..3 {
        estate.create(&[(n, &shared)]);
    }
    estate.share();
    let store = estate.popular().id;
    assert_eq!(estate.rig.repository.users(store).unwrap(), []);
    for pruned in 0..3 {
        let popular = estate.prune_popular(10, 0).unwrap();
        assert_eq!(popular.freed_blocks, 0, "{pruned} sources were pruned");
        estate.prune(pruned);
        assert_eq!(
            estate.rig.repository.users(store).unwrap().len(),
            pruned + 1
        );
        estate.assert_whole();
    }
    assert_eq!(estate.all_stored(), 2000);
    // The record that a source is a user is missing, and is written again.
    let known = &estate.sources[0];
    let name = ObjectName::User {
        popular: store,
        source: known.id,
    };
    std::fs::remove_file(estate.rig.folder.path().join("r").join(name.path())).unwrap();
    let findings = estate.rig.verify(false).findings;
    assert!(findings[0].message.contains("users"), "{findings:?}");
    let writer = estate.rig.repository.writer(known.id, "test").unwrap();
    assert_eq!(writer.mend_marks().unwrap(), 1);
    drop(writer);
    estate.assert_whole();
    for n in 0..3 {
        assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 0);
        estate.assert_whole();
        estate.forget(n, 1);
    }
    assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 2000);
    estate.prune_all();
    assert_eq!(estate.all_stored(), 0);
}

/// If only one source has a content, a second copy saves nothing.
#[test]
fn what_is_shared_goes_if_only_one_source_has_it_in_the_end() {
    let shared = MemoryDisk::new(1..=500);
    let mut estate = backed_up(&[shared.clone(), shared], &[&[0], &[1]]);
    estate.share();
    estate.forget(0, 1);
    estate.prune(0);
    assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 500);
    assert_eq!(estate.all_stored(), 500);
    estate.assert_whole();
}

/// A prune that began before blocks were condemned may move blocks to them; one that began later does not.
#[test]
fn nothing_is_moved_to_condemned_blocks() {
    let shared = MemoryDisk::new(1..=500);
    let mut estate = Estate::new(4);
    estate.create(&[(0, &shared), (1, &shared)]);
    estate.create(&[(3, &MemoryDisk::new(600..700))]);
    estate.forget(0, 1);
    estate.forget(1, 1);
    let repository = std::sync::Arc::clone(&estate.rig.repository);
    let busy = repository.writer(estate.sources[3].id, "test").unwrap();
    assert_eq!(estate.prune_popular(10, 0).unwrap().waiting_blocks, 500);
    estate.create(&[(2, &shared)]);
    assert_eq!(estate.plan_share(), SharePlan::default());
    estate.prune(2);
    assert_eq!(estate.moved_blocks(&estate.sources[2]), 0);
    drop(busy);
    assert_eq!(estate.prune_popular(11, 0).unwrap().freed_blocks, 500);
    estate.assert_whole();
}

/// A prune holds its source's lease when popular blocks are condemned, and moves to them afterwards.
#[test]
fn what_is_moved_to_meanwhile_is_not_removed() {
    let shared = MemoryDisk::new(1..=500);
    let mut estate = Estate::new(3);
    estate.create(&[(2, &shared)]);
    estate.create(&[(0, &shared), (1, &shared)]);
    // The third source has its own copies; the popular blocks belong to the first two.
    estate.forget(0, 1);
    estate.forget(1, 1);
    let repository = std::sync::Arc::clone(&estate.rig.repository);
    let writer = repository.writer(estate.sources[2].id, "prune").unwrap();
    let mut waiting = 0;
    // The moves are already decided when the first pack is written again.
    prune(&writer, &ALL_WASTE, &mut |_, _| {
        waiting = estate.prune_popular(10, 0)?.waiting_blocks;
        Ok(())
    })
    .unwrap();
    drop(writer);
    assert_eq!(waiting, 500);
    assert_eq!(estate.moved_blocks(&estate.sources[2]), 500);
    assert_eq!(estate.prune_popular(11, 0).unwrap().freed_blocks, 0);
    assert_eq!(estate.all_stored(), 500);
    estate.assert_whole();
}

#[test]
fn a_share_that_is_interrupted_is_completed_by_the_next_one() {
    let disks = related(3, 3, 600);
    let estate = backed_up(&disks, &[&[0], &[1], &[2]]);
    let relatives = estate.relatives().remove(0);
    let (mut reports, mut copied) = (0, 0);
    loop {
        let before = estate.all_stored();
        let shared = estate.share_until(&relatives, reports);
        copied += estate.all_stored() - before;
        if shared.is_ok() {
            break;
        }
        reports += 1;
    }
    assert!(reports > 4, "{reports}");
    estate.assert_whole();
    estate.prune_all();
    assert_eq!(estate.all_stored(), estate.distinct());
    assert!(copied > 0);
    estate.assert_whole();
}

/// Two hosts that find the same content concurrently store it twice.
#[test]
fn popular_blocks_that_are_stored_twice_become_one() {
    let disks = related(5, 4, 600);
    let mut estate = backed_up(&disks, &[&[0, 1]]);
    let first = estate.pack_file(estate.popular().id, 0);
    let aside = estate.rig.folder.path().join("aside");
    std::fs::rename(&first, &aside).unwrap();
    estate.create(&[(2, &disks[2]), (3, &disks[3])]);
    std::fs::rename(&aside, &first).unwrap();
    // Both copies of some popular blocks have blocks moved to them.
    estate.share();
    estate.assert_whole();
    estate.prune_all();
    assert_eq!(estate.all_stored(), estate.distinct());
    estate.assert_whole();
    let packs = estate.packs();
    estate.prune_all();
    assert_eq!(estate.packs(), packs);
    // Contents that were moved twice are found again.
    for (n, disk) in disks.iter().enumerate() {
        let batch = estate.create(&[(n, disk)]);
        let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
        assert_eq!(counts.new_blocks, 0);
    }
    // They are removed once no backup needs them.
    for n in 0..4 {
        for backup in estate.backups[n].clone().into_keys() {
            estate.forget(n, backup);
        }
    }
    estate.prune_all();
    assert_eq!(estate.all_stored(), 0);
}

#[test]
fn damage_of_a_popular_block_concerns_whoever_was_moved_to_it_and_is_mended() {
    let shared = MemoryDisk::new(1..=300);
    let mut estate = backed_up(&[shared.clone(), shared.clone()], &[&[0], &[1]]);
    estate.share();
    estate.prune_all();
    let popular = estate.pack_file(estate.popular().id, 0);
    let good = std::fs::read(&popular).unwrap();

    // Damages a group of 64 blocks, and then the whole pack.
    let mut bad = good.clone();
    bad[100] ^= 1;
    for bad in [Some(bad), None] {
        match &bad {
            Some(bytes) => std::fs::write(&popular, bytes).unwrap(),
            None => std::fs::remove_file(&popular).unwrap(),
        }
        let blocks = if bad.is_some() { 64 } else { 300 };
        for known in &estate.sources {
            let restored = estate.rig.restore_of(known, BackupNumber(1));
            let error = restored.unwrap_err();
            assert!(
                matches!(error, BackupError::Damaged { block: 0, .. }),
                "{error}"
            );
        }
        let findings = estate.rig.verify(true).findings;
        let mut concerned = BTreeMap::new();
        for needed_by in findings.iter().flat_map(|finding| &finding.needed_by) {
            *concerned.entry(needed_by.name.clone()).or_insert(0) += needed_by.blocks;
        }
        let expected = ["vm-0@1", "vm-1@1"].map(|name| (name.to_owned(), blocks));
        assert!(concerned.into_iter().eq(expected), "{findings:?}");
        std::fs::write(&popular, &good).unwrap();
    }
    estate.assert_whole();

    // The pack does not come back: its content is stored again, and put back under the old numbers.
    std::fs::remove_file(&popular).unwrap();
    let refused = estate.rig.check_parent(&estate.sources[0], BackupNumber(1));
    refused.unwrap_err();
    let batch = estate.create(&[(0, &shared)]);
    let counts = batch.backups[0].as_ref().unwrap().manifest.counts;
    assert_eq!((counts.new_blocks, counts.popular_blocks), (300, 0));
    estate.rig.repair();
    let known = estate.sources.clone();
    for backup in [1, 2] {
        let restored = estate
            .rig
            .restore_of(&known[0], BackupNumber(backup))
            .unwrap();
        assert!(restored == shared.bytes());
    }
}

/// An unreadable pack may refer to any popular block.
#[test]
fn popular_blocks_stay_while_a_pack_cannot_be_read_that_may_refer_to_them() {
    let shared = MemoryDisk::new(1..=300);
    let mut estate = backed_up(&[shared.clone(), shared], &[&[0], &[1]]);
    estate.share();
    estate.prune_all();
    estate.forget(1, 1);
    let pack = estate.pack_file(estate.sources[0].id, 0);
    let good = std::fs::read(&pack).unwrap();
    let (copy, table) = (table_of(&pack), std::fs::read(table_of(&pack)).unwrap());
    for bad in [Some(&good[..good.len() - 1]), None] {
        std::fs::remove_file(&copy).unwrap();
        match bad {
            Some(bytes) => std::fs::write(&pack, bytes).unwrap(),
            None => std::fs::remove_file(&pack).unwrap(),
        }
        let refused = estate.prune_popular(10, 0).unwrap_err().to_string();
        assert!(
            refused.contains("may refer to any popular block"),
            "{refused}"
        );
        std::fs::write(&copy, &table).unwrap();
        // The copy of the pack's table has the answer.
        if let Some(bad) = bad {
            std::fs::write(&pack, bad).unwrap();
            assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 0);
        }
        std::fs::write(&pack, &good).unwrap();
    }
    estate.assert_whole();
    // The pack does not matter if no backup needs it.
    std::fs::remove_file(&pack).unwrap();
    estate.forget(0, 1);
    assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 300);
}

/// Guests of one kind, each with some data of its own.
#[test]
fn little_is_written_for_what_becomes_free() {
    let mut estate = Estate::new(5);
    for n in 0..5 {
        let own = n as u64 + 1;
        // Part of the system differs between guests, too.
        let system = (1..1000).map(|block| match block % 20 {
            0..3 => own << 20 | block,
            _ => block,
        });
        let mut disk = MemoryDisk::new(system);
        estate.create(&[(n, &disk)]);
        disk.contents
            .extend((1..800).map(|block| (own + 10) << 20 | block));
        estate.create(&[(n, &disk)]);
    }
    let sizes = |estate: &Estate| -> BTreeMap<PathBuf, u64> {
        let packs = estate.packs().into_iter();
        packs
            .map(|path| (path.clone(), path.metadata().unwrap().len()))
            .collect()
    };
    let written = |now: &BTreeMap<PathBuf, u64>, before: &BTreeMap<PathBuf, u64>| {
        let new = now.iter().filter(|(path, _)| !before.contains_key(*path));
        new.map(|(_, bytes)| bytes).sum::<u64>()
    };
    let before = sizes(&estate);
    estate.share();
    let shared = sizes(&estate);
    estate.prune_all();
    let after = sizes(&estate);
    let bytes = written(&shared, &before) + written(&after, &shared);
    let freed = before.values().sum::<u64>() - after.values().sum::<u64>();
    assert!(bytes * 10 <= freed * 6, "{bytes} bytes written for {freed}");
    // Popular packs are written once, and packs without shared blocks are not written again.
    let is_kept = |path: &&PathBuf| after.contains_key(*path);
    assert_eq!(shared.keys().filter(is_kept).count(), shared.len() - 5);
}

/// A prune that was killed while it replaced a damaged list leaves an empty one.
#[test]
fn an_empty_list_of_condemned_blocks_holds_nothing_up() {
    let shared = MemoryDisk::new(1..=500);
    let mut estate = Estate::new(2);
    estate.create(&[(0, &shared), (1, &shared)]);
    estate.forget(0, 1);
    estate.forget(1, 1);
    let store = estate.popular().id;
    let writer = estate.rig.repository.writer(store, "test").unwrap();
    let empty = Condemned {
        since_unix_seconds: 0,
        numbers: Vec::new(),
        before: None,
    };
    writer.condemn(&empty).unwrap();
    drop(writer);
    assert_eq!(estate.prune_popular(10, 0).unwrap().freed_blocks, 500);
    estate.assert_whole();
}

/// While a damaged list of condemned blocks is there, no popular block is used, even if none is wasted.
#[test]
fn a_damaged_list_of_condemned_blocks_is_removed() {
    let shared = MemoryDisk::new(1..=500);
    let mut estate = Estate::new(3);
    estate.create(&[(0, &shared), (1, &shared)]);
    let list = ObjectName::Condemned(estate.popular().id).path();
    let list = estate.rig.folder.path().join("r").join(list);
    std::fs::write(&list, [7; 100]).unwrap();
    estate.prune_popular(10, 0).unwrap();
    assert!(!list.exists());
    let before = estate.all_stored();
    estate.create(&[(2, &shared)]);
    assert_eq!(estate.all_stored(), before);
    estate.assert_whole();
}
