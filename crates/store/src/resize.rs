//! The pool's size, which changes while the pool is in use.
//!
//! Growing: the data part becomes longer and that is durable, then a root that says so is, and only
//! then new blocks are handed out. A crash in between leaves a data part that is longer than the
//! pool, which harms nobody.

use onefold_format::Root;
use onefold_format::units::PBA_END;

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::guard::Guard;
use crate::pool::Pool;
use crate::store::Store;

impl Store {
    /// Bytes of the pool: what it can hold, and one block for its label.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn size_bytes(&self) -> Result<u64> {
        let blocks = self.pool.ledger()?.books.space.blocks();
        Ok(blocks * self.pool.block_size())
    }

    /// Makes the pool larger, durably. Requests go on meanwhile. A size that it has already changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` for a size that is smaller, impossible, or no multiple of the block size; `NoSpace`
    /// where the device is smaller; those of the disk.
    pub fn grow(&self, size_bytes: u64) -> Result<()> {
        let pool = &self.pool;
        let blocks = pool.blocks_of_size(size_bytes)?;
        let mut root = pool.checkpoints.lock();
        pool.check_writable()?;
        if blocks < root.pool_blocks {
            let message = format!("the pool is larger than {size_bytes} bytes already");
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        if blocks == root.pool_blocks {
            return Ok(());
        }
        if Guard::DataGrownBeforeRoot.holds() {
            pool.lengthen_data(size_bytes)?;
        }
        let next = Root {
            sequence: root.sequence + 1,
            pool_blocks: blocks,
            ..*root
        };
        pool.write_root(&next)
            .inspect_err(|error| pool.fail(error))?;
        *root = next;
        pool.ledger()?.books.space.grow(blocks);
        if !Guard::DataGrownBeforeRoot.holds() {
            pool.lengthen_data(size_bytes)?;
        }
        Ok(())
    }
}

impl Pool {
    /// The number of blocks of a pool of this size, if there can be one.
    fn blocks_of_size(&self, size_bytes: u64) -> Result<u64> {
        let block_size = self.block_size();
        let blocks = size_bytes / block_size;
        let message = if !size_bytes.is_multiple_of(block_size) {
            format!("a size of {size_bytes} bytes is no multiple of the block size {block_size}")
        } else if !(2..=PBA_END).contains(&blocks) {
            format!("a pool of {size_bytes} bytes is too small or too large")
        } else {
            return Ok(blocks);
        };
        Err(StoreError::new(StoreErrorKind::Invalid, message))
    }

    /// Makes the data part at least as long as the pool is to be.
    fn lengthen_data(&self, size_bytes: u64) -> Result<()> {
        let set = self.data.set_len(size_bytes);
        set.map_err(|error| StoreError::io("growing the pool", error))?;
        self.sync_data().inspect_err(|error| self.fail(error))
    }
}
