//! The costs and figures of a pool, by how much of it is in use.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, IndexKind, Lba, MetadataExport, OpenOptions, Pba, Ready, Scrub, Store,
    StoreErrorKind, Volume, VolumeChange, VolumeOptions, WhenFull,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn create(size_bytes: u64) -> (Arc<SimulatedEngine>, Arc<Store>) {
    create_with(size_bytes, IndexKind::Hash)
}

fn create_with(size_bytes: u64, index: IndexKind) -> (Arc<SimulatedEngine>, Arc<Store>) {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes,
        log_bytes: MIB,
        index,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let store = open(&engine);
    (engine, store)
}

fn open(engine: &Arc<SimulatedEngine>) -> Arc<Store> {
    let engine: Arc<dyn Engine> = engine.clone();
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    Store::open(engine, &options).unwrap().0
}

/// A volume of this many blocks, all different and none like those of another salt.
fn filled(store: &Store, name: &str, blocks: u64, salt: u64) -> Arc<Volume> {
    let options = VolumeOptions::new((blocks * BLOCK).max(MIB));
    store.create_volume(name, &options).unwrap();
    let volume = store.volume(name).unwrap();
    let mut lba = 0;
    while lba < blocks {
        let end = blocks.min(lba + 256);
        let words = (lba..end).flat_map(|n| [n + 1, salt].repeat(BLOCK as usize / 16));
        let data: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        volume.write(lba * BLOCK, &data, Blocking::Yes).unwrap();
        lba = end;
    }
    volume.flush().unwrap();
    volume
}

fn dedup(store: &Store, volume: &Volume) {
    let mut cursor = Lba(0);
    while !store
        .dedup_batch(volume, &mut cursor, Ready::All)
        .unwrap()
        .at_end
    {}
}

/// Runs a scrub of the whole pool. Returns its steps, and the blocks that it passed and read.
fn scrub(store: &Store) -> (u64, u64, u64) {
    store.begin_scrub(None, 0).unwrap();
    let mut scrub = Scrub::default();
    let (mut steps, mut passed, mut read) = (0, 0, 0);
    loop {
        let report = store.scrub_step(&mut scrub).unwrap();
        steps += 1;
        passed += report.passed_blocks;
        read += report.bytes / BLOCK;
        assert_eq!((report.found_bad, report.found_good), (0, 0));
        if report.is_over {
            return (steps, passed, read);
        }
        assert!(steps < 1000, "{passed} blocks passed in {steps} steps");
    }
}

#[test]
fn a_scrub_costs_what_is_stored_and_not_what_could_be() {
    let blocks = (1 << 40) / BLOCK;
    let (_engine, store) = create(1 << 40);
    let volume = filled(&store, "a", 5120, 1);
    dedup(&store, &volume);
    // Blocks stored far from the rest are found, too.
    filled(&store, "far", 10, 2);
    let (steps, passed, read) = scrub(&store);
    assert_eq!((passed, read), (blocks, 5130));
    assert!(steps < 200, "{steps} steps");
    // A run that begins in the middle of nothing goes around the pool.
    store.begin_scrub(Some(50), 0).unwrap();
    let mut half = Scrub::default();
    while !store.scrub_step(&mut half).unwrap().is_over {}
    assert_eq!(store.scrub_status().unwrap().next_block, blocks / 2);
    assert_eq!(scrub(&store).1, blocks);
    assert_eq!(store.scrub_status().unwrap().next_block, blocks / 2);
}

/// Makes a block unreadable that is stored, has it listed, and trims the volume.
fn with_bad_free_block(volume: &Volume, engine: &SimulatedEngine, store: &Store, block: u64) {
    engine.make_unreadable(Part::Data, block * BLOCK..(block + 1) * BLOCK);
    let mut found = vec![0; MIB as usize];
    let reads = (0..15).map(|n| volume.read(n * MIB, &mut found, Blocking::Yes));
    assert_eq!(reads.filter(Result::is_err).count(), 1);
    assert_eq!(store.look_at_suspects().unwrap(), 1);
    volume.trim(0, 15 * MIB, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..4).for_each(|_| store.tick().unwrap());
}

