//! The fingerprint index: rows with counts, and the last batch's number with its answers.

use crate::guards::{Guard, Guards};
use crate::image::{BLOCKS, BatchNumber, Block, Content, Fingerprint};
use crate::state::Config;

/// Fingerprints that the index has room for; 0 is the fingerprint of zeros and never used.
pub const FINGERPRINTS: usize = 3;

/// A published block and its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The block that holds the content.
    pub block: Block,
    /// The number of references counted.
    pub count: u8,
}

/// The index's answer to one item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The row names the caller's block; in most cases it is new.
    Inserted,
    /// The row existed and names this block; it is counted.
    Shared(Block),
    /// There is no room for a row; nothing is counted.
    Full,
    /// A reference is released, others remain.
    Remaining,
    /// The last reference is released; the row is gone.
    Zero,
    /// The row names another block.
    Mismatch,
    /// There is no such row.
    Unknown,
}

/// The index as it is, or as it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Index {
    /// Rows by fingerprint.
    pub rows: [Option<Row>; FINGERPRINTS],
    /// The number of the last batch; 0 before the first.
    pub last: BatchNumber,
    /// The answers to the last batch, in its order; none after a rebuild.
    pub answers: Vec<Answer>,
    /// Whether the index was lost, and has to be rebuilt from the maps.
    pub needs_rebuild: bool,
}

impl Index {
    /// An index that was lost and is empty.
    pub fn lost() -> Index {
        Index {
            needs_rebuild: true,
            ..Index::default()
        }
    }

    /// Rows with their fingerprints.
    pub fn each_row(&self) -> impl Iterator<Item = (Fingerprint, Row)> {
        (0..)
            .zip(self.rows)
            .filter_map(|(fp, row)| row.map(|row| (fp, row)))
    }

    /// References counted for `block`.
    pub fn count_of(&self, block: Block) -> u8 {
        let mut rows = self.each_row();
        let row = rows.find(|(_, row)| row.block == block);
        row.map_or(0, |(_, row)| row.count)
    }

    /// Counts one reference for each item, inserting rows that do not exist.
    pub fn increment(
        &mut self,
        config: &Config,
        number: BatchNumber,
        items: &[(Fingerprint, Block)],
    ) -> Vec<Answer> {
        self.once(config.guards, number, |index| {
            items
                .iter()
                .map(|(fp, block)| index.count(config.index_rows, *fp, *block))
                .collect()
        })
    }

    /// Counts one reference for each item, in the row that names the item's block.
    pub fn count_claims(
        &mut self,
        config: &Config,
        number: BatchNumber,
        items: &[(Fingerprint, Block)],
    ) -> Vec<Answer> {
        if !config.on(Guard::CountKnownRow) {
            return self.increment(config, number, items);
        }
        self.once(config.guards, number, |index| {
            items
                .iter()
                .map(|(fp, block)| index.count_known(*fp, *block))
                .collect()
        })
    }

    /// Releases one reference for each item.
    pub fn decrement(
        &mut self,
        config: &Config,
        number: BatchNumber,
        items: &[(Fingerprint, Block)],
    ) -> Vec<Answer> {
        let named = config.on(Guard::DecrementNamesAddress);
        self.once(config.guards, number, |index| {
            items
                .iter()
                .map(|(fp, block)| index.uncount(*fp, named.then_some(*block)))
                .collect()
        })
    }

    /// Replaces all rows by the references that the maps make to each block, under the fingerprints of the blocks'
    /// contents. If two blocks have one fingerprint, only the first gets a row.
    pub fn rebuild(
        &mut self,
        config: &Config,
        references: &[i8; BLOCKS],
        contents: &[Content; BLOCKS],
        last: BatchNumber,
    ) {
        *self = Index {
            last,
            ..Index::default()
        };
        for (block, (count, content)) in (0..).zip(references.iter().zip(contents)) {
            let slot = &mut self.rows[usize::from(config.fingerprint(*content))];
            if *count > 0 && slot.is_none() {
                let count = count.unsigned_abs();
                *slot = Some(Row { block, count });
            }
        }
    }

    /// Runs a batch. A repeated batch gets the answers of the first time; an older one is refused, because its answers
    /// are gone.
    fn once(
        &mut self,
        guards: Guards,
        number: BatchNumber,
        batch: impl FnOnce(&mut Index) -> Vec<Answer>,
    ) -> Vec<Answer> {
        if number < self.last {
            return Vec::new();
        }
        if number == self.last && guards.on(Guard::RepeatReturnsAnswers) {
            return self.answers.clone();
        }
        self.answers = batch(self);
        self.last = number;
        self.answers.clone()
    }

    fn count(&mut self, rows_max: u8, fingerprint: Fingerprint, block: Block) -> Answer {
        let has_room = self.each_row().count() < usize::from(rows_max);
        match &mut self.rows[usize::from(fingerprint)] {
            Some(row) => {
                row.count += 1;
                if row.block == block {
                    Answer::Inserted
                } else {
                    Answer::Shared(row.block)
                }
            }
            None if !has_room => Answer::Full,
            new => {
                *new = Some(Row { block, count: 1 });
                Answer::Inserted
            }
        }
    }

    fn count_known(&mut self, fingerprint: Fingerprint, block: Block) -> Answer {
        match &mut self.rows[usize::from(fingerprint)] {
            Some(row) if row.block == block => {
                row.count += 1;
                Answer::Inserted
            }
            Some(_) => Answer::Mismatch,
            None => Answer::Unknown,
        }
    }

    fn uncount(&mut self, fingerprint: Fingerprint, expected: Option<Block>) -> Answer {
        let slot = &mut self.rows[usize::from(fingerprint)];
        let Some(row) = slot.as_mut() else {
            return Answer::Unknown;
        };
        if expected.is_some_and(|block| block != row.block) {
            return Answer::Mismatch;
        }
        row.count -= 1;
        if row.count > 0 {
            return Answer::Remaining;
        }
        *slot = None;
        Answer::Zero
    }
}
