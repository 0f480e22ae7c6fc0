//! Behaviour of the hash index alone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use std::collections::BTreeMap;

use onefold_engine::simulated::{CrashKind, Op, PowerLossBias, SimulatedEngine};
use onefold_engine::{Blocking, Engine, Part};
use onefold_format::{Pba, PoolId};
use onefold_index::hash::{self, HashIndex, Shape};
use onefold_index::{
    Counted, Fingerprint, FingerprintIndex, IndexError, IndexReader, LookedUp, Result, StreamId,
    memory,
};

const POOL: PoolId = PoolId([4; 16]);
const STREAM: StreamId = StreamId(1);
const LIMIT_BYTES: u64 = 16 << 20;

/// Segments of a few pages, so that a few thousand rows have many.
const SHAPE: Shape = Shape {
    segment_rows: 600,
    rows_per_change: 16,
    changes_min: 200,
    changes_behind: 400,
    log_pages: 16,
    log_bytes_min: 256 << 10,
    spare_pages: 16,
};

type Items = Vec<(Fingerprint, Pba)>;

fn item(n: u64) -> (Fingerprint, Pba) {
    let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
    (Fingerprint(fingerprint), Pba(n + 1))
}

fn items(from: u64, count: u64) -> Items {
    (from..from + count).map(item).collect()
}

fn machine(seed: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(seed);
    hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
    engine
}

fn open(engine: &SimulatedEngine) -> Result<HashIndex> {
    hash::open_shaped(engine.open(Part::Index)?, POOL, LIMIT_BYTES, SHAPE)
}

/// A machine whose index received this many batches of 500 rows.
fn filled(batches: u64) -> (SimulatedEngine, HashIndex) {
    let engine = machine(batches);
    let index = open(&engine).unwrap();
    for number in 1..=batches {
        index
            .increment(STREAM, number, &items(number * 500, 500))
            .unwrap();
    }
    (engine, index)
}

/// A random batch: its rows, and whether they are released.
fn random_batch(random: &mut fastrand::Rng, among: u64) -> (Items, bool) {
    let count = random.usize(1..600);
    let batch = (0..count).map(|_| item(random.u64(..among))).collect();
    (batch, random.u8(..10) < 4)
}

fn answers(index: &dyn FingerprintIndex, number: u64, batch: &(Items, bool)) -> Result<String> {
    let (items, is_release) = batch;
    Ok(if *is_release {
        format!("{:?}", index.decrement(STREAM, number, items)?)
    } else {
        format!("{:?}", index.increment(STREAM, number, items)?)
    })
}

#[test]
fn with_a_sixteenth_of_the_memory_it_answers_as_the_memory_index() {
    const AMONG: u64 = 30_000;
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let other = SimulatedEngine::new(seed);
        memory::create(&other.create(Part::Index, 0).unwrap(), POOL).unwrap();
        let all = memory::open(other.open(Part::Index).unwrap(), POOL, 16 << 20).unwrap();
        // The memory index needs 40 bytes for each of these rows; its sixteenth is no more than
        // signatures alone would take.
        let limit_bytes = AMONG * 40 / 16;
        let engine = machine(seed);
        let few = hash::open_shaped(engine.open(Part::Index).unwrap(), POOL, limit_bytes, SHAPE);
        let few = few.unwrap();
        for number in 1..=200 {
            let batch = random_batch(&mut random, AMONG);
            let expected = answers(&all, number, &batch).unwrap();
            assert!(
                answers(&few, number, &batch).unwrap() == expected,
                "{number}"
            );
            assert_eq!(few.counts(), all.counts());
        }
        let from = Fingerprint([0; 16]);
        let rows = all.rows(from, 1 << 20).unwrap();
        assert!(few.rows(from, 1 << 20).unwrap() == rows);
        let middle = rows[rows.len() / 2].0;
        assert!(few.rows(middle, 1000).unwrap() == rows[rows.len() / 2..][..1000]);
    }
}

#[test]
fn crashes_among_merges_and_checkpoints_lose_nothing() {
    const AMONG: u64 = 3000;
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut engine = machine(seed);
        let mut model: BTreeMap<Fingerprint, (Pba, u64)> = BTreeMap::new();
        let mut number = 0;
        let mut under_way: Option<(Items, bool)> = None;
        for _ in 0..12 {
            engine.set_power_loss_bias(PowerLossBias {
                whole: random.u32(0..3),
                lost: random.u32(0..3),
                torn: 1,
            });
            engine.crash_after(random.u64(1..120));
            let _ = (|| -> Result<()> {
                let index = open(&engine)?;
                loop {
                    let batch = under_way
                        .get_or_insert_with(|| random_batch(&mut random, AMONG))
                        .clone();
                    answers(&index, number + 1, &batch)?;
                    number += 1;
                    under_way = None;
                    change(&mut model, &batch);
                    check(&index, &model);
                }
            })();
            let kind = if random.bool() {
                CrashKind::PowerLoss
            } else {
                CrashKind::ProcessKilled
            };
            engine = engine.crash(kind);
        }
        let index = open(&engine).unwrap();
        if let Some(batch) = under_way {
            // The batch happened or not; after a repeat, it has.
            answers(&index, number + 1, &batch).unwrap();
            change(&mut model, &batch);
        }
        check(&index, &model);
        let rows = index.rows(Fingerprint([0; 16]), 1 << 20).unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|(fingerprint, row)| (*fingerprint, (row.pba, row.references)))
            .collect();
        assert!(rows == model.into_iter().collect::<Vec<_>>(), "seed {seed}");
    }
}

