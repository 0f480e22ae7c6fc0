//! The root: the page that makes a checkpoint, the pool's size and its version valid.

mod size;
mod version;

use std::sync::Arc;

use onefold_format::page::PAGE_BYTES;
use onefold_format::{PoolId, Root};
use onefold_metadata::sync::AtomicU8;
use onefold_metadata::{Guard, Result, StoreError};

use crate::group_commit::{GroupCommit, SharedGuard};
use crate::state::State;

/// The newest root. It is held while it is replaced: lock order in `lib.rs`.
pub struct PoolRoot {
    state: Arc<State>,
    pool: PoolId,
    current: GroupCommit<Root>,
    /// The minor version in the newest root.
    minor: AtomicU8,
}

impl PoolRoot {
    pub(super) fn new(state: Arc<State>, pool: PoolId, root: Root) -> Self {
        Self {
            state,
            pool,
            current: GroupCommit::new(root),
            minor: AtomicU8::new(root.minor),
        }
    }

    pub(super) fn lock(&self) -> SharedGuard<'_, Root> {
        self.current.lock()
    }

    /// Replaces the root by `work`, or joins a replacement that began later: see [`GroupCommit::run`].
    pub(super) fn run(&self, work: impl FnOnce(&mut Root) -> Result<()>) -> Result<()> {
        self.current.run(work)
    }

    /// Writes a root to its slot and makes it durable.
    pub(super) fn write(&self, root: &Root) -> Result<()> {
        let page = root.encode(self.pool);
        let at = root.slot().0 * PAGE_BYTES as u64;
        let disk = self.state.pages.disk();
        let mut written = disk.write_at(&page[..], at);
        if Guard::RootSyncedBeforeReuse.holds() {
            written = written.and_then(|()| disk.sync());
        }
        written.map_err(|error| StoreError::io("writing the pool's root", error))
    }

    /// Makes a root durable that differs from the current one in some fields only. A failure stops all
    /// writes.
    fn switch(&self, current: &mut Root, next: Root) -> Result<()> {
        self.write(&next)
            .inspect_err(|error| self.state.failure.set(error))?;
        *current = next;
        Ok(())
    }
}
