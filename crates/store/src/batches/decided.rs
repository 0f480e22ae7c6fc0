//! Settles the batch that was open at an index that is lost, with the answers that follow from the reports of all groups
//! ([`crate::shared`]).
//!
//! A lost index may or may not have executed the open batch of a group. The use that all groups make of the blocks decides it:
//!
//! - Finder: a block that anything else refers to is published. Any other block is private again, whatever the index
//!   answered: nobody else has found it.
//! - Collector: the reference is gone. If nothing refers to the block any more, and no group has it, one release frees it.
//! - Counting: the rebuild counts the entries of the claims, so all of them end.

use std::ops::Range;

use onefold_format::{BatchKind, Pba};
use onefold_index::{Counted, Released};
use onefold_metadata::{OpenBatch, Result};
use rustc_hash::FxHashSet;

use super::{Batches, Urgency};

/// The blocks that the finder has published, or that the collector frees: ranges in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Granted(Vec<Range<u64>>);

impl Granted {
    /// Adds blocks behind those that are in it.
    pub(crate) fn extend(&mut self, blocks: impl IntoIterator<Item = Range<u64>>) {
        self.0.extend(blocks);
    }

    fn has(&self, pba: Pba) -> bool {
        let behind = self.0.partition_point(|range| range.end <= pba.0);
        self.0
            .get(behind)
            .is_some_and(|range| range.contains(&pba.0))
    }
}

impl Batches {
    /// Waits until the reads have ended that may have found a block of an open collector's batch: another group may get the
    /// block once this group has reported its use of it (P3).
    ///
    /// # Errors
    ///
    /// `Busy` after some time.
    pub(crate) fn await_released(&self) -> Result<()> {
        let open = self.journal.metadata()?.batches().open().cloned();
        match open {
            Some(batch) if batch.kind == BatchKind::Collector => self.await_readers(&batch),
            _ => Ok(()),
        }
    }

    /// Settles the open batch as it was decided, and ends all claims, durably. Returns the number of the last batch. The
    /// caller holds the job lock.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub(crate) fn settle_decided(&self, granted: &Granted) -> Result<u64> {
        let open = self.journal.metadata()?.batches().open().cloned();
        if let Some(batch) = open {
            self.settle_as_granted(&batch, granted)?;
        }
        while let Some(batch) = self.announce_claims(Urgency::AtOnce)? {
            self.end_claims(&batch)?;
        }
        self.journal.commit()?;
        Ok(self.journal.metadata()?.batches().next_number() - 1)
    }

    fn settle_as_granted(&self, batch: &OpenBatch, granted: &Granted) -> Result<()> {
        let items = batch.unsettled().iter();
        match batch.kind {
            BatchKind::Finder(layer) => {
                let answer = |pba| {
                    if granted.has(pba) {
                        Counted::Inserted
                    } else {
                        Counted::Full
                    }
                };
                let answers: Vec<Counted> = items.map(|item| answer(item.pba)).collect();
                self.settle_answers(layer, batch, &answers, None).map(drop)
            }
            BatchKind::Collector => {
                let mut freed = FxHashSet::default();
                let mut answer = |pba| {
                    if granted.has(pba) && freed.insert(pba) {
                        Released::Zero
                    } else {
                        Released::Remaining
                    }
                };
                let answers: Vec<Released> = items.map(|item| answer(item.pba)).collect();
                self.settle_all_releases(batch, &answers).map(drop)
            }
            BatchKind::Counting => self.end_claims(batch),
        }
    }

    fn end_claims(&self, batch: &OpenBatch) -> Result<()> {
        let end = self.journal.metadata()?.claims().numbers().start;
        let answers = vec![Counted::Inserted; batch.unsettled().len()];
        self.settle_all_claims(batch, end, &answers).map(drop)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_in_a_range_are_granted() {
        let mut granted = Granted::default();
        granted.extend([3..4, 4..6]);
        granted.extend(std::iter::once(10..11));
        let found: Vec<u64> = (0..20).filter(|pba| granted.has(Pba(*pba))).collect();
        assert_eq!(found, [3, 4, 5, 10]);
        assert!(!Granted::default().has(Pba(0)));
    }
}
