//! Views: what a frozen layer and those below it have together for a segment, cached beside the
//! segments.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::Blocking;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::{Entry, LayerId, SegmentIndex};

use super::layer::Layer;
use super::leaf::Leaf;
use super::{Entries, Maps};
use crate::error::Result;
use crate::heat::Heat;
use crate::sync::{lock, yield_now};

/// Key of a layer's view in the cache: no layer has such an id.
pub(super) fn view_key(layer: LayerId) -> LayerId {
    LayerId(layer.0 | 1 << 63)
}

/// Absent entries become those of the layer below.
pub fn fill_absent(entries: &mut [Entry], lower: &[Entry]) {
    for (entry, lower) in entries.iter_mut().zip(lower) {
        if *entry == Entry::ABSENT {
            *entry = *lower;
        }
    }
}

/// A change of frozen layers, until it is dropped.
pub(super) struct FrozenChange<'a>(&'a Maps);

impl Drop for FrozenChange<'_> {
    fn drop(&mut self) {
        if self.0.frozen_changing.fetch_sub(1, SeqCst) == 1 {
            self.0.frozen_changes.fetch_add(1, SeqCst);
        }
    }
}

impl Maps {
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
            let view = Arc::new(Leaf::new(entries, Heat::new(false)));
            let mut shard = lock(self.shard(key.0, segment));
            if !is_still(self) {
                drop(shard);
                yield_now();
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

    /// Announces that frozen layers are about to change. The caller holds the uncommitted state,
    /// and has loaded the segments: threads that make views wait.
    pub(super) fn change_frozen(&self) -> FrozenChange<'_> {
        if self.frozen_changing.fetch_add(1, SeqCst) == 0 {
            self.frozen_changes.fetch_add(1, SeqCst);
        }
        FrozenChange(self)
    }

    /// Drops the views of a segment that a frozen layer is part of.
    pub(super) fn forget_views(&self, layer: &Layer, segment: SegmentIndex) {
        let mut concerned = vec![layer.id];
        while let Some(id) = concerned.pop() {
            let key = (view_key(id), segment);
            lock(self.shard(key.0, segment)).remove(key);
            if let Ok(layer) = self.layer(id) {
                concerned.extend(layer.above());
            }
        }
    }
}
