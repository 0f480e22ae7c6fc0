//! The state that records change besides the maps.

use std::sync::Arc;

use super::batch::Batches;
use super::catalogue::Catalogue;
use super::map::Layer;
use super::queue::Queue;
use super::space::Space;
use crate::error::Result;

/// The state that records change, besides the maps.
pub struct MetadataState {
    pub(super) space: Space,
    pub(super) catalogue: Catalogue,
    /// Dropped references, for the collector.
    pub(super) queue: Queue,
    /// Announced and unsettled items of finder or collector.
    pub(super) batches: Batches,
    /// Trees of layers that are gone: the next checkpoint gives their pages up.
    pub(super) gone: Vec<Arc<Layer>>,
    /// An opening has applied all that the log and the copy of its tail have.
    pub(super) is_recovered: bool,
}

impl MetadataState {
    /// Free space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// To hand out blocks and take them back. Only records change the *named* bits.
    pub fn space_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    /// Volumes and snapshots.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// References that wait for the collector.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What finder or collector have announced.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Elements at the head of the queue with so many blocks at most: it may have to read them.
    pub fn count_queue_head(&mut self, blocks_max: u64) -> Result<u64> {
        self.queue.count_head(blocks_max)
    }

    /// An opening has applied all that the log and the copy of its tail have.
    pub fn end_recovery(&mut self) {
        self.is_recovered = true;
    }

    /// Pages besides those of the maps that the next checkpoint must write.
    pub fn dirty_pages(&self) -> usize {
        self.space.dirty_count() + self.queue.dirty_count()
    }
}
