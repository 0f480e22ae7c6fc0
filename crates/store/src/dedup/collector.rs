//! The collector: releases dropped references, and frees the blocks that lost their last one
//! ([DEDIS §4.4]).
//!
//! 0. fingerprint the blocks, and have the index count all claims (P3): see `counting.rs`
//! 1. a record takes elements off the head of the queue
//! 2. commit: that record, and the ones that dropped the references, are durable (P3)
//! 3. release all references in the index by one call
//! 4. log the result for each: *remaining*, *freed*, or *quarantined* if index and block disagree:
//!    such a block is left alone and reported (P8)
//!
//! From 1 to 4 a write that has the content of one of the blocks may not refer to it, so slow work is done
//! before, and nothing waits for an idle processor while writes make claims.
//!
//! The fingerprint of a bad block cannot be computed. The block is released by the fingerprint
//! under which the index has it, from the list of bad blocks or a search of all rows.
//!
//! Step 4's freed blocks are deferred frees like all released blocks: reusable once that record is
//! durable and all readers have drained.

use std::ops::ControlFlow;

use onefold_format::batch_page::BatchItem;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{Pba, Record};
use onefold_index::Fingerprint;
use onefold_metadata::{Blocking, Guard, MetadataState, QueueKind, Result, StoreError};
use rustc_hash::FxHashMap;

use super::counting::hold_hits;
use super::{Dedup, Pace};
use crate::batches::{CollectReport, Urgency};

/// The most references that one batch releases.
pub const COLLECT_BATCH_BLOCKS: u64 = BATCH_ITEMS_MAX as u64;

impl Dedup {
    /// Releases up to [`COLLECT_BATCH_BLOCKS`] references, after all claims have been counted. If it
    /// releases none, none are left, except those that other groups of a shared pool hold.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`].
    pub fn collect_batch(&self) -> Result<CollectReport> {
        let mut at_once = || ControlFlow::Continue(u64::MAX);
        let report = self.collect_batch_paced(&mut at_once)?;
        Ok(report.unwrap_or_default())
    }

    /// Like [`Dedup::collect_batch`], but at this [`Pace`]: the blocks are read without a lock. If it breaks off, nothing is
    /// released, and there is no report.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`].
    pub fn collect_batch_paced(&self, pace: Pace<'_>) -> Result<Option<CollectReport>> {
        let pool = &self.pool;
        pool.journal().check_writable()?;
        let before = (pool.journal().lookup_version(), pool.bad().clears());
        let metadata = pool.journal().metadata()?;
        if metadata.queue().blocks() == 0 && metadata.batches().open().is_none() {
            return Ok(Some(CollectReport::default()));
        }
        let mut urgency = match metadata.claims().blocks() {
            0 => Urgency::Background,
            _ => Urgency::AtOnce,
        };
        drop(metadata);
        let Some(mut known) = self.fingerprint_head(urgency, &mut *pace)? else {
            return Ok(None);
        };
        if pace.before_flushes().is_break() {
            return Ok(None);
        }
        let _job = pool.batches().job_for(urgency)?;
        pool.journal().check_writable()?;
        let index = pool.index().executor()?;
        pool.batches().settle_open_batch()?;
        if pool.journal().metadata()?.queue().blocks() == 0 {
            return Ok(Some(CollectReport::default()));
        }
        // Another batch may have freed some of them, and then they may have been written again; or a bad
        // one was repaired.
        if (pool.journal().lookup_version(), pool.bad().clears()) != before {
            known.clear();
        }
        // Counts most claims while writes may still make more: hits are held only for the rest.
        if Guard::ClaimsBeforeRelease.holds() && pool.batches().count_claims(urgency)?.items() > 0 {
            urgency = Urgency::AtOnce;
        }
        let held = hold_hits(pool.journal())?;
        while Guard::ClaimsBeforeRelease.holds()
            && pool.batches().count_claims(Urgency::AtOnce)?.items() > 0
        {}
        let mut metadata = pool.journal().metadata()?;
        let number = metadata.batches().next_number();
        let elements = metadata.count_head(QueueKind::Dropped, BATCH_ITEMS_MAX.into())? as u32;
        drop(metadata);
        // An error after the announcement would leave a batch that the finder has to settle first.
        index.secure(&[elements as usize])?;
        let collect = Record::Collect { number, elements };
        pool.journal()
            .append(&[collect], &[], Blocking::Yes, Some(&no_claims))?;
        pool.batches().note_announced(number);
        drop(held);
        if Guard::IntentBeforeCall.holds() {
            pool.batches().commit(urgency)?;
        }
        let open = pool.journal().metadata()?.batches().open().cloned();
        let Some(batch) = open else {
            return Ok(Some(CollectReport::default()));
        };
        let report = pool.batches().settle_collector(&batch, &known, urgency)?;
        Ok(Some(report))
    }

    /// Dropped references that are not released yet.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn pending_release_blocks(&self) -> Result<u64> {
        Ok(self.pool.journal().metadata()?.queue().blocks())
    }

    /// Fingerprints of the blocks that the next batch will release. They hold for as long as no published
    /// block is freed and no bad one repaired (P1); with bad blocks there are none. The job lock is not held,
    /// because counting needs it. Nothing if `pace` breaks off.
    fn fingerprint_head(
        &self,
        urgency: Urgency,
        pace: Pace<'_>,
    ) -> Result<Option<FxHashMap<Pba, Fingerprint>>> {
        if self.pool.bad().is_any() {
            return Ok(Some(FxHashMap::default()));
        }
        let mut metadata = self.pool.journal().metadata()?;
        let mut items = metadata.peek_head(QueueKind::Dropped, BATCH_ITEMS_MAX.into())?;
        drop(metadata);
        items.sort_unstable_by_key(|item| (item.domain, item.pba));
        items.dedup_by_key(|item| item.pba);
        let mut known = FxHashMap::default();
        for same_domain in items.chunk_by(|one, other| one.domain == other.domain) {
            let (domain, block) = (same_domain[0].domain, |item: &BatchItem| Some(item.pba));
            match self.read_in_pieces(same_domain, &block, domain, urgency, &mut *pace) {
                Some(read) => known.extend(read),
                None => return Ok(None),
            }
        }
        Ok(Some(known))
    }
}

/// P3: a release is announced only while every reference of an entry is counted.
fn no_claims(metadata: &MetadataState) -> Result<()> {
    match metadata.claims().blocks() {
        0 => Ok(()),
        _ if !Guard::ClaimsBeforeRelease.holds() => Ok(()),
        claims => Err(StoreError::damaged(format!(
            "{claims} references are claimed while hits are held; this is a defect of onefold"
        ))),
    }
}
