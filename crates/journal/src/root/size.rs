//! The pool's size, as in the root: see `resize.rs` in the store.

use onefold_format::{Provisioning, Root};
use onefold_metadata::{Guard, Result, StoreError, StoreErrorKind};

use super::PoolRoot;

impl PoolRoot {
    /// Grows the pool, durably; a shrink is cancelled if the pool already has as many blocks.
    pub fn grow(&self, blocks: u64) -> Result<()> {
        let size_bytes = blocks * self.state.block_size;
        let mut root = self.lock();
        self.state.check_writable()?;
        if blocks < root.pool_blocks {
            let message = format!("the pool is larger than {size_bytes} bytes already");
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        if blocks > root.pool_blocks
            && self.state.data.provisioning() == Provisioning::Thick
            && self.state.data.len()? < size_bytes
        {
            let message =
                "another command has changed the pool's size in the meantime; repeat this one";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        }
        if blocks == root.pool_blocks || Guard::DataGrownBeforeRoot.holds() {
            self.set_data_len(size_bytes)?;
        }
        if (blocks, None) != (root.pool_blocks, root.shrink_to) {
            self.switch_size(&mut root, blocks, None)?;
            let mut uncommitted = self.state.uncommitted()?;
            let space = uncommitted.metadata.space_mut();
            space.grow(blocks);
            space.set_end(blocks)?;
        }
        Ok(())
    }

    /// Allocates the host's space for a pool that is about to grow to `blocks`: up to `bytes` from `cursor` on, which
    /// moves. No block of the pool is there yet. Returns whether there is more to allocate.
    pub fn allocate_beyond(&self, cursor: &mut u64, blocks: u64, bytes: u64) -> Result<bool> {
        let root = self.lock();
        self.state.check_writable()?;
        let block_size = self.state.block_size;
        // Other commands may have made the pool larger since, or cut what was allocated.
        let at = (*cursor).min(self.state.data.len()?);
        let at = at.max(root.pool_blocks * block_size);
        let end = blocks * block_size;
        let left = end.saturating_sub(at);
        let len = bytes.min(left);
        if len > 0 {
            let data = &self.state.data;
            let allocated = data.check_room(left).and_then(|()| data.allocate(at, len));
            allocated.map_err(|error| StoreError::io("allocating space for the pool", error))?;
        }
        *cursor = at + len;
        Ok(*cursor < end)
    }

    /// Stops handing out blocks beyond `end`, durably.
    pub fn begin_shrink(&self, end: u64) -> Result<()> {
        let mut root = self.lock();
        self.state.check_writable()?;
        if end >= root.pool_blocks {
            let message = "the pool has become smaller";
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        let blocks = root.pool_blocks;
        self.state
            .uncommitted()?
            .metadata
            .space_mut()
            .set_end(end)?;
        self.switch_size(&mut root, blocks, Some(end))
    }

    /// Cancels a shrink, durably.
    pub fn cancel_shrink(&self) -> Result<()> {
        let mut root = self.lock();
        if root.shrink_to.is_none() {
            return Ok(());
        }
        self.state.check_writable()?;
        let blocks = root.pool_blocks;
        self.switch_size(&mut root, blocks, None)?;
        self.state
            .uncommitted()?
            .metadata
            .space_mut()
            .set_end(blocks)
    }

    /// Cuts the data part of a pool that no longer shrinks.
    pub fn cut_data(&self) -> Result<()> {
        let root = self.lock();
        match root.shrink_to {
            None => self.set_data_len(root.pool_blocks * self.state.block_size),
            Some(_) => Ok(()),
        }
    }

    /// Sets the length of the data part for a pool of this size. The caller holds the root.
    fn set_data_len(&self, size_bytes: u64) -> Result<()> {
        let set = self.state.data.set_len(size_bytes);
        set.map_err(|error| StoreError::io("resizing the pool", error))?;
        self.state.sync_data()
    }

    /// Makes a root durable that differs from the previous one only in the pool's size.
    fn switch_size(&self, root: &mut Root, blocks: u64, shrink_to: Option<u64>) -> Result<()> {
        let next = Root {
            sequence: root.sequence + 1,
            pool_blocks: blocks,
            shrink_to,
            ..*root
        };
        self.switch(root, next)
    }
}
