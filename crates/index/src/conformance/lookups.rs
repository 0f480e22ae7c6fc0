//! Lookups: answered during batches, and never with a row that is not durable.

use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use onefold_engine::simulated::{CrashKind, FailureRates, Op, SimulatedEngine, When};
use onefold_engine::{Blocking, Part};
use onefold_format::Pba;

use super::model::{FINGERPRINTS, Model, ask, rows_of};
use super::story::Story;
use super::{BackEnd, STREAM, fingerprint, item, machine, open};
use crate::{Fingerprint, FingerprintIndex, IndexError, LookedUp, Result, Row};

/// A wait counts as endless after this time. Nothing else depends on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// All fingerprints that batches of the model have.
fn all() -> Vec<Fingerprint> {
    (0..FINGERPRINTS).map(fingerprint).collect()
}

/// The blocks of these fingerprints.
fn found(
    index: &dyn FingerprintIndex,
    fingerprints: &[Fingerprint],
    blocking: Blocking,
) -> Result<Vec<Option<Pba>>> {
    let answers = index.lookup(fingerprints, blocking)?;
    assert_eq!(answers.len(), fingerprints.len());
    Ok(answers.iter().map(|answer| answer.pba()).collect())
}

/// Runs work that must not wait for the calling thread.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(work()));
    let Ok(done) = receiver.recv_timeout(PATIENCE) else {
        panic!("it panicked, or waits for the I/O beside it");
    };
    done
}

/// Looks up all rows of the model, and fingerprints without a row.
pub(super) fn agrees(index: &dyn FingerprintIndex, rows: &[(Fingerprint, Row)]) -> Result<()> {
    let has = |fingerprint: &Fingerprint| rows.iter().find(|row| row.0 == *fingerprint);
    let listed = rows.iter().map(|row| row.0);
    let fingerprints: Vec<_> = all().into_iter().chain(listed).collect();
    let expected: Vec<_> = fingerprints
        .iter()
        .map(|fingerprint| has(fingerprint).map(|row| row.1.pba))
        .collect();
    // A lookup that may not wait gets the same answer, or none.
    match found(index, &fingerprints, Blocking::No) {
        Err(IndexError::WouldBlock) => {}
        answers => assert_eq!(answers?, expected),
    }
    assert_eq!(found(index, &fingerprints, Blocking::Yes)?, expected);
    Ok(())
}

/// Present, absent, removed; one and many; in every state of the index.
pub fn lookups_are_answered(back_end: &dyn BackEnd) {
    let engine = machine(back_end, 1);
    let index = open(back_end, &engine).unwrap();
    assert!(index.lookup(&[], Blocking::Yes).unwrap().is_empty());
    let absent = index.lookup(&[fingerprint(1)], Blocking::Yes).unwrap();
    assert_eq!(absent[0].pba(), None);
    let items: Vec<_> = (0..200).map(|n| item(n, n + 1)).collect();
    index.increment(STREAM, 1, &items).unwrap();
    for count in [1, 2, 8, 9, 33, 200] {
        let fingerprints: Vec<_> = items[..count].iter().rev().map(|item| item.0).collect();
        let expected: Vec<_> = items[..count]
            .iter()
            .rev()
            .map(|item| Some(item.1))
            .collect();
        let answers = found(&*index, &fingerprints, Blocking::Yes).unwrap();
        assert_eq!(answers, expected);
    }
    let twice = [items[3].0, fingerprint(1000), items[3].0];
    let answers = index.lookup(&twice, Blocking::Yes).unwrap();
    assert_eq!(answers[0], LookedUp::Present(items[3].1));
    assert_eq!((answers[1].pba(), answers[2]), (None, answers[0]));
    // A second reference changes nothing, and neither does its release; the release of the last one does.
    index.increment(STREAM, 2, &[item(3, 77)]).unwrap();
    index.decrement(STREAM, 3, &items[2..4]).unwrap();
    let rows = rows_of(&*index, 100).unwrap();
    assert_eq!(rows.len(), 199);
    agrees(&*index, &rows).unwrap();
    index.increment(STREAM, 4, &[item(2, 99)]).unwrap();
    let again = found(&*index, &[items[2].0], Blocking::Yes).unwrap();
    assert_eq!(again, [Some(Pba(99))]);
    index.close().unwrap();
    for blocking in [Blocking::No, Blocking::Yes] {
        let closed = index.lookup(&[items[5].0], blocking).unwrap_err();
        assert!(matches!(closed, IndexError::Closed), "{closed}");
    }
    drop(index);
    let index = open(back_end, &engine).unwrap();
    agrees(&*index, &rows_of(&*index, 100).unwrap()).unwrap();
}

