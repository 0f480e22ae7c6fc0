//! Making a pool smaller, step by step, until it is done or cannot be.
//!
//! A block shared by many entries is copied for each of them, which may need more room than there
//! is. So a pool shrinks as far as there is room, the finder shares the copies again, and so on.

use crate::dedup::dedup_now;
use crate::limits::{BATCH_GAP, SHRINK_PAUSE, SHRINK_STEPS_MAX};
use onefold_store::{Result, Store, StoreError, StoreErrorKind};
use std::ops::ControlFlow;
use std::thread;

/// How a shrink ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shrunk {
    /// The pool has its new size.
    Done,
    /// Cancelled: another caller gave the pool another size, or cancelled the shrink.
    Cancelled,
    /// Interrupted; it can be resumed.
    BrokenOff,
    /// The pool keeps its size, because this number of blocks beyond the new end could not be
    /// freed.
    Stuck(u64),
}

/// Shrinks the pool to the given size.
///
/// `progress(done, all)` counts blocks, from zero in each step, and can cancel.
///
/// # Errors
///
/// Errors of [`Space::plan_shrink`](onefold_store::Space::plan_shrink); `NoSpace` if guests have filled the pool; `Io` if a block
/// cannot be moved; `Busy` or `Damaged` if the index cannot be used. Progress so far stays.
pub fn shrink_to(
    store: &Store,
    size_bytes: u64,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Shrunk> {
    let _hurry = store.hurry_background();
    loop {
        let first = store.space().plan_shrink(size_bytes)?.first_size_bytes;
        if store.space().shrinking_to()? != Some(first) {
            store.space().begin_shrink(first)?;
        }
        match shrink_now(store, progress)? {
            Shrunk::Done if store.space().size_bytes()? != first => return Ok(Shrunk::Cancelled),
            Shrunk::Done if first == size_bytes => return Ok(Shrunk::Done),
            Shrunk::Done => {}
            other => return Ok(other),
        }
        if dedup_now(store, None, progress)?.was_broken_off {
            return Ok(Shrunk::BrokenOff);
        }
    }
}

/// Continues to shrink the pool, as recorded. If guests fill it concurrently, or if some blocks
/// stay in use in spite of everything, the pool keeps its size.
///
/// `progress(done, all)` counts blocks, from zero in each step, and can cancel.
///
/// # Errors
///
/// `NoSpace` if guests have filled the pool, and `Io` if a block cannot be moved: then the pool keeps
/// its size. `Busy` or `Damaged` if the index cannot be used.
pub(crate) fn shrink_now(
    store: &Store,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Shrunk> {
    let (mut fewest, mut in_vain) = (u64::MAX, 0);
    let mut progress = |done, all| {
        // Lets other callers take the job lock.
        thread::sleep(BATCH_GAP);
        progress(done, all)
    };
    loop {
        let report = match store.space().shrink_step(&mut progress) {
            Ok(report) => report,
            Err(error) => {
                // Ending the shrink lets the finder work again, and only the finder can repair a
                // bad block. If ending fails as well, the daemon retries all of it.
                if keeps_its_size(&error) {
                    let _ = store.space().cancel_shrink();
                }
                return Err(error);
            }
        };
        if report.is_done {
            return Ok(Shrunk::Done);
        }
        if report.was_broken_off {
            return Ok(Shrunk::BrokenOff);
        }
        // Blocks left after a step are being read or written at the moment, unless they stay.
        in_vain = if report.left_blocks < fewest {
            0
        } else {
            in_vain + 1
        };
        fewest = fewest.min(report.left_blocks);
        if in_vain == SHRINK_STEPS_MAX {
            store.space().cancel_shrink()?;
            return Ok(Shrunk::Stuck(report.left_blocks));
        }
        thread::sleep(SHRINK_PAUSE);
    }
}

/// Whether the pool keeps its size after this error, because another try would end in the same way.
pub fn keeps_its_size(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::NoSpace | StoreErrorKind::Io)
}
