//! The costs and figures of a pool, by how much of it is in use.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, IndexKind, MetadataExport, Pba, ScrubRun, SettingsChange, Store,
    StoreErrorKind, Volume, WhenFull,
};

use crate::common::{
    BLOCK, KINDS, LITTLE_MEMORY, MIB, World, assert_clean, blocks, dedup, go_on, new_volume,
    pool_of, read, snapshot, write,
};

fn pool(size_bytes: u64) -> World {
    pool_with(size_bytes, IndexKind::Hash)
}

fn pool_with(size_bytes: u64, index: IndexKind) -> World {
    let options = CreateOptions {
        log_bytes: MIB,
        index,
        ..pool_of(size_bytes)
    };
    World::new(&options, LITTLE_MEMORY)
}

/// A volume of this many blocks, all different, and different from the blocks of any other salt.
fn filled(store: &Store, name: &str, blocks: u64, salt: u64) -> Arc<Volume> {
    let volume = new_volume(store, name, (blocks * BLOCK).max(MIB));
    for lba in (0..blocks).step_by(256) {
        let end = blocks.min(lba + 256);
        write(&volume, lba, (lba..end).map(|lba| content_of(lba, salt)));
    }
    volume.flush().unwrap();
    volume
}

fn content_of(lba: u64, salt: u64) -> u64 {
    salt << 32 | (lba + 1)
}

