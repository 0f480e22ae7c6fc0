//! The finder: publishes private blocks in the index, and lets equal ones share one block
//! ([DEDIS §4.3]).
//!
//! 1. publish: under the blocks' locks their entries become shared, announced by a record; from
//!    here on no write goes to these blocks (P1)
//! 2. commit: content, owner's record and announcement are durable (P2)
//! 3. read the blocks back, fingerprint them, count all of them in the index by one call (P3)
//! 4. under the locks again, log the result for each: *inserted*, *aliased*, *dangling*, *rejected*
//!    or *declined* (see [`Outcome`])
//!
//! A crash after 1 leaves an open batch; it is settled by doing 3 and 4 again under the same
//! number, for which the index gives its original answers (P4). One batch is open at a time in a
//! pool, so no other batch can touch its items.
//!
//! An unreadable block is listed as bad, and the batch is called off: the index is called with no
//! items under its number, and all of its blocks are private again. If the index has counted them
//! before, it gives those answers instead. No batch takes a block known to be bad, and no entry is
//! made to refer to one: the finder repairs it first (`repair.rs`).

mod publish;

use onefold_format::Lba;
use onefold_format::record::BATCH_ITEMS_MAX;
use onefold_journal::PAGES_FOR_FINDER;
use onefold_metadata::{Blocking, Result};

use super::Dedup;
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
        let pool = &self.pool;
        // The caller waits for all of it.
        let _hurry = (ready == Ready::All).then(|| pool.background().hurry());
        let _job = pool.batches().job_in_background()?;
        pool.journal().check_writable()?;
        let index = pool.index().ready()?;
        pool.batches().settle_open_batch()?;
        volume.check_has_blocks()?;
        let start = *cursor;
        if pool.is_shrinking()? {
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
        let announced = self.announce(volume, cursor, ready);
        let at_end = announced.map_err(|e| {
            e.during(format_args!(
                "looking for duplicates in '{}'",
                volume.name()
            ))
        })?;
        let report = pool.batches().settle_open_batch()?;
        if report.unreadable > 0 {
            *cursor = start;
            return Ok(report);
        }
        Ok(BatchReport { at_end, ..report })
    }
}
