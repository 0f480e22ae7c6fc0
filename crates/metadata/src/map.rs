//! Layer maps: the trees on disk as of the last checkpoint, and the segments in memory above them.
//!
//! The tree on disk never changes between checkpoints. A segment that is needed is loaded into the
//! cache; a changed one stays there, listed as dirty, until a checkpoint has written it and its
//! root is durable. The dirty list holds a reference, and the cache drops only values without other
//! references, so no change can be lost and no segment can exist twice.
//!
//! A lookup that misses in one layer falls through to the layer below. Layers below others are
//! frozen: no request changes them. The combined entries of such a layer and those below it, for
//! one segment, are a *view*, cached beside the segments, so that a read looks in two places
//! however many layers there are. The finder and merges still change frozen layers; [`Maps::view`]
//! tells how views keep up.
//!
//! Lock order: the uncommitted state, then a segment, then dirty list, then a layer's set of fresh segments.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use onefold_format::TreeRoot;
use onefold_format::entry::State;
use onefold_format::map_page::{self, EMPTY_SEGMENT, Segment};
use onefold_format::page::PageKind;
use onefold_format::{DomainId, Entry, LayerCounts, LayerId, Pointer, SegmentIndex, VolumeRecord};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::block_lock::BlockLocks;
use super::cache::ClockCache;
use super::hash_cache::HashCache;
use super::heat::Heat;
use super::pages::Pages;
use super::space_limits::{SpaceLimits, SpaceLimitsTable};
use super::tree;
use crate::blocking::Blocking;
use crate::error::{Result, StoreError};
use crate::limits::Limits;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, RwLock, lock, read, write};

const SHARDS: usize = 16;

/// One map from LBA to PBA.
pub struct Layer {
    /// Its number, never used again.
    pub id: LayerId,
    /// Whose blocks its own may be shared with.
    pub domain: DomainId,
    /// Taken by threads that change entries, from before they look them up.
    pub locks: BlockLocks,
    /// The layer below this one.
    below: RwLock<Option<Arc<Layer>>>,
    /// The layers of which this is the one below. If there are any, this one is frozen.
    above: Mutex<Vec<LayerId>>,
    /// The tree on disk. Held for reading while a segment is loaded from it and put into the cache,
    /// so that publishing a new root waits until the pages that it releases are not in use, and no
    /// stale segment can enter the cache.
    root: RwLock<TreeRoot>,
    /// Segments that changed since the tree on disk was written; some may not be in it at all.
    fresh: Mutex<BTreeSet<SegmentIndex>>,
    counts: Counts,
    /// Its entries count against these limits.
    pub space_limits: Arc<SpaceLimits>,
    hash_cache: RwLock<Option<Arc<HashCache>>>,
}

/// Counts of entries by state.
#[derive(Default)]
struct Counts {
    private: AtomicU64,
    unshareable: AtomicU64,
    shared: AtomicU64,
}

/// One segment of a layer's map.
pub struct Leaf {
    state: RwLock<LeafState>,
    /// When its blocks were written last.
    pub heat: Heat,
}

struct LeafState {
    /// Shared with a checkpoint that is being written: the first change after that copies.
    entries: Arc<Segment>,
    /// Changed since the last checkpoint sealed it, hence in the dirty list.
    dirty: bool,
}

/// A segment of a layer, and where it is in memory.
#[derive(Clone, Copy)]
pub(super) struct LeafOf<'a> {
    pub(super) layer: &'a Arc<Layer>,
    pub(super) leaf: &'a Arc<Leaf>,
}

/// A segment on the dirty list.
pub(super) struct DirtyLeaf {
    pub(super) layer: Arc<Layer>,
    pub(super) segment: SegmentIndex,
    leaf: Arc<Leaf>,
}

/// A segment as it was when a checkpoint was sealed.
pub(super) struct SealedLeaf {
    pub(super) dirty: DirtyLeaf,
    pub(super) entries: Arc<Segment>,
}

type CacheKey = (LayerId, SegmentIndex);

/// Entries looked up for one request.
pub type Entries = SmallVec<[Entry; 8]>;

