//! When blocks are handed out again: once no reader can still see their old content (P3).

use std::collections::VecDeque;
use std::sync::Arc;

use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Guard, PbaRuns, Result};

use super::epoch::{Epoch, Epochs};
use super::host_space::HostSpace;

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

    /// Whether the readers of all blocks released up to `then` have drained.
    pub fn is_reclaimed(&self, then: Epoch) -> bool {
        let _turn = lock(&self.reclaiming);
        let deferred_frees = lock(&self.deferred_frees);
        deferred_frees
            .front()
            .is_none_or(|(epoch, _)| *epoch > then)
    }
}
