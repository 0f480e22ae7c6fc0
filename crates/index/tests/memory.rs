//! Behaviour of the memory index alone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use onefold_engine::simulated::{CrashKind, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::{Pba, PoolId};
use onefold_index::memory::{self, MemoryIndex};
use onefold_index::{Counted, Fingerprint, FingerprintIndex, IndexReader, StreamId};

const POOL: PoolId = PoolId([4; 16]);
const STREAM: StreamId = StreamId(1);

fn items(count: u64) -> Vec<(Fingerprint, Pba)> {
    let fingerprint = |n| Fingerprint(fastrand::Rng::with_seed(n).u128(..).to_le_bytes());
    (0..count).map(|n| (fingerprint(n), Pba(n + 1))).collect()
}

fn open(engine: &SimulatedEngine, limit_bytes: u64) -> MemoryIndex {
    memory::open(engine.open(Part::Index).unwrap(), POOL, limit_bytes).unwrap()
}

/// A machine whose index of this many rows was closed.
fn closed_with(rows: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(rows);
    memory::create(&engine.create(Part::Index, 0).unwrap(), POOL).unwrap();
    let index = open(&engine, 1 << 30);
    index.increment(STREAM, 1, &items(rows)).unwrap();
    index.close().unwrap();
    engine
}

#[test]
fn whatever_is_wrong_with_what_was_written_out_is_found() {
    let engine = closed_with(40);
    let len = engine.open(Part::Index).unwrap().len().unwrap();
    for offset in (0..512).chain(4096..len) {
        // The same machine again, and again.
        let engine = engine.crash(CrashKind::ProcessKilled);
        engine.flip_bit(Part::Index, offset, (offset % 8) as u32);
        let index = open(&engine, 1 << 20);
        assert!(index.needs_rebuild(), "{offset}");
        assert_eq!(index.counts(), Default::default());
    }
    let engine = engine.crash(CrashKind::ProcessKilled);
    assert_eq!(
        open(&engine, 1 << 20).counts().rows(),
        40,
        "without damage it is there"
    );
}

#[test]
fn what_is_no_index_needs_a_rebuild() {
    let engine = SimulatedEngine::new(1);
    let disk = engine.create(Part::Index, 0).unwrap();
    assert!(open(&engine, 0).needs_rebuild());
    disk.write_at(&[0xff; 100_000], 0).unwrap();
    assert!(open(&engine, 0).needs_rebuild());
}

#[test]
fn many_rows_come_back() {
    // More than one piece of the output, and not a whole number of pieces.
    const ROWS: u64 = 100_001;
    let engine = closed_with(ROWS);
    let index = open(&engine, 1 << 30);
    assert_eq!(index.counts().unique, ROWS);
    let moved: Vec<_> = items(ROWS)
        .into_iter()
        .map(|item| (item.0, Pba(1 << 30)))
        .collect();
    let answers = index.increment(STREAM, 2, &moved).unwrap();
    let expected: Vec<_> = items(ROWS)
        .into_iter()
        .map(|item| Counted::Shared(item.1))
        .collect();
    assert!(answers == expected);
}

#[test]
fn a_lower_limit_keeps_the_rows_that_are_there() {
    let engine = closed_with(1000);
    let index = open(&engine, 5000);
    assert_eq!(index.counts().unique, 1000);
    let fresh = items(100_000).split_off(1000);
    let answers = index.increment(STREAM, 2, &fresh).unwrap();
    // Tables that have room are used; none grows.
    let full = answers
        .iter()
        .filter(|answer| **answer == Counted::Full)
        .count();
    assert!(full > fresh.len() * 9 / 10, "{full}");
    let shared = index
        .increment(STREAM, 3, &[(items(1)[0].0, Pba(77))])
        .unwrap();
    assert_eq!(shared, [Counted::Shared(Pba(1))]);
    // Rows that a rebuild counts are kept, too.
    index.begin_rebuild().unwrap();
    let row = |(fingerprint, pba)| {
        let row = onefold_index::Row { pba, references: 2 };
        (fingerprint, row)
    };
    let rows: Vec<_> = items(1000).into_iter().map(row).collect();
    assert_eq!(index.add_rows(&rows).unwrap(), []);
    assert_eq!(index.counts().shared, 1000);
}
