//! Layer maps: what is on disk as of the last checkpoint, and the segments in memory above it.
//!
//! The tree on disk never changes between checkpoints. A segment that is needed is loaded into the
//! cache; one that changes stays there, listed as dirty, until a checkpoint has written it and
//! its root is durable. The dirty list holds a reference, and the cache drops only what nobody
//! else refers to, so no change can be lost and no segment can exist twice.
//!
//! Lock order: ledger, then a segment, then dirty list, then a layer's set of fresh segments.

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

use crate::Wait;
use crate::block_lock::BlockLocks;
use crate::cache::ClockCache;
use crate::error::{Result, StoreError};
use crate::hash_cache::HashCache;
use crate::heat::Heat;
use crate::limits::Limits;
use crate::pages::Pages;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, RwLock, lock, read, write};
use crate::tree;

const SHARDS: usize = 16;

/// One map from LBA to PBA.
pub(crate) struct Layer {
    pub(crate) id: LayerId,
    /// Whose blocks its own may be shared with.
    pub(crate) domain: DomainId,
    /// Taken by whoever changes entries, from before it looks them up.
    pub(crate) locks: BlockLocks,
    /// The tree on disk. Held for reading while a segment is loaded from it and put into the
    /// cache, so that publishing a new root waits until nobody uses pages that it gives up, and no
    /// stale segment can enter the cache.
    root: RwLock<TreeRoot>,
    /// Segments that changed since the tree on disk was written; some may not be in it at all.
    fresh: Mutex<BTreeSet<SegmentIndex>>,
    counts: Counts,
    hash_cache: RwLock<Option<Arc<HashCache>>>,
}

/// How many entries are what.
#[derive(Default)]
struct Counts {
    private: AtomicU64,
    kept: AtomicU64,
    shared: AtomicU64,
}

/// One segment of a layer's map.
pub(crate) struct Leaf {
    state: RwLock<LeafState>,
    pub(crate) heat: Heat,
}

struct LeafState {
    /// Shared with a checkpoint that is being written: the first change after that copies.
    entries: Arc<Segment>,
    /// Changed since the last checkpoint sealed it, hence in the dirty list.
    dirty: bool,
}

/// A segment on the dirty list.
pub(crate) struct DirtyLeaf {
    pub(crate) layer: Arc<Layer>,
    pub(crate) segment: SegmentIndex,
    leaf: Arc<Leaf>,
}

/// A segment as it was when a checkpoint was sealed.
pub(crate) struct SealedLeaf {
    pub(crate) dirty: DirtyLeaf,
    pub(crate) entries: Arc<Segment>,
}

type CacheKey = (LayerId, SegmentIndex);

/// The maps of all layers.
pub(crate) struct Maps {
    pages: Arc<Pages>,
    layers: RwLock<FxHashMap<LayerId, Arc<Layer>>>,
    shards: Vec<Mutex<ClockCache<CacheKey, Arc<Leaf>>>>,
    dirty: Mutex<Vec<DirtyLeaf>>,
    dirty_count: AtomicUsize,
    /// What a segment that is not mapped shares until it is.
    empty: Arc<Segment>,
}

impl Layer {
    pub(crate) fn counts(&self) -> LayerCounts {
        LayerCounts {
            private: self.counts.private.load(Relaxed),
            kept: self.counts.kept.load(Relaxed),
            shared: self.counts.shared.load(Relaxed),
        }
    }

    /// Entries that hold data.
    pub(crate) fn logical_blocks(&self) -> u64 {
        let LayerCounts {
            private,
            kept,
            shared,
        } = self.counts();
        private + kept + shared
    }

    /// Fingerprints of blocks that were written of late. Whoever writes looks it up under the
    /// blocks' lock.
    pub(crate) fn hash_cache(&self) -> Option<Arc<HashCache>> {
        read(&self.hash_cache).clone()
    }

    pub(crate) fn set_hash_cache(&self, cache: Option<Arc<HashCache>>) {
        *write(&self.hash_cache) = cache;
    }

    pub(crate) fn root(&self) -> TreeRoot {
        *read(&self.root)
    }
}

impl Counts {
    /// Adds `each` (or, as its complement, takes it away) for every entry.
    fn add(&self, entries: &[Entry], each: u64) {
        let (mut private, mut kept, mut shared) = (0_u64, 0_u64, 0_u64);
        for entry in entries {
            match entry.state() {
                State::Private(_) => private += 1,
                State::Kept(_) => kept += 1,
                State::Shared(_) => shared += 1,
                State::Absent | State::Zero => {}
            }
        }
        for (counter, count) in [
            (&self.private, private),
            (&self.kept, kept),
            (&self.shared, shared),
        ] {
            counter.fetch_add(count.wrapping_mul(each), Relaxed);
        }
    }
}

