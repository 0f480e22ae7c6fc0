//! Counting: has the index count claims, the references that entries have because a write found its
//! content published.
//!
//! 1. a record takes elements off the head of the claims
//! 2. commit: that record, and the ones that made the entries, are durable (P3)
//! 3. one call of the index counts a reference for each; the fingerprints are in memory (`claimed.rs`), and the
//!    blocks of those that are not are read
//! 4. log the result for each: *counted*, or *quarantined* if the index has no row with that block, which
//!    is reported (P8)
//!
//! The entries do not change, for they have had their references from the beginning. Until a claim is
//! counted, the collector releases nothing.

use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{ClaimOutcome, Record};
use onefold_index::{Counted, FingerprintIndex};
use onefold_metadata::sync::MutexGuard;
use onefold_metadata::{Blocking, Guard, OpenBatch, QueueKind, Result};

use super::index::{STREAM, last_answers};
use crate::pool::Pool;
use crate::store::Store;

/// Items settled under one hold of the uncommitted state.
const ITEMS_PER_STEP: usize = 512;

/// The result of a batch of claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountReport {
    /// References that the index counts now.
    pub counted: u64,
    /// Those that it could not count: it does not have their blocks as the maps do.
    pub quarantined: u64,
}

impl CountReport {
    /// Claims that were settled.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.counted + self.quarantined
    }
}

/// Whether a batch may wait for an idle processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    Background,
    AtOnce,
}

/// Called when there are many claims: see [`Store::set_claims_alarm`].
pub(crate) struct ClaimsAlarm {
    every: u64,
    alarm: Box<dyn Fn() + Send + Sync>,
}

impl ClaimsAlarm {
    /// Whether so many more claims make it due.
    pub(crate) fn is_due(&self, before: u64, more: u64) -> bool {
        before / self.every != (before + more) / self.every
    }

    /// The caller holds nothing that others wait for.
    pub(crate) fn sound(&self) {
        (self.alarm)();
    }
}

/// While this is held, writes make no claims.
#[must_use]
pub struct HitsHeld<'a>(&'a Pool);

impl Drop for HitsHeld<'_> {
    fn drop(&mut self) {
        // Fails only after a panic that stopped all writes.
        let _ = self.0.journal.hold_hits(false);
    }
}

impl Store {
    /// Has the index count up to 16,384 claims. First settles a batch that a crash or an error left
    /// open. No claim is left where it settled none.
    ///
    /// # Errors
    ///
    /// As [`Store::dedup_batch`].
    pub fn count_batch(&self) -> Result<CountReport> {
        self.count_with(Urgency::Background)
    }

    /// As [`Store::count_batch`], but on the caller's thread: nothing of it waits for an idle processor.
    ///
    /// # Errors
    ///
    /// As [`Store::dedup_batch`].
    pub fn count_batch_at_once(&self) -> Result<CountReport> {
        self.count_with(Urgency::AtOnce)
    }

    fn count_with(&self, urgency: Urgency) -> Result<CountReport> {
        let pool = &self.pool;
        let _job = pool.job_for(urgency)?;
        pool.journal.check_writable()?;
        pool.index.ready()?;
        pool.settle_open_batch()?;
        pool.count_claims(urgency)
    }

    /// Calls `alarm` whenever the number of claims passes a multiple of `every`. It must not wait for a
    /// request. The first one stays.
    pub fn set_claims_alarm(&self, every: u64, alarm: Box<dyn Fn() + Send + Sync>) {
        let _ = self.pool.claims_alarm.set(ClaimsAlarm { every, alarm });
    }

    /// Writes make no claims until the guard is dropped, or [`Store::collect_batch`] has announced its batch.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn hold_hits(&self) -> Result<HitsHeld<'_>> {
        self.pool.hold_hits()
    }

    /// Most references that the index does not count yet: further hits are refused.
    #[must_use]
    pub fn claims_max(&self) -> u64 {
        self.pool.limits.claims_max
    }

    /// Most of them that are counted without reading their blocks.
    #[must_use]
    pub fn claim_fingerprints_max(&self) -> u64 {
        self.pool.limits.claim_fingerprints_max
    }

    /// References that the index does not count yet.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn claimed_blocks(&self) -> Result<u64> {
        Ok(self.pool.journal.metadata()?.claims().blocks())
    }
}

impl Pool {
    pub(super) fn job_for(&self, urgency: Urgency) -> Result<MutexGuard<'_, ()>> {
        match urgency {
            Urgency::Background => self.job_in_background(),
            Urgency::AtOnce => self.job(),
        }
    }

    /// Does work that holds nothing a guest could wait for.
    pub(super) fn run<T: Send>(&self, urgency: Urgency, work: impl FnOnce() -> T + Send) -> T {
        match urgency {
            Urgency::Background => self.background.run(work),
            Urgency::AtOnce => work(),
        }
    }

    /// A commit of a batch.
    pub(super) fn commit(&self, urgency: Urgency) -> Result<()> {
        match urgency {
            Urgency::Background => self.journal.commit_in_background(),
            Urgency::AtOnce => self.journal.commit(),
        }
    }

    pub(super) fn hold_hits(&self) -> Result<HitsHeld<'_>> {
        self.journal.hold_hits(true)?;
        Ok(HitsHeld(self))
    }

    /// Counts one batch of claims. The caller holds the job lock, and no batch is open.
    pub(super) fn count_claims(&self, urgency: Urgency) -> Result<CountReport> {
        let index = self.index.ready()?;
        let mut metadata = self.journal.metadata()?;
        let number = metadata.batches().next_number();
        let elements = metadata.count_head(QueueKind::Claims, BATCH_ITEMS_MAX.into())? as u32;
        let items = metadata.claims().blocks().min(BATCH_ITEMS_MAX.into());
        drop(metadata);
        if elements == 0 {
            return Ok(CountReport::default());
        }
        index.secure(&[items as usize])?;
        let count = Record::Count { number, elements };
        self.journal.append(&[count], &[], Blocking::Yes, None)?;
        if Guard::CountIntentDurable.holds() {
            self.commit(urgency)?;
        }
        let open = self.journal.metadata()?.batches().open().cloned();
        let Some(batch) = open else {
            return Ok(CountReport::default());
        };
        self.settle_counting(&batch, urgency)
    }

    /// Steps 3 and 4.
    pub(super) fn settle_counting(
        &self,
        batch: &OpenBatch,
        urgency: Urgency,
    ) -> Result<CountReport> {
        let index = self.index.ready()?;
        // Claims are taken by one batch at a time, so this one's are those before the first that waits.
        let end = self.journal.metadata()?.claims().numbers().start;
        let answers = self.run(urgency, || -> Result<_> {
            let items = batch.unsettled();
            let known = match end.checked_sub(items.len() as u64) {
                Some(first) => self.claimed.get(first..end),
                // They were taken before the pool was opened.
                None => vec![None; items.len()],
            };
            let found = self.fingerprint_unknown(items, &known)?;
            let items = self.published_fingerprints(&*index, found)?;
            let count = match Guard::CountKnownRow.holds() {
                true => FingerprintIndex::count_existing,
                false => FingerprintIndex::increment,
            };
            Ok(count(&*index, STREAM, batch.number, &items)?)
        })?;
        let answers = last_answers(&answers, batch)?;
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
            let outcome = match is_counted(alike[0]) {
                true => ClaimOutcome::Counted,
                false => ClaimOutcome::Quarantined,
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

/// The row has the item's own block.
fn is_counted(answer: Counted) -> bool {
    answer == Counted::Inserted
}
