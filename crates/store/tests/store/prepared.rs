//! Writes past the host's cache for which no thread waits: events before and after they end.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_store::{
    Blocking, DedupMode, PreparedWrite, Store, StoreError, StoreErrorKind, Volume, VolumeOptions,
};

use crate::common::{
    BLOCK, MEMORY, MIB, World, assert_clean, blocks, collect, dedup, new_volume, pool_of, read,
    read_bytes, snapshot, write,
};

/// Where each write waits for the disk.
fn pool(seed: u64) -> World {
    let engine = SimulatedEngine::new(seed);
    engine.set_alignment(Part::Data, BLOCK as usize);
    Store::create(&engine, &pool_of(16 * MIB)).unwrap();
    World::on(engine, MEMORY)
}

fn volume_with(world: &World, change: impl FnOnce(&mut VolumeOptions)) -> Arc<Volume> {
    let mut options = VolumeOptions::new(4 * MIB);
    change(&mut options);
    world.create_volume("a", &options).unwrap();
    world.volume("a").unwrap()
}

fn prepare(volume: &Arc<Volume>, lba: u64, contents: &[u64]) -> PreparedWrite {
    let bytes = blocks(contents.iter().copied());
    let prepared = volume.write_or_prepare(lba * BLOCK, &bytes).unwrap();
    prepared.expect("it waits only for the device")
}

/// How a write ended, once it has.
type Ended = Arc<Mutex<Option<Result<(), StoreError>>>>;

fn start(volume: &Arc<Volume>, lba: u64, contents: &[u64]) -> Ended {
    let ended = Ended::default();
    let told = Arc::clone(&ended);
    let bytes = blocks(contents.iter().copied());
    prepare(volume, lba, contents).start(move |written, data| {
        assert!(data == bytes, "what was to be written comes back");
        *told.lock().unwrap() = Some(written);
    });
    ended
}

#[track_caller]
fn assert_blocks(volume: &Arc<Volume>, lba: u64, contents: &[u64]) {
    let bytes = blocks(contents.iter().copied());
    match volume.write_or_prepare(lba * BLOCK, &bytes) {
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::WouldBlock, "{error}"),
        Ok(prepared) => panic!("it was {}", prepared.map_or("done", |_| "prepared")),
    }
}

#[test]
fn other_requests_go_on_meanwhile_and_none_to_the_same_blocks() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, 1..11);
    let first = start(&volume, 2, &[102, 103, 104]);
    let second = start(&volume, 7, &[107]);
    assert_blocks(&volume, 4, &[204, 205]);
    let trim = volume.trim(2 * BLOCK, BLOCK, Blocking::No).unwrap_err();
    assert_eq!(trim.kind(), StoreErrorKind::WouldBlock);
    write(&volume, 5, [205, 206]);
    volume.flush().unwrap();
    assert_eq!(read(&volume, 2, 3), [3, 4, 5], "nothing has begun");

    volume.submit();
    for ended in [first, second] {
        assert!(matches!(*ended.lock().unwrap(), Some(Ok(()))));
    }
    let expected = [1, 2, 102, 103, 104, 205, 206, 107, 9, 10];
    assert_eq!(read(&volume, 0, 10), expected);
    let third = start(&volume, 4, &[304, 305]);
    volume.submit();
    assert!(matches!(*third.lock().unwrap(), Some(Ok(()))));
    assert_eq!(read(&volume, 4, 2), [304, 305]);
    assert_clean(&world);
}

#[test]
fn one_that_ended_is_durable_after_the_next_flush() {
    for seed in 0..20 {
        let world = pool(seed);
        let volume = new_volume(&world, "a", 4 * MIB);
        write(&volume, 0, 1..5);
        volume.flush().unwrap();
        start(&volume, 1, &[12]);
        volume.submit();
        volume.flush().unwrap();
        let unsent = start(&volume, 2, &[13]);
        drop(volume);
        let world = world.crash(CrashKind::PowerLoss);
        let volume = world.volume("a").unwrap();
        assert_eq!(read(&volume, 0, 2), [1, 12]);
        assert_eq!(read(&volume, 3, 1), [4]);
        assert!(unsent.lock().unwrap().is_none(), "nobody was answered");
        assert_clean(&world);
    }
}

#[test]
fn one_that_is_not_started_has_never_been() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, 1..5);
    drop(prepare(&volume, 0, &[11, 12]));
    volume.submit();
    assert_eq!(read(&volume, 0, 4), [1, 2, 3, 4]);
    write(&volume, 0, [21, 22]);
    assert_eq!(read(&volume, 0, 4), [21, 22, 3, 4]);
}

