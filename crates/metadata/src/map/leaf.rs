//! A segment of a layer's map in memory.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::map_page::Segment;
use onefold_format::{Entry, SegmentIndex};

use super::layer::Layer;
use crate::candidates::Candidates;
use crate::guard::Guard;
use crate::heat::Heat;
use crate::sync::{RwLock, read};

/// A segment of a layer's map.
pub struct Leaf {
    pub(super) state: RwLock<LeafState>,
    /// How recently its blocks were written.
    pub heat: Heat,
    /// Blocks that the finder reads before it publishes them.
    pub candidates: Candidates,
}

pub(super) struct LeafState {
    /// Shared with a checkpoint that is being written: the first change after that copies.
    pub(super) entries: Arc<Segment>,
    /// Changed since the last checkpoint sealed it, hence in the dirty list.
    pub(super) dirty: bool,
}

/// A segment of a layer, and where it is in memory.
#[derive(Clone, Copy)]
pub(crate) struct LeafOf<'a> {
    pub(crate) layer: &'a Arc<Layer>,
    pub(crate) leaf: &'a Arc<Leaf>,
}

/// A segment on the dirty list.
pub(crate) struct DirtyLeaf {
    pub(crate) layer: Arc<Layer>,
    pub(crate) segment: SegmentIndex,
    pub(super) leaf: Arc<Leaf>,
}

/// A segment as it was when a checkpoint was sealed.
pub(crate) struct SealedLeaf {
    pub(crate) dirty: DirtyLeaf,
    pub(crate) entries: Arc<Segment>,
}

impl Leaf {
    pub(super) fn new(entries: Arc<Segment>, heat: Heat) -> Self {
        Self {
            state: RwLock::new(LeafState {
                entries,
                dirty: false,
            }),
            heat,
            candidates: Candidates::new(),
        }
    }

    /// Notes that these blocks are about to be written: they are hot, and no candidates of the finder. The caller holds
    /// their lock.
    pub fn note_write(&self, slots: Range<usize>) {
        self.heat.touch(slots.clone());
        if Guard::CandidatesDropped.holds() {
            self.candidates.drop_any(slots);
        }
    }

    /// Copies the entries of `slots`.
    pub fn entries(&self, slots: Range<usize>, into: &mut impl Extend<Entry>) {
        into.extend(read(&self.state).entries[slots].iter().copied());
    }

    /// All entries as they are now.
    pub(super) fn segment(&self) -> Arc<Segment> {
        Arc::clone(&read(&self.state).entries)
    }

    /// Visits all entries under the lock, so they do not change during the call.
    pub fn with<T>(&self, look: impl FnOnce(&Segment) -> T) -> T {
        look(&read(&self.state).entries)
    }
}
