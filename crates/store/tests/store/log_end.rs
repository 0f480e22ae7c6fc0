//! How opening treats the end of the log: a commit that was cut short is reported once, and a
//! foreign log is damage.

use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::frame::{self, FRAME_HEADER_BYTES, FrameHeader};
use onefold_format::{PoolId, Root};
use onefold_store::{
    Blocking, CreateOptions, RecoveryReport, Store, StoreError, StoreErrorKind, Volume,
};

use crate::common::{
    self, LITTLE_MEMORY, MIB, new_volume, newest_root, pool_of, read, superblock, write,
};

const OPTIONS: CreateOptions = pool_of(16 * MIB);
const LOG_BYTES: u64 = OPTIONS.log_bytes;
const SECTOR: u64 = 512;

fn new_pool(seed: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(seed);
    Store::create(&engine, &OPTIONS).unwrap();
    engine
}

fn open(engine: &SimulatedEngine) -> Result<(Arc<Store>, RecoveryReport), StoreError> {
    common::open(engine.clone(), LITTLE_MEMORY)
}

/// Writes one block, and makes it durable.
fn write_durably(volume: &Volume, lba: u64, content: u64) {
    write(volume, lba, [content]);
    volume.flush().unwrap();
}

/// A pool on a host that lost power: volume `v`, and commits of one block each, all flushed.
fn powerless(seed: u64, commits: u64) -> SimulatedEngine {
    let engine = new_pool(seed);
    let (store, _) = open(&engine).unwrap();
    let volume = new_volume(&store, "v", MIB);
    (0..commits).for_each(|lba| write_durably(&volume, lba, 7));
    after_power_loss(&engine)
}

/// All data of these pools was flushed. Remains of a process in the host's memory are gone.
fn after_power_loss(engine: &SimulatedEngine) -> SimulatedEngine {
    engine.halt();
    engine.crash(CrashKind::PowerLoss)
}

fn pool_id(engine: &SimulatedEngine) -> PoolId {
    superblock(engine).pool
}

fn root(engine: &SimulatedEngine) -> Root {
    newest_root(engine).unwrap()
}

/// The frames in the log, whole or not, each with its position and length.
fn frames(engine: &SimulatedEngine) -> Vec<(u64, FrameHeader, u64)> {
    let log = engine.durable_image(Part::Log);
    let places = (0..LOG_BYTES).step_by(SECTOR as usize);
    let found = places.filter_map(|at| {
        let found = frame::decode_header(&log[at as usize..], pool_id(engine)).ok()?;
        (found.header.position == at)
            .then(|| (at, found.header, frame::frame_bytes(found.payload_bytes)))
    });
    found.collect()
}

/// Replaces the log by another of any length.
fn put_log(engine: &SimulatedEngine, bytes: &[u8]) {
    engine.lose_part(Part::Log);
    engine.create(Part::Log, bytes.len() as u64).unwrap();
    engine.overwrite(Part::Log, 0, bytes);
}

