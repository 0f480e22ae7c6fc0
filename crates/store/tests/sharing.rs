//! Publishing, sharing and releasing blocks on the simulated engine, to the block.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_store::{
    BatchReport, Blocking, CreateOptions, DedupMode, IndexKind, Lba, OpenOptions, PoolStat, Ready,
    Store, Volume, VolumeChange, VolumeOptions,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const KINDS: [IndexKind; 3] = [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory];

struct World {
    engine: Arc<SimulatedEngine>,
    store: Arc<Store>,
}

impl World {
    /// And releases all its blocks.
    fn delete_volume(&self, name: &str) {
        self.store.delete_volume(name).unwrap();
        self.store.finish_deletions(&mut |_, _| {}).unwrap();
    }

    fn new(index: IndexKind) -> Self {
        Self::seeded(index, 1)
    }

    fn seeded(index: IndexKind, seed: u64) -> Self {
        let engine = Arc::new(SimulatedEngine::new(seed));
        let options = CreateOptions {
            size_bytes: 64 * MIB,
            log_bytes: 4 * MIB,
            index,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        Self::open(engine)
    }

    fn open(engine: Arc<SimulatedEngine>) -> Self {
        let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
        let options = OpenOptions {
            memory_bytes: 64 * MIB,
            ..OpenOptions::default()
        };
        let (store, _) = Store::open(as_engine, &options).unwrap();
        Self { engine, store }
    }

    /// Loses unflushed data, and opens again.
    fn crash(self) -> Self {
        let engine = self.engine.crash(CrashKind::PowerLoss);
        drop(self.store);
        let world = Self::open(Arc::new(engine));
        world.store.rebuild_index_if_needed(&mut |_, _| {}).unwrap();
        world
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.volume_with(name, |_| {})
    }

    fn volume_with(&self, name: &str, change: impl FnOnce(&mut VolumeOptions)) -> Arc<Volume> {
        let mut options = VolumeOptions::new(16 * MIB);
        change(&mut options);
        self.store.create_volume(name, &options).unwrap();
        self.store.volume(name).unwrap()
    }

    /// Publishes all of a volume.
    fn dedup(&self, volume: &Volume) -> BatchReport {
        self.pass(volume, Ready::All)
    }

    fn pass(&self, volume: &Volume, ready: Ready) -> BatchReport {
        let mut sum = BatchReport::default();
        let mut cursor = Lba(0);
        while !sum.at_end {
            let batch = self.store.dedup_batch(volume, &mut cursor, ready).unwrap();
            sum.scanned += batch.scanned;
            sum.unique += batch.unique;
            sum.duplicates += batch.duplicates;
            sum.cached += batch.cached;
            sum.at_end = batch.at_end;
        }
        sum
    }

    fn collect(&self) {
        while self.store.collect_batch().unwrap().released > 0 {}
        // Freed blocks are reusable after the next commit.
        self.store.tick().unwrap();
    }

    fn stat(&self) -> PoolStat {
        self.store.stat().unwrap()
    }

    fn assert_clean(&self) {
        let mut findings = Vec::new();
        let report = self
            .store
            .check(false, &mut |finding| findings.push(finding))
            .unwrap();
        assert_eq!((report.findings, findings), (0, Vec::new()));
    }
}

/// `count` blocks, of which the n-th has the content `first + n`.
fn blocks(first: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; (count * BLOCK) as usize];
    for (block, content) in bytes.chunks_exact_mut(BLOCK as usize).zip(first..) {
        for (n, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(content << 16 | n as u64 | 1 << 60).to_le_bytes());
        }
    }
    bytes
}

fn write(volume: &Volume, lba: u64, bytes: &[u8]) {
    volume.write(lba * BLOCK, bytes, Blocking::Yes).unwrap();
}

fn read(volume: &Volume, lba: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0xdd; (count * BLOCK) as usize];
    volume.read(lba * BLOCK, &mut bytes, Blocking::Yes).unwrap();
    bytes
}

#[test]
fn equal_blocks_are_stored_once_across_volumes() {
    for kind in KINDS {
        let world = World::new(kind);
        let (a, b) = (world.volume("a"), world.volume("b"));
        write(&a, 0, &blocks(0, 1000));
        write(&b, 77, &blocks(500, 1000));
        assert_eq!(world.dedup(&a).unique, 1000);
        let report = world.dedup(&b);
        assert_eq!((report.unique, report.duplicates), (500, 500), "{kind:?}");
        world.collect();
        let stat = world.stat();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (2000, 1500));
        assert_eq!((stat.unique_blocks, stat.shared_blocks), (1000, 500));
        assert_eq!((stat.private_blocks, stat.dirty_blocks), (0, 0));
        assert_eq!(stat.free_blocks, stat.pool_blocks - 1 - 1500);
        assert_eq!(read(&a, 0, 1000), blocks(0, 1000));
        assert_eq!(read(&b, 77, 1000), blocks(500, 1000));
        world.assert_clean();
    }
}

