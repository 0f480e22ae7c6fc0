//! The state that records change besides the maps.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::batch::Batches;
use super::catalogue::Catalogue;
use super::map::Layer;
use super::queue::{Queue, QueueKind};
use super::space::Space;
use crate::sync::AtomicU64;

/// The state that records change, besides the maps.
pub struct MetadataState {
    pub(super) space: Space,
    /// The group's last exchange of space extents that is applied.
    pub(super) exchanged: u64,
    pub(super) catalogue: Catalogue,
    /// Dropped references, for the collector.
    pub(super) queue: Queue,
    /// References of entries that the index does not count yet.
    pub(super) claims: Queue,
    /// [`Limits::claims_max`](crate::Limits::claims_max).
    pub(super) claims_max: u64,
    /// Announced and unsettled items of finder, collector or counting.
    pub(super) batches: Batches,
    /// Changes when earlier answers of the index become outdated.
    pub(super) lookup_version: Arc<LookupVersion>,
    /// While set, no write may make a claim: the collector waits until there is none.
    pub(super) hits_held: bool,
    /// Trees of removed layers, whose pages the next checkpoint releases.
    pub(super) gone: Vec<Arc<Layer>>,
    /// Set once an opening has applied all records of the log and of the tail copy.
    pub(super) is_recovered: bool,
}

/// A counter that changes whenever earlier answers of the index become invalid: published blocks
/// became free and may hold other content; or the index is being counted again, and a batch that the
/// old one had answered may end otherwise; or, in a shared pool, the rows that were found are not held any longer.
#[derive(Default)]
pub struct LookupVersion(AtomicU64);

/// Bits of a lookup version within a session: enough for a million changes a second for an hour, and no session makes
/// nearly as many.
const VERSION_BITS: u32 = 32;

impl LookupVersion {
    /// The version to read before a lookup: after seeing a version, a lookup sees the index as it was
    /// then, or later.
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Raises the version above those of all earlier sessions.
    pub fn begin_session(&self, session: u64) {
        self.0.store(session << VERSION_BITS, Release);
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

    /// Free space, for handing out blocks and taking them back. Only records change the *named*
    /// bits.
    pub fn space_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    /// The number of the group's last exchange of space extents that is applied.
    pub fn exchanged(&self) -> u64 {
        self.exchanged
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

    /// The lookup version, which can be read without a lock.
    pub fn lookup_version(&self) -> &Arc<LookupVersion> {
        &self.lookup_version
    }

    /// Makes all earlier answers of the index unfit for a hit.
    pub fn outdate_lookups(&mut self) {
        self.lookup_version.raise();
    }

    /// Stops writes from making claims, or lets them again.
    pub fn hold_hits(&mut self, held: bool) {
        self.hits_held = held;
    }

    /// The open batch of the finder, the collector or counting, if any.
    pub fn batches(&self) -> &Batches {
        &self.batches
    }

    /// A queue, for reading its references, which may load pages.
    pub fn queue_mut(&mut self, kind: QueueKind) -> &mut Queue {
        match kind {
            QueueKind::Dropped => &mut self.queue,
            QueueKind::Claims => &mut self.claims,
        }
    }

    /// Notes that an opening has applied all records of the log and of the tail copy.
    pub fn end_recovery(&mut self) {
        self.is_recovered = true;
    }

    /// The number of pages, besides the maps', that the next checkpoint must write.
    pub fn dirty_pages(&self) -> usize {
        self.space.dirty_count() + self.queue.dirty_count() + self.claims.dirty_count()
    }
}