#[test]
fn what_needs_more_than_the_device_is_asked_for_again() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, 1..31);
    // Beyond the end of the blocks that are there, and zeros.
    assert_blocks(&volume, 29, &[1, 2]);
    assert_blocks(&volume, 0, &[0]);
    let part = volume.write_or_prepare(0, &[7; 512]);
    assert_eq!(
        part.err().map(|error| error.kind()),
        Some(StoreErrorKind::WouldBlock)
    );
    assert_blocks(&volume, 0, &Vec::from_iter(101..118));
    let end = volume.write_or_prepare(4 * MIB, &blocks([1]));
    assert_eq!(
        end.err().map(|error| error.kind()),
        Some(StoreErrorKind::Invalid)
    );
    snapshot(&world, "a", "s");
    let frozen = world.volume("a@s").unwrap();
    let refused = frozen.write_or_prepare(0, &blocks([1]));
    assert_eq!(
        refused.err().map(|error| error.kind()),
        Some(StoreErrorKind::ReadOnly)
    );
    assert_eq!(read(&frozen, 0, 2), [1, 2]);
    assert_clean(&world);
}

/// A volume whose first ten blocks, 1 to 10, are shared with a snapshot or with another volume, so that each write needs
/// a new block.
fn shared(world: &World, is_snapshot: bool) -> Arc<Volume> {
    let volume = new_volume(world, "a", 4 * MIB);
    write(&volume, 0, 1..=10);
    if is_snapshot {
        snapshot(world, "a", "s");
        // Whose map is in memory.
        write(&volume, 20, [1]);
    } else {
        dedup(world, &volume);
    }
    volume
}

#[test]
fn new_blocks_become_the_volumes_at_the_end() {
    for is_snapshot in [true, false] {
        let world = pool(1);
        let volume = shared(&world, is_snapshot);
        let first = start(&volume, 2, &[102, 103]);
        let second = start(&volume, 7, &[107]);
        assert_blocks(&volume, 3, &[1]);
        assert_eq!(read(&volume, 2, 2), [3, 4], "nothing has begun");
        volume.submit();
        for ended in [first, second] {
            assert!(matches!(*ended.lock().unwrap(), Some(Ok(()))));
        }
        let expected = [1, 2, 102, 103, 5, 6, 7, 107, 9, 10];
        assert_eq!(read(&volume, 0, 10), expected);
        // Now they are the volume's own.
        let third = start(&volume, 2, &[202]);
        volume.submit();
        assert!(matches!(*third.lock().unwrap(), Some(Ok(()))));
        if is_snapshot {
            let frozen = world.volume("a@s").unwrap();
            assert!(read(&frozen, 0, 10).into_iter().eq(1..=10));
        }
        drop(volume);
        let world = world.crash(CrashKind::ProcessKilled);
        let volume = world.volume("a").unwrap();
        assert_eq!(
            read(&volume, 2, 2),
            [202, 103],
            "what was answered is there"
        );
        assert_clean(&world);
    }
}

#[test]
fn new_blocks_that_are_not_written_are_free_again() {
    let world = pool(1);
    let volume = shared(&world, true);
    let free = || world.stat().unwrap().free_blocks;
    let before = free();
    drop(prepare(&volume, 0, &[11, 12]));
    assert_eq!(free(), before);
    let failing = start(&volume, 2, &[13]);
    assert_eq!(free(), before - 1);
    world
        .engine
        .fail_once(Part::Data, Op::Write, 1, ErrorKind::Other);
    volume.submit();
    let ended = failing.lock().unwrap().take().unwrap();
    assert_eq!(ended.unwrap_err().kind(), StoreErrorKind::Io);
    assert_eq!(free(), before);
    assert!(read(&volume, 0, 10).into_iter().eq(1..=10));
    // The blocks are unlocked.
    write(&volume, 0, 21..=25);
    assert_clean(&world);
}

#[test]
fn new_blocks_that_a_power_cut_finds_unrecorded_are_free() {
    for seed in 0..20 {
        let world = pool(seed);
        let volume = shared(&world, seed % 2 == 0);
        volume.flush().unwrap();
        let answered = start(&volume, 1, &[12]);
        volume.submit();
        assert!(matches!(*answered.lock().unwrap(), Some(Ok(()))));
        volume.flush().unwrap();
        start(&volume, 2, &[13]);
        drop(volume);
        let world = world.crash(CrashKind::PowerLoss);
        let volume = world.volume("a").unwrap();
        assert_eq!(read(&volume, 0, 4), [1, 12, 3, 4]);
        assert_clean(&world);
    }
}

#[test]
fn at_the_end_the_quota_may_be_used_up() {
    let world = pool(1);
    let volume = volume_with(&world, |options| options.settings.quota_bytes = 11 * BLOCK);
    write(&volume, 0, 1..=10);
    let [first, second] = [20, 30].map(|lba| start(&volume, lba, &[lba]));
    volume.submit();
    let ended = [first, second].map(|ended| ended.lock().unwrap().take().unwrap());
    let refused: Vec<_> = (ended.iter())
        .filter_map(|ended| Some(ended.as_ref().err()?.kind()))
        .collect();
    assert_eq!(refused, [StoreErrorKind::QuotaReached]);
    assert_clean(&world);
}

