//! Behaviour of the B-tree alone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use std::collections::BTreeMap;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::{Pba, PoolId};
use onefold_index::btree::{self, BtreeIndex};
use onefold_index::{
    Counted, Fingerprint, FingerprintIndex, IndexError, IndexReader, Result, StreamId,
};

const POOL: PoolId = PoolId([4; 16]);
const STREAM: StreamId = StreamId(1);
const CACHE_BYTES: u64 = 4 << 20;

fn items(from: u64, count: u64) -> Vec<(Fingerprint, Pba)> {
    let fingerprint = |n| Fingerprint(fastrand::Rng::with_seed(n).u128(..).to_le_bytes());
    (from..from + count)
        .map(|n| (fingerprint(n), Pba(n + 1)))
        .collect()
}

fn open(engine: &SimulatedEngine) -> Result<BtreeIndex> {
    btree::open(engine.open(Part::Index).unwrap(), POOL, CACHE_BYTES)
}

/// A machine whose index received this many batches of a thousand rows, and was then stopped.
fn stopped_after(batches: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(batches);
    btree::create(&engine.create(Part::Index, 0).unwrap(), POOL).unwrap();
    let index = open(&engine).unwrap();
    for number in 1..=batches {
        index
            .increment(STREAM, number, &items(number * 1000, 1000))
            .unwrap();
    }
    engine.crash(CrashKind::PowerLoss)
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "redb itself reads every page where debug assertions are on"
)]
fn opening_after_a_crash_reads_little() {
    let engine = stopped_after(100);
    engine.reset_counts();
    let index = open(&engine).unwrap();
    assert_eq!(index.counts().rows(), 100_000);
    let (read, allocated) = (
        engine.count(Part::Index, Op::Read).bytes,
        index.bytes_on_disk().unwrap(),
    );
    assert!(allocated > 4 << 20, "{allocated}");
    assert!(read < 128 * 1024, "{read} of {allocated}");
}

#[test]
fn a_missing_database_behind_a_whole_header_is_damage() {
    let engine = SimulatedEngine::new(1);
    btree::create(&engine.create(Part::Index, 0).unwrap(), POOL).unwrap();
    let header = engine.read_raw(Part::Index, 0, 512);
    for len in [512, 4096, 4097, 9000, 1 << 20] {
        let engine = SimulatedEngine::new(2);
        let disk = engine.create(Part::Index, len).unwrap();
        disk.write_at(&header, 0).unwrap();
        let error = open(&engine).err().unwrap();
        assert!(matches!(error, IndexError::Damaged(_)), "{len}: {error}");
    }
}

/// Flipped bits anywhere: an error or an answer, and never a panic or a wrong address.
#[test]
fn damage_is_told_and_never_becomes_a_wrong_address() {
    const FLIPS: u64 = 400;
    let pristine = stopped_after(2);
    let len = pristine.open(Part::Index).unwrap().len().unwrap();
    let bytes = pristine.read_raw(Part::Index, 0, len as usize);
    // Where nothing was written there is nothing to damage.
    let written: Vec<usize> = (512..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let right: BTreeMap<_, _> = items(1000, 2000).into_iter().collect();
    let mut told = 0;
    for seed in 0..FLIPS {
        let engine = pristine.crash(CrashKind::ProcessKilled);
        let mut random = fastrand::Rng::with_seed(seed);
        // A part of them in redb's header and roots.
        let among = if seed % 4 == 0 { 64 } else { written.len() };
        let offset = written[random.usize(..among)] as u64;
        engine.flip_bit(Part::Index, offset, random.u32(..8));
        let Ok(index) = open(&engine) else {
            told += 1;
            continue;
        };
        match index.rows(Fingerprint([0; 16]), 5000) {
            Ok(rows) => {
                for (fingerprint, row) in rows {
                    assert_eq!(right.get(&fingerprint), Some(&row.pba), "{offset}");
                }
            }
            Err(_) => told += 1,
        }
        let others: Vec<_> = right
            .keys()
            .map(|fingerprint| (*fingerprint, Pba(1)))
            .collect();
        if let Ok(answers) = index.increment(STREAM, 3, &others) {
            for ((fingerprint, _), answer) in others.iter().zip(answers) {
                // A row that cannot be found any more is a duplicate that is missed.
                let shared = Counted::Shared(right[fingerprint]);
                assert!(
                    answer == shared || answer == Counted::Inserted,
                    "{offset}: {answer:?}"
                );
            }
        }
    }
    assert!(told > FLIPS / 4, "{told}: the flips missed what matters");
}
