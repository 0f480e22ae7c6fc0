//! Sealing the maps' dirty segments for a checkpoint, and taking them back if it fails.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::TreeRoot;

use super::Maps;
use super::layer::Layer;
use super::leaf::SealedLeaf;
use crate::sync::{lock, read, write};

impl Maps {
    /// Takes the dirty list, sorted, each segment with its entries as they are now. The caller
    /// holds the uncommitted state, so they match the records up to now.
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

    /// Marks the segments of a failed checkpoint as dirty again, except segments of a layer that
    /// has been removed since.
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

    /// Makes this tree, whose root is durable, the layer's tree on disk.
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
}