#[test]
fn without_memory_that_outlives_the_process_new_blocks_take_a_thread() {
    let engine = SimulatedEngine::new(1);
    engine.set_alignment(Part::Data, BLOCK as usize);
    engine.set_has_host_memory(false);
    Store::create(&engine, &pool_of(16 * MIB)).unwrap();
    let world = World::on(engine, MEMORY);
    let volume = shared(&world, true);
    assert_blocks(&volume, 0, &[1]);
    assert_clean(&world);
}

#[test]
fn new_blocks_whose_record_has_to_wait_are_written_again() {
    let world = pool(1);
    let volume = shared(&world, false);
    let other = new_volume(&world, "b", 4 * MIB);
    let ended = start(&volume, 2, &[102]);
    // Other records use up the log in the meantime.
    let refused = (0..100_000).find_map(|n| {
        write(&other, n % 512, [n + 1]);
        other.trim(n % 512 * BLOCK, BLOCK, Blocking::Yes).unwrap();
        let next = volume.write_or_prepare(3 * BLOCK, &blocks([n + 1]));
        if n % 64 == 0 {
            other.flush().unwrap();
            world
                .space()
                .is_free(world.space().commit_released().unwrap())
                .unwrap();
        }
        next.err()
    });
    assert_eq!(refused.unwrap().kind(), StoreErrorKind::WouldBlock);
    let before = world.stat().unwrap().free_blocks;
    volume.submit();
    let ended = ended.lock().unwrap().take().unwrap();
    assert_eq!(ended.unwrap_err().kind(), StoreErrorKind::WouldBlock);
    assert_eq!(world.stat().unwrap().free_blocks, before + 1);
    assert_eq!(read(&volume, 2, 1), [3], "nothing has changed");
    assert_blocks(&volume, 3, &[103]);
    write(&volume, 2, [202, 203]);
    assert_eq!(read(&volume, 2, 2), [202, 203]);
    assert_clean(&world);
}

#[test]
fn in_line_only_what_is_found_needs_no_device() {
    let world = pool(1);
    let base = new_volume(&world, "base", MIB);
    write(&base, 0, 1..4);
    dedup(&world, &base);
    let volume = volume_with(&world, |options| options.settings.dedup = DedupMode::Inline);
    write(&volume, 0, 11..21);
    let found = volume.write_or_prepare(0, &blocks([1, 2]));
    assert!(matches!(found, Ok(None)), "hits are taken at once");
    assert_blocks(&volume, 4, &[3, 33]);
    start(&volume, 6, &[37, 38]);
    volume.submit();
    let stat = volume.inline_stat();
    assert_eq!((stat.hit_blocks, stat.found_blocks), (2, 2));
    assert_eq!(read(&volume, 0, 10), [1, 2, 13, 14, 15, 16, 37, 38, 19, 20]);
    assert_clean(&world);
}

#[test]
fn the_hash_cache_has_what_was_written_and_nothing_of_what_failed() {
    for seed in 0..20 {
        let world = pool(seed);
        let volume = volume_with(&world, |options| options.settings.hash_cache_bytes = MIB);
        let other = new_volume(&world, "other", MIB);
        write(&volume, 0, 1..5);
        write(&other, 0, 1..3);
        dedup(&world, &other);
        world
            .engine
            .fail_once(Part::Data, Op::Write, 1, ErrorKind::Other);
        let failed = start(&volume, 0, &[11, 12]);
        volume.submit();
        let failed = failed.lock().unwrap().take();
        let error = failed.expect("it has ended").unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Io);
        assert!(
            error.to_string().contains("writing 'a' at byte 0"),
            "{error}"
        );
        let left = read_bytes(&volume, 0, 2 * BLOCK);
        start(&volume, 2, &[13, 14]);
        volume.submit();

        let report = dedup(&world, &volume);
        assert_eq!((report.scanned, report.cached), (4, 2));
        assert!(read_bytes(&volume, 0, 2 * BLOCK) == left);
        assert_eq!(read(&volume, 2, 2), [13, 14]);
        collect(&world).unwrap();
        assert_clean(&world);
    }
}

#[test]
fn one_that_meets_a_full_host_says_so() {
    let world = pool(1);
    let volume = new_volume(&world, "a", 4 * MIB);
    write(&volume, 0, [1]);
    world
        .engine
        .fail_once(Part::Data, Op::Write, 1, ErrorKind::StorageFull);
    let ended = start(&volume, 0, &[2]);
    volume.submit();
    let ended = ended.lock().unwrap().take();
    let error = ended.expect("it has ended").unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    write(&volume, 0, [3]);
    assert_eq!(read(&volume, 0, 1), [3]);
}