/// Makes lookups in every I/O of an index.
struct Watch {
    engine: SimulatedEngine,
    index: Arc<dyn FingerprintIndex>,
    /// I/Os of these lookups do not count.
    is_looking: AtomicBool,
    seen: Mutex<Vec<Seen>>,
}

/// The answers of a lookup in the middle of an I/O.
struct Seen {
    found: Result<Vec<Option<Pba>>>,
    /// The machine as it would come back if it stopped in this instant.
    after_crashes: [SimulatedEngine; 2],
}

impl Watch {
    fn begin(engine: &SimulatedEngine, index: &Arc<dyn FingerprintIndex>) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            engine: engine.clone(),
            index: Arc::clone(index),
            is_looking: AtomicBool::new(false),
            seen: Mutex::default(),
        });
        for op in [Op::Read, Op::Write, Op::Sync, Op::Discard, Op::Reserve] {
            for when in [When::Before, When::After] {
                Arc::clone(&watch).look_in_next(op, when);
            }
        }
        watch
    }

    fn look_in_next(self: Arc<Watch>, op: Op, when: When) {
        let engine = self.engine.clone();
        let hook = move || {
            self.look();
            self.look_in_next(op, when);
        };
        engine.on_next_io(Part::Index, op, when, Box::new(hook));
    }

    fn look(&self) {
        if self.is_looking.swap(true, SeqCst) {
            return;
        }
        let index = Arc::clone(&self.index);
        let found = beside(move || found(&*index, &all(), Blocking::Yes));
        let after_crashes = [CrashKind::PowerLoss; 2].map(|kind| self.engine.crash(kind));
        let seen = Seen {
            found,
            after_crashes,
        };
        self.seen.lock().unwrap().push(seen);
        self.is_looking.store(false, SeqCst);
    }

    /// Checks the answers seen during a batch, which took the rows from one model to the other. Returns their number.
    fn check(&self, back_end: &dyn BackEnd, before: &Model, after: &Model) -> usize {
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        for Seen {
            found,
            after_crashes,
        } in &seen
        {
            let Ok(found) = found else {
                // The kernel may have dropped data that a lookup wanted to read.
                let failures = self.engine.failures(Part::Index, Op::Sync);
                assert!(failures > 0, "{found:?}");
                continue;
            };
            let mut new = Vec::new();
            for (fingerprint, pba) in all().into_iter().zip(found) {
                let block = |model: &Model| model.rows.get(&fingerprint).map(|row| row.0);
                assert!(*pba == block(before) || *pba == block(after), "{pba:?}");
                if let Some(pba) = pba.filter(|pba| Some(*pba) != block(before)) {
                    new.push((fingerprint, pba));
                }
            }
            if new.is_empty() || !back_end.survives_crashes() {
                continue;
            }
            for engine in after_crashes {
                let index = open(back_end, engine).unwrap();
                let rows = rows_of(&*index, 100).unwrap();
                let is_durable = |(fingerprint, pba): &(Fingerprint, Pba)| {
                    let mut rows = rows.iter();
                    rows.any(|(listed, row)| listed == fingerprint && row.pba == *pba)
                };
                assert!(new.iter().all(is_durable), "{new:?} would be lost");
            }
        }
        seen.len()
    }
}