/// Runs a scrub of the whole pool. Returns its steps, and the blocks that it passed and read.
fn scrub(store: &Store) -> (u64, u64, u64) {
    store.scrub().begin(None, 0).unwrap();
    let mut scrub = ScrubRun::default();
    let (mut steps, mut passed, mut read) = (0, 0, 0);
    loop {
        let report = store.scrub().step(&mut scrub).unwrap();
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
    let world = pool(1 << 40);
    let volume = filled(&world, "a", 5120, 1);
    dedup(&world, &volume);
    // Blocks stored far from the rest are found, too.
    filled(&world, "far", 10, 2);
    let (steps, passed, read) = scrub(&world);
    assert_eq!((passed, read), (blocks, 5130));
    assert!(steps < 200, "{steps} steps");
    // A run that begins in the middle of nothing goes around the pool.
    world.scrub().begin(Some(50), 0).unwrap();
    let mut half = ScrubRun::default();
    while !world.scrub().step(&mut half).unwrap().is_over {}
    assert_eq!(world.scrub().status().unwrap().next_block, blocks / 2);
    assert_eq!(scrub(&world).1, blocks);
    assert_eq!(world.scrub().status().unwrap().next_block, blocks / 2);
}

/// Makes a block unreadable that is stored, has it listed, and trims the volume.
fn with_bad_free_block(world: &World, volume: &Volume, block: u64) {
    world
        .engine
        .make_unreadable(Part::Data, block * BLOCK..(block + 1) * BLOCK);
    let mut found = vec![0; MIB as usize];
    let reads = (0..15).map(|n| volume.read(n * MIB, &mut found, Blocking::Yes));
    assert_eq!(reads.filter(Result::is_err).count(), 1);
    assert_eq!(world.scrub().look_at_suspects().unwrap(), 1);
    volume.trim(0, 15 * MIB, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..4).for_each(|_| world.tidy(true).unwrap());
}

#[test]
fn a_pool_shrinks_past_a_free_block_that_cannot_be_read() {
    let world = pool(16 * MIB);
    let volume = filled(&world, "v", 15 * 256, 1);
    with_bad_free_block(&world, &volume, 3000);
    world.space().begin_shrink(8 * MIB).unwrap();
    world.space().cancel_shrink().unwrap();
    assert_eq!(world.scrub().status().unwrap().bad_blocks, 1);
    world.space().begin_shrink(8 * MIB).unwrap();
    let report = world.space().shrink_step(&mut go_on).unwrap();
    assert!(report.is_done, "{report:?}");
    assert_eq!(world.space().size_bytes().unwrap(), 8 * MIB);
    assert_eq!(world.scrub().status().unwrap().bad_blocks, 0);
    assert_clean(&world);
    // The place may be good by the time that the pool has it again.
    world.engine.clear_unreadable(Part::Data);
    world.space().grow(16 * MIB).unwrap();
    drop(volume);
    let world = world.reopen();
    filled(&world, "w", 15 * 256, 2);
    assert_clean(&world);
}

#[test]
fn a_bad_block_before_the_new_end_stays_out_of_use() {
    let world = pool(16 * MIB);
    let volume = filled(&world, "v", 15 * 256, 1);
    with_bad_free_block(&world, &volume, 1000);
    world.space().begin_shrink(8 * MIB).unwrap();
    assert!(world.space().shrink_step(&mut go_on).unwrap().is_done);
    assert_eq!(world.scrub().status().unwrap().bad_blocks, 1);
    // All but the label and that one.
    assert_eq!(world.stat().unwrap().free_blocks, 2048 - 2);
}

/// Calls `look` before every read of the pool, until it returns false.
fn at_each_read(engine: &SimulatedEngine, look: Arc<dyn Fn() -> bool + Send + Sync>) {
    let again = engine.clone();
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
    for index in KINDS {
        let world = pool_with(64 * MIB, index);
        let a = filled(&world, "a", BLOCKS, 1);
        dedup(&world, &a);
        let b = filled(&world, "b", BLOCKS, 1);
        // Bytes are compared once the index has counted the items.
        let verify = SettingsChange {
            verify: Some(true),
            ..SettingsChange::default()
        };
        world.set_volume("b", &verify).unwrap();
        let looks = Arc::new(AtomicU64::new(0));
        let look = {
            let (store, looks) = (Arc::clone(&world.store), Arc::clone(&looks));
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
        at_each_read(&world.engine, Arc::new(look));
        dedup(&world, &b);
        assert!(looks.load(SeqCst) > BLOCKS, "a batch reads and compares");
        world.tidy(true).unwrap();
        let stat = world.stat().unwrap();
        assert_eq!((stat.physical_blocks, stat.shared_blocks), (BLOCKS, BLOCKS));
        assert_eq!((stat.unsettled_blocks, stat.unique_blocks), (0, 0));

        // Blocks that the collector releases are there until it reports that they are not.
        for volume in [&a, &b] {
            volume.trim(0, BLOCKS * BLOCK, Blocking::Yes).unwrap();
        }
        let look = {
            let store = Arc::clone(&world.store);
            move || {
                let stat = store.stat().unwrap();
                assert_eq!(stat.physical_blocks, BLOCKS, "{index:?}: {stat:?}");
                false
            }
        };
        at_each_read(&world.engine, Arc::new(look));
        assert_eq!(world.dedup().collect_batch().unwrap().freed, BLOCKS);
        assert_eq!(world.stat().unwrap().physical_blocks, 0);
    }
}

/// Writes a volume over and over, and trims all but every `keep`-th block of it.
fn scattered(store: &Store, blocks: u64, keep: u64) -> Arc<Volume> {
    let volume = filled(store, "scattered", blocks, 1);
    for lba in (0..blocks).filter(|lba| !lba.is_multiple_of(keep)) {
        volume.trim(lba * BLOCK, BLOCK, Blocking::Yes).unwrap();
    }
    volume.flush().unwrap();
    (0..3).for_each(|_| store.tidy(true).unwrap());
    volume
}

fn trim(store: &Store) -> u64 {
    let (mut cursor, mut steps) = (Pba(0), 0);
    while store.space().trim_step(&mut cursor, MIB).unwrap() {
        steps += 1;
    }
    steps
}

#[test]
fn trimming_gives_back_single_blocks_and_what_a_crash_forgot() {
    let world = pool(1 << 40);
    let volume = scattered(&world, 4096, 2);
    while world.space().give_back(MIB).unwrap() {}
    let stat = world.stat().unwrap();
    // No unit of 64 KiB is free, except the last block's.
    assert!(stat.free_bytes_on_disk >= 2047 * BLOCK, "{stat:?}");
    let steps = trim(&world);
    assert!(
        steps < 3000,
        "{steps} steps for 2048 blocks in a pool of a tebibyte"
    );
    let stat = world.stat().unwrap();
    assert_eq!(stat.pool_bytes_on_disk, 2049 * BLOCK);
    assert_eq!(stat.free_bytes_on_disk, 0);
    let expected = (0..4096).map(|lba| if lba % 2 == 0 { content_of(lba, 1) } else { 0 });
    assert!(read(&volume, 0, 4096).into_iter().eq(expected));
    // Blocks freed and not discarded before the process died.
    volume.trim(0, 4096 * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..3).for_each(|_| world.tidy(true).unwrap());
    assert_eq!(world.stat().unwrap().free_blocks, (1 << 28) - 1);
    drop(volume);
    let world = world.crash(CrashKind::ProcessKilled);
    assert_eq!(world.stat().unwrap().free_bytes_on_disk, 2048 * BLOCK);
    trim(&world);
    assert_eq!(world.stat().unwrap().pool_bytes_on_disk, BLOCK);
    assert_clean(&world);
}

#[test]
fn background_work_gives_back_what_a_crash_forgot() {
    let world = pool(1 << 30);
    let volume = filled(&world, "v", 8192, 1);
    volume.trim(0, 8192 * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..3).for_each(|_| world.tidy(true).unwrap());
    drop(volume);
    let world = world.crash(CrashKind::ProcessKilled);
    filled(&world, "w", 1000, 2);
    assert!(world.stat().unwrap().free_bytes_on_disk > 6000 * BLOCK);
    let mut calls = 0;
    while world.space().find_spare().unwrap() || world.space().give_back(256 << 10).unwrap() {
        calls += 1;
        assert!(calls < 10_000, "it never ends");
    }
    let stat = world.stat().unwrap();
    assert!(stat.free_bytes_on_disk < 256 * BLOCK, "{stat:?}");
    assert!(!world.space().find_spare().unwrap(), "it walks once");
    assert_clean(&world);
}

#[test]
fn what_was_released_is_free_once_nobody_reads_it() {
    let world = pool(16 * MIB);
    let volume = filled(&world, "v", 1024, 1);
    volume.trim(0, 1024 * BLOCK, Blocking::Yes).unwrap();
    assert_eq!(world.stat().unwrap().free_blocks, 4095 - 1024);
    let released = world.space().commit_released().unwrap();
    let mut looks = 0;
    while !world.space().is_free(released).unwrap() {
        looks += 1;
        assert!(looks < 100, "nobody reads anything");
    }
    let stat = world.stat().unwrap();
    assert_eq!((stat.free_blocks, stat.pending_free_blocks), (4095, 0));
}

/// A write between the moment of a rollback and its end sees the size that goes with the layer.
#[test]
fn what_lies_beyond_the_size_of_a_snapshot_does_not_come_back() {
    let world = pool(16 * MIB);
    let volume = filled(&world, "v", 256, 1);
    snapshot(&world, "v", "s");
    world.resize_volume("v", 2 * MIB).unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let hook = {
        let (volume, written) = (Arc::clone(&volume), Arc::clone(&written));
        move || {
            let beyond = volume.write(3 * MIB / 2, &blocks([7]), Blocking::Yes);
            assert_eq!(beyond.unwrap_err().kind(), StoreErrorKind::Invalid);
            write(&volume, 0, [7]);
            written.store(1, SeqCst);
        }
    };
    world
        .engine
        .on_next_io(Part::Log, Op::Sync, When::Before, Box::new(hook));
    world.roll_back("v", "s").unwrap();
    assert_eq!(written.load(SeqCst), 1);
    assert_eq!(volume.size_bytes(), MIB);
    world.resize_volume("v", 2 * MIB).unwrap();
    assert_eq!(read(&volume, 256, 256), [0; 256], "it came back");
    assert_eq!(read(&volume, 0, 1), [7]);
}

/// Writes checkpoints, each of which changes every page of a map.
struct Checkpoints {
    volume: Arc<Volume>,
    store: Arc<Store>,
    segments: u64,
    next: u64,
}

impl Checkpoints {
    fn new(store: &Arc<Store>, segments: u64) -> Self {
        Self::named("mapped", store, segments)
    }

    fn named(name: &str, store: &Arc<Store>, segments: u64) -> Self {
        Self {
            volume: new_volume(store, name, segments * 2 * MIB),
            store: Arc::clone(store),
            segments,
            next: 0,
        }
    }

    fn write(&mut self, count: u64) {
        for n in self.next..self.next + count {
            for segment in 0..self.segments {
                write(&self.volume, segment * 512 + n % 512, [n + 1]);
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
    let world = pool(512 * MIB);
    let mut checkpoints = Checkpoints::new(&world.store, 128);
    checkpoints.write(50);
    let before = world.stat().unwrap().metadata_bytes_on_disk;
    let (mut most, mut calls) = (0, 0);
    let is_done = world.accounting().scan(&mut |_, _| {
        calls += 1;
        checkpoints.write(12);
        most = most.max(world.stat().unwrap().metadata_bytes_on_disk);
        ControlFlow::Continue(())
    });
    assert!(is_done.unwrap());
    assert!(calls > 10, "{calls} calls");
    // Bytes released at once, and bytes that a call writes.
    let grown = most - before;
    assert!(grown < 12 * MIB, "by {grown} bytes");
    assert!(meta_bytes(&world.engine) <= 32 * MIB);
    assert_clean(&world);
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
    let world = pool(512 * MIB);
    let mut checkpoints = Checkpoints::new(&world.store, 128);
    checkpoints.write(50);
    let before = world.stat().unwrap().metadata_bytes_on_disk;
    let (mut most, mut exports) = (0, 0);
    // An export holds a later checkpoint than the check in the middle of which it is made.
    let report = world.check_with_progress(false, &mut |_| {}, &mut |_, _| {
        checkpoints.write(2);
        if exports < 3 {
            let mut busy = Busy(&mut checkpoints, Vec::new());
            world.exporter().write(&mut busy).unwrap();
            let export = MetadataExport::read(&mut &busy.1[..]).unwrap();
            assert_eq!(export.bytes(), busy.1.len() as u64);
            assert!(export.bytes() > 128 * BLOCK);
            exports += 1;
        }
        most = most.max(world.stat().unwrap().metadata_bytes_on_disk);
    });
    assert_eq!((report.unwrap().findings, exports), (0, 3));
    // Of each of four held checkpoints, and of those in use.
    assert!(most <= 6 * before, "{most} bytes of {before}");
    assert_clean(&world);
    assert!(meta_bytes(&world.engine) <= 16 * MIB);
}

#[test]
fn metadata_of_what_was_deleted_goes_back_to_the_host() {
    let world = pool(512 * MIB);
    let mut checkpoints = Checkpoints::new(&world.store, 128);
    checkpoints.write(2);
    let mut large = Checkpoints::named("large", &world.store, 1 << 14);
    large.write(1);
    let grown = meta_bytes(&world.engine);
    assert!(grown > 60 * MIB, "{grown} bytes");
    drop(large);
    world.delete_volume("large").unwrap();
    while world.deletions().step().unwrap().is_some() {}
    checkpoints.write(2);
    let len = meta_bytes(&world.engine);
    assert!(len <= 48 * MIB, "{len} bytes of {grown}");
    // It grows again where that is needed, and a crash changes nothing of it.
    checkpoints.write(10);
    drop(checkpoints);
    let world = world.crash(CrashKind::PowerLoss);
    assert_clean(&world);
    assert_eq!(
        world.stat().unwrap().logical_blocks,
        128 * checkpoints_written(&world)
    );
}

/// How many blocks of its first segment the mapped volume has.
fn checkpoints_written(store: &Store) -> u64 {
    let volume = store.volume("mapped").unwrap();
    let contents = read(&volume, 0, 512).into_iter();
    contents.filter(|content| *content != 0).count() as u64
}
