//! Crashes: answered batches survive, and a repeat of the rest gets its answers.

use onefold_engine::simulated::{CrashKind, PowerLossBias, SimulatedEngine};

use super::lookups::agrees;
use super::model::{Batch, Given, Model, ask, rows_of};
use super::{BackEnd, STREAM, machine, open};
use crate::{FingerprintIndex, Result};

/// A sequence of batches, numbered from 1, with the expected answers of each.
pub(super) struct Story {
    batches: Vec<Batch>,
    answers: Vec<Given>,
    /// The models, by the number of batches applied.
    models: Vec<Model>,
}

impl Story {
    pub(super) fn new(seed: u64, batches: usize, items_max: usize) -> Story {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model::default();
        let mut story = Story {
            batches: Vec::new(),
            answers: Vec::new(),
            models: vec![model.clone()],
        };
        for _ in 0..batches {
            let batch = model.random_batch(&mut random, items_max);
            story.answers.push(model.answer(&batch));
            story.models.push(model.clone());
            story.batches.push(batch);
        }
        story
    }

    pub(super) fn batches(&self) -> &[Batch] {
        &self.batches
    }

    /// The model after this many batches.
    pub(super) fn model(&self, batches: usize) -> &Model {
        &self.models[batches]
    }

    pub(super) fn end(&self) -> &Model {
        &self.models[self.batches.len()]
    }

    /// Opens the index, in which `answered` batches have been answered and the next one may have been requested, and
    /// continues to the end. Returns the first error.
    pub(super) fn tell(
        &self,
        back_end: &dyn BackEnd,
        engine: &SimulatedEngine,
        answered: &mut usize,
    ) -> Result<()> {
        let index = open(back_end, engine)?;
        if index.needs_rebuild() {
            assert!(!back_end.survives_crashes(), "it must have kept its rows");
            self.rebuild(&*index, *answered)?;
        } else {
            self.check_opened(&*index, *answered)?;
        }
        while *answered < self.batches.len() {
            let number = *answered as u64 + 1;
            let given = ask(&*index, number, &self.batches[*answered])?;
            assert_eq!(given, self.answers[*answered], "batch {number}");
            *answered += 1;
            let again = ask(&*index, number, &self.batches[*answered - 1])?;
            assert_eq!(again, given, "batch {number} again");
        }
        assert_eq!(index.counts(), self.end().counts());
        assert_eq!(rows_of(&*index, 1000)?, self.end().rows());
        agrees(&*index, &self.end().rows())?;
        index.close()
    }

    /// Checks that the batch in progress happened entirely or not at all.
    fn check_opened(&self, index: &dyn FingerprintIndex, answered: usize) -> Result<()> {
        let rows = rows_of(index, 1000)?;
        let possible = &self.models[answered..self.models.len().min(answered + 2)];
        let is_as = |model: &Model| model.rows() == rows && model.counts() == index.counts();
        assert!(
            possible.iter().any(is_as),
            "after {answered} batches: {rows:?} is none of {possible:?}"
        );
        agrees(index, &rows)
    }

    fn rebuild(&self, index: &dyn FingerprintIndex, answered: usize) -> Result<()> {
        index.begin_rebuild()?;
        let refused = index.add_rows(&self.models[answered].rows())?;
        assert_eq!(refused, []);
        index.finish_rebuild(STREAM, answered as u64)
    }
}

/// A crash in every I/O of a story, with several outcomes of each.
pub fn survives_every_crash(back_end: &dyn BackEnd) {
    const POWER_LOSSES: usize = 3;
    let story = Story::new(7, 5, 12);
    for crash_at in 1.. {
        let engine = machine(back_end, crash_at);
        engine.crash_after(crash_at);
        let mut answered = 0;
        let result = story.tell(back_end, &engine, &mut answered);
        if !engine.is_crashed() {
            result.unwrap();
            assert!(crash_at > 3, "the index did no I/O");
            break;
        }
        let kinds = [CrashKind::PowerLoss; POWER_LOSSES].into_iter();
        for kind in kinds.chain([CrashKind::ProcessKilled]) {
            let mut answered = answered;
            let after = engine.crash(kind);
            story.tell(back_end, &after, &mut answered).unwrap();
        }
    }
}

/// Many stories, each interrupted by crash after crash, also in the middle of opening.
pub fn survives_many_crashes(back_end: &dyn BackEnd, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let items_max = *random.choice(&[3, 20, 200]).unwrap();
        let story = Story::new(seed, 12, items_max);
        let mut engine = machine(back_end, seed);
        let mut answered = 0;
        let mut ios_max = 60;
        loop {
            engine.set_power_loss_bias(PowerLossBias {
                whole: random.u32(..4),
                lost: random.u32(..4),
                torn: random.u32(..4),
            });
            engine.crash_after(random.u64(1..ios_max));
            let result = story.tell(back_end, &engine, &mut answered);
            if !engine.is_crashed() {
                result.unwrap();
                break;
            }
            let kind = match random.u8(..4) {
                0 => CrashKind::ProcessKilled,
                _ => CrashKind::PowerLoss,
            };
            engine = engine.crash(kind);
            // Ends every story.
            ios_max += 20;
        }
    }
}