/// Blocks in the hash cache are not read, and others are.
#[test]
fn the_hash_cache_spares_reading_what_was_written() {
    for kind in KINDS {
        let world = World::new(kind);
        let a = world.volume_with("a", |options| options.hash_cache_bytes = MIB);
        let b = world.volume("b");
        write(&b, 0, &blocks(0, 300));
        world.dedup(&b);
        write(&a, 0, &blocks(0, 1000));
        // Each of these takes the slot of the one before.
        write(&a, 7, &blocks(2000, 1));
        a.write(8 * BLOCK + 5, &[9; 10], Blocking::Yes).unwrap();
        write(&a, 9, &vec![0; BLOCK as usize]);
        let expected = read(&a, 0, 1000);
        world.engine.reset_counts();
        let report = world.dedup(&a);
        assert_eq!((report.scanned, report.cached), (999, 999), "{kind:?}");
        assert_eq!(report.duplicates, 297);
        assert_eq!(world.engine.count(Part::Data, Op::Read).count, 0);
        assert_eq!(read(&a, 0, 1000), expected);
        // Off, then on again: its content is forgotten.
        write(&a, 0, &blocks(3000, 10));
        let set = |bytes| {
            let change = VolumeChange {
                hash_cache_bytes: Some(bytes),
                ..VolumeChange::default()
            };
            world.store.set_volume("a", &change).unwrap();
        };
        set(0);
        write(&a, 5, &blocks(0, 1));
        set(MIB);
        write(&a, 9, &blocks(0, 1));
        let report = world.dedup(&a);
        assert_eq!((report.scanned, report.cached), (10, 1));
        assert_eq!(report.duplicates, 2);
        world.collect();
        world.assert_clean();
    }
}

/// A rewrite fails when part of it, or all, has reached the pool: the old fingerprint is not its.
#[test]
fn the_hash_cache_forgets_a_block_whose_rewrite_failed() {
    for seed in 0..20 {
        let world = World::seeded(IndexKind::Btree, seed);
        let a = world.volume_with("a", |options| options.hash_cache_bytes = MIB);
        let b = world.volume("b");
        write(&a, 0, &blocks(0, 2));
        write(&b, 0, &blocks(0, 2));
        world
            .engine
            .fail_once(Part::Data, Op::Write, 1, ErrorKind::Other);
        a.write(0, &blocks(5, 2), Blocking::Yes).unwrap_err();
        let left = read(&a, 0, 2);
        world.dedup(&a);
        world.dedup(&b);
        assert_eq!(read(&a, 0, 2), left);
        assert_eq!(read(&b, 0, 2), blocks(0, 2));
    }
}

#[test]
fn a_shared_block_is_copied_on_write_and_released() {
    for kind in KINDS {
        let world = World::new(kind);
        let (a, b) = (world.volume("a"), world.volume("b"));
        write(&a, 0, &blocks(0, 100));
        write(&b, 0, &blocks(0, 100));
        world.dedup(&a);
        world.dedup(&b);
        write(&b, 10, &blocks(5000, 20));
        assert_eq!(read(&a, 0, 100), blocks(0, 100));
        assert_eq!(read(&b, 10, 20), blocks(5000, 20));
        let stat = world.stat();
        assert_eq!((stat.queued_blocks, stat.physical_blocks), (20, 120));
        world.collect();
        let stat = world.stat();
        assert_eq!((stat.unique_blocks, stat.shared_blocks), (20, 80));
        assert_eq!((stat.queued_blocks, stat.private_blocks), (0, 20));
        world.assert_clean();
        // The last reference takes the block with it.
        a.trim(0, 16 * MIB, Blocking::Yes).unwrap();
        b.trim(0, 16 * MIB, Blocking::Yes).unwrap();
        world.collect();
        let stat = world.stat();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (0, 0));
        assert_eq!(stat.free_blocks, stat.pool_blocks - 1);
        world.assert_clean();
    }
}

#[test]
fn rewriting_a_private_block_beside_shared_ones_touches_no_metadata() {
    let world = World::new(IndexKind::Btree);
    let volume = world.volume("a");
    write(&volume, 0, &blocks(0, 64));
    world.dedup(&volume);
    write(&volume, 3, &blocks(900, 1));
    volume.flush().unwrap();
    let metadata_writes = || {
        let parts = [Part::Meta, Part::Log, Part::Index];
        parts.map(|part| world.engine.count(part, Op::Write).count)
    };
    let before = metadata_writes();
    for round in 0..100 {
        write(&volume, 3, &blocks(1000 + round, 1));
    }
    volume.flush().unwrap();
    assert_eq!(metadata_writes(), before);
}

