//! Lookups concurrent with batches and with a rebuild, in orders that a scheduler tries.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::simulated::{Op, SimulatedEngine, When};
use onefold_engine::{Blocking, Engine, Part};
use onefold_format::{Pba, PoolId};
use shuttle::sync::atomic::AtomicU8;
use shuttle::thread;

use super::{HashIndex, Shape, create_shaped, open_shaped};
use crate::{Fingerprint, FingerprintIndex, IndexError, IndexReader, LookedUp, Row, StreamId};

const POOL: PoolId = PoolId([9; 16]);
const STREAM: StreamId = StreamId(1);

/// Every batch merges some segments, and the pages that it frees are used again soon.
const SHAPE: Shape = Shape {
    segment_rows: 4,
    rows_per_change: 4,
    changes_min: 3,
    changes_behind: 6,
    log_pages: 2,
    log_bytes_min: 16 << 10,
    spare_pages: 0,
};

/// Rows that are there all the time.
const KEPT: u64 = 8;

fn item(n: u64) -> (Fingerprint, Pba) {
    let hash = fastrand::Rng::with_seed(n).u128(..);
    (Fingerprint(hash.to_le_bytes()), Pba(n + 1))
}

fn items(numbers: std::ops::Range<u64>) -> Vec<(Fingerprint, Pba)> {
    numbers.map(item).collect()
}

/// An index that has runs on the disk.
fn index() -> Arc<HashIndex> {
    let engine = SimulatedEngine::new(1);
    let disk = engine.create(Part::Index, 0).unwrap();
    create_shaped(&disk, POOL, SHAPE).unwrap();
    let index = open_shaped(disk, POOL, 1 << 20, SHAPE).unwrap();
    index.increment(STREAM, 1, &items(0..KEPT)).unwrap();
    churn(&index, 2..4);
    let_others_go_first(engine);
    Arc::new(index)
}

/// Yields in the middle of every read, where the scheduler would not change threads by itself.
fn let_others_go_first(engine: SimulatedEngine) {
    let next = engine.clone();
    let hook = move || {
        thread::yield_now();
        let_others_go_first(next);
    };
    engine.on_next_io(Part::Index, Op::Read, When::Before, Box::new(hook));
}

/// Batches that change rows in all segments, and leave them as they were.
fn churn(index: &HashIndex, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let items = items(100..108);
        index.increment(STREAM, 10 * number, &items).unwrap();
        index.decrement(STREAM, 10 * number + 1, &items).unwrap();
    }
}

/// How far the batches are, in a reader's eyes.
const BEFORE: u8 = 0;
const ADDED: u8 = 1;
const REMOVING: u8 = 2;
const REMOVED: u8 = 3;

fn look_at_all(index: &HashIndex, stage: &AtomicU8) {
    let mut fingerprints: Vec<_> = items(0..KEPT).iter().map(|item| item.0).collect();
    let toggled = item(50);
    fingerprints.push(toggled.0);
    let before = stage.load(SeqCst);
    let answers = index.lookup(&fingerprints, Blocking::Yes).unwrap();
    let after = stage.load(SeqCst);
    let kept = answers.iter().zip(items(0..KEPT));
    for (answer, item) in kept {
        assert_eq!(*answer, LookedUp::Present(item.1));
    }
    let found = answers[KEPT as usize].pba();
    assert!(found.is_none_or(|pba| pba == toggled.1));
    assert!(before != ADDED || after != ADDED || found.is_some());
    assert!(before != REMOVED || found.is_none());
}

#[test]
fn shuttle_lookups_are_right_beside_batches_that_replace_all_segments() {
    let interleave = || {
        let index = index();
        let stage = Arc::new(AtomicU8::new(BEFORE));
        let readers = [0, 1].map(|_| {
            let (index, stage) = (Arc::clone(&index), Arc::clone(&stage));
            thread::spawn(move || (0..3).for_each(|_| look_at_all(&index, &stage)))
        });
        let toggled = [item(50)];
        index.increment(STREAM, 40, &toggled).unwrap();
        stage.store(ADDED, SeqCst);
        churn(&index, 5..7);
        stage.store(REMOVING, SeqCst);
        index.decrement(STREAM, 70, &toggled).unwrap();
        stage.store(REMOVED, SeqCst);
        churn(&index, 8..10);
        for reader in readers {
            reader.join().unwrap();
        }
    };
    shuttle::check_random(interleave, 500);
    // A reader that stands still while its leaf is replaced, and its place is written again.
    shuttle::check_pct(interleave, 1500, 3);
}

#[test]
fn shuttle_lookups_end_where_a_rebuild_begins() {
    const BEGUN: u8 = 1;
    const ENDING: u8 = 2;
    let interleave = || {
        let index = index();
        let stage = Arc::new(AtomicU8::new(BEFORE));
        let readers = [Blocking::No, Blocking::Yes].map(|blocking| {
            let (index, stage) = (Arc::clone(&index), Arc::clone(&stage));
            let look = move || {
                let before = stage.load(SeqCst);
                let answers = index.lookup(&[item(0).0], blocking);
                let after = stage.load(SeqCst);
                match answers.map(|answers| answers[0].pba()) {
                    Ok(Some(Pba(1))) => assert!(before < BEGUN),
                    Ok(Some(Pba(77))) => assert!(after >= ENDING),
                    Err(IndexError::Unready(_) | IndexError::Closed | IndexError::WouldBlock) => {}
                    other => panic!("{other:?}"),
                }
            };
            thread::spawn(move || (0..3).for_each(|_| look()))
        });
        index.begin_rebuild().unwrap();
        stage.store(BEGUN, SeqCst);
        let moved = |item: (Fingerprint, Pba)| {
            let row = Row {
                pba: Pba(77),
                references: 1,
            };
            (item.0, row)
        };
        let rows: Vec<_> = items(0..20).into_iter().map(moved).collect();
        assert_eq!(index.add_rows(&rows).unwrap(), []);
        stage.store(ENDING, SeqCst);
        index.finish_rebuild(STREAM, 1).unwrap();
        index.close().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
    };
    shuttle::check_random(interleave, 500);
    shuttle::check_pct(interleave, 1500, 3);
}