#[track_caller]
fn assert_damaged(engine: &SimulatedEngine, says: &str) {
    let before = contents(engine);
    let Err(error) = open(engine) else {
        panic!("opened, though the log is not the pool's");
    };
    assert_eq!(error.kind(), StoreErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    let after = contents(engine);
    assert!(before == after, "something was written");
}

/// The content that readers see of each existing part.
fn contents(engine: &SimulatedEngine) -> Vec<Vec<u8>> {
    let disks = Part::ALL.map(|part| (part, engine.open(part)));
    let there = disks.iter().filter_map(|(part, disk)| {
        let len = disk.as_ref().ok()?.len().unwrap();
        Some(engine.read_raw(*part, 0, len as usize))
    });
    there.collect()
}

#[test]
fn a_log_of_another_length_is_damage() {
    for len in [0, SECTOR, LOG_BYTES - SECTOR, LOG_BYTES + SECTOR] {
        let engine = powerless(1, 3);
        let mut log = engine.durable_image(Part::Log);
        log.resize(len as usize, 0);
        put_log(&engine, &log);
        assert_damaged(
            &engine,
            &format!("has {len} bytes, the pool's log {LOG_BYTES}"),
        );
    }
}

#[test]
fn a_log_of_another_pool_is_damage() {
    let other = powerless(2, 5);
    let foreign = other.durable_image(Part::Log);
    let other_id = pool_id(&other).to_string();
    // Whether there is something to replay or not, and wherever this pool's log continues.
    for (commits, close) in [(0, false), (1, false), (9, false), (9, true)] {
        let engine = powerless(3, commits);
        if close {
            let (store, _) = open(&engine).unwrap();
            store.close().unwrap();
        }
        put_log(&engine, &foreign);
        assert_damaged(&engine, &other_id);
    }
    // Also where this pool has no commit at all.
    let engine = new_pool(4);
    open(&engine).unwrap().0.close().unwrap();
    put_log(&engine, &foreign);
    assert_damaged(&engine, &other_id);
}

#[test]
fn a_new_pool_and_a_closed_one_have_nothing_to_report() {
    let engine = new_pool(5);
    for _ in 0..3 {
        let (store, report) = open(&engine).unwrap();
        assert_eq!(report.warnings(), [""; 0]);
        store.close().unwrap();
    }
    let engine = powerless(6, 20);
    for _ in 0..3 {
        let (store, report) = open(&engine).unwrap();
        assert_eq!(report.warnings(), [""; 0]);
        let volume = store.volume("v").unwrap();
        write_durably(&volume, 0, 9);
        store.close().unwrap();
    }
}

#[test]
fn a_log_that_was_emptied_is_reported() {
    let engine = powerless(7, 3);
    put_log(&engine, &vec![0; LOG_BYTES as usize]);
    // There never was a checkpoint, so it cannot be known that the log had anything.
    assert!(root(&engine).commit == 0 && open(&engine).is_ok());
    let engine = powerless(7, 3);
    let (store, _) = open(&engine).unwrap();
    store.close().unwrap();
    drop(store);
    put_log(&engine, &vec![0; LOG_BYTES as usize]);
    let (store, report) = open(&engine).unwrap();
    assert!(report.is_log_replaced, "{report:?}");
    assert_eq!(report.warnings().len(), 1);
    // Not any more once it has something.
    let volume = store.volume("v").unwrap();
    write(&volume, 20, [9]);
    store.close().unwrap();
    drop(store);
    let (_, report) = open(&engine).unwrap();
    assert_eq!(report.warnings(), [""; 0]);
}

#[test]
fn a_damaged_last_commit_is_reported_with_its_length_and_once() {
    // Magic, pool, session, position, payload length, previous checksum, checksum, and the records.
    for byte in [0, 9, 26, 42, 50, 53, 61, 70] {
        let engine = powerless(8, 4);
        let (at, header, bytes) = *frames(&engine).last().unwrap();
        // In a field of eight bytes the flipped bit makes it larger.
        engine.flip_bit(Part::Log, at + byte, 6);
        let (store, report) = open(&engine).unwrap();
        let found = report.incomplete_commit;
        let found = found.unwrap_or_else(|| panic!("byte {byte} was flipped unnoticed"));
        assert_eq!((found.commit, found.position), (header.commit, at));
        if byte == 50 {
            assert!(found.bytes > bytes, "{found:?}");
        } else {
            assert_eq!(found.bytes, bytes, "byte {byte}");
        }
        assert!(report.warnings()[0].contains(&found.bytes.to_string()));
        let volume = store.volume("v").unwrap();
        assert_eq!(read(&volume, 3, 1), [0], "the record was lost: byte {byte}");
        // The next opening is not concerned, whether a commit came in its place or not.
        drop((volume, store));
        let engine = after_power_loss(&engine);
        let (store, report) = open(&engine).unwrap();
        // A session that was never begun cannot be distinguished from the newest one.
        assert_eq!(
            report.incomplete_commit.is_some(),
            byte == 26,
            "byte {byte}"
        );
        let volume = store.volume("v").unwrap();
        write_durably(&volume, 0, 9);
        volume.trim(4096, 4096, Blocking::Yes).unwrap();
        volume.flush().unwrap();
        drop((volume, store));
        let (_, report) = open(&after_power_loss(&engine)).unwrap();
        assert_eq!(report.incomplete_commit, None, "byte {byte}");
        assert!(report.records_replayed > 0);
    }
}

/// Appends a frame to the log as the newest session would have, and returns where it ends.
fn append(
    engine: &SimulatedEngine,
    after: (u64, u32),
    (session, commit, last): (u64, u64, bool),
) -> (u64, u32) {
    let header = FrameHeader {
        session,
        commit,
        position: after.0,
        previous_checksum: after.1,
        last,
    };
    let mut bytes = Vec::new();
    let checksum = frame::encode(&header, pool_id(engine), &[], &mut bytes);
    engine.overwrite(Part::Log, after.0, &bytes);
    (after.0 + bytes.len() as u64, checksum)
}

/// Where the log ends, and the last commit in it.
fn end(engine: &SimulatedEngine) -> ((u64, u32), u64) {
    let (at, header, bytes) = *frames(engine).last().unwrap();
    let log = engine.durable_image(Part::Log);
    let found = frame::decode_header(&log[at as usize..], pool_id(engine)).unwrap();
    ((at + bytes, found.checksum), header.commit)
}

#[test]
fn all_frames_of_a_lost_commit_are_counted() {
    let engine = powerless(9, 4);
    let session = root(&engine).session;
    let (first, commit) = end(&engine);
    let second = append(&engine, first, (session, commit + 1, false));
    let third = append(&engine, second, (session, commit + 1, false));
    let behind = append(&engine, third, (session, commit + 1, true));
    // The first frame never got to the disk.
    engine.overwrite(Part::Log, first.0, &[0; SECTOR as usize]);
    let (_, report) = open(&engine).unwrap();
    let found = report.incomplete_commit.unwrap();
    assert_eq!((found.commit, found.position), (commit + 1, first.0));
    assert_eq!(found.bytes, behind.0 - first.0);
}

#[test]
fn a_commit_without_its_last_frame_is_reported_and_no_gap_for_the_next_session() {
    let engine = powerless(10, 4);
    let session = root(&engine).session;
    let (first, commit) = end(&engine);
    let second = append(&engine, first, (session, commit + 1, false));
    let (store, report) = open(&engine).unwrap();
    let found = report.incomplete_commit.unwrap();
    assert_eq!((found.commit, found.bytes), (commit + 1, 0), "{found:?}");
    assert_eq!(found.position, second.0);
    drop(store);
    let engine = after_power_loss(&engine);
    // The next session's first commit is torn as well: it has lost its first frame of two.
    let session = root(&engine).session;
    let third = append(&engine, second, (session, commit + 2, false));
    let behind = append(&engine, third, (session, commit + 2, true));
    engine.overwrite(Part::Log, second.0, &[0; SECTOR as usize]);
    let (_, report) = open(&engine).unwrap();
    let found = report.incomplete_commit.unwrap();
    assert_eq!(
        (found.position, found.bytes),
        (second.0, behind.0 - second.0)
    );
}

#[test]
fn a_commit_that_the_process_left_in_the_hosts_memory_is_not_reported() {
    let engine = new_pool(12);
    let (store, _) = open(&engine).unwrap();
    let volume = new_volume(&store, "v", MIB);
    write_durably(&volume, 0, 7);
    let whole = frames(&engine).len();
    write(&volume, 1, [8]);
    // The process ends while the next frame is being written: only its header got there.
    let (after, commit) = end(&engine);
    append(&engine, after, (root(&engine).session, commit + 1, true));
    engine.flip_bit(Part::Log, after.0 + 61, 0);
    engine.halt();
    let engine = engine.crash(CrashKind::ProcessKilled);
    assert_eq!(frames(&engine).len(), whole + 1);
    let (store, report) = open(&engine).unwrap();
    assert!(report.records_taken_over > 0, "{report:?}");
    assert_eq!(report.warnings(), [""; 0]);
    assert_eq!(read(&store.volume("v").unwrap(), 1, 1), [8]);
}

#[test]
fn a_later_commit_behind_a_bad_frame_is_damage() {
    let engine = powerless(11, 4);
    let all = frames(&engine);
    let (at, ..) = all[all.len() - 2];
    engine.flip_bit(Part::Log, at + FRAME_HEADER_BYTES as u64 + 1, 0);
    let error = open(&engine).err().unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Damaged);
    assert!(error.to_string().contains("commits behind it"), "{error}");
}