/// In every I/O of a story's batches lookups are answered, and name only rows that a crash in this
/// instant leaves.
pub fn lookups_name_only_durable_rows(back_end: &dyn BackEnd, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let story = Story::new(seed, 12, 24);
        let engine = machine(back_end, seed);
        let index: Arc<dyn FingerprintIndex> = Arc::from(open(back_end, &engine).unwrap());
        let watch = Watch::begin(&engine, &index);
        let mut looked = 0;
        for (number, batch) in (1..).zip(story.batches()) {
            let [before, after] = [number - 1, number].map(|n| story.model(n));
            ask(&*index, number as u64, batch).unwrap();
            looked += watch.check(back_end, before, after);
            agrees(&*index, &after.rows()).unwrap();
            watch.check(back_end, after, after);
        }
        let least = if back_end.survives_crashes() { 24 } else { 0 };
        assert!(looked >= least, "{looked} lookups");
    }
}

/// Rows of a batch that could not be made durable are never named, and then no others either, until
/// the index is opened again.
pub fn no_row_is_named_whose_sync_failed(back_end: &dyn BackEnd) {
    let story = Story::new(5, 6, 24);
    for nth in 1.. {
        let engine = machine(back_end, nth);
        engine.set_eviction_rate(Part::Index, 0.5);
        let index: Arc<dyn FingerprintIndex> = Arc::from(open(back_end, &engine).unwrap());
        let watch = Watch::begin(&engine, &index);
        engine.fail_once(Part::Index, Op::Sync, nth, ErrorKind::TimedOut);
        let mut batches = (1..).zip(story.batches());
        let failed = batches.find(|(number, batch)| {
            let is_failed = ask(&*index, *number as u64, batch).is_err();
            watch.check(back_end, story.model(number - 1), story.model(*number));
            is_failed
        });
        if failed.is_none() {
            break;
        }
        for blocking in [Blocking::No, Blocking::Yes] {
            let failed = index.lookup(&all(), blocking).unwrap_err();
            assert!(matches!(failed, IndexError::Failed), "{failed}");
        }
        let after = engine.crash(CrashKind::PowerLoss);
        let index = open(back_end, &after).unwrap();
        agrees(&*index, &rows_of(&*index, 100).unwrap()).unwrap();
    }
}

/// The rows of [`stopped_and_opened`]: more than a small cache holds.
const ROWS: u64 = 600;

/// An index of some rows that has just been opened, with nothing of them in memory that is not read
/// when it is opened.
fn stopped_and_opened(back_end: &dyn BackEnd) -> (SimulatedEngine, Arc<dyn FingerprintIndex>) {
    const BATCHES: u64 = 6;
    let engine = machine(back_end, 3);
    let index = open(back_end, &engine).unwrap();
    for number in 0..BATCHES {
        let each = ROWS / BATCHES;
        let items: Vec<_> = (number * each..)
            .take(each as usize)
            .map(|n| item(n, n + 1))
            .collect();
        index.increment(STREAM, number + 1, &items).unwrap();
    }
    index.close().unwrap();
    drop(index);
    let index = open(back_end, &engine).unwrap();
    (engine, Arc::from(index))
}

fn present() -> Vec<Fingerprint> {
    (0..ROWS).map(fingerprint).collect()
}

fn blocks() -> Vec<Option<Pba>> {
    (0..ROWS).map(|n| Some(Pba(n + 1))).collect()
}

/// Batches do not wait for the I/O of a lookup, which survives that they replace all rows.
pub fn batches_go_on_beside_a_lookup(back_end: &dyn BackEnd) {
    const BATCHES: u64 = 20;
    for nth in 0..12 {
        let (engine, index) = stopped_and_opened(back_end);
        // Half of the lookups read leaves, the other half the data that is needed to find them.
        if nth % 2 == 0 {
            found(&*index, &present(), Blocking::Yes).unwrap();
        }
        for _ in 0..nth {
            engine.on_next_io(Part::Index, Op::Read, When::Before, Box::new(|| {}));
        }
        let batches = {
            let index = Arc::clone(&index);
            move || {
                for number in 0..BATCHES {
                    let items: Vec<_> = (0..60).map(|n| item(1000 + n, 1 + n)).collect();
                    let number = 100 + 2 * number;
                    index.increment(STREAM, number, &items).unwrap();
                    index.decrement(STREAM, number + 1, &items).unwrap();
                }
            }
        };
        let hook = move || beside(batches);
        engine.on_next_io(Part::Index, Op::Read, When::Before, Box::new(hook));
        for _ in 0..2 {
            let answers = found(&*index, &present(), Blocking::Yes).unwrap();
            assert_eq!(answers, blocks());
        }
    }
}

