//! Disks that fail: an error, and earlier answers are still there.

use std::io::ErrorKind;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, FailureRates, Op};

use super::model::rows_of;
use super::story::Story;
use super::{BackEnd, STREAM, item, machine, open};
use crate::{FingerprintIndex, IndexError};

/// Each I/O of a story fails once: the story continues when the index has been opened again.
pub fn a_failed_disk_makes_errors(back_end: &dyn BackEnd) {
    let story = Story::new(11, 4, 12);
    for op in [Op::Read, Op::Write, Op::Sync, Op::Discard] {
        for nth in 1.. {
            let engine = machine(back_end, nth);
            engine.reset_counts();
            engine.fail_once(Part::Index, op, nth, ErrorKind::TimedOut);
            let mut answered = 0;
            let result = story.tell(back_end, &engine, &mut answered);
            if engine.count(Part::Index, op).count < nth {
                result.unwrap();
                break;
            }
            if let Err(error) = result {
                let is_told = matches!(&error, IndexError::Io(cause)
                    if cause.kind() == ErrorKind::TimedOut && cause.to_string().contains("index"));
                assert!(is_told, "{op:?} {nth}: {error}");
            }
            story.tell(back_end, &engine, &mut answered).unwrap();
            // Data that a failed sync dropped was not built upon, although it could still be read.
            let after = engine.crash(CrashKind::PowerLoss);
            story.tell(back_end, &after, &mut answered).unwrap();
        }
    }
    many_failures(back_end);
    nothing_is_trusted_after_a_failure(back_end);
}

/// Failure after failure, with the index opened again after each.
fn many_failures(back_end: &dyn BackEnd) {
    for seed in 0..20 {
        let story = Story::new(seed, 12, 30);
        let engine = machine(back_end, seed);
        let mut answered = 0;
        for round in 0.. {
            let rate = if round < 30 { 0.03 } else { 0.0 };
            engine.set_failure_rates(FailureRates {
                read: rate,
                write: rate,
                sync: rate,
                discard: rate,
            });
            match story.tell(back_end, &engine, &mut answered) {
                Ok(()) => break,
                Err(IndexError::Io(_)) => assert!(round < 30),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

/// A durable index that could not make a batch durable does not continue as if it had.
fn nothing_is_trusted_after_a_failure(back_end: &dyn BackEnd) {
    if !back_end.survives_crashes() {
        return;
    }
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    index.increment(STREAM, 1, &[item(1, 1)]).unwrap();
    let counts = index.counts();
    engine.fail_once(Part::Index, Op::Sync, 1, ErrorKind::Other);
    let error = index.increment(STREAM, 2, &[item(2, 2)]).unwrap_err();
    assert!(matches!(error, IndexError::Io(_)), "{error}");
    assert_eq!(index.counts(), counts);
    for _ in 0..2 {
        let failed = index.increment(STREAM, 2, &[item(2, 2)]).unwrap_err();
        assert!(matches!(failed, IndexError::Failed), "{failed}");
        let failed = index.increment(STREAM, 1, &[item(1, 1)]).unwrap_err();
        assert!(matches!(failed, IndexError::Failed), "{failed}");
        assert!(matches!(rows_of(&*index, 10), Err(IndexError::Failed)));
        assert!(matches!(index.close(), Err(IndexError::Failed)));
    }
}

/// A full disk is distinguished from a broken one, and earlier answers are still there.
pub fn a_full_disk_is_told_apart(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    let room = index.bytes_on_disk().unwrap() + 256 * 1024;
    engine.set_capacity(Part::Index, Some(room));
    let batch = |number: u64| -> Vec<_> {
        (number * 1000..)
            .take(1000)
            .map(|n| item(n, n + 1))
            .collect()
    };
    let fill = |index: &dyn FingerprintIndex| {
        for number in 1..=100 {
            if let Err(error) = index.increment(STREAM, number, &batch(number)) {
                return (number, error);
            }
        }
        // One that needs no disk for a batch needs it for closing.
        (101, index.close().unwrap_err())
    };
    let (failed, error) = fill(&*index);
    assert!(error.is_storage_full(), "{error}");
    drop(index);
    engine.set_capacity(Part::Index, None);
    let index = open(back_end, &engine).unwrap();
    if index.needs_rebuild() {
        assert!(!back_end.survives_crashes());
        return;
    }
    let rows = index.counts().rows();
    assert!(
        rows == (failed - 1) * 1000 || rows == failed * 1000,
        "{rows} {failed}"
    );
    index.increment(STREAM, failed, &batch(failed)).unwrap();
    assert_eq!(index.counts().rows(), failed * 1000);
}
