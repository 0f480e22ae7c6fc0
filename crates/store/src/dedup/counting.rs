//! Counting: has the index count claims, the references that entries have because a write found its
//! content published.
//!
//! 1. a record takes elements off the head of the claims
//! 2. commit: that record, and the ones that made the entries, are durable (P3)
//! 3. one call of the index counts a reference for each; fingerprints are in memory (`batches/claims.rs`), or their
//!    blocks are read
//! 4. log the result for each: *counted*, or *quarantined* if the index has no row with that block, which
//!    is reported (P8)
//!
//! The entries do not change, for they have had their references from the beginning. Until a claim is
//! counted, the collector releases nothing. In a shared pool, shards hold the rows of claims against the releases of other
//! groups until [`Dedup::end_holds`].

use std::time::Duration;

use onefold_journal::Journal;
use onefold_metadata::{Guard, Result};

use super::Dedup;
use crate::batches::{ClaimsAlarm, CountReport, Executor, Urgency, meet};

/// How long shards have to end holds.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// While this is held, writes make no claims.
#[must_use]
pub struct HitsHeld<'a>(&'a Journal);

impl Drop for HitsHeld<'_> {
    fn drop(&mut self) {
        // Fails only after a panic that stopped all writes.
        let _ = self.0.hold_hits(false);
    }
}

pub(super) fn hold_hits(journal: &Journal) -> Result<HitsHeld<'_>> {
    journal.hold_hits(true)?;
    Ok(HitsHeld(journal))
}

impl Dedup {
    /// Has the index count up to 16,384 claims. First settles a batch that a crash or an error left
    /// open. If it settles no claim, none is left.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`].
    pub fn count_batch(&self) -> Result<CountReport> {
        self.count_with(Urgency::Background)
    }

    /// Like [`Dedup::count_batch`], but on the caller's thread, without waiting for an idle processor.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`].
    pub fn count_batch_at_once(&self) -> Result<CountReport> {
        self.count_with(Urgency::AtOnce)
    }

    fn count_with(&self, urgency: Urgency) -> Result<CountReport> {
        let pool = &self.pool;
        let _job = pool.batches().job_for(urgency)?;
        pool.journal().check_writable()?;
        pool.index().executor()?;
        pool.batches().settle_open_batch()?;
        pool.batches().count_claims(urgency)
    }

    /// Whether shards of a shared pool's index may hold rows for this store, which [`Dedup::end_holds`] ends.
    #[must_use]
    pub fn may_hold(&self) -> bool {
        match self.pool.index().executor() {
            Ok(Executor::Shared(index)) => index.may_hold(),
            Ok(Executor::Own(_)) | Err(_) => false,
        }
    }

    /// Ends the holds that shards have for this store's lookups so far, once the claims that came of them are counted.
    /// Returns whether all shards have answered.
    ///
    /// # Errors
    ///
    /// As [`Dedup::count_batch`].
    pub fn end_holds(&self) -> Result<bool> {
        let pool = &self.pool;
        let _job = pool.batches().job_for(Urgency::AtOnce)?;
        pool.journal().check_writable()?;
        let Executor::Shared(index) = pool.index().executor()? else {
            return Ok(true);
        };
        let (version, later) = pool.journal().outdate_lookups()?;
        pool.batches().settle_open_batch()?;
        while Guard::HoldsEndAfterCount.holds()
            && pool.journal().metadata()?.claims().numbers().start < later
            && pool.batches().count_claims(Urgency::AtOnce)?.items() > 0
        {}
        let ended = index.end_holds(version, END_PATIENCE);
        meet(pool.journal(), &index, &ended.met);
        Ok(ended.unanswered == 0)
    }

    /// Calls `alarm` whenever the number of claims passes a multiple of `every`. It must not wait for a
    /// request. Further calls of this have no effect.
    pub fn set_claims_alarm(&self, every: u64, alarm: Box<dyn Fn() + Send + Sync>) {
        let alarm = ClaimsAlarm::new(every, alarm);
        self.pool.batches().claimed().set_alarm(alarm);
    }

    /// Writes make no claims until the guard is dropped, or [`Dedup::collect_batch`] has announced its batch.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn hold_hits(&self) -> Result<HitsHeld<'_>> {
        hold_hits(self.pool.journal())
    }

    /// The most references that may wait to be counted by the index; at this number further hits are refused.
    #[must_use]
    pub fn claims_max(&self) -> u64 {
        self.pool.limits().claims_max
    }

    /// The most claims whose fingerprints are kept, so that they are counted without reading their blocks.
    #[must_use]
    pub fn claim_fingerprints_max(&self) -> u64 {
        self.pool.limits().claim_fingerprints_max
    }

    /// References that the index does not count yet.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn claimed_blocks(&self) -> Result<u64> {
        Ok(self.pool.journal().metadata()?.claims().blocks())
    }
}
