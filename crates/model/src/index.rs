//! The fingerprint index: rows with counts, and per stream the last number with its answers.

use crate::guards::{Guard, Guards};
use crate::image::{Block, Fingerprint, LAYERS, LayerId, StreamNumber};
use crate::state::Config;

/// Fingerprints that the index has room for; 0 is that of zeros and never used.
pub const FINGERPRINTS: usize = 3;

/// One row: a published block and its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The block that holds the content.
    pub block: Block,
    /// References counted.
    pub count: u8,
    /// At count zero: who frees the block, and with which number.
    pub tombstone: Option<(LayerId, StreamNumber)>,
}

/// What the index says of one item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The row is new and names the caller's block.
    Inserted,
    /// The row is new; a tombstone's block goes with it. Only with a guard off.
    InsertedOver(Block),
    /// The row existed and names this block; it is counted.
    Shared(Block),
    /// A reference is released, others remain.
    Remaining,
    /// The last reference is released.
    Zero,
    /// The row names another block.
    Mismatch,
    /// There is no such row.
    Unknown,
}

/// The last batch of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Its number; 0 before the first.
    pub last: StreamNumber,
    /// Its answers, in the batch's order.
    pub answers: Vec<Answer>,
}

/// The index as it is, or as it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Index {
    /// Rows by fingerprint.
    pub rows: [Option<Row>; FINGERPRINTS],
    /// Streams by layer.
    pub streams: [Stream; LAYERS],
}

impl Index {
    /// The row that counts references, so not a tombstone.
    pub fn live_row(&self, fingerprint: Fingerprint) -> Option<Row> {
        self.rows[usize::from(fingerprint)].filter(|row| row.tombstone.is_none())
    }

    /// Live rows with their fingerprints.
    pub fn live_rows(&self) -> impl Iterator<Item = (Fingerprint, Row)> {
        (0..FINGERPRINTS as Fingerprint).filter_map(|fp| self.live_row(fp).map(|row| (fp, row)))
    }

    /// Counts one reference for each item, inserting rows that do not exist.
    pub fn increment(
        &mut self,
        guards: Guards,
        layer: LayerId,
        number: StreamNumber,
        items: &[(Fingerprint, Block)],
    ) -> Vec<Answer> {
        self.once(guards, layer, number, |index| {
            items
                .iter()
                .map(|(fp, block)| index.count(guards, *fp, *block))
                .collect()
        })
    }

    /// Releases one reference to `block`.
    pub fn decrement(
        &mut self,
        config: &Config,
        layer: LayerId,
        number: StreamNumber,
        fingerprint: Fingerprint,
        block: Block,
    ) -> Vec<Answer> {
        self.once(config.guards, layer, number, |index| {
            let tombstone = config.tombstones.then_some((layer, number));
            let names = config.on(Guard::DecrementNamesAddress);
            vec![index.uncount(tombstone, fingerprint, names.then_some(block))]
        })
    }

    /// Deletes the tombstone that (layer, number) left.
    pub fn forget(
        &mut self,
        guards: Guards,
        layer: LayerId,
        number: StreamNumber,
        fingerprint: Fingerprint,
    ) {
        let row = &mut self.rows[usize::from(fingerprint)];
        let is_ours = row.is_some_and(|row| row.tombstone == Some((layer, number)));
        if is_ours || !guards.on(Guard::ForgetIsGuarded) {
            *row = None;
        }
    }

    /// Runs a batch unless it is a repeat, whose answers are those of the first time.
    fn once(
        &mut self,
        guards: Guards,
        layer: LayerId,
        number: StreamNumber,
        batch: impl FnOnce(&mut Index) -> Vec<Answer>,
    ) -> Vec<Answer> {
        let stream = &self.streams[usize::from(layer)];
        if stream.last == number && guards.on(Guard::RepeatReturnsAnswers) {
            return stream.answers.clone();
        }
        let answers = batch(self);
        self.streams[usize::from(layer)] = Stream {
            last: number,
            answers: answers.clone(),
        };
        answers
    }

    fn count(&mut self, guards: Guards, fingerprint: Fingerprint, block: Block) -> Answer {
        let slot = &mut self.rows[usize::from(fingerprint)];
        match slot {
            Some(row) if row.tombstone.is_none() || !guards.on(Guard::TombstoneIsAbsent) => {
                row.count += 1;
                row.tombstone = None;
                Answer::Shared(row.block)
            }
            replaced => {
                let tombstone = replaced.map(|row| row.block);
                *replaced = Some(Row {
                    block,
                    count: 1,
                    tombstone: None,
                });
                match tombstone {
                    Some(other) if !guards.on(Guard::OnlyNamedLayerFrees) => {
                        Answer::InsertedOver(other)
                    }
                    _ => Answer::Inserted,
                }
            }
        }
    }

    fn uncount(
        &mut self,
        tombstone: Option<(LayerId, StreamNumber)>,
        fingerprint: Fingerprint,
        expected: Option<Block>,
    ) -> Answer {
        let slot = &mut self.rows[usize::from(fingerprint)];
        let Some(row) = slot.as_mut().filter(|row| row.tombstone.is_none()) else {
            return Answer::Unknown;
        };
        if expected.is_some_and(|block| block != row.block) {
            return Answer::Mismatch;
        }
        row.count -= 1;
        if row.count > 0 {
            return Answer::Remaining;
        }
        row.tombstone = tombstone;
        if tombstone.is_none() {
            *slot = None;
        }
        Answer::Zero
    }
}
