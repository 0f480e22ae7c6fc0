//! Giving a volume blocks of its own again, step by step, as fast as guests allow.

use crate::foreground::Foreground;
use crate::limits::{BATCH_GAP, UNSHARE_SHARE_FLOOR};
use crate::maintenance::Maintenance;
use crate::pacing::Pacer;
use crate::thread::JobThread;
use onefold_store::{Result, Store, StoreError, StoreErrorKind, Unsharing};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

/// How a call ended. Copied blocks stay copied; another call continues with the rest.
#[derive(Debug)]
pub struct Unshared {
    /// Blocks that were copied.
    pub copied_blocks: u64,
    /// Whether the caller cancelled it before its end.
    pub was_broken_off: bool,
    /// The error that ended it early.
    pub failure: Option<StoreError>,
}

/// Copies the blocks that a volume or snapshot shares, or with `min_run` only blocks in shorter runs,
/// for a process that has the pool to itself; then releases the references to the originals.
///
/// `progress(blocks)` gets the number of blocks copied so far, and can cancel between steps.
///
/// # Errors
///
/// `NotFound`; errors of the disk.
pub fn unshare_now(
    store: &Store,
    name: &str,
    min_run: Option<u16>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Unshared> {
    let mut rest = |_: Duration| thread::sleep(BATCH_GAP);
    let unshared = unshare(store, name, min_run, &mut rest, progress)?;
    store.space().free_dropped()?;
    Ok(unshared)
}

impl Maintenance {
    /// Like [`unshare_now`], but while guests run, who go first. The collector's thread releases
    /// the old references. Broken off if the store is removed.
    ///
    /// # Errors
    ///
    /// Errors of [`unshare_now`].
    pub fn unshare(
        &self,
        store: &Store,
        name: &str,
        min_run: Option<u16>,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Unshared> {
        // Whoever removes the store waits for this.
        let jobs = self.registry.find(store);
        let is_leaving = || jobs.as_ref().is_none_or(|jobs| jobs.flags().is_leaving());
        let mut progress = |blocks| match progress(blocks) {
            ControlFlow::Continue(()) if is_leaving() => ControlFlow::Break(()),
            flow => flow,
        };
        let pacer = Pacer::new(self.latency_budget, UNSHARE_SHARE_FLOOR);
        let thread = JobThread::new(&self.signal);
        let mut foreground = Foreground::new(&self.registry, &thread, pacer);
        let mut rest = |worked| foreground.rest_after_unless(worked, &is_leaving);
        unshare(store, name, min_run, &mut rest, &mut progress)
    }
}

fn unshare(
    store: &Store,
    name: &str,
    min_run: Option<u16>,
    rest: &mut dyn FnMut(Duration),
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Unshared> {
    let mut unsharing = Unsharing::new(store.volume(name)?, min_run);
    let mut ended = Unshared {
        copied_blocks: 0,
        was_broken_off: false,
        failure: None,
    };
    loop {
        let began = Instant::now();
        let stepped = match unsharing.step() {
            // Originals that no other entry shares become free once their references are released.
            Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                match store.space().free_dropped() {
                    Ok(true) => Ok(true),
                    Ok(false) | Err(_) => Err(error),
                }
            }
            stepped => stepped,
        };
        ended.copied_blocks = unsharing.copied_blocks();
        match stepped {
            Ok(true) => {}
            Ok(false) => return Ok(ended),
            Err(error) => {
                ended.failure = Some(error);
                return Ok(ended);
            }
        }
        if progress(ended.copied_blocks).is_break() {
            ended.was_broken_off = true;
            return Ok(ended);
        }
        rest(began.elapsed());
    }
}
