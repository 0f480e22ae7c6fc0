//! When blocks are handed out again: once no reader can still see their old content (P3).

use std::collections::VecDeque;
use std::sync::Arc;

use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Guard, PbaRuns, Result};

use super::epoch::{Epoch, Epochs};
use super::host_space::HostSpace;

/// How often a wait for readers looks whether they have ended: every millisecond, for a second.
const DRAIN_TRIES: u32 = if cfg!(feature = "simulation") {
    8
} else {
    1_000
};

/// In a simulation, where one thread does everything, nobody else can end a read.
fn wait_a_little() {
    if !cfg!(feature = "simulation") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Blocks that were released, until their readers have drained.
pub struct Reuse {
    epochs: Arc<Epochs>,
    /// Blocks that durable records released, until their readers have drained.
    deferred_frees: Mutex<VecDeque<(Epoch, PbaRuns)>>,
    /// Held while drained blocks are moved from `deferred_frees` to free space.
    reclaiming: Mutex<()>,
    host_space: HostSpace,
}

impl Reuse {
    pub(super) fn new(host_space: HostSpace) -> Self {
        Self {
            epochs: Arc::new(Epochs::new()),
            deferred_frees: Mutex::default(),
            reclaiming: Mutex::default(),
            host_space,
        }
    }

    /// Free space that the host may have back.
    pub fn host_space(&self) -> &HostSpace {
        &self.host_space
    }

    /// Readers, which keep blocks from being reused: blocks released from now on get the current epoch or
    /// a later one.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Defers the freeing of blocks whose records are durable until their readers have drained.
    pub(super) fn give_up(&self, runs: PbaRuns) {
        if !runs.is_empty() {
            lock(&self.deferred_frees).push_back((self.epochs.current(), runs));
        }
    }

    /// Frees the blocks whose readers have drained.
    pub fn reclaim(&self) -> Result<()> {
        let _turn = lock(&self.reclaiming);
        let mut deferred_frees = lock(&self.deferred_frees);
        self.epochs.advance();
        let mut drained = Vec::new();
        while let Some((epoch, _)) = deferred_frees.front() {
            if Guard::ReuseAfterReaders.holds() && !self.epochs.is_drained(*epoch) {
                break;
            }
            drained.extend(
                deferred_frees
                    .pop_front()
                    .into_iter()
                    .flat_map(|(_, runs)| runs),
            );
        }
        drop(deferred_frees);
        self.host_space.free(&drained)
    }

    /// Waits for some time until no read that began in `then` or earlier is in flight. Returns whether none is.
    pub fn drain(&self, then: Epoch) -> Result<bool> {
        for _ in 0..DRAIN_TRIES {
            self.reclaim()?;
            if self.epochs.is_drained(then) {
                return Ok(true);
            }
            wait_a_little();
        }
        Ok(false)
    }

    /// Whether the readers of all blocks released up to `then` have drained.
    pub fn is_reclaimed(&self, then: Epoch) -> bool {
        let _turn = lock(&self.reclaiming);
        let deferred_frees = lock(&self.deferred_frees);
        deferred_frees
            .front()
            .is_none_or(|(epoch, _)| *epoch > then)
    }
}
