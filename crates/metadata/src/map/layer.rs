//! A layer: one map from LBA to PBA, and its place among the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use onefold_format::entry::State;
use onefold_format::{DomainId, Entry, LayerCounts, LayerId, SegmentIndex, TreeRoot, VolumeRecord};

use crate::block_lock::BlockLocks;
use crate::hash_cache::HashCache;
use crate::map::occupancy::Occupancy;
use crate::space_limits::SpaceLimits;
use crate::sync::{AtomicU64, Mutex, RwLock, lock, read, write};

/// A map from LBA to PBA, and its place among the layers.
pub struct Layer {
    /// The layer's number, which is never reused.
    pub id: LayerId,
    /// The domain whose volumes may share blocks with this layer.
    pub domain: DomainId,
    /// Held by threads that change entries, from before they look them up.
    pub locks: Arc<BlockLocks>,
    /// The layer below this one.
    pub(super) below: RwLock<Option<Arc<Layer>>>,
    /// The layers directly above this one. If there are any, this layer is frozen.
    pub(super) above: Mutex<Vec<LayerId>>,
    pub(super) occupancy: Occupancy,
    /// A layer below this one, with only empty layers between them. In [`Maps`](super::Maps), the
    /// nearest one that is not empty; for a removed layer, the one directly below.
    pub(super) next: RwLock<Option<Arc<Layer>>>,
    /// The tree on disk. Held for reading while a segment is loaded from it and put into the cache,
    /// so that publishing a new root waits until the pages that it releases are not in use, and no
    /// stale segment can enter the cache.
    pub(super) root: RwLock<TreeRoot>,
    /// Segments that changed since the tree on disk was written; some may not be in it at all.
    pub(super) fresh: Mutex<BTreeSet<SegmentIndex>>,
    pub(super) counts: Counts,
    /// The limits against which the layer's entries count.
    pub space_limits: Arc<SpaceLimits>,
    pub(super) hash_cache: RwLock<Option<Arc<HashCache>>>,
}

/// Counts of entries by state.
#[derive(Default)]
pub(super) struct Counts {
    private: AtomicU64,
    unshareable: AtomicU64,
    shared: AtomicU64,
}

impl Layer {
    /// A layer as in the volume's record; its entries count against `space_limits` from now on.
    pub(super) fn new(
        volume: &VolumeRecord,
        space_limits: Arc<SpaceLimits>,
        occupancy: Occupancy,
    ) -> Self {
        let LayerCounts {
            private,
            unshareable,
            shared,
        } = volume.counts;
        space_limits.add(private + unshareable + shared, private + unshareable);
        Self {
            id: volume.layer,
            domain: volume.domain,
            locks: Arc::default(),
            below: RwLock::default(),
            above: Mutex::default(),
            occupancy,
            next: RwLock::default(),
            root: RwLock::new(volume.map),
            fresh: Mutex::default(),
            counts: Counts {
                private: AtomicU64::new(private),
                unshareable: AtomicU64::new(unshareable),
                shared: AtomicU64::new(shared),
            },
            space_limits,
            hash_cache: RwLock::default(),
        }
    }

    /// The number of entries in each state.
    pub fn counts(&self) -> LayerCounts {
        LayerCounts {
            private: self.counts.private.load(Relaxed),
            unshareable: self.counts.unshareable.load(Relaxed),
            shared: self.counts.shared.load(Relaxed),
        }
    }

    /// The number of entries that hold data.
    pub fn logical_blocks(&self) -> u64 {
        let LayerCounts {
            private,
            unshareable,
            shared,
        } = self.counts();
        private + unshareable + shared
    }

    /// Fingerprints of recently written blocks. Writers look it up under the blocks' lock.
    pub fn hash_cache(&self) -> Option<Arc<HashCache>> {
        read(&self.hash_cache).clone()
    }

    /// Sets or clears the cache that notes fingerprints of future writes.
    pub fn set_hash_cache(&self, cache: Option<Arc<HashCache>>) {
        *write(&self.hash_cache) = cache;
    }

    pub(crate) fn root(&self) -> TreeRoot {
        *read(&self.root)
    }

    /// The layer below this one.
    pub fn below(&self) -> Option<Arc<Layer>> {
        read(&self.below).clone()
    }

    /// The nearest layer in which something may be mapped: this one, or one below it.
    pub(crate) fn first_occupied(self: &Arc<Self>) -> Option<Arc<Layer>> {
        if self.occupancy.is_empty() {
            self.next_occupied()
        } else {
            Some(Arc::clone(self))
        }
    }

    /// The nearest layer below this one in which something may be mapped.
    pub(crate) fn next_occupied(&self) -> Option<Arc<Layer>> {
        let mut next = read(&self.next).clone();
        while let Some(layer) = next.take_if(|layer| layer.occupancy.is_empty()) {
            next.clone_from(&read(&layer.next));
        }
        next
    }

    /// Whether the layer may have mapped entries.
    pub(crate) fn has_entries(&self) -> bool {
        !self.occupancy.is_empty()
    }

    /// Notes, while a pool is opened, that the layer's tree has a page of this segment.
    pub(crate) fn note_segment(&self, segment: SegmentIndex) {
        self.occupancy.insert(segment);
    }

    /// Whether there is a layer above it, so that no request changes it.
    pub(crate) fn is_frozen(&self) -> bool {
        !lock(&self.above).is_empty()
    }

    /// The layers directly above this one.
    pub fn above(&self) -> Vec<LayerId> {
        lock(&self.above).clone()
    }
}

impl Counts {
    /// Adds `each` (or, as its complement, takes it away) for every entry, here and to the space_limits.
    pub(super) fn add(&self, space_limits: &SpaceLimits, entries: &[Entry], each: u64) {
        let (mut private, mut unshareable, mut shared) = (0_u64, 0_u64, 0_u64);
        for entry in entries {
            match entry.state() {
                State::Private(_) => private += 1,
                State::Unshareable(_) => unshareable += 1,
                State::Shared(_) => shared += 1,
                State::Absent | State::Zero => {}
            }
        }
        for (counter, count) in [
            (&self.private, private),
            (&self.unshareable, unshareable),
            (&self.shared, shared),
        ] {
            counter.fetch_add(count.wrapping_mul(each), Relaxed);
        }
        let owned = private + unshareable;
        space_limits.add(
            (owned + shared).wrapping_mul(each),
            owned.wrapping_mul(each),
        );
    }
}
