//! The plainest index that could be right.

use std::collections::BTreeMap;

use onefold_format::Pba;

use super::STREAM;
use crate::batch::Item;
use crate::{Counted, Fingerprint, FingerprintIndex, IndexCounts, Released, Result, Row};

/// Batches have fingerprints with numbers below this one.
pub(super) const FINGERPRINTS: u64 = 24;

/// A batch of either kind.
#[derive(Debug, Clone)]
pub(super) enum Batch {
    Increment(Vec<Item>),
    Decrement(Vec<Item>),
}

/// The answers to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    Counted(Vec<Counted>),
    Released(Vec<Released>),
}

/// Sends a batch to an index.
pub(super) fn ask(index: &dyn FingerprintIndex, number: u64, batch: &Batch) -> Result<Given> {
    match batch {
        Batch::Increment(items) => index.increment(STREAM, number, items).map(Given::Counted),
        Batch::Decrement(items) => index.decrement(STREAM, number, items).map(Given::Released),
    }
}

/// Rows, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) rows: BTreeMap<Fingerprint, (Pba, u64)>,
}

impl Model {
    pub(super) fn answer(&mut self, batch: &Batch) -> Given {
        match batch {
            Batch::Increment(items) => Given::Counted(
                items
                    .iter()
                    .map(|(fingerprint, pba)| self.increment(*fingerprint, *pba))
                    .collect(),
            ),
            Batch::Decrement(items) => Given::Released(
                items
                    .iter()
                    .map(|(fingerprint, pba)| self.decrement(*fingerprint, *pba))
                    .collect(),
            ),
        }
    }

    fn increment(&mut self, fingerprint: Fingerprint, pba: Pba) -> Counted {
        let row = self.rows.entry(fingerprint).or_insert((pba, 0));
        row.1 += 1;
        if row.0 == pba {
            Counted::Inserted
        } else {
            Counted::Shared(row.0)
        }
    }

    fn decrement(&mut self, fingerprint: Fingerprint, pba: Pba) -> Released {
        match self.rows.get_mut(&fingerprint) {
            None => Released::Unknown,
            Some(row) if row.0 != pba => Released::Mismatch,
            Some(row) => {
                row.1 -= 1;
                if row.1 > 0 {
                    return Released::Remaining;
                }
                self.rows.remove(&fingerprint);
                Released::Zero
            }
        }
    }

    pub(super) fn counts(&self) -> IndexCounts {
        let references = self.rows.values().map(|row| row.1);
        IndexCounts {
            unique: references.clone().filter(|count| *count == 1).count() as u64,
            shared: references.clone().filter(|count| *count > 1).count() as u64,
            references: references.sum(),
        }
    }

    pub(super) fn rows(&self) -> Vec<(Fingerprint, Row)> {
        let row = |(fingerprint, row): (&Fingerprint, &(Pba, u64))| {
            let (pba, references) = *row;
            (*fingerprint, Row { pba, references })
        };
        self.rows.iter().map(row).collect()
    }

    /// A batch that meets rows of the model, and some that are not there.
    pub(super) fn random_batch(&self, random: &mut fastrand::Rng, items_max: usize) -> Batch {
        let count = random.usize(..=items_max);
        let any =
            |random: &mut fastrand::Rng| super::item(random.u64(..FINGERPRINTS), random.u64(1..40));
        if random.u8(..10) < 6 {
            return Batch::Increment((0..count).map(|_| any(random)).collect());
        }
        let there: Vec<Item> = self.rows.iter().map(|(key, row)| (*key, row.0)).collect();
        let item = |random: &mut fastrand::Rng| match random.choice(&there) {
            Some(item) if random.u8(..10) < 8 => *item,
            _ => any(random),
        };
        Batch::Decrement((0..count).map(|_| item(random)).collect())
    }
}

/// All rows of an index, asked for in pages.
pub(super) fn rows_of(
    index: &dyn FingerprintIndex,
    page: usize,
) -> Result<Vec<(Fingerprint, Row)>> {
    let mut all = Vec::new();
    let mut from = Some(Fingerprint([0; 16]));
    while let Some(at) = from {
        let rows = index.rows(at, page)?;
        assert!(rows.len() <= page);
        from = rows.last().and_then(|(last, _)| last.successor());
        all.extend(rows);
    }
    Ok(all)
}