#[test]
fn sharing_survives_power_loss() {
    for kind in KINDS {
        let world = World::new(kind);
        let (a, b) = (world.volume("a"), world.volume("b"));
        write(&a, 0, &blocks(0, 300));
        write(&b, 0, &blocks(100, 300));
        world.dedup(&a);
        world.dedup(&b);
        a.flush().unwrap();
        let world = world.crash();
        let (a, b) = (
            world.store.volume("a").unwrap(),
            world.store.volume("b").unwrap(),
        );
        assert_eq!(read(&a, 0, 300), blocks(0, 300));
        assert_eq!(read(&b, 0, 300), blocks(100, 300));
        world.assert_clean();
        world.dedup(&a);
        world.dedup(&b);
        world.collect();
        let stat = world.stat();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (600, 400));
        write(&b, 0, &blocks(0, 300));
        world.dedup(&b);
        world.collect();
        assert_eq!(world.stat().physical_blocks, 300, "{kind:?}");
        world.assert_clean();
    }
}

#[test]
fn domains_never_share() {
    let world = World::new(IndexKind::Btree);
    let names = ["a", "b", "c"];
    let volumes = [("a", "red"), ("b", "blue"), ("c", "red")]
        .map(|(name, domain)| world.volume_with(name, |o| domain.clone_into(&mut o.domain)));
    for volume in &volumes {
        write(volume, 0, &blocks(0, 100));
        world.dedup(volume);
    }
    world.collect();
    assert_eq!(world.stat().physical_blocks, 200);
    assert_eq!(names.len(), world.stat().volumes.len());
    world.assert_clean();
    // A volume that goes takes only its own references with it.
    world.delete_volume("a");
    world.collect();
    assert_eq!(read(&volumes[2], 0, 100), blocks(0, 100));
    assert_eq!(world.stat().physical_blocks, 200);
    world.delete_volume("c");
    world.collect();
    assert_eq!(world.stat().physical_blocks, 100);
    world.assert_clean();
}

#[test]
fn only_cold_blocks_are_taken_when_asked_for() {
    let world = World::new(IndexKind::Btree);
    let volume = world.volume("a");
    write(&volume, 0, &blocks(0, 100));
    assert_eq!(world.pass(&volume, Ready::Cold).scanned, 0);
    write(&volume, 0, &blocks(200, 10));
    assert_eq!(world.pass(&volume, Ready::Cold).scanned, 0);
    assert_eq!(world.pass(&volume, Ready::Cold).scanned, 90);
    assert_eq!(world.pass(&volume, Ready::Cold).scanned, 10);
    assert_eq!(world.pass(&volume, Ready::Cold).scanned, 0);
    // Blocks that are published and rewritten are left alone for twice as long.
    write(&volume, 0, &blocks(300, 10));
    let looks: Vec<u64> = (0..5)
        .map(|_| world.pass(&volume, Ready::Cold).scanned)
        .collect();
    assert_eq!(looks, [0, 0, 0, 0, 10]);
}

#[test]
fn settings_change_online_and_survive() {
    let world = World::new(IndexKind::Btree);
    world.volume("a");
    let change = VolumeChange {
        dedup: Some(DedupMode::Off),
        cold_passes: Some(5),
        ..VolumeChange::default()
    };
    world.store.set_volume("a", &change).unwrap();
    let world = world.crash();
    let options = world.store.volume("a").unwrap().options();
    assert_eq!((options.dedup, options.cold_passes), (DedupMode::Off, 5));
    let change = VolumeChange {
        cold_passes: Some(0),
        ..VolumeChange::default()
    };
    assert!(world.store.set_volume("a", &change).is_err());
}

#[test]
fn an_import_is_deduplicated_as_it_is_loaded() {
    let world = World::new(IndexKind::Btree);
    let a = world.volume("a");
    write(&a, 0, &blocks(0, 512));
    world.dedup(&a);
    let import = world
        .store
        .begin_import("b", &VolumeOptions::new(16 * MIB))
        .unwrap();
    for n in 0..4 {
        import
            .write(n * 256 * BLOCK, &blocks(n * 256, 256))
            .unwrap();
        import.dedup_batch().unwrap();
    }
    while !import.dedup_batch().unwrap().at_end {}
    import.finish().unwrap();
    world.collect();
    let stat = world.stat();
    assert_eq!((stat.logical_blocks, stat.physical_blocks), (1536, 1024));
    assert_eq!(stat.private_blocks, 0);
    world.assert_clean();
}

#[test]
fn a_full_memory_index_declines_and_nothing_is_lost() {
    let world = World::new(IndexKind::Memory);
    let volume = world.volume_with("a", |options| options.size_bytes = 60 * MIB);
    write(&volume, 0, &blocks(0, 4096));
    let engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&world.engine);
    world.store.close().unwrap();
    drop((world.store, volume));
    let options = OpenOptions {
        memory_bytes: 1,
        ..OpenOptions::default()
    };
    let (store, _) = Store::open(engine, &options).unwrap();
    let volume = store.volume("a").unwrap();
    let mut cursor = Lba(0);
    let report = store.dedup_batch(&volume, &mut cursor, Ready::All).unwrap();
    assert_eq!(report.unique + report.declined, 4096);
    assert_eq!(read(&volume, 0, 4096), blocks(0, 4096));
    let stat = store.stat().unwrap();
    assert_eq!(stat.unique_blocks, report.unique);
    assert_eq!(stat.private_blocks, report.declined);
}
