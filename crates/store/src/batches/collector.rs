//! Steps 3 and 4 of a collector's batch ([`crate::dedup`]): calls the index, and logs its answers.

use onefold_format::{Pba, Record, Release};
use onefold_index::{Fingerprint, Released};
use onefold_metadata::sync::lock;
use onefold_metadata::{Blocking, Guard, OpenBatch, PbaRun, PbaRuns, Result};
use onefold_metadata::{StoreError, StoreErrorKind};
use rustc_hash::FxHashMap;

use super::{Batches, ITEMS_PER_STEP, Urgency};

/// The result of a collector's batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// References released.
    pub released: u64,
    /// Released references that were the last ones of their blocks, which are free.
    pub freed: u64,
    /// Released references that the index did not know: their blocks are left alone.
    pub quarantined: u64,
    /// References that are not released, and wait again: another group of the pool may be about to refer to their blocks.
    pub held: u64,
}

impl Batches {
    /// Steps 3 and 4; blocks whose fingerprints are not known are read.
    pub(crate) fn settle_collector(
        &self,
        batch: &OpenBatch,
        known: &FxHashMap<Pba, Fingerprint>,
        urgency: Urgency,
    ) -> Result<CollectReport> {
        let index = self.index.executor()?;
        self.await_readers(batch)?;
        let may_be_repeated = self.may_be_repeated(batch);
        let executed = self.run(urgency, || {
            index.decrement(batch, may_be_repeated, &mut |items| {
                let known = items.iter().map(|item| known.get(&item.pba).copied());
                let known: Vec<_> = known.collect();
                let found = self.blocks.fingerprint_unknown(items, &known)?;
                self.blocks.published(index.reader(), found)
            })
        })?;
        self.settle_all_releases(batch, &executed.answered()?)
    }

    /// Step 4, with an answer for each unsettled item.
    pub(super) fn settle_all_releases(
        &self,
        batch: &OpenBatch,
        answers: &[Released],
    ) -> Result<CollectReport> {
        // A block that was given to the pool, and that this group has freed since, must have left its map before.
        let _settled = self
            .leases
            .as_ref()
            .map(|leases| leases.settled())
            .transpose()?;
        let mut report = CollectReport::default();
        let mut position = batch.done;
        while position < batch.items.len() {
            let end = (position + ITEMS_PER_STEP).min(batch.items.len());
            let part = &answers[position - batch.done..end - batch.done];
            self.settle_releases(batch, position..end, part, &mut report)?;
            position = end;
        }
        Ok(report)
    }

    /// Waits until the reads that may have found a block of the batch have ended. A block that loses its last reference
    /// may be another group's next, which knows nothing of this group's readers (P3).
    ///
    /// # Errors
    ///
    /// `Busy` after some time; the batch stays open.
    pub(super) fn await_readers(&self, batch: &OpenBatch) -> Result<()> {
        let awaited = *lock(&self.awaited);
        let Some((_, epoch)) = awaited.filter(|(number, _)| *number == batch.number) else {
            // The readers from before an opening are gone.
            return Ok(());
        };
        if Guard::ReadersDrainedBeforeRelease.holds() && !self.journal.reuse().drain(epoch)? {
            return Err(StoreError::new(
                StoreErrorKind::Busy,
                "reads of blocks that are being released have not ended",
            ));
        }
        *lock(&self.awaited) = None;
        Ok(())
    }

    /// Notes that a batch of a shared pool was announced now.
    pub(crate) fn note_announced(&self, number: u64) {
        if self.index.is_shared() {
            *lock(&self.awaited) = Some((number, self.journal.reuse().epochs().current()));
        }
    }

    fn settle_releases(
        &self,
        batch: &OpenBatch,
        positions: std::ops::Range<usize>,
        answers: &[Released],
        report: &mut CollectReport,
    ) -> Result<()> {
        let mut freed = PbaRuns::new();
        let mut releases: Vec<(u32, Release)> = Vec::new();
        for (item, answer) in batch.items[positions.clone()].iter().zip(answers) {
            let release = match answer {
                Released::Remaining if Guard::FreeOnlyAtZero.holds() => Release::Remaining,
                Released::Remaining | Released::Zero => Release::Freed,
                Released::Held => Release::Held,
                Released::Mismatch | Released::Unknown => {
                    tracing::error!(
                        "block {} of the pool was released, but the index does not have it: it is \
                         quarantined; run `pool check --repair`",
                        item.pba
                    );
                    Release::Quarantined
                }
            };
            report.released += u64::from(release != Release::Held);
            report.held += u64::from(release == Release::Held);
            report.freed += u64::from(release == Release::Freed);
            report.quarantined += u64::from(release == Release::Quarantined);
            if release == Release::Freed {
                freed.push(PbaRun {
                    start: item.pba,
                    count: 1,
                });
            }
            match releases.last_mut() {
                Some((count, last)) if *last == release => *count += 1,
                _ => releases.push((1, release)),
            }
        }
        let mut position = positions.start as u32;
        let records: Vec<Record> = releases
            .into_iter()
            .map(|(count, release)| {
                let record = Record::Release {
                    number: batch.number,
                    position,
                    count,
                    release,
                };
                position += count;
                record
            })
            .collect();
        self.journal.append(&records, &freed, Blocking::Yes, None)
    }
}
