//! Views: the combined entries of a frozen layer and those below it for a segment, cached next to
//! the segments.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::Blocking;
use onefold_format::map_page::Segment;
use onefold_format::{Entry, LayerId, SegmentIndex};

use super::layer::Layer;
use super::leaf::Leaf;
use super::{Entries, Maps};
use crate::error::{Result, StoreError};
use crate::heat::Heat;
use crate::sync::{lock, yield_now};

/// Key of a layer's view in the cache: no layer has such an id.
pub(super) fn view_key(layer: LayerId) -> LayerId {
    LayerId(layer.0 | 1 << 63)
}

/// Replaces absent entries by entries of the layer below.
pub fn fill_absent(entries: &mut [Entry], lower: &[Entry]) {
    for (entry, lower) in entries.iter_mut().zip(lower) {
        if *entry == Entry::ABSENT {
            *entry = *lower;
        }
    }
}

/// The layers whose views contain one layer, kept because one layer often changes many times in a
/// row.
#[derive(Default)]
pub(super) struct Containing {
    /// The layer, and the value of [`Maps::arranged`] when the list was made.
    of: Option<(LayerId, u64)>,
    layers: Vec<LayerId>,
}

/// Marks a change of frozen layers as in progress until it is dropped.
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
        let own = self.leaf_if_any(layer, segment, blocking)?;
        let first = into.len();
        match &own {
            Some(leaf) => leaf.entries(slots.clone(), into),
            None => into.resize(first + slots.len(), Entry::ABSENT),
        }
        let resolved = &mut into[first..];
        if !resolved.contains(&Entry::ABSENT) {
            return Ok(());
        }
        if let Some(below) = layer.below() {
            let view = self.view(&below, segment, blocking)?;
            fill_absent(resolved, &view[slots.clone()]);
        }
        // A merge may have moved an entry here during the lookup. It left the layer below only
        // after it had arrived, and that layer may already be gone.
        let own = match own {
            None => self.leaf_if_any(layer, segment, blocking)?,
            own => own,
        };
        let Some(leaf) = own else { return Ok(()) };
        leaf.with(|own| {
            for (entry, own) in resolved.iter_mut().zip(&own[slots]) {
                if *own != Entry::ABSENT {
                    *entry = *own;
                }
            }
        });
        Ok(())
    }

    /// The combined entries of a frozen layer and those below it, for one segment.
    ///
    /// Lookups skip layers without entries, so a snapshot that changed nothing has no view: it uses
    /// the view of the first layer below that has entries. If a skipped layer gets its first entry,
    /// which a merge takes out of the layer below, the view is looked up again.
    pub fn view(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Segment>> {
        loop {
            let arranged = self.arranged();
            let view = match layer.first_occupied() {
                Some(top) => self.view_of_occupied(&top, segment, blocking)?,
                None => Arc::clone(&self.empty),
            };
            if self.arranged() == arranged {
                return Ok(view);
            }
        }
    }

    /// A view in the cache always matches the layers. A change of frozen layers increments a
    /// counter before and after, and drops the affected views in between. A view is made again if
    /// the counter was odd or has changed since its making began, and goes into the cache only if
    /// it has not. Readers that still hold an old view are in an epoch that keeps its blocks (P3).
    fn view_of_occupied(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Arc<Segment>> {
        if layer.next_occupied().is_none() {
            let leaf = self.leaf_if_any(layer, segment, blocking)?;
            return Ok(leaf.map_or_else(|| Arc::clone(&self.empty), |leaf| leaf.segment()));
        }
        let key = (view_key(layer.id), segment);
        loop {
            if let Some(view) = self.cached(key) {
                return Ok(view.segment());
            }
            if blocking == Blocking::No {
                return Err(StoreError::would_block());
            }
            let changes = self.frozen_changes();
            let is_still =
                |maps: &Self| changes.is_multiple_of(2) && maps.frozen_changes() == changes;
            let entries = self.compose(layer, segment)?;
            let view = Arc::new(Leaf::new(Arc::clone(&entries), Heat::new(false)));
            let mut shard = lock(self.shard(key.0, segment));
            if !is_still(self) {
                drop(shard);
                yield_now();
                continue;
            }
            if shard.get(key).is_none() {
                shard.insert(key, view, |leaf| Arc::strong_count(leaf) == 1);
            }
            return Ok(entries);
        }
    }

    /// The combined entries of this layer and those below it at one moment of the call. Puts nothing into
    /// the cache: for callers that visit more segments than the cache should hold for them.
    pub fn peek_resolved(&self, layer: &Arc<Layer>, segment: SegmentIndex) -> Result<Arc<Segment>> {
        loop {
            let changes = self.frozen_changes();
            let entries = self.compose(layer, segment)?;
            if changes.is_multiple_of(2) && self.frozen_changes() == changes {
                return Ok(entries);
            }
            yield_now();
        }
    }

    /// The entries of a layer's segment, with absent ones taken from the layers below it. Reads each
    /// layer that has the segment once at most, and puts none of them into the cache.
    fn compose(&self, top: &Arc<Layer>, segment: SegmentIndex) -> Result<Arc<Segment>> {
        let mut composed: Option<Arc<Segment>> = None;
        let mut next = Some(Arc::clone(top));
        // Just after a snapshot, the view that readers have used is the view of the layer below.
        let second = top.next_occupied().map(|layer| layer.id);
        while let Some(layer) = next {
            let has_segment = layer.occupancy.may_have(segment);
            let view = if has_segment || Some(layer.id) == second {
                self.cached((view_key(layer.id), segment))
            } else {
                None
            };
            let lower = match &view {
                Some(view) => Some(view.segment()),
                None if has_segment => Some(self.peek(&layer, segment, Blocking::Yes)?),
                None => None,
            };
            composed = match (composed, lower) {
                (Some(mut upper), Some(lower)) => {
                    fill_absent(&mut Arc::make_mut(&mut upper)[..], &lower[..]);
                    Some(upper)
                }
                (upper, lower) => upper.or(lower),
            };
            let is_whole = |entries: &Arc<Segment>| !entries.contains(&Entry::ABSENT);
            if view.is_some() || composed.as_ref().is_some_and(is_whole) {
                break;
            }
            next = layer.next_occupied();
        }
        Ok(composed.unwrap_or_else(|| Arc::clone(&self.empty)))
    }

    /// This layer and those below it, from the top.
    pub fn lineage(layer: &Arc<Layer>) -> Vec<Arc<Layer>> {
        std::iter::successors(Some(Arc::clone(layer)), |layer| layer.below()).collect()
    }

    /// Counts changes of frozen layers: what a caller read stays valid while the count is
    /// unchanged, and even.
    pub fn frozen_changes(&self) -> u64 {
        self.frozen_changes.load(SeqCst)
    }

    /// A counter: while it stays the same, the arrangement of the layers is unchanged, and so is
    /// the set of empty ones.
    pub(crate) fn arranged(&self) -> u64 {
        self.arranged.load(SeqCst)
    }

    /// Announces that frozen layers are about to change. The caller holds the uncommitted state,
    /// and has loaded the segments: threads that make views wait.
    pub(super) fn change_frozen(&self) -> FrozenChange<'_> {
        if self.frozen_changing.fetch_add(1, SeqCst) == 0 {
            self.frozen_changes.fetch_add(1, SeqCst);
        }
        FrozenChange(self)
    }

    /// Drops the views of a segment that a frozen layer is part of. The caller holds the uncommitted state.
    pub(super) fn forget_views(&self, layer: &Arc<Layer>, segment: SegmentIndex) {
        let mut containing = lock(&self.containing);
        let of = Some((layer.id, self.arranged()));
        if containing.of != of {
            let layers = self.layers_containing(layer);
            *containing = Containing { of, layers };
        }
        for id in &containing.layers {
            let key = (view_key(*id), segment);
            lock(self.shard(key.0, segment)).remove(key);
        }
    }

    /// The layers whose views this one is part of: itself and those above it, except empty ones.
    fn layers_containing(&self, layer: &Arc<Layer>) -> Vec<LayerId> {
        let (mut containing, mut concerned) = (Vec::new(), vec![Arc::clone(layer)]);
        while let Some(layer) = concerned.pop() {
            if !layer.occupancy.is_empty() {
                containing.push(layer.id);
            }
            concerned.extend(self.layers_above(&layer));
        }
        containing
    }
}
