//! A host that is temporarily full: the hash index refuses requests without changing anything, and
//! continues when there is room.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]

use std::collections::BTreeMap;
use std::io::ErrorKind;

use onefold_engine::simulated::{CrashKind, Op, PowerLossBias, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_format::{Pba, PoolId};
use onefold_index::hash::{self, HashIndex, Shape};
use onefold_index::{
    Counted, Fingerprint, FingerprintIndex, IndexError, IndexReader, Released, Result, Row,
    StreamId,
};

const POOL: PoolId = PoolId([6; 16]);
const STREAM: StreamId = StreamId(1);
const LIMIT_BYTES: u64 = 16 << 20;
const FIRST: Fingerprint = Fingerprint([0; 16]);

/// A few thousand rows have many segments, and the log many extents.
const SHAPE: Shape = Shape {
    segment_rows: 600,
    rows_per_change: 16,
    changes_min: 200,
    changes_behind: 400,
    log_pages: 16,
    log_bytes_min: 256 << 10,
    spare_pages: 16,
};

#[derive(Debug, Clone, PartialEq)]
enum Answers {
    Counted(Vec<Counted>),
    Released(Vec<Released>),
}

#[derive(Debug, Clone)]
struct Batch {
    items: Vec<(Fingerprint, Pba)>,
    is_release: bool,
}

impl Batch {
    /// Mostly few items, so that a frame is one sector as well as several extents.
    fn random(random: &mut fastrand::Rng, is_release: bool) -> Batch {
        let count = *random.choice(&[1, 3, 40, 600, 2500]).unwrap();
        let item = |random: &mut fastrand::Rng| {
            let n = random.u64(..3000);
            let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
            (Fingerprint(fingerprint), Pba(1 + n * 4 + random.u64(..4)))
        };
        Batch {
            items: (0..count).map(|_| item(random)).collect(),
            is_release,
        }
    }

    fn ask(&self, index: &dyn FingerprintIndex, number: u64) -> Result<Answers> {
        Ok(if self.is_release {
            Answers::Released(index.decrement(STREAM, number, &self.items)?)
        } else {
            Answers::Counted(index.increment(STREAM, number, &self.items)?)
        })
    }
}

/// The expected rows.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model(BTreeMap<Fingerprint, Row>);

impl Model {
    fn answer(&mut self, batch: &Batch) -> Answers {
        let items = batch.items.iter();
        if batch.is_release {
            Answers::Released(items.map(|item| self.release(*item)).collect())
        } else {
            Answers::Counted(items.map(|item| self.count(*item)).collect())
        }
    }

    fn count(&mut self, (fingerprint, pba): (Fingerprint, Pba)) -> Counted {
        let row = self
            .0
            .entry(fingerprint)
            .or_insert(Row { pba, references: 0 });
        row.references += 1;
        if row.pba == pba {
            Counted::Inserted
        } else {
            Counted::Shared(row.pba)
        }
    }

    fn release(&mut self, (fingerprint, pba): (Fingerprint, Pba)) -> Released {
        let Some(row) = self.0.get_mut(&fingerprint) else {
            return Released::Unknown;
        };
        if row.pba != pba {
            return Released::Mismatch;
        }
        row.references -= 1;
        if row.references > 0 {
            return Released::Remaining;
        }
        self.0.remove(&fingerprint);
        Released::Zero
    }

    /// Whether the index has these rows, and their counts.
    fn is(&self, index: &dyn FingerprintIndex) -> Result<bool> {
        let counts = index.counts();
        let references: u64 = self.0.values().map(|row| row.references).sum();
        let rows: BTreeMap<_, _> = index.rows(FIRST, 1 << 20)?.into_iter().collect();
        Ok(rows == self.0
            && (counts.rows(), counts.references) == (self.0.len() as u64, references))
    }
}

fn machine(seed: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(seed);
    hash::create_shaped(&engine.create(Part::Index, 0).unwrap(), POOL, SHAPE).unwrap();
    engine
}

fn open(engine: &SimulatedEngine) -> Result<HashIndex> {
    hash::open_shaped(engine.open(Part::Index)?, POOL, LIMIT_BYTES, SHAPE)
}

/// An index with these rows. Its last batch may be open: requested, and not answered.
struct Story {
    engine: SimulatedEngine,
    random: fastrand::Rng,
    model: Model,
    /// The number of the last batch that was answered.
    number: u64,
    /// The requests made with the next number, each without an answer.
    attempts: Vec<Batch>,
    refused: u64,
}

impl Story {
    fn new(seed: u64) -> Story {
        Story {
            engine: machine(seed),
            random: fastrand::Rng::with_seed(seed),
            model: Model::default(),
            number: 0,
            attempts: Vec::new(),
            refused: 0,
        }
    }

    /// Makes room scarce, or gives it back, at random.
    fn change_room(&mut self, bytes: u64) {
        let room = match self.random.u8(..4) {
            0 => Some(bytes + self.random.u64(..64) * 4096),
            1 => Some(bytes),
            _ => None,
        };
        self.engine.set_capacity(Part::Index, room);
        if self.random.bool() {
            // The whole write may have happened nevertheless.
            let op = *self.random.choice(&[Op::Write, Op::Reserve]).unwrap();
            let nth = self.random.u64(1..3);
            self.engine
                .fail_once(Part::Index, op, nth, ErrorKind::StorageFull);
        }
    }

    /// The next batch: the refused one again, or another one of its kind under the same number.
    fn next_batch(&mut self) -> Batch {
        let is_release = self.attempts.first().map(|batch| batch.is_release);
        let is_release = is_release.unwrap_or_else(|| self.random.u8(..10) < 4);
        match self.attempts.last() {
            Some(last) if self.random.bool() => last.clone(),
            _ => Batch::random(&mut self.random, is_release),
        }
    }

    /// Continues until the machine stops or there were this many answers.
    fn go_on(&mut self, answers_max: u64) -> Result<()> {
        let index = open(&self.engine)?;
        self.settle(&index)?;
        let end = self.number.saturating_add(answers_max);
        while self.number < end {
            let batch = self.next_batch();
            let bytes = index.bytes_on_disk()?;
            self.change_room(bytes);
            if self.random.u8(..4) == 0 {
                match index.secure(&[self.random.usize(..3000)]) {
                    Ok(()) | Err(IndexError::NoRoom(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            self.attempts.push(batch.clone());
            let answers = match batch.ask(&index, self.number + 1) {
                Err(IndexError::NoRoom(_)) => {
                    self.refused += 1;
                    assert!(
                        self.model.is(&index)?,
                        "a batch that was refused has changed rows"
                    );
                    continue;
                }
                answers => answers?,
            };
            assert!(answers == self.model.answer(&batch));
            self.number += 1;
            self.attempts.clear();
            assert!(batch.ask(&index, self.number)? == answers, "asked again");
        }
        assert!(self.model.is(&index)?);
        if self.random.bool() {
            index.close()?;
        }
        Ok(())
    }

    /// Settles a batch without an answer: one attempt or none has happened, and a repeat gives its answers.
    fn settle(&mut self, index: &HashIndex) -> Result<()> {
        let attempts = self.attempts.clone();
        let Some(last) = attempts.last() else {
            assert!(self.model.is(index)?, "what was answered is not there");
            return Ok(());
        };
        let after = |batch: &Batch| {
            let mut model = self.model.clone();
            let answers = model.answer(batch);
            (model, answers)
        };
        let mut possible = Vec::new();
        for attempt in &attempts {
            let (model, answers) = after(attempt);
            if model.is(index)? {
                possible.push((model, answers));
            }
        }
        if self.model.is(index)? {
            possible.push(after(last));
        }
        self.engine.set_capacity(Part::Index, None);
        let answers = loop {
            match last.ask(index, self.number + 1) {
                // A failure that was ordered before.
                Err(IndexError::NoRoom(_)) => {}
                answers => break answers?,
            }
        };
        let Some(found) = possible.into_iter().find(|outcome| outcome.1 == answers) else {
            panic!("not the answers to what has happened");
        };
        self.model = found.0;
        self.number += 1;
        self.attempts.clear();
        assert!(self.model.is(index)?, "not what was answered");
        Ok(())
    }
}

#[test]
fn a_host_that_is_full_for_a_moment_ends_nothing() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut story = Story::new(seed);
        story.go_on(150).unwrap();
        story.engine.set_capacity(Part::Index, None);
        story.engine = story.engine.crash(CrashKind::PowerLoss);
        story.go_on(20).unwrap();
        refused += story.refused;
    }
    assert!(refused > 300, "{refused} batches were refused");
}

#[test]
fn crashes_around_a_full_host_lose_nothing() {
    let (mut refused, mut crashes) = (0, 0);
    for seed in 0..60 {
        let mut story = Story::new(seed);
        for _ in 0..12 {
            story.engine.set_power_loss_bias(PowerLossBias {
                whole: story.random.u32(0..3),
                lost: story.random.u32(0..3),
                torn: 1,
            });
            story.engine.crash_after(story.random.u64(1..300));
            match story.go_on(u64::MAX) {
                Err(IndexError::Io(_)) if story.engine.is_crashed() => crashes += 1,
                ended => panic!("seed {seed}: {ended:?}"),
            }
            let kind = if story.random.bool() {
                CrashKind::PowerLoss
            } else {
                CrashKind::ProcessKilled
            };
            story.engine = story.engine.crash(kind);
        }
        story.engine.set_capacity(Part::Index, None);
        story.go_on(5).unwrap();
        refused += story.refused;
    }
    assert!(refused > 400, "{refused} batches were refused");
    assert_eq!(crashes, 60 * 12);
}

/// Merges find no room, and the log has some: memory does not grow without end.
#[test]
fn changes_do_not_gather_without_end() {
    let engine = machine(1);
    let index = open(&engine).unwrap();
    let item = |n: u64| {
        let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
        (Fingerprint(fingerprint), Pba(n + 1))
    };
    let batch = |number: u64| -> Vec<_> { (number * 40..).take(40).map(item).collect() };
    index.increment(STREAM, 1, &batch(1)).unwrap();
    index.secure(&[20_000]).unwrap();
    let full = index.bytes_on_disk().unwrap();
    engine.set_capacity(Part::Index, Some(full));
    let refused = (2..1000).find_map(|number| {
        let result = index.increment(STREAM, number, &batch(number));
        result.err().map(|error| (number, error))
    });
    let (number, error) = refused.unwrap();
    assert!(matches!(error, IndexError::NoRoom(_)), "{error}");
    let changes = 40 * (number - 1);
    let most = SHAPE.changes_min + SHAPE.changes_behind + 40;
    assert!((most - 40..=most).contains(&changes), "{changes}");
    assert_eq!(index.counts().rows(), changes);
    let error = index.secure(&[40]).unwrap_err();
    assert!(matches!(error, IndexError::NoRoom(_)), "{error}");

    // As soon as there is room, merges catch up.
    engine.set_capacity(Part::Index, None);
    index.secure(&[40, 40]).unwrap();
    let full = index.bytes_on_disk().unwrap();
    engine.set_capacity(Part::Index, Some(full));
    for number in number..number + 2 {
        index.increment(STREAM, number, &batch(number)).unwrap();
    }
    assert_eq!(index.counts().rows(), changes + 80);
}

/// A rebuild that finds no room continues, or starts again, in the same process.
#[test]
fn a_rebuild_goes_on_when_there_is_room() {
    let engine = machine(3);
    let index = open(&engine).unwrap();
    let rows = |from: u64| -> Vec<(Fingerprint, Row)> {
        let row = |n: u64| {
            let fingerprint = fastrand::Rng::with_seed(n).u128(..).to_le_bytes();
            let pba = Pba(n + 1);
            (Fingerprint(fingerprint), Row { pba, references: 2 })
        };
        (from..from + 500).map(row).collect()
    };
    index.begin_rebuild().unwrap();
    engine.set_capacity(
        Part::Index,
        Some(index.bytes_on_disk().unwrap() + 16 * 4096),
    );
    let refused = (0..100).find_map(|n| index.add_rows(&rows(n * 500)).err());
    assert!(
        matches!(refused, Some(IndexError::NoRoom(_))),
        "{refused:?}"
    );
    let ended = index.finish_rebuild(STREAM, 7);
    assert!(matches!(ended, Err(IndexError::NoRoom(_))), "{ended:?}");
    assert!(index.needs_rebuild());
    engine.set_capacity(Part::Index, None);
    index.begin_rebuild().unwrap();
    for n in 0..20 {
        assert_eq!(index.add_rows(&rows(n * 500)).unwrap(), []);
    }
    for nth in 1.. {
        let op = Op::Write;
        engine.reset_counts();
        engine.fail_once(Part::Index, op, nth, ErrorKind::StorageFull);
        match index.finish_rebuild(STREAM, 7) {
            Err(IndexError::NoRoom(_)) => assert!(index.needs_rebuild()),
            ended => {
                ended.unwrap();
                break;
            }
        }
        assert!(nth < 1000);
    }
    assert!(!index.needs_rebuild());
    assert_eq!(index.counts().rows(), 10_000);
    drop(index);
    let engine = engine.crash(CrashKind::PowerLoss);
    let index = open(&engine).unwrap();
    assert_eq!(index.rows(FIRST, 1 << 20).unwrap().len(), 10_000);
}
