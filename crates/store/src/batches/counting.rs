//! A batch of claims ([`crate::dedup`]). The parts common to all batches are in `mod.rs`.

use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{ClaimOutcome, Record};
use onefold_index::Counted;
use onefold_metadata::{Blocking, Guard, OpenBatch, QueueKind, Result};

use super::{Batches, ITEMS_PER_STEP, Urgency};

/// The result of a batch of claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountReport {
    /// References that the index counts now.
    pub counted: u64,
    /// References that the index could not count, because it does not have their blocks as the maps do.
    pub quarantined: u64,
}

impl CountReport {
    /// Claims that were settled.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.counted + self.quarantined
    }
}

impl Batches {
    /// Counts one batch of claims. The caller holds the job lock, and no batch is open.
    pub(crate) fn count_claims(&self, urgency: Urgency) -> Result<CountReport> {
        let index = self.index.executor()?;
        let items = self.journal.metadata()?.claims().blocks();
        if items > 0 {
            index.secure(&[items.min(BATCH_ITEMS_MAX.into()) as usize])?;
        }
        match self.announce_claims(urgency)? {
            Some(batch) => self.settle_counting(&batch, urgency),
            None => Ok(CountReport::default()),
        }
    }

    /// Announces a batch of claims, unless there are none. The caller holds the job lock, and no batch is open.
    pub(super) fn announce_claims(&self, urgency: Urgency) -> Result<Option<OpenBatch>> {
        let mut metadata = self.journal.metadata()?;
        let number = metadata.batches().next_number();
        let elements = metadata.count_head(QueueKind::Claims, BATCH_ITEMS_MAX.into())? as u32;
        drop(metadata);
        if elements == 0 {
            return Ok(None);
        }
        let count = Record::Count { number, elements };
        self.journal.append(&[count], &[], Blocking::Yes, None)?;
        if Guard::CountIntentDurable.holds() {
            self.commit(urgency)?;
        }
        Ok(self.journal.metadata()?.batches().open().cloned())
    }

    /// Steps 3 and 4.
    pub(super) fn settle_counting(
        &self,
        batch: &OpenBatch,
        urgency: Urgency,
    ) -> Result<CountReport> {
        let index = self.index.executor()?;
        let may_be_repeated = self.may_be_repeated(batch);
        // One batch at a time takes claims, so this batch has the last ones before the first that waits.
        let end = self.journal.metadata()?.claims().numbers().start;
        let all = batch.unsettled().len();
        let executed = self.run(urgency, || {
            index.count(batch, may_be_repeated, &mut |items| {
                let known = match end.checked_sub(all as u64) {
                    Some(first) if items.len() == all => self.claimed.get(first..end),
                    // The batch took its claims before the pool was opened, or some of them are counted.
                    _ => vec![None; items.len()],
                };
                let found = self.blocks.fingerprint_unknown(items, &known)?;
                self.blocks.published(index.reader(), found)
            })
        })?;
        self.settle_all_claims(batch, end, &executed.answered()?)
    }

    /// Step 4, with an answer for each unsettled item. `end` is the number of the first claim behind the batch.
    pub(super) fn settle_all_claims(
        &self,
        batch: &OpenBatch,
        end: u64,
        answers: &[Counted],
    ) -> Result<CountReport> {
        let mut report = CountReport::default();
        let mut position = batch.done;
        while position < batch.items.len() {
            let end = (position + ITEMS_PER_STEP).min(batch.items.len());
            let part = &answers[position - batch.done..end - batch.done];
            self.settle_claims(batch, position, part, &mut report)?;
            position = end;
        }
        self.claimed.forget_before(end);
        Ok(report)
    }

    fn settle_claims(
        &self,
        batch: &OpenBatch,
        position: usize,
        answers: &[Counted],
        report: &mut CountReport,
    ) -> Result<()> {
        let mut records = Vec::new();
        let mut at = position;
        for alike in answers.chunk_by(|one, other| is_counted(*one) == is_counted(*other)) {
            let outcome = if is_counted(alike[0]) {
                ClaimOutcome::Counted
            } else {
                ClaimOutcome::Quarantined
            };
            records.push(Record::Counted {
                number: batch.number,
                position: at as u32,
                count: alike.len() as u32,
                outcome,
            });
            match outcome {
                ClaimOutcome::Counted => report.counted += alike.len() as u64,
                ClaimOutcome::Quarantined => {
                    for item in &batch.items[at..at + alike.len()] {
                        tracing::error!(
                            "block {} of the pool is referred to, but the index does not have it: it \
                             is quarantined; run `pool check --repair`",
                            item.pba
                        );
                    }
                    report.quarantined += alike.len() as u64;
                }
            }
            at += alike.len();
        }
        self.journal.append(&records, &[], Blocking::Yes, None)
    }
}

/// Whether the index has a row with the item's own block.
fn is_counted(answer: Counted) -> bool {
    answer == Counted::Inserted
}