/// Key of a layer's view in the cache: no layer has such an id.
fn view_key(layer: LayerId) -> LayerId {
    LayerId(layer.0 | 1 << 63)
}

/// Absent entries, for which the layer below decides.
pub fn fill_absent(entries: &mut [Entry], lower: &[Entry]) {
    for (entry, lower) in entries.iter_mut().zip(lower) {
        if *entry == Entry::ABSENT {
            *entry = *lower;
        }
    }
}

/// The maps of all layers.
pub struct Maps {
    pages: Arc<Pages>,
    layers: RwLock<FxHashMap<LayerId, Arc<Layer>>>,
    pub(super) space_limits_table: SpaceLimitsTable,
    shards: Vec<Mutex<ClockCache<CacheKey, Arc<Leaf>>>>,
    dirty: Mutex<Vec<DirtyLeaf>>,
    dirty_count: AtomicUsize,
    /// The shared content of a segment that is not mapped.
    empty: Arc<Segment>,
    /// Raised before and after each change of frozen layers, so odd while there is one: see
    /// [`Maps::view`].
    frozen_changes: AtomicU64,
    /// Changes of frozen layers that have begun and not ended, one inside the other.
    frozen_changing: AtomicUsize,
}

/// A change of frozen layers, until it is dropped.
struct FrozenChange<'a>(&'a Maps);

impl Drop for FrozenChange<'_> {
    fn drop(&mut self) {
        if self.0.frozen_changing.fetch_sub(1, SeqCst) == 1 {
            self.0.frozen_changes.fetch_add(1, SeqCst);
        }
    }
}

impl Layer {
    /// How many of its entries are what.
    pub fn counts(&self) -> LayerCounts {
        LayerCounts {
            private: self.counts.private.load(Relaxed),
            unshareable: self.counts.unshareable.load(Relaxed),
            shared: self.counts.shared.load(Relaxed),
        }
    }

    /// Entries that hold data.
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

    /// From now on what is written is noted there.
    pub fn set_hash_cache(&self, cache: Option<Arc<HashCache>>) {
        *write(&self.hash_cache) = cache;
    }

    pub(super) fn root(&self) -> TreeRoot {
        *read(&self.root)
    }

    /// The layer below this one.
    pub fn below(&self) -> Option<Arc<Layer>> {
        read(&self.below).clone()
    }

    /// The layers of which this is the one below.
    pub fn above(&self) -> Vec<LayerId> {
        lock(&self.above).clone()
    }
}

