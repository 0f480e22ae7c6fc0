//! Writes in place past the host's cache, for which no thread waits: events before and after they end.

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
    prepared.expect("its blocks go in place")
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
    assert_blocks(&volume, 0, &[1]);
    write(&volume, 0, 1..31);
    assert_blocks(&volume, 29, &[1, 2]);
    let part = volume.write_or_prepare(0, &[7; 512]);
    assert_eq!(
        part.err().map(|error| error.kind()),
        Some(StoreErrorKind::WouldBlock)
    );
    assert_blocks(&volume, 0, &Vec::from_iter(101..118));
    write(&volume, 20, [201]);
    snapshot(&world, "a", "s");
    assert_blocks(&volume, 0, &[1]);
    write(&volume, 0, [301]);
    start(&volume, 0, &[302]);
    volume.submit();
    dedup(&world, &volume);
    assert_blocks(&volume, 0, &[1]);
    assert_eq!(read(&volume, 0, 2), [302, 2]);
    let end = volume.write_or_prepare(4 * MIB, &blocks([1]));
    assert_eq!(
        end.err().map(|error| error.kind()),
        Some(StoreErrorKind::Invalid)
    );
    let frozen = world.volume("a@s").unwrap();
    let refused = frozen.write_or_prepare(0, &blocks([1]));
    assert_eq!(
        refused.err().map(|error| error.kind()),
        Some(StoreErrorKind::ReadOnly)
    );
    assert_eq!(read(&frozen, 0, 2), [1, 2]);
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