/// A lookup that may not wait for the disk is answered from memory, or refused.
pub fn what_may_not_wait_does_not_read(back_end: &dyn BackEnd) {
    let (engine, opened) = stopped_and_opened(back_end);
    let used = stopped_and_opened(back_end);
    found(&*used.1, &present(), Blocking::Yes).unwrap();
    for (engine, index) in [(engine, opened), used] {
        let ask_each = || {
            for n in 0..2 * ROWS {
                let expected = (n < ROWS).then_some(Pba(n + 1));
                match found(&*index, &[fingerprint(n)], Blocking::No) {
                    Err(IndexError::WouldBlock) => {}
                    answers => assert_eq!(answers.unwrap(), [expected]),
                }
            }
        };
        engine.set_cold(Part::Index, 0..u64::MAX);
        engine.set_failure_rates(FailureRates {
            read: 1.0,
            ..FailureRates::default()
        });
        engine.reset_counts();
        ask_each();
        assert_eq!(engine.count(Part::Index, Op::Read).count, 0);
        engine.clear_cold();
        engine.set_failure_rates(FailureRates::default());
        ask_each();
        assert_eq!(
            found(&*index, &present(), Blocking::Yes).unwrap(),
            blocks(),
            "the refusals have not harmed it"
        );
    }
}

/// A failed disk ends all use of the index in a lookup as in a batch.
pub fn a_lookup_that_fails_ends_all_use(back_end: &dyn BackEnd) {
    let (engine, index) = stopped_and_opened(back_end);
    engine.set_failure_rates(FailureRates {
        read: 1.0,
        ..FailureRates::default()
    });
    let Err(error) = found(&*index, &present(), Blocking::Yes) else {
        // It had no need of the disk.
        assert_eq!(engine.failures(Part::Index, Op::Read), 0);
        return;
    };
    let is_told =
        matches!(&error, IndexError::Io(cause) if cause.to_string().contains("simulated:index"));
    assert!(is_told, "{error}");
    engine.set_failure_rates(FailureRates::default());
    for blocking in [Blocking::No, Blocking::Yes] {
        let failed = found(&*index, &present(), blocking).unwrap_err();
        assert!(matches!(failed, IndexError::Failed), "{failed}");
    }
    let failed = index.increment(STREAM, 100, &[item(1, 1)]).unwrap_err();
    assert!(matches!(failed, IndexError::Failed), "{failed}");
    assert!(matches!(index.close(), Err(IndexError::Failed)));
    let index = open(back_end, &engine.crash(CrashKind::ProcessKilled)).unwrap();
    let answers = found(&*index, &present(), Blocking::Yes).unwrap();
    assert_eq!(answers, blocks());
}

/// While there is no index, lookups are refused: even in the I/O that makes it void.
pub fn a_rebuild_refuses_lookups(back_end: &dyn BackEnd) {
    let (engine, index) = stopped_and_opened(back_end);
    let watch = Watch::begin(&engine, &index);
    let is_refused = |result: &Result<Vec<Option<Pba>>>| {
        matches!(result, Err(IndexError::Unready(_) | IndexError::WouldBlock))
    };
    index.begin_rebuild().unwrap();
    let row = Row {
        pba: Pba(9),
        references: 1,
    };
    index.add_rows(&[(fingerprint(1), row)]).unwrap();
    for blocking in [Blocking::No, Blocking::Yes] {
        let refused = found(&*index, &present(), blocking).unwrap_err();
        assert!(matches!(refused, IndexError::Unready(_)), "{refused}");
    }
    index.finish_rebuild(STREAM, 1).unwrap();
    let seen = std::mem::take(&mut *watch.seen.lock().unwrap());
    assert!(seen.iter().all(|lookup| is_refused(&lookup.found)));
    agrees(&*index, &[(fingerprint(1), row)]).unwrap();
}
