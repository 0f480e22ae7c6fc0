//! The space of a shared pool, as far as one of its groups knows it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use onefold_metadata::Result;
use onefold_metadata::sync::AtomicU64;

/// Takes space for this many blocks from the pool. Returns whether there was any; `Busy` if the cluster has not answered
/// in time.
pub type MoreSpace = Box<dyn Fn(u64) -> Result<bool> + Send + Sync>;

/// The space of the pool that is no group's, and how the group takes some. The numbers are hints: nothing else depends
/// on them.
#[derive(Default)]
pub struct SharedSpace {
    elsewhere: AtomicU64,
    pool_blocks: AtomicU64,
    more: OnceLock<MoreSpace>,
}

impl SharedSpace {
    /// Sets the function that takes space from the pool. Further calls have no effect.
    pub fn set_more(&self, more: MoreSpace) {
        let _ = self.more.set(more);
    }

    /// Notes how many blocks the pool has that are no group's, and how many in all.
    pub fn set(&self, elsewhere: u64, pool_blocks: u64) {
        self.elsewhere.store(elsewhere, Relaxed);
        self.pool_blocks.store(pool_blocks, Relaxed);
    }

    /// Blocks of the pool that are no group's.
    pub(super) fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Relaxed)
    }

    /// Blocks of the pool.
    pub(super) fn pool_blocks(&self) -> u64 {
        self.pool_blocks.load(Relaxed)
    }

    pub(super) fn take(&self, blocks: u64) -> Result<bool> {
        self.more.get().map_or(Ok(false), |more| more(blocks))
    }
}
