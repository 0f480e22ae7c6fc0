//! What a pool holds, counted to the block.

use std::sync::Arc;

use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::volume::Volume;
use onefold_format::page::PAGE_BYTES;

/// What a volume holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStat {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its blocks that hold data.
    pub logical_blocks: u64,
}

/// What a pool holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStat {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the pool, the label's included.
    pub pool_blocks: u64,
    /// Entries that hold data, over all volumes, those being imported or deleted included.
    pub logical_blocks: u64,
    /// Blocks that one entry owns.
    pub private_blocks: u64,
    /// Blocks that can be handed out.
    pub free_blocks: u64,
    /// Blocks that were given up and are not free yet.
    pub reclaim_blocks: u64,
    /// Bytes that the host has allocated for data.
    pub pool_bytes_on_disk: u64,
    /// Bytes of metadata in use: pages, log and superblock.
    pub metadata_bytes_on_disk: u64,
    /// Volumes in use, by name.
    pub volumes: Vec<VolumeStat>,
}

impl Store {
    /// Counts what the pool holds.
    ///
    /// # Errors
    ///
    /// `Io` where the host cannot say how much it has allocated.
    pub fn stat(&self) -> Result<PoolStat> {
        let volumes: Vec<Arc<Volume>> = self.volumes_in_use();
        let pool = &self.pool;
        let ledger = pool.ledger()?;
        let space = &ledger.books.space;
        let private_blocks = pool.maps.private_blocks();
        let (pool_blocks, free_blocks) = (space.blocks(), space.free_blocks());
        let reclaim_blocks = space.held_blocks();
        drop(ledger);
        let on_disk = pool.data.allocated_bytes();
        let pool_bytes_on_disk = on_disk.map_err(|e| StoreError::io(&pool.data_name, e))?;
        let pages = pool.pages.used_count() + 1;
        Ok(PoolStat {
            block_size: self.block_size(),
            pool_blocks,
            logical_blocks: private_blocks,
            private_blocks,
            free_blocks,
            reclaim_blocks,
            pool_bytes_on_disk,
            metadata_bytes_on_disk: pages * PAGE_BYTES as u64 + pool.superblock.log_bytes,
            volumes: volumes.iter().map(|volume| volume_stat(volume)).collect(),
        })
    }

    /// What one volume holds.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn volume_stat(&self, name: &str) -> Result<VolumeStat> {
        Ok(volume_stat(&*self.volume(name)?))
    }
}

fn volume_stat(volume: &Volume) -> VolumeStat {
    VolumeStat {
        name: volume.name(),
        size_bytes: volume.size_bytes(),
        logical_blocks: volume.logical_blocks(),
    }
}