impl Counts {
    /// Adds `each` (or, as its complement, takes it away) for every entry, here and to the space_limits.
    fn add(&self, space_limits: &SpaceLimits, entries: &[Entry], each: u64) {
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

impl Leaf {
    /// Copies the entries of `slots`.
    pub fn entries(&self, slots: Range<usize>, into: &mut impl Extend<Entry>) {
        into.extend(read(&self.state).entries[slots].iter().copied());
    }

    /// Visits all entries, which do not change meanwhile.
    pub fn with<T>(&self, look: impl FnOnce(&Segment) -> T) -> T {
        look(&read(&self.state).entries)
    }
}

impl Maps {
    /// No layers yet, above these pages.
    pub fn new(pages: Arc<Pages>, limits: &Limits, block_size: u32) -> Self {
        let shard = || Mutex::new(ClockCache::new(limits.leaves_max.div_ceil(SHARDS)));
        Self {
            pages,
            layers: RwLock::default(),
            space_limits_table: SpaceLimitsTable::new(block_size),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: Mutex::default(),
            dirty_count: AtomicUsize::new(0),
            empty: Arc::new(EMPTY_SEGMENT),
            frozen_changes: AtomicU64::new(0),
            frozen_changing: AtomicUsize::new(0),
        }
    }

    pub(super) fn add_layer(&self, volume: &VolumeRecord) -> Arc<Layer> {
        let id = volume.layer;
        let space_limits = self.space_limits_table.of(volume);
        let LayerCounts {
            private,
            unshareable,
            shared,
        } = volume.counts;
        space_limits.add(private + unshareable + shared, private + unshareable);
        let layer = Arc::new(Layer {
            id,
            domain: volume.domain,
            locks: BlockLocks::default(),
            below: RwLock::default(),
            above: Mutex::default(),
            root: RwLock::new(volume.map),
            fresh: Mutex::default(),
            counts: Counts {
                private: AtomicU64::new(private),
                unshareable: AtomicU64::new(unshareable),
                shared: AtomicU64::new(shared),
            },
            space_limits,
            hash_cache: RwLock::default(),
        });
        write(&self.layers).insert(id, Arc::clone(&layer));
        layer
    }

    /// The layer; damage if there is none.
    pub fn layer(&self, id: LayerId) -> Result<Arc<Layer>> {
        let found = read(&self.layers).get(&id).cloned();
        found.ok_or_else(|| StoreError::damaged(format!("layer {id} is named but does not exist")))
    }

    /// All layers, including those of volumes that are being imported or deleted.
    pub fn layers(&self) -> Vec<Arc<Layer>> {
        read(&self.layers).values().cloned().collect()
    }

    /// Puts a layer above another, which is frozen from now on, or above none.
    pub(super) fn put_above(&self, layer: &Arc<Layer>, below: Option<LayerId>) -> Result<()> {
        let below = below.map(|id| self.layer(id)).transpose()?;
        if let Some(below) = &below {
            lock(&below.above).push(layer.id);
        }
        let before = std::mem::replace(&mut *write(&layer.below), below);
        if let Some(before) = before {
            lock(&before.above).retain(|id| *id != layer.id);
        }
        Ok(())
    }

    /// Forgets a layer in which nothing is mapped; those above it are above the one below it then.
    /// Its pages go with the next checkpoint.
    pub(super) fn remove_layer(&self, id: LayerId) -> Result<Option<Arc<Layer>>> {
        if let Ok(layer) = self.layer(id) {
            let below = layer.below();
            for above in layer.above() {
                let below = below.as_ref().map(|below| below.id);
                self.put_above(&self.layer(above)?, below)?;
            }
            // It keeps the one below it: a reader may still be on its way there through this one.
            if let Some(below) = below {
                lock(&below.above).retain(|above| *above != id);
            }
        }
        let removed = write(&self.layers).remove(&id);
        // A thread that is loading a segment of its tree now has put it into the cache after this.
        drop(removed.as_ref().map(|layer| write(&layer.root)));
        lock(&self.dirty).retain(|dirty| dirty.layer.id != id);
        self.dirty_count.store(lock(&self.dirty).len(), SeqCst);
        for shard in &self.shards {
            lock(shard).retain(|(layer, _)| *layer != id && *layer != view_key(id));
        }
        Ok(removed)
    }

    /// Blocks that are kept free for all volumes together.
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

    /// The segment, from memory or from disk.
    pub fn leaf(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Leaf>> {
        let shard = self.shard(layer.id, segment);
        if let Some(leaf) = lock(shard).get((layer.id, segment)) {
            return Ok(Arc::clone(leaf));
        }
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let root = read(&layer.root);
        // Entries that are still in a removed layer's tree have moved elsewhere.
        let stored = match read(&self.layers).contains_key(&layer.id) {
            true => tree::lookup(&self.pages, layer.id.0, *root, segment.0)?,
            false => None,
        };
        let heat = Heat::new(stored.is_some());
        let entries = match stored {
            None => Arc::clone(&self.empty),
            Some(pointer) => {
                let page = self
                    .pages
                    .read(PageKind::Map, 0, layer.id.0, segment.0, pointer)?;
                let what = format_args!("map page {}", pointer.page);
                Arc::from(map_page::decode(&page).map_err(|e| StoreError::format(what, e))?)
            }
        };
        let mut shard = lock(shard);
        if let Some(leaf) = shard.get((layer.id, segment)) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(Leaf {
            state: RwLock::new(LeafState {
                entries,
                dirty: false,
            }),
            heat,
        });
        shard.insert((layer.id, segment), Arc::clone(&leaf), |leaf| {
            Arc::strong_count(leaf) == 1
        });
        Ok(leaf)
    }

    /// The first segment at or after `from` in which something may be mapped.
    pub fn next_segment(&self, layer: &Layer, from: SegmentIndex) -> Result<Option<SegmentIndex>> {
        self.next_segment_where(layer, from, &|_| true)
    }

    /// The first segment at or after `from` in which blocks may wait for the finder.
    pub fn next_publishable_segment(
        &self,
        layer: &Layer,
        from: SegmentIndex,
    ) -> Result<Option<SegmentIndex>> {
        self.next_segment_where(layer, from, &|pointer| pointer.info > 0)
    }

    fn next_segment_where(
        &self,
        layer: &Layer,
        from: SegmentIndex,
        is_wanted: &dyn Fn(&Pointer) -> bool,
    ) -> Result<Option<SegmentIndex>> {
        let root = read(&layer.root);
        let stored = tree::next_leaf(&self.pages, layer.id.0, *root, from.0, is_wanted)?;
        let fresh = lock(&layer.fresh).range(from..).next().copied();
        let stored = stored.map(|(index, _)| SegmentIndex(index));
        Ok([stored, fresh].into_iter().flatten().min())
    }

    /// The combined entries of this layer and those below it for `slots`.
    pub fn resolve(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        slots: Range<usize>,
        blocking: Blocking,
        into: &mut Entries,
    ) -> Result<()> {
        let leaf = self.leaf(layer, segment, blocking)?;
        let first = into.len();
        leaf.entries(slots.clone(), into);
        let resolved = &mut into[first..];
        if !resolved.contains(&Entry::ABSENT) {
            return Ok(());
        }
        if let Some(below) = layer.below() {
            let view = self.view(&below, segment, blocking)?;
            view.with(|lower| fill_absent(resolved, &lower[slots.clone()]));
        }
        // An entry that a merge moved here meanwhile left the layer below only after it had
        // arrived; that layer may be gone already, and with it the last one below.
        leaf.with(|own| {
            for (entry, own) in resolved.iter_mut().zip(&own[slots]) {
                if *own != Entry::ABSENT {
                    *entry = *own;
                }
            }
        });
        Ok(())
    }

    /// The combined entries of a frozen layer and those below it, for one segment. They are
    /// read-only.
    ///
    /// A view in the cache always matches the layers. A change of frozen layers raises a counter
    /// before and after, and drops the affected views between the two; a view is made again if the
    /// counter was odd or has changed since its making began, and goes into the cache only while it
    /// has not. Readers who still hold an old view are in an epoch that keeps its blocks (P3).
    pub fn view(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Leaf>> {
        if layer.below().is_none() {
            return self.leaf(layer, segment, blocking);
        }
        let key = (view_key(layer.id), segment);
        loop {
            if let Some(view) = lock(self.shard(key.0, segment)).get(key) {
                return Ok(Arc::clone(view));
            }
            let changes = self.frozen_changes();
            let is_still =
                |maps: &Self| changes.is_multiple_of(2) && maps.frozen_changes() == changes;
            let entries = self.compose(layer, segment, blocking)?;
            let view = Arc::new(Leaf {
                state: RwLock::new(LeafState {
                    entries,
                    dirty: false,
                }),
                heat: Heat::new(false),
            });
            let mut shard = lock(self.shard(key.0, segment));
            if !is_still(self) {
                drop(shard);
                crate::sync::yield_now();
                continue;
            }
            if shard.get(key).is_none() {
                shard.insert(key, Arc::clone(&view), |leaf| Arc::strong_count(leaf) == 1);
            }
            return Ok(view);
        }
    }

    /// The entries of a layer's segment, with absent ones taken from the layers below it.
    fn compose(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Segment>> {
        let mut entries = EMPTY_SEGMENT;
        let mut next = Some(Arc::clone(layer));
        while let Some(layer) = next {
            let key = (view_key(layer.id), segment);
            let view = lock(self.shard(key.0, segment)).get(key).cloned();
            let is_view = view.is_some();
            let leaf = view.map_or_else(|| self.leaf(&layer, segment, blocking), Ok)?;
            leaf.with(|lower| fill_absent(&mut entries, lower));
            let is_whole = is_view || !entries.contains(&Entry::ABSENT);
            next = layer.below().filter(|_| !is_whole);
        }
        Ok(Arc::new(entries))
    }

    /// This layer and those below it, from the top.
    pub fn lineage(layer: &Arc<Layer>) -> Vec<Arc<Layer>> {
        std::iter::successors(Some(Arc::clone(layer)), |layer| layer.below()).collect()
    }

    /// Valid while no frozen layer changes, and not afterwards.
    pub fn frozen_changes(&self) -> u64 {
        self.frozen_changes.load(SeqCst)
    }

    /// Empties a segment of a frozen layer, after these entries of it have gone to the layer above.
    /// Only `apply` calls this, holding the uncommitted state.
    pub(super) fn merge(
        &self,
        segment: SegmentIndex,
        from: LeafOf<'_>,
        into: LeafOf<'_>,
        moved: &Segment,
    ) {
        // A reader looks above once more after it looked below: see `Maps::resolve`.
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

    /// Announces that frozen layers are about to change. The caller holds the uncommitted state,
    /// and has loaded the segments: threads that make views wait.
    fn change_frozen(&self) -> FrozenChange<'_> {
        if self.frozen_changing.fetch_add(1, SeqCst) == 0 {
            self.frozen_changes.fetch_add(1, SeqCst);
        }
        FrozenChange(self)
    }

    /// Drops the views of a segment that a frozen layer is part of.
    fn forget_views(&self, layer: &Layer, segment: SegmentIndex) {
        let mut concerned = vec![layer.id];
        while let Some(id) = concerned.pop() {
            let key = (view_key(id), segment);
            lock(self.shard(key.0, segment)).remove(key);
            if let Ok(layer) = self.layer(id) {
                concerned.extend(layer.above());
            }
        }
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
        let is_frozen = !lock(&layer.above).is_empty();
        let _changing = is_frozen.then(|| self.change_frozen());
        self.change_leaf(layer, segment, leaf, slots, change);
        if is_frozen {
            self.forget_views(layer, segment);
        }
    }

    fn change_leaf(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        leaf: &Arc<Leaf>,
        slots: Range<usize>,
        change: impl FnOnce(&mut [Entry]),
    ) {
        let mut state = write(&leaf.state);
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
    }

    fn add_dirty(&self, dirty: DirtyLeaf) {
        let mut list = lock(&self.dirty);
        list.push(dirty);
        self.dirty_count.store(list.len(), SeqCst);
    }

    /// Takes the dirty list, sorted, each segment with its entries as they are now. The caller
    /// holds the uncommitted state, so they match the records up to now.
    pub(super) fn seal(&self) -> Vec<SealedLeaf> {
        let mut list = lock(&self.dirty);
        self.dirty_count.store(0, SeqCst);
        let sealed = std::mem::take(&mut *list).into_iter().map(|dirty| {
            let mut state = write(&dirty.leaf.state);
            state.dirty = false;
            let entries = Arc::clone(&state.entries);
            drop(state);
            SealedLeaf { dirty, entries }
        });
        let mut sealed: Vec<_> = sealed.collect();
        sealed.sort_unstable_by_key(|leaf| (leaf.dirty.layer.id, leaf.dirty.segment));
        sealed
    }

    /// The checkpoint that sealed these segments failed: they are dirty still. Those of a layer
    /// that was removed meanwhile went with it.
    pub(super) fn unseal(&self, sealed: Vec<SealedLeaf>) {
        for SealedLeaf { dirty, .. } in sealed {
            if !read(&self.layers).contains_key(&dirty.layer.id) {
                continue;
            }
            let mut state = write(&dirty.leaf.state);
            if !std::mem::replace(&mut state.dirty, true) {
                drop(state);
                self.add_dirty(dirty);
            }
        }
    }

    /// The root that reaches this tree is durable: it is now the tree on disk.
    pub(super) fn publish(&self, layer: &Layer, root: TreeRoot, sealed: &[SealedLeaf]) {
        *write(&layer.root) = root;
        for SealedLeaf { dirty, .. } in sealed {
            // A segment that was changed again is fresh again; its lock orders the two.
            let state = read(&dirty.leaf.state);
            if !state.dirty {
                lock(&layer.fresh).remove(&dirty.segment);
            }
        }
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

#[cfg(all(test, feature = "shuttle"))]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
pub(crate) mod shuttle_tests;
