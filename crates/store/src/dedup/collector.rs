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
//! From 1 to 4 a write that has the content of one of the blocks may not refer to it, so whatever takes long
//! is done before, and nothing waits for an idle processor while writes make claims.
//!
//! The fingerprint of a bad block cannot be computed. It is released by the one under which the
//! index has it, which the list of bad blocks has, or which a search of all rows finds.
//!
//! Step 4's freed blocks are deferred frees like all released blocks: reusable once that record is
//! durable and all readers have drained.

use onefold_format::{Pba, Record, Release};
use onefold_index::{Fingerprint, Released};
use rustc_hash::FxHashMap;

use super::counting::Urgency;
use super::index::{STREAM, last_answers};
use crate::pool::Pool;
use crate::store::Store;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_metadata::{
    Blocking, Guard, MetadataState, OpenBatch, PbaRun, PbaRuns, QueueKind, Result, StoreError,
};

/// References that one batch releases at most.
pub const COLLECT_BATCH_BLOCKS: u64 = BATCH_ITEMS_MAX as u64;

/// Items settled under one hold of the uncommitted state.
const ITEMS_PER_STEP: usize = 512;

/// The result of a collector's batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// References released.
    pub released: u64,
    /// Of these, the last ones of their blocks, which are free.
    pub freed: u64,
    /// Of these, those that the index did not know: their blocks are left alone.
    pub quarantined: u64,
}

impl Store {
    /// Releases up to [`COLLECT_BATCH_BLOCKS`] references, after all claims have been counted. None are
    /// left where it released none.
    ///
    /// # Errors
    ///
    /// As [`Store::dedup_batch`].
    pub fn collect_batch(&self) -> Result<CollectReport> {
        let pool = &self.pool;
        pool.journal.check_writable()?;
        let before = (pool.journal.lookup_version(), pool.bad.clears());
        let metadata = pool.journal.metadata()?;
        if metadata.queue().blocks() == 0 && metadata.batches().open().is_none() {
            return Ok(CollectReport::default());
        }
        let mut urgency = match metadata.claims().blocks() {
            0 => Urgency::Background,
            _ => Urgency::AtOnce,
        };
        drop(metadata);
        let mut known = pool.fingerprint_head(urgency)?;
        let _job = pool.job_for(urgency)?;
        pool.journal.check_writable()?;
        let index = pool.index.ready()?;
        pool.settle_open_batch()?;
        if pool.journal.metadata()?.queue().blocks() == 0 {
            return Ok(CollectReport::default());
        }
        // Another batch may have freed some of them, and then they may have been written again; or a bad
        // one was repaired.
        if (pool.journal.lookup_version(), pool.bad.clears()) != before {
            known.clear();
        }
        // Most of them while writes may still make some: they are stopped for the rest only.
        if Guard::ClaimsBeforeRelease.holds() && pool.count_claims(urgency)?.items() > 0 {
            urgency = Urgency::AtOnce;
        }
        let held = pool.hold_hits()?;
        while Guard::ClaimsBeforeRelease.holds() && pool.count_claims(Urgency::AtOnce)?.items() > 0
        {
        }
        let mut metadata = pool.journal.metadata()?;
        let number = metadata.batches().next_number();
        let elements = metadata.count_head(QueueKind::Dropped, BATCH_ITEMS_MAX.into())? as u32;
        drop(metadata);
        // A batch that is open would be in the finder's way, too.
        index.secure(&[elements as usize])?;
        let collect = Record::Collect { number, elements };
        pool.journal
            .append(&[collect], &[], Blocking::Yes, Some(&no_claims))?;
        drop(held);
        if Guard::IntentBeforeCall.holds() {
            pool.commit(urgency)?;
        }
        let open = pool.journal.metadata()?.batches().open().cloned();
        let Some(batch) = open else {
            return Ok(CollectReport::default());
        };
        pool.settle_collector(&batch, &known, urgency)
    }

    /// Dropped references that are not released yet.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn queued_blocks(&self) -> Result<u64> {
        Ok(self.pool.journal.metadata()?.queue().blocks())
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

impl Pool {
    /// Fingerprints of the blocks that the next batch will release. They hold for as long as no published
    /// block is freed and no bad one repaired (P1); with bad blocks there are none. The job lock is not held,
    /// because counting needs it.
    fn fingerprint_head(&self, urgency: Urgency) -> Result<FxHashMap<Pba, Fingerprint>> {
        if self.bad.is_any() {
            return Ok(FxHashMap::default());
        }
        let mut metadata = self.journal.metadata()?;
        let items = metadata.peek_head(QueueKind::Dropped, BATCH_ITEMS_MAX.into())?;
        drop(metadata);
        let unknown = vec![None; items.len()];
        let read = self.run(urgency, || self.fingerprint_unknown(&items, &unknown))?;
        let found = read.items.into_iter();
        let mut known: FxHashMap<Pba, Fingerprint> =
            found.map(|(fingerprint, pba)| (pba, fingerprint)).collect();
        // The batch tries them again, and lists them.
        for pba in &read.unreadable {
            known.remove(pba);
        }
        Ok(known)
    }

    /// Steps 3 and 4; blocks whose fingerprints are not known are read.
    pub(super) fn settle_collector(
        &self,
        batch: &OpenBatch,
        known: &FxHashMap<Pba, Fingerprint>,
        urgency: Urgency,
    ) -> Result<CollectReport> {
        let index = self.index.ready()?;
        let answers = self.run(urgency, || -> Result<_> {
            let items = batch.unsettled();
            let known = items.iter().map(|item| known.get(&item.pba).copied());
            let found = self.fingerprint_unknown(items, &known.collect::<Vec<_>>())?;
            let items = self.published_fingerprints(&*index, found)?;
            Ok(index.decrement(STREAM, batch.number, &items)?)
        })?;
        let answers = last_answers(&answers, batch)?;
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
                Released::Mismatch | Released::Unknown => {
                    tracing::error!(
                        "block {} of the pool was released, but the index does not have it: it is \
                         quarantined; run `pool check --repair`",
                        item.pba
                    );
                    Release::Quarantined
                }
            };
            report.released += 1;
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
