//! The finder: publishes private blocks in the index, and lets equal ones share one block
//! ([DEDIS §4.3]).
//!
//! 1. read cold blocks at the pace of the caller, and fingerprint them
//! 2. publish: under the blocks' locks the entries of those that did not change since become shared, announced by a
//!    record; from here on no write goes to these blocks (P1)
//! 3. commit: content, owner's record and announcement are durable (P2)
//! 4. count all of them in the index by one call (P3)
//! 5. under the locks again, log the result for each: *inserted*, *aliased*, *dangling*, *rejected*
//!    or *declined* (see [`Outcome`])
//!
//! A batch in step 1 exists in memory only; the caller's pace may make it wait there, before flushes of the device.
//! A batch of all private blocks has some that are being written,
//! so it is read between 3 and 4.
//!
//! A crash after 2 leaves an open batch; its blocks are read again, and 4 and 5 are done under the same
//! number, for which the index gives its original answers (P4). One batch is open at a time in a
//! pool, so no other batch can touch its items.
//!
//! An unreadable block is listed as bad, and the batch is called off: the index is called with no
//! items under its number, and all of its blocks are private again. If the index has counted them
//! before, it gives those answers instead. No batch takes a block known to be bad, and no entry is
//! made to refer to one: the finder repairs it first (`repair.rs`).

mod publish;
mod scan;

use std::ops::ControlFlow;

use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_format::{Lba, Pba};
use onefold_index::Fingerprint;
use onefold_journal::PAGES_FOR_FINDER;
use onefold_metadata::{Blocking, Result};
use rustc_hash::FxHashMap;

use self::scan::Scan;
use super::{Dedup, Pace};
use crate::batches::BatchReport;
use crate::volume::Volume;

/// Which private blocks a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Every private block.
    All,
    /// Private blocks that were not written for as many passes as the volume's setting
    /// ([DEDIS §4.5]). Each scan of the whole volume is one pass.
    Cold,
}

/// Cold blocks that were read, and their fingerprints.
type ReadAhead = (Scan, FxHashMap<Pba, Fingerprint>);

impl Dedup {
    /// Publishes up to 16,384 private blocks of `volume`, from `cursor` on, and moves the cursor.
    /// First settles a batch that a crash or an error left open. Publishes nothing while the pool
    /// shrinks. Only a batch of cold blocks waits for idle processors.
    ///
    /// # Errors
    ///
    /// `Gone` once the volume is deleted; `Busy` while the index is being counted again; `Damaged`
    /// if it cannot be used; `NoSpace` if the host has no room for metadata or for the index; I/O
    /// errors. The next call settles items that were announced before the error.
    pub fn find_batch(
        &self,
        volume: &Volume,
        cursor: &mut Lba,
        ready: Ready,
    ) -> Result<BatchReport> {
        if ready == Ready::All {
            // The caller waits for all of it.
            let _hurry = self.pool.background().hurry();
            return self.publish(volume, cursor, None);
        }
        let mut at_once = || ControlFlow::Continue(u64::MAX);
        let report = self.find_cold_batch(volume, cursor, &mut at_once)?;
        Ok(report.unwrap_or_default())
    }

    /// Like [`Dedup::find_batch`] for cold blocks, which are read at this [`Pace`], without a lock. If it breaks off, the
    /// batch is dropped without a trace, and there is no report.
    ///
    /// # Errors
    ///
    /// As [`Dedup::find_batch`].
    pub fn find_cold_batch(
        &self,
        volume: &Volume,
        cursor: &mut Lba,
        pace: Pace<'_>,
    ) -> Result<Option<BatchReport>> {
        self.pool.journal().check_writable()?;
        // Before anything is read for nothing.
        self.pool.index().executor()?;
        volume.check_has_blocks()?;
        let Ok(_alone) = self.scanning.try_lock() else {
            return Ok(None);
        };
        let layer = volume.layer();
        // Nothing is read that could not be published.
        let scan =
            if self.pool.journal().metadata()?.space().is_shrinking() || self.room(&layer)? == 0 {
                Scan::of_nothing(layer)
            } else {
                self.scan(volume, layer, *cursor)?
            };
        let Some(read) = self.read_candidates(&scan, &mut *pace) else {
            return Ok(None);
        };
        if !scan.is_empty() && pace.before_flushes().is_break() {
            return Ok(None);
        }
        self.publish(volume, cursor, Some(&(scan, read))).map(Some)
    }

    /// Steps 2 to 5: for blocks that were read, or for all private blocks from `cursor` on, which are read now.
    fn publish(
        &self,
        volume: &Volume,
        cursor: &mut Lba,
        ahead: Option<&ReadAhead>,
    ) -> Result<BatchReport> {
        let pool = &self.pool;
        let _job = pool.batches().job_in_background()?;
        pool.journal().check_writable()?;
        let index = pool.index().executor()?;
        pool.batches().settle_open_batch()?;
        volume.check_has_blocks()?;
        let start = *cursor;
        if pool.journal().metadata()?.space().is_shrinking() {
            // A copy would only be aliased to the block that it was made to empty.
            return Ok(BatchReport {
                at_end: true,
                ..BatchReport::default()
            });
        }
        pool.journal()
            .secure_pages(PAGES_FOR_FINDER, Blocking::Yes)?;
        // If the index has room for only one batch, the collector gets it.
        index.secure(&[BATCH_ITEMS_MAX as usize; 2])?;
        let announced = match ahead {
            Some((scan, _)) => self.announce_read(volume, cursor, scan),
            None => self.announce_all(volume, cursor),
        };
        let at_end = announced.map_err(|e| {
            e.during(format_args!(
                "looking for duplicates in '{}'",
                volume.name()
            ))
        })?;
        let report = match ahead {
            Some((_, read)) => pool.batches().settle_open_batch_read(read)?,
            None => pool.batches().settle_open_batch()?,
        };
        if report.unreadable > 0 {
            *cursor = start;
            return Ok(report);
        }
        Ok(BatchReport { at_end, ..report })
    }
}
