//! Layer maps: the trees on disk as of the last checkpoint, and the segments in memory above them.
//!
//! The tree on disk never changes between checkpoints. A segment that is needed is loaded into the
//! cache; a changed one stays there, listed as dirty, until a checkpoint has written it and its
//! root is durable. The dirty list holds a reference, and the cache drops only values without other
//! references, so no change can be lost and no segment can exist twice.
//!
//! A lookup that misses in one layer falls through to the layer below. Layers below others are frozen:
//! no request changes them. The combined entries of such a layer and those below it, for one segment,
//! are a *view*, cached next to the segments, so that a read makes two lookups however many layers
//! there are. Lookups skip layers without entries. The segments of which a view is made do not go into
//! the cache: only requests, and changes, put a layer's own segments there. The finder and merges still
//! change frozen layers; [`Maps::view`] explains how views stay current.
//!
//! Lock order: the uncommitted state, then a segment, then dirty list, then a layer's set of fresh segments; the
//! uncommitted state, then the layers that contain another, then a shard of the cache.

mod checkpoint;
mod layer;
mod leaf;
mod occupancy;
#[cfg(all(test, feature = "shuttle"))]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
pub(crate) mod shuttle_tests;
mod view;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::Blocking;
use onefold_format::map_page::{self, EMPTY_SEGMENT, Segment};
use onefold_format::page::PageKind;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, LayerCounts, LayerId, Pointer, SegmentIndex, TreeRoot, VolumeRecord};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::cache::ClockCache;
use super::heat::Heat;
use super::pages::Pages;
use super::space_limits::SpaceLimitsTable;
use super::tree;
use crate::error::{Result, StoreError};
use crate::limits::Limits;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, RwLock, lock, read, write};

pub use self::layer::Layer;
pub use self::leaf::Leaf;
pub(crate) use self::leaf::{DirtyLeaf, LeafOf, SealedLeaf};
use self::occupancy::{Occupancy, OccupancyBudget};
pub use self::view::fill_absent;
use self::view::{Containing, view_key};

const SHARDS: usize = 16;

type CacheKey = (LayerId, SegmentIndex);

/// Which segments a search stops at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Segments in which something may be mapped.
    Mapped,
    /// Segments in which something may be mapped whose blocks may wait for the finder.
    Publishable,
}

/// Entries looked up for one request.
pub type Entries = SmallVec<[Entry; 8]>;

/// The maps of all layers.
pub struct Maps {
    pages: Arc<Pages>,
    layers: RwLock<FxHashMap<LayerId, Arc<Layer>>>,
    segment_bytes: u64,
    occupancy_budget: Arc<OccupancyBudget>,
    pub(super) space_limits_table: SpaceLimitsTable,
    shards: Vec<Mutex<ClockCache<CacheKey, Arc<Leaf>>>>,
    dirty: Mutex<Vec<DirtyLeaf>>,
    dirty_count: AtomicUsize,
    /// The shared content of a segment that is not mapped.
    empty: Arc<Segment>,
    /// Incremented before and after each change of frozen layers, so odd during one: see
    /// [`Maps::view`].
    frozen_changes: AtomicU64,
    /// The number of changes of frozen layers in progress, nested in each other.
    frozen_changing: AtomicUsize,
    /// Incremented when layers are put above others or removed, and when a frozen layer is about to
    /// get its first entry, before the entry leaves the layer below: readers that skipped the layer
    /// start again.
    arranged: AtomicU64,
    /// The layers whose views contain the frozen layer that was changed last.
    containing: Mutex<Containing>,
}

impl Maps {
    /// Maps without layers, on these pages.
    pub fn new(pages: Arc<Pages>, limits: &Limits, block_size: u32) -> Self {
        let shard = || Mutex::new(ClockCache::new(limits.leaves_max.div_ceil(SHARDS)));
        Self {
            pages,
            layers: RwLock::default(),
            segment_bytes: u64::from(block_size) * BLOCKS_PER_SEGMENT,
            occupancy_budget: Arc::new(OccupancyBudget::new(limits.occupancy_bytes)),
            space_limits_table: SpaceLimitsTable::new(block_size),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: Mutex::default(),
            dirty_count: AtomicUsize::new(0),
            empty: Arc::new(EMPTY_SEGMENT),
            frozen_changes: AtomicU64::new(0),
            frozen_changing: AtomicUsize::new(0),
            arranged: AtomicU64::new(0),
            containing: Mutex::default(),
        }
    }

    pub(super) fn add_layer(&self, volume: &VolumeRecord) -> Arc<Layer> {
        let space_limits = self.space_limits_table.of(volume);
        let segments = volume.size_bytes.div_ceil(self.segment_bytes);
        let occupancy = Occupancy::new(segments, Arc::clone(&self.occupancy_budget));
        let layer = Arc::new(Layer::new(volume, space_limits, occupancy));
        write(&self.layers).insert(layer.id, Arc::clone(&layer));
        layer
    }