impl Leaf {
    /// Copies the entries of `slots`.
    pub(crate) fn entries(&self, slots: Range<usize>, into: &mut impl Extend<Entry>) {
        into.extend(read(&self.state).entries[slots].iter().copied());
    }

    /// Looks at all entries, which nobody changes meanwhile.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Segment) -> T) -> T {
        look(&read(&self.state).entries)
    }
}

impl Maps {
    pub(crate) fn new(pages: Arc<Pages>, limits: &Limits) -> Self {
        let shard = || Mutex::new(ClockCache::new(limits.leaves_max.div_ceil(SHARDS)));
        Self {
            pages,
            layers: RwLock::default(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            dirty: Mutex::default(),
            dirty_count: AtomicUsize::new(0),
            empty: Arc::new(EMPTY_SEGMENT),
        }
    }

    pub(crate) fn add_layer(&self, volume: &VolumeRecord) -> Arc<Layer> {
        let id = volume.layer;
        let layer = Arc::new(Layer {
            id,
            domain: volume.domain,
            locks: BlockLocks::default(),
            root: RwLock::new(volume.map),
            fresh: Mutex::default(),
            counts: Counts {
                private: AtomicU64::new(volume.counts.private),
                kept: AtomicU64::new(volume.counts.kept),
                shared: AtomicU64::new(volume.counts.shared),
            },
            hash_cache: RwLock::default(),
        });
        write(&self.layers).insert(id, Arc::clone(&layer));
        layer
    }

    pub(crate) fn layer(&self, id: LayerId) -> Result<Arc<Layer>> {
        let found = read(&self.layers).get(&id).cloned();
        found.ok_or_else(|| StoreError::damaged(format!("layer {id} is named but does not exist")))
    }

    /// Forgets a layer in which nothing is mapped. Its pages go with the next checkpoint.
    pub(crate) fn remove_layer(&self, id: LayerId) -> Option<Arc<Layer>> {
        let removed = write(&self.layers).remove(&id);
        lock(&self.dirty).retain(|dirty| dirty.layer.id != id);
        self.dirty_count.store(lock(&self.dirty).len(), SeqCst);
        for shard in &self.shards {
            lock(shard).retain(|(layer, _)| *layer != id);
        }
        removed
    }

    /// Segments that the next checkpoint must write.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count.load(SeqCst)
    }

    /// What the entries of all layers are.
    pub(crate) fn counts(&self) -> LayerCounts {
        let mut all = LayerCounts::default();
        for layer in read(&self.layers).values() {
            let counts = layer.counts();
            all.private += counts.private;
            all.kept += counts.kept;
            all.shared += counts.shared;
        }
        all
    }

    /// The segment, from memory or from disk.
    pub(crate) fn leaf(
        &self,
        layer: &Layer,
        segment: SegmentIndex,
        wait: Wait,
    ) -> Result<Arc<Leaf>> {
        let shard = self.shard(layer.id, segment);
        if let Some(leaf) = lock(shard).get((layer.id, segment)) {
            return Ok(Arc::clone(leaf));
        }
        if wait == Wait::No {
            return Err(StoreError::would_wait());
        }
        let root = read(&layer.root);
        let stored = tree::lookup(&self.pages, layer.id.0, *root, segment.0)?;
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
    pub(crate) fn next_segment(
        &self,
        layer: &Layer,
        from: SegmentIndex,
    ) -> Result<Option<SegmentIndex>> {
        self.next_segment_where(layer, from, &|_| true)
    }

    /// The first segment at or after `from` in which blocks may wait for the finder.
    pub(crate) fn next_publishable_segment(
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

    /// Changes the entries of `slots`. Only `apply` calls this, holding the ledger.
    pub(crate) fn change(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        leaf: &Arc<Leaf>,
        slots: Range<usize>,
        change: impl FnOnce(&mut [Entry]),
    ) {
        let mut state = write(&leaf.state);
        let entries = &mut Arc::make_mut(&mut state.entries)[slots];
        layer.counts.add(entries, u64::wrapping_sub(0, 1));
        change(entries);
        layer.counts.add(entries, 1);
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

    /// Takes the dirty list, sorted, each segment with its entries as they are now. The caller holds
    /// the ledger, so that they are what the records up to now say.
    pub(crate) fn seal(&self) -> Vec<SealedLeaf> {
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

    /// The checkpoint that sealed these segments failed: they are dirty still.
    /// Those of a layer that was removed meanwhile went with it.
    pub(crate) fn unseal(&self, sealed: Vec<SealedLeaf>) {
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

    /// The root that reaches this tree is durable: it is what is on disk now.
    pub(crate) fn publish(&self, layer: &Layer, root: TreeRoot, sealed: &[SealedLeaf]) {
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
