//! The state that records change besides the maps.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::batch::Batches;
use super::catalogue::Catalogue;
use super::map::Layer;
use super::queue::{Queue, QueueKind};
use super::space::Space;
use crate::sync::AtomicU64;

/// The state that records change, besides the maps.
pub struct MetadataState {
    pub(super) space: Space,
    pub(super) catalogue: Catalogue,
    /// Dropped references, for the collector.
    pub(super) queue: Queue,
    /// References of entries that the index does not count yet.
    pub(super) claims: Queue,
    /// [`Limits::claims_max`](crate::Limits::claims_max).
    pub(super) claims_max: u64,
    /// Announced and unsettled items of finder, collector or counting.
    pub(super) batches: Batches,
    /// How far answers of the index are out of date.
    pub(super) lookup_version: Arc<LookupVersion>,
    /// No write may make a claim: the collector waits until there is none.
    pub(super) hits_held: bool,
    /// Trees of layers that are gone: the next checkpoint gives their pages up.
    pub(super) gone: Vec<Arc<Layer>>,
    /// An opening has applied all that the log and the copy of its tail have.
    pub(super) is_recovered: bool,
}

/// Changes whenever an earlier answer of the index is worth nothing any more: published blocks became
/// free, and may hold other content; or the index is being counted again, and a batch that the old one
/// had answered may end otherwise.
#[derive(Default)]
pub struct LookupVersion(AtomicU64);

impl LookupVersion {
    /// Before the index is asked. Whoever sees a version here sees the index as it was then, or later.
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// The caller holds the metadata, so that no hit is being admitted.
    pub(super) fn raise(&self) {
        self.0.fetch_add(1, AcqRel);
    }
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

    /// References that wait to be counted.
    pub fn claims(&self) -> &Queue {
        &self.claims
    }

    /// To be asked without a lock.
    pub fn lookup_version(&self) -> &Arc<LookupVersion> {
        &self.lookup_version
    }

    /// What the index has answered by now admits no hit.
    pub fn outdate_lookups(&mut self) {
        self.lookup_version.raise();
    }

    /// From now on writes make no claims, or make some again.
    pub fn hold_hits(&mut self, held: bool) {
        self.hits_held = held;
    }

    /// What finder, collector or counting have announced.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    /// To look at references that wait for the collector, or to be counted: it may have to read them.
    pub fn queue_mut(&mut self, kind: QueueKind) -> &mut Queue {
        match kind {
            QueueKind::Dropped => &mut self.queue,
            QueueKind::Claims => &mut self.claims,
        }
    }

    /// An opening has applied all that the log and the copy of its tail have.
    pub fn end_recovery(&mut self) {
        self.is_recovered = true;
    }

    /// Pages besides those of the maps that the next checkpoint must write.
    pub fn dirty_pages(&self) -> usize {
        self.space.dirty_count() + self.queue.dirty_count() + self.claims.dirty_count()
    }
}