fn more(_done: u64, _all: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_pool_shrinks_past_a_free_block_that_cannot_be_read() {
    let (engine, store) = create(16 * MIB);
    let volume = filled(&store, "v", 15 * 256, 1);
    with_bad_free_block(&volume, &engine, &store, 3000);
    store.begin_shrink(8 * MIB).unwrap();
    store.cancel_shrink().unwrap();
    assert_eq!(store.scrub_status().unwrap().bad_blocks, 1);
    store.begin_shrink(8 * MIB).unwrap();
    let report = store.shrink_step(&mut more).unwrap();
    assert!(report.is_done, "{report:?}");
    assert_eq!(store.size_bytes().unwrap(), 8 * MIB);
    assert_eq!(store.scrub_status().unwrap().bad_blocks, 0);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
    // The place may be good by the time that the pool has it again.
    engine.clear_unreadable(Part::Data);
    store.grow(16 * MIB).unwrap();
    drop((volume, store));
    let store = open(&engine);
    filled(&store, "w", 15 * 256, 2);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn a_bad_block_before_the_new_end_stays_out_of_use() {
    let (engine, store) = create(16 * MIB);
    let volume = filled(&store, "v", 15 * 256, 1);
    with_bad_free_block(&volume, &engine, &store, 1000);
    store.begin_shrink(8 * MIB).unwrap();
    assert!(store.shrink_step(&mut more).unwrap().is_done);
    assert_eq!(store.scrub_status().unwrap().bad_blocks, 1);
    // All but the label and that one.
    assert_eq!(store.stat().unwrap().free_blocks, 2048 - 2);
}

/// Calls `look` before every read of the pool, until it returns false.
fn at_each_read(engine: &Arc<SimulatedEngine>, look: Arc<dyn Fn() -> bool + Send + Sync>) {
    let again = Arc::clone(engine);
    let hook = move || {
        if look() {
            at_each_read(&again, look);
        }
    };
    engine.on_next_io(Part::Data, Op::Read, When::Before, Box::new(hook));
}

#[test]
fn each_block_is_counted_once_while_batches_are_under_way() {
    const BLOCKS: u64 = 300;
    for index in [IndexKind::Hash, IndexKind::Btree, IndexKind::Memory] {
        let (engine, store) = create_with(64 * MIB, index);
        let a = filled(&store, "a", BLOCKS, 1);
        dedup(&store, &a);
        let b = filled(&store, "b", BLOCKS, 1);
        // Bytes are compared once the index has counted the items.
        let verify = VolumeChange {
            verify: Some(true),
            ..VolumeChange::default()
        };
        store.set_volume("b", &verify).unwrap();
        let looks = Arc::new(AtomicU64::new(0));
        let look = {
            let (store, looks) = (Arc::clone(&store), Arc::clone(&looks));
            move || {
                let stat = store.stat().unwrap();
                let kinds = stat.unsettled_blocks + stat.unique_blocks + stat.shared_blocks;
                assert_eq!(stat.physical_blocks, stat.private_blocks + kinds);
                assert_eq!(stat.physical_blocks, 2 * BLOCKS, "{index:?}: {stat:?}");
                assert_eq!(stat.logical_blocks, 2 * BLOCKS);
                assert_eq!(stat.unsettled_blocks, BLOCKS);
                looks.fetch_add(1, SeqCst) < BLOCKS
            }
        };
        at_each_read(&engine, Arc::new(look));
        dedup(&store, &b);
        assert!(looks.load(SeqCst) > BLOCKS, "a batch reads and compares");
        store.tick().unwrap();
        let stat = store.stat().unwrap();
        assert_eq!((stat.physical_blocks, stat.shared_blocks), (BLOCKS, BLOCKS));
        assert_eq!((stat.unsettled_blocks, stat.unique_blocks), (0, 0));

        // Blocks that the collector releases are there until it reports that they are not.
        for volume in [&a, &b] {
            volume.trim(0, BLOCKS * BLOCK, Blocking::Yes).unwrap();
        }
        let look = {
            let store = Arc::clone(&store);
            move || {
                let stat = store.stat().unwrap();
                assert_eq!(stat.physical_blocks, BLOCKS, "{index:?}: {stat:?}");
                false
            }
        };
        at_each_read(&engine, Arc::new(look));
        assert_eq!(store.collect_batch().unwrap().freed, BLOCKS);
        assert_eq!(store.stat().unwrap().physical_blocks, 0);
    }
}

/// Writes a volume over and over, and trims all but every `keep`-th block of it.
fn scattered(store: &Store, blocks: u64, keep: u64) -> Arc<Volume> {
    let volume = filled(store, "scattered", blocks, 1);
    for lba in (0..blocks).filter(|lba| !lba.is_multiple_of(keep)) {
        volume.trim(lba * BLOCK, BLOCK, Blocking::Yes).unwrap();
    }
    volume.flush().unwrap();
    (0..3).for_each(|_| store.tick().unwrap());
    volume
}

fn trim(store: &Store) -> u64 {
    let (mut cursor, mut steps) = (Pba(0), 0);
    while store.trim_step(&mut cursor, MIB).unwrap() {
        steps += 1;
    }
    steps
}

#[test]
fn trimming_gives_back_single_blocks_and_what_a_crash_forgot() {
    let (engine, store) = create(1 << 40);
    let volume = scattered(&store, 4096, 2);
    while store.give_back(MIB).unwrap() {}
    let stat = store.stat().unwrap();
    // No unit of 64 KiB is free, except that of the last block.
    assert!(stat.free_bytes_on_disk >= 2047 * BLOCK, "{stat:?}");
    let steps = trim(&store);
    assert!(
        steps < 3000,
        "{steps} steps for 2048 blocks in a pool of a tebibyte"
    );
    let stat = store.stat().unwrap();
    assert_eq!(stat.pool_bytes_on_disk, 2049 * BLOCK);
    assert_eq!(stat.free_bytes_on_disk, 0);
    for lba in 0..4096 {
        let mut found = vec![9; BLOCK as usize];
        volume.read(lba * BLOCK, &mut found, Blocking::Yes).unwrap();
        assert_eq!(found[0] != 0, lba % 2 == 0 && (lba + 1) % 256 != 0, "{lba}");
    }
    // Blocks freed and not discarded before the process died.
    volume.trim(0, 4096 * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..3).for_each(|_| store.tick().unwrap());
    assert_eq!(store.stat().unwrap().free_blocks, (1 << 28) - 1);
    drop((volume, store));
    let engine = Arc::new(engine.crash(CrashKind::ProcessKilled));
    let store = open(&engine);
    assert_eq!(store.stat().unwrap().free_bytes_on_disk, 2048 * BLOCK);
    trim(&store);
    assert_eq!(store.stat().unwrap().pool_bytes_on_disk, BLOCK);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn background_work_gives_back_what_a_crash_forgot() {
    let (engine, store) = create(1 << 30);
    let volume = filled(&store, "v", 8192, 1);
    volume.trim(0, 8192 * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..3).for_each(|_| store.tick().unwrap());
    drop((volume, store));
    let engine = Arc::new(engine.crash(CrashKind::ProcessKilled));
    let store = open(&engine);
    filled(&store, "w", 1000, 2);
    assert!(store.stat().unwrap().free_bytes_on_disk > 6000 * BLOCK);
    let mut calls = 0;
    while store.give_back(256 << 10).unwrap() {
        calls += 1;
        assert!(calls < 10_000, "it never ends");
    }
    let stat = store.stat().unwrap();
    assert!(stat.free_bytes_on_disk < 256 * BLOCK, "{stat:?}");
    assert!(!store.give_back(256 << 10).unwrap(), "it walks once");
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

#[test]
fn what_was_released_is_free_once_nobody_reads_it() {
    let (_engine, store) = create(16 * MIB);
    let volume = filled(&store, "v", 1024, 1);
    volume.trim(0, 1024 * BLOCK, Blocking::Yes).unwrap();
    assert_eq!(store.stat().unwrap().free_blocks, 4095 - 1024);
    let released = store.commit_released().unwrap();
    let mut looks = 0;
    while !store.is_free(released).unwrap() {
        looks += 1;
        assert!(looks < 100, "nobody reads anything");
    }
    let stat = store.stat().unwrap();
    assert_eq!((stat.free_blocks, stat.reclaim_blocks), (4095, 0));
}

/// A write between the moment of a rollback and its end sees the size that goes with the layer.
#[test]
fn what_lies_beyond_the_size_of_a_snapshot_does_not_come_back() {
    let (engine, store) = create(16 * MIB);
    let volume = filled(&store, "v", 256, 1);
    store.create_snapshots(&[("v".into(), "s".into())]).unwrap();
    store.resize_volume("v", 2 * MIB).unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let hook = {
        let (volume, written) = (Arc::clone(&volume), Arc::clone(&written));
        move || {
            let beyond = volume.write(3 * MIB / 2, &[7; BLOCK as usize], Blocking::Yes);
            assert_eq!(beyond.unwrap_err().kind(), StoreErrorKind::Invalid);
            volume
                .write(0, &[7; BLOCK as usize], Blocking::Yes)
                .unwrap();
            written.store(1, SeqCst);
        }
    };
    engine.on_next_io(Part::Log, Op::Sync, When::Before, Box::new(hook));
    store.roll_back("v", "s").unwrap();
    assert_eq!(written.load(SeqCst), 1);
    assert_eq!(volume.size_bytes(), MIB);
    store.resize_volume("v", 2 * MIB).unwrap();
    let mut found = vec![1; MIB as usize];
    volume.read(MIB, &mut found, Blocking::Yes).unwrap();
    assert!(found.iter().all(|byte| *byte == 0), "it came back");
    volume
        .read(0, &mut found[..BLOCK as usize], Blocking::Yes)
        .unwrap();
    assert_eq!(found[0], 7);
}

/// Writes checkpoints, each of which changes every page of a map.
struct Checkpoints {
    store: Arc<Store>,
    volume: Arc<Volume>,
    segments: u64,
    next: u64,
}

impl Checkpoints {
    fn new(store: &Arc<Store>, segments: u64) -> Self {
        Self::named("mapped", store, segments)
    }

    fn named(name: &str, store: &Arc<Store>, segments: u64) -> Self {
        let options = VolumeOptions::new(segments * 2 * MIB);
        store.create_volume(name, &options).unwrap();
        Self {
            store: Arc::clone(store),
            volume: store.volume(name).unwrap(),
            segments,
            next: 0,
        }
    }

    fn write(&mut self, count: u64) {
        for n in self.next..self.next + count {
            for segment in 0..self.segments {
                let at = segment * 2 * MIB + n % 512 * BLOCK;
                let data = [n as u8 | 1; BLOCK as usize];
                self.volume.write(at, &data, Blocking::Yes).unwrap();
            }
            self.volume.flush().unwrap();
            self.store.set_when_full(WhenFull::Pause).unwrap();
        }
        self.next += count;
    }
}

/// The space that the host has allocated for it.
fn meta_bytes(engine: &SimulatedEngine) -> u64 {
    let meta = engine.open(Part::Meta).unwrap();
    meta.allocated_bytes().unwrap()
}

#[test]
fn metadata_does_not_grow_while_usage_is_found_out() {
    let (engine, store) = create(512 * MIB);
    let mut checkpoints = Checkpoints::new(&store, 128);
    checkpoints.write(50);
    let before = store.stat().unwrap().metadata_bytes_on_disk;
    let (mut most, mut calls) = (0, 0);
    let is_done = store.account(&mut |_, _| {
        calls += 1;
        checkpoints.write(12);
        most = most.max(store.stat().unwrap().metadata_bytes_on_disk);
        ControlFlow::Continue(())
    });
    assert!(is_done.unwrap());
    assert!(calls > 10, "{calls} calls");
    // Bytes released at once, and bytes that a call writes.
    let grown = most - before;
    assert!(grown < 12 * MIB, "by {grown} bytes");
    assert!(meta_bytes(&engine) <= 32 * MIB);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
}

/// Continues to write checkpoints while something is written into it.
struct Busy<'a>(&'a mut Checkpoints, Vec<u8>);

impl Write for Busy<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(1);
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_holds_a_checkpoint_at_most_doubles_metadata() {
    let (engine, store) = create(512 * MIB);
    let mut checkpoints = Checkpoints::new(&store, 128);
    checkpoints.write(50);
    let before = store.stat().unwrap().metadata_bytes_on_disk;
    let (mut most, mut exports) = (0, 0);
    // An export holds a later checkpoint than the check in the middle of which it is made.
    let report = store.check_with_progress(false, &mut |_| {}, &mut |_, _| {
        checkpoints.write(2);
        if exports < 3 {
            let mut busy = Busy(&mut checkpoints, Vec::new());
            store.export_metadata(&mut busy).unwrap();
            let export = MetadataExport::read(&mut &busy.1[..]).unwrap();
            assert_eq!(export.bytes(), busy.1.len() as u64);
            assert!(export.bytes() > 128 * BLOCK);
            exports += 1;
        }
        most = most.max(store.stat().unwrap().metadata_bytes_on_disk);
    });
    assert_eq!((report.unwrap().findings, exports), (0, 3));
    // Of each of four held checkpoints, and of those in use.
    assert!(most <= 6 * before, "{most} bytes of {before}");
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
    assert!(meta_bytes(&engine) <= 16 * MIB);
}

#[test]
fn metadata_of_what_was_deleted_goes_back_to_the_host() {
    let (engine, store) = create(512 * MIB);
    let mut checkpoints = Checkpoints::new(&store, 128);
    checkpoints.write(2);
    let mut large = Checkpoints::named("large", &store, 1 << 14);
    large.write(1);
    let grown = meta_bytes(&engine);
    assert!(grown > 60 * MIB, "{grown} bytes");
    drop(large);
    store.delete_volume("large").unwrap();
    while store.deletion_step().unwrap().is_some() {}
    checkpoints.write(2);
    let len = meta_bytes(&engine);
    assert!(len <= 48 * MIB, "{len} bytes of {grown}");
    // It grows again where that is needed, and a crash changes nothing of it.
    checkpoints.write(10);
    drop((checkpoints, store));
    let engine = Arc::new(engine.crash(CrashKind::PowerLoss));
    let store = open(&engine);
    assert_eq!(store.check(false, &mut |_| {}).unwrap().findings, 0);
    assert_eq!(
        store.stat().unwrap().logical_blocks,
        128 * checkpoints_written(&store)
    );
}

/// How many blocks of its first segment the mapped volume has.
fn checkpoints_written(store: &Store) -> u64 {
    let volume = store.volume("mapped").unwrap();
    let mut found = vec![0; 2 * MIB as usize];
    volume.read(0, &mut found, Blocking::Yes).unwrap();
    found.chunks(BLOCK as usize).filter(|it| it[0] != 0).count() as u64
}