fn change(model: &mut BTreeMap<Fingerprint, (Pba, u64)>, (items, is_release): &(Items, bool)) {
    for (fingerprint, pba) in items {
        if !is_release {
            model.entry(*fingerprint).or_insert((*pba, 0)).1 += 1;
        } else if let Some(row) = model.get_mut(fingerprint) {
            row.1 -= 1;
            if row.1 == 0 {
                model.remove(fingerprint);
            }
        }
    }
}

fn check(index: &dyn FingerprintIndex, model: &BTreeMap<Fingerprint, (Pba, u64)>) {
    let counts = index.counts();
    assert_eq!(counts.rows(), model.len() as u64);
    assert_eq!(
        counts.references,
        model.values().map(|row| row.1).sum::<u64>()
    );
}

#[test]
fn what_is_not_there_is_answered_without_reading_and_what_is_by_one_page() {
    let (engine, index) = filled(60);
    // Fills the changes no further, so that nothing is merged.
    let absent = items(1_000_000, 100);
    engine.reset_counts();
    index.decrement(STREAM, 100, &absent).unwrap();
    let read = engine.count(Part::Index, Op::Read).count;
    assert!(read <= 3, "{read} reads for 100 absent fingerprints");
    let present = items(1000, 100);
    engine.reset_counts();
    let moved: Items = present.iter().map(|item| (item.0, Pba(1 << 30))).collect();
    let shared = index.increment(STREAM, 101, &moved[..50]).unwrap();
    let expected: Vec<_> = present[..50]
        .iter()
        .map(|item| Counted::Shared(item.1))
        .collect();
    assert_eq!(shared, expected);
    let read = engine.count(Part::Index, Op::Read);
    assert!(read.count <= 50, "{} reads for 50 rows", read.count);
}

#[test]
fn a_lookup_reads_one_leaf_or_nothing() {
    let (engine, index) = filled(60);
    let look = |item: &(Fingerprint, Pba), blocking| {
        let answers = index.lookup(&[item.0], blocking);
        answers.map(|answers| answers[0])
    };
    engine.reset_counts();
    let absent = items(1_000_000, 1000);
    let answers = absent.iter().map(|item| look(item, Blocking::Yes).unwrap());
    let is_by_signature = |answer: &LookedUp| *answer == LookedUp::AbsentBySignature;
    let by_signature = answers.filter(is_by_signature).count();
    let read = engine.count(Part::Index, Op::Read).count;
    assert!(read <= 5, "{read} reads for 1000 absent fingerprints");
    assert_eq!(by_signature as u64, 1000 - read);

    engine.reset_counts();
    let present = items(1000, 1000);
    for item in &present {
        let answer = look(item, Blocking::Yes).unwrap();
        assert_eq!(answer, LookedUp::Present(item.1));
    }
    let read = engine.count(Part::Index, Op::Read);
    assert!((900..=1000).contains(&read.count), "{} reads", read.count);
    assert_eq!(read.bytes, read.count * 1024);

    // Present rows are answered without waiting from the host's cache, but not from the disk.
    assert!(present.iter().all(|item| look(item, Blocking::No).is_ok()));
    engine.set_cold(Part::Index, 0..u64::MAX);
    engine.reset_counts();
    let refused = present.iter().filter(|item| {
        let answer = look(item, Blocking::No);
        assert!(matches!(
            answer,
            Ok(LookedUp::Present(_)) | Err(IndexError::WouldBlock)
        ));
        answer.is_err()
    });
    assert_eq!(refused.count() as u64, read.count);
    let is_known = |item: &&(Fingerprint, Pba)| look(item, Blocking::No).is_ok();
    assert_eq!(absent.iter().filter(is_known).count(), by_signature);
    assert_eq!(engine.count(Part::Index, Op::Read).count, 0);
}