    /// The layer; damage if there is none.
    pub fn layer(&self, id: LayerId) -> Result<Arc<Layer>> {
        let found = read(&self.layers).get(&id).cloned();
        found.ok_or_else(|| StoreError::damaged(format!("layer {id} is named but does not exist")))
    }

    /// All layers, including layers of volumes that are being imported or deleted.
    pub fn layers(&self) -> Vec<Arc<Layer>> {
        read(&self.layers).values().cloned().collect()
    }

    /// Puts a layer above another one, which is frozen from now on, or at the bottom.
    pub(super) fn put_above(&self, layer: &Arc<Layer>, below: Option<LayerId>) -> Result<()> {
        let below = below.map(|id| self.layer(id)).transpose()?;
        if let Some(below) = &below {
            lock(&below.above).push(layer.id);
        }
        let before = std::mem::replace(&mut *write(&layer.below), below);
        if let Some(before) = before {
            lock(&before.above).retain(|id| *id != layer.id);
        }
        let next = layer.below().and_then(|below| below.first_occupied());
        self.set_next(layer, next.as_ref());
        self.arranged.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Sets the nearest non-empty layer below `layer`. If `layer` is empty, the layers above it get the
    /// same one, and so on.
    fn set_next(&self, layer: &Arc<Layer>, next: Option<&Arc<Layer>>) {
        let mut concerned = vec![Arc::clone(layer)];
        while let Some(layer) = concerned.pop() {
            if layer.occupancy.is_empty() {
                concerned.extend(self.layers_above(&layer));
            }
            *write(&layer.next) = next.cloned();
        }
    }

    fn layers_above(&self, layer: &Layer) -> Vec<Arc<Layer>> {
        let above = layer.above().into_iter();
        above.filter_map(|id| self.layer(id).ok()).collect()
    }

    /// Removes a layer in which nothing is mapped; layers above it then stand on the one below it.
    /// Its pages are released by the next checkpoint.
    pub(super) fn remove_layer(&self, id: LayerId) -> Result<Option<Arc<Layer>>> {
        if let Ok(layer) = self.layer(id) {
            let below = layer.below();
            for above in layer.above() {
                let below = below.as_ref().map(|below| below.id);
                self.put_above(&self.layer(above)?, below)?;
            }
            // It keeps its link to the layer below: a reader may still be on its way down through
            // this one.
            if let Some(below) = &below {
                lock(&below.above).retain(|above| *above != id);
            }
            *write(&layer.next) = below;
        }
        let removed = write(&self.layers).remove(&id);
        self.arranged.fetch_add(1, SeqCst);
        // Wait for threads that are loading a segment of its tree into the cache.
        drop(removed.as_ref().map(|layer| write(&layer.root)));
        lock(&self.dirty).retain(|dirty| dirty.layer.id != id);
        self.dirty_count.store(lock(&self.dirty).len(), SeqCst);
        for shard in &self.shards {
            lock(shard).retain(|(layer, _)| *layer != id && *layer != view_key(id));
        }
        Ok(removed)
    }

    /// The number of blocks kept free for all volumes together.
    pub fn unused_reservations(&self) -> u64 {
        self.space_limits_table.unused_reservations()
    }

    /// Segments that the next checkpoint must write.
    pub fn dirty_count(&self) -> usize {
        self.dirty_count.load(SeqCst)
    }

    /// Segments in memory.
    pub fn cached_count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Counts of the entries of all layers.
    pub fn counts(&self) -> LayerCounts {
        let mut all = LayerCounts::default();
        for layer in read(&self.layers).values() {
            let counts = layer.counts();
            all.private += counts.private;
            all.unshareable += counts.unshareable;
            all.shared += counts.shared;
        }
        all
    }

    /// The segment, from memory or from disk; `None` if the layer has no entries in it.
    pub(super) fn leaf_if_any(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Option<Arc<Leaf>>> {
        if layer.occupancy.may_have(segment) {
            self.leaf(layer, segment, blocking).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The entries of a segment at one moment of the call. Does not add the segment to the cache: for
    /// callers that visit more segments than the cache should hold for them.
    pub fn peek(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Segment>> {
        if !layer.occupancy.may_have(segment) {
            return Ok(Arc::clone(&self.empty));
        }
        if let Some(leaf) = self.cached((layer.id, segment)) {
            return Ok(leaf.segment());
        }
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        // It was not dirty, because it was not in the cache, so the tree has it.
        let root = read(&layer.root);
        let stored = self.load(layer, *root, segment)?;
        Ok(stored.unwrap_or_else(|| Arc::clone(&self.empty)))
    }

    fn cached(&self, key: CacheKey) -> Option<Arc<Leaf>> {
        lock(self.shard(key.0, key.1)).get(key).cloned()
    }

    /// The segment, from memory or from disk.
    pub fn leaf(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Leaf>> {
        let key = (layer.id, segment);
        if let Some(leaf) = self.cached(key) {
            return Ok(leaf);
        }
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let root = read(&layer.root);
        let stored = self.load(layer, *root, segment)?;
        let heat = Heat::new(stored.is_some());
        let entries = stored.unwrap_or_else(|| Arc::clone(&self.empty));
        let mut shard = lock(self.shard(layer.id, segment));
        if let Some(leaf) = shard.get(key) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(Leaf::new(entries, heat));
        shard.insert(key, Arc::clone(&leaf), |leaf| Arc::strong_count(leaf) == 1);
        Ok(leaf)
    }

    /// Reads a segment from the tree on disk, if it is there. The caller holds the root.
    fn load(
        &self,
        layer: &Layer,
        root: TreeRoot,
        segment: SegmentIndex,
    ) -> Result<Option<Arc<Segment>>> {
        // The entries in a removed layer's tree have moved elsewhere.
        if !read(&self.layers).contains_key(&layer.id) {
            return Ok(None);
        }
        let owner = layer.id.0;
        let Some(pointer) = tree::lookup(&self.pages, owner, root, segment.0)? else {
            return Ok(None);
        };
        let page = self
            .pages
            .read(PageKind::Map, 0, owner, segment.0, pointer)?;
        let what = format_args!("map page {}", pointer.page);
        let entries = map_page::decode(&page).map_err(|e| StoreError::format(what, e))?;
        Ok(Some(Arc::from(entries)))
    }

    /// The first segment at or after `from` that is `wanted`.
    pub fn next_segment(
        &self,
        layer: &Layer,
        from: SegmentIndex,
        wanted: Wanted,
    ) -> Result<Option<SegmentIndex>> {
        if layer.occupancy.is_empty() {
            return Ok(None);
        }
        let is_wanted = |pointer: &Pointer| wanted == Wanted::Mapped || pointer.info > 0;
        let root = read(&layer.root);
        let stored = tree::next_leaf(&self.pages, layer.id.0, *root, from.0, &is_wanted)?;
        let fresh = lock(&layer.fresh).range(from..).next().copied();
        let stored = stored.map(|(index, _)| SegmentIndex(index));
        Ok([stored, fresh].into_iter().flatten().min())
    }

    /// Empties a segment of a frozen layer, after these entries of it have moved to the layer
    /// above. Only `apply` calls this, holding the uncommitted state.
    pub(super) fn merge(
        &self,
        segment: SegmentIndex,
        from: LeafOf<'_>,
        into: LeafOf<'_>,
        moved: &Segment,
    ) {
        // A reader checks the layer above once more after the one below: see `Maps::resolve`.
        let _changing = self.change_frozen();
        let whole = 0..moved.len();
        if *moved != EMPTY_SEGMENT {
            self.change(into.layer, segment, into.leaf, whole.clone(), |entries| {
                for (entry, moved) in entries.iter_mut().zip(moved) {
                    if *moved != Entry::ABSENT {
                        *entry = *moved;
                    }
                }
            });
        }
        self.change(from.layer, segment, from.leaf, whole, |entries| {
            entries.fill(Entry::ABSENT);
        });
    }

    /// Changes the entries of `slots`. Only `apply` calls this, holding the uncommitted state.
    pub(super) fn change(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        leaf: &Arc<Leaf>,
        slots: Range<usize>,
        change: impl FnOnce(&mut [Entry]),
    ) {
        let is_frozen = layer.is_frozen();
        let _changing = is_frozen.then(|| self.change_frozen());
        self.occupy(layer, segment);
        let mut state = write(&leaf.state);
        leaf.candidates.drop_any(slots.clone());
        let entries = &mut Arc::make_mut(&mut state.entries)[slots];
        let count = |entries: &[Entry], each| layer.counts.add(&layer.space_limits, entries, each);
        count(entries, u64::wrapping_sub(0, 1));
        change(entries);
        count(entries, 1);
        if !state.dirty {
            state.dirty = true;
            self.add_dirty(DirtyLeaf {
                layer: Arc::clone(layer),
                segment,
                leaf: Arc::clone(leaf),
            });
            lock(&layer.fresh).insert(segment);
        }
        drop(state);
        if is_frozen {
            self.forget_views(layer, segment);
        }
    }

    /// Marks the segment as occupied before the layer gets entries in it. If they come from the layer
    /// below, no reader may skip this layer once they have left.
    fn occupy(&self, layer: &Arc<Layer>, segment: SegmentIndex) {
        let was_empty = layer.occupancy.is_empty();
        layer.occupancy.insert(segment);
        let above = if was_empty {
            self.layers_above(layer)
        } else {
            Vec::new()
        };
        if !above.is_empty() {
            for above in above {
                self.set_next(&above, Some(layer));
            }
            self.arranged.fetch_add(1, SeqCst);
        }
    }

    fn add_dirty(&self, dirty: DirtyLeaf) {
        let mut list = lock(&self.dirty);
        list.push(dirty);
        self.dirty_count.store(list.len(), SeqCst);
    }

    fn shard(
        &self,
        layer: LayerId,
        segment: SegmentIndex,
    ) -> &Mutex<ClockCache<CacheKey, Arc<Leaf>>> {
        // Neighbouring segments go to different shards; the layer shifts the pattern.
        &self.shards[(layer.0.wrapping_mul(7).wrapping_add(segment.0) % SHARDS as u64) as usize]
    }
}