#[test]
fn the_first_lookup_of_a_segment_reads_what_all_others_need() {
    for first in [Blocking::No, Blocking::Yes] {
        let (engine, index) = filled(60);
        index.close().unwrap();
        drop(index);
        let index = open(&engine).unwrap();
        let absent: Vec<_> = items(1_000_000, 1000).iter().map(|item| item.0).collect();
        engine.set_cold(Part::Index, 0..u64::MAX);
        let refused = index.lookup(&absent, Blocking::No);
        assert!(matches!(refused, Err(IndexError::WouldBlock)));
        if first == Blocking::No {
            engine.clear_cold();
        }
        index.lookup(&absent, first).unwrap();
        engine.clear_cold();
        engine.set_cold(Part::Index, 0..u64::MAX);
        engine.reset_counts();
        let answers = absent
            .iter()
            .map(|fingerprint| index.lookup(&[*fingerprint], Blocking::No));
        assert!(answers.filter(Result::is_ok).count() >= 995);
        assert_eq!(engine.count(Part::Index, Op::Read).count, 0);
    }
}

#[test]
fn opening_after_a_crash_reads_little() {
    let (engine, index) = filled(200);
    let allocated = index.bytes_on_disk().unwrap();
    drop(index);
    let engine = engine.crash(CrashKind::PowerLoss);
    engine.reset_counts();
    let index = open(&engine).unwrap();
    assert_eq!(index.counts().rows(), 100_000);
    let read = engine.count(Part::Index, Op::Read).bytes;
    assert!(allocated > 3 << 20, "{allocated}");
    // The log, twice, and a piece of the part behind it.
    assert!(read < 3 << 20, "{read} of {allocated}");
}

#[test]
fn space_stays_in_proportion_and_comes_back() {
    const ROUNDS: u64 = 40;
    let (_engine, index) = filled(80);
    let rows = 40_000;
    let full = index.bytes_on_disk().unwrap();
    let mut number = 1000;
    for round in 0..ROUNDS {
        for from in (0..rows).step_by(500) {
            number += 1;
            let some = items(500 + (round * rows + from), 500);
            index.decrement(STREAM, number, &some).unwrap();
            number += 1;
            let others = items(500 + (round + 1) * rows + from, 500);
            index.increment(STREAM, number, &others).unwrap();
        }
    }
    let later = index.bytes_on_disk().unwrap();
    assert!(later < full * 2, "{later} after {full}");
    for from in (0..rows).step_by(500) {
        number += 1;
        let some = items(500 + ROUNDS * rows + from, 500);
        index.decrement(STREAM, number, &some).unwrap();
    }
    assert_eq!(index.counts().rows(), 0);
    // Later batches merge the rest.
    for _ in 0..200 {
        number += 2;
        let some = items(number * 1000, 300);
        index.increment(STREAM, number - 1, &some).unwrap();
        index.decrement(STREAM, number, &some).unwrap();
    }
    let rows_left = index.rows(Fingerprint([0; 16]), 10).unwrap();
    assert_eq!(rows_left, []);
    let empty = index.bytes_on_disk().unwrap();
    // The rest is the log, whose length has a lower bound.
    assert!(empty < full / 3 * 2, "{empty} after {full}");
}

#[test]
fn one_unreadable_root_is_survived_and_two_are_told() {
    let (engine, index) = filled(30);
    index.close().unwrap();
    drop(index);
    for slots in [&[4096][..], &[8192], &[4096, 8192]] {
        let engine = engine.crash(CrashKind::ProcessKilled);
        for slot in slots {
            engine.flip_bit(Part::Index, *slot + 20, 3);
        }
        match open(&engine) {
            Ok(index) => {
                assert!(slots.len() == 1);
                assert_eq!(index.counts().rows(), 15_000);
            }
            Err(error) => {
                assert!(slots.len() == 2 && matches!(error, IndexError::Damaged(_)));
            }
        }
    }
}

/// Flipped bits anywhere after a clean stop: an error or the right answer.
#[test]
fn damage_is_told_and_never_becomes_a_wrong_answer() {
    const FLIPS: u64 = 400;
    let (pristine, index) = filled(8);
    index.close().unwrap();
    drop(index);
    let len = pristine.open(Part::Index).unwrap().len().unwrap();
    let bytes = pristine.read_raw(Part::Index, 0, len as usize);
    let written: Vec<usize> = (512..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let right: BTreeMap<_, _> = items(500, 4000).into_iter().collect();
    let mut told = 0;
    for seed in 0..FLIPS {
        let engine = pristine.crash(CrashKind::ProcessKilled);
        let mut random = fastrand::Rng::with_seed(seed);
        let offset = written[random.usize(..written.len())] as u64;
        engine.flip_bit(Part::Index, offset, random.u32(..8));
        let Ok(index) = open(&engine) else {
            told += 1;
            continue;
        };
        let others: Items = right
            .keys()
            .map(|fingerprint| (*fingerprint, Pba(1 << 20)))
            .collect();
        match index.increment(STREAM, 100, &others) {
            Ok(answers) => {
                for ((fingerprint, _), answer) in others.iter().zip(answers) {
                    assert_eq!(answer, Counted::Shared(right[fingerprint]), "{offset}");
                }
            }
            Err(error) => {
                assert!(matches!(error, IndexError::Damaged(_)), "{error}");
                told += 1;
            }
        }
    }
    assert!(told > FLIPS / 4, "{told}: the flips missed what matters");
}
