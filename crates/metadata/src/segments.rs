//! Which segments of a volume may hold something, in order.
//!
//! A volume with a thousand snapshots has a thousand layers. A request that visits many segments
//! looks up each layer's next entry once, and again when it has come there.

use std::sync::Arc;

use onefold_format::SegmentIndex;

use super::map::{Layer, Maps, Wanted};
use crate::error::Result;

/// The segments in which one of some layers may have something.
pub struct Segments {
    which: Which,
    /// From the bottom, the layers that are not empty and those that are not frozen. In this order, an
    /// entry that a concurrent merge takes out of a layer is already in the next one.
    layers: Vec<Ahead>,
    /// The value of [`Maps::arranged`] when the layers were collected.
    arranged: Option<u64>,
    /// The count of changes of frozen layers when the next entries were looked up.
    changes: Option<u64>,
}

/// The layers to search.
enum Which {
    /// A layer and all layers below it.
    Under(Arc<Layer>),
    /// A list of layers, one above the other, from the bottom.
    Listed(Vec<Arc<Layer>>),
}

struct Ahead {
    layer: Arc<Layer>,
    is_frozen: bool,
    /// The first segment with entries, as far as the layer was searched.
    next: Option<SegmentIndex>,
}

impl Segments {
    /// The segments of layers that stand one above the other, from the bottom.
    pub fn of<'a>(layers: impl IntoIterator<Item = &'a Arc<Layer>>) -> Self {
        Self::new(Which::Listed(layers.into_iter().cloned().collect()))
    }

    /// The segments of a layer and those below it.
    pub fn under(layer: &Arc<Layer>) -> Self {
        Self::new(Which::Under(Arc::clone(layer)))
    }

    fn new(which: Which) -> Self {
        Self {
            which,
            layers: Vec::new(),
            arranged: None,
            changes: None,
        }
    }

    /// Whether this was made for this layer and those below it.
    pub fn is_under(&self, layer: &Arc<Layer>) -> bool {
        matches!(&self.which, Which::Under(top) if Arc::ptr_eq(top, layer))
    }

    /// The first segment at or after `from`, which never goes back.
    pub fn next(&mut self, maps: &Maps, from: SegmentIndex) -> Result<Option<SegmentIndex>> {
        let changes = maps.frozen_changes();
        let is_kept = self.changes == Some(changes);
        self.look(maps, from, is_kept)?;
        let is_still = changes.is_multiple_of(2) && maps.frozen_changes() == changes;
        if is_kept && !is_still {
            // The segment may have moved to a layer that was not searched again.
            self.look(maps, from, false)?;
        }
        self.changes = is_still.then_some(changes);
        Ok(self.layers.iter().filter_map(|ahead| ahead.next).min())
    }

    /// Searches all layers; if `is_kept`, because frozen layers have not changed, only those whose
    /// next entry may differ.
    fn look(&mut self, maps: &Maps, from: SegmentIndex, is_kept: bool) -> Result<()> {
        loop {
            let arranged = maps.arranged();
            let is_kept = is_kept && self.arranged == Some(arranged);
            if self.arranged != Some(arranged) {
                self.layers = self.which.layers();
                self.arranged = Some(arranged);
            }
            for ahead in &mut self.layers {
                let is_before = ahead.next.is_some_and(|next| next < from);
                if !is_kept || !ahead.is_frozen || is_before {
                    ahead.next = maps.next_segment(&ahead.layer, from, Wanted::Mapped)?;
                }
            }
            // A merge may have moved the segment to a layer that was empty and not searched.
            if maps.arranged() == arranged {
                return Ok(());
            }
        }
    }
}

impl Which {
    fn layers(&self) -> Vec<Ahead> {
        let ahead = |layer: &Arc<Layer>| Ahead {
            layer: Arc::clone(layer),
            is_frozen: layer.is_frozen(),
            next: None,
        };
        match self {
            Self::Under(top) => {
                let below =
                    std::iter::successors(top.next_occupied(), |layer| layer.next_occupied());
                let mut layers: Vec<Ahead> = below.map(|layer| ahead(&layer)).collect();
                layers.reverse();
                layers.push(ahead(top));
                layers
            }
            Self::Listed(layers) => {
                let asked = layers.iter().map(ahead);
                asked
                    .filter(|ahead| !ahead.is_frozen || ahead.layer.has_entries())
                    .collect()
            }
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod shuttle_tests {
    use onefold_engine::Blocking;
    use onefold_format::{Entry, Pba};
    use shuttle::thread;

    use super::*;
    use crate::map::LeafOf;
    use crate::map::shuttle_tests::{SEGMENT, forget, layer, maps};

    const LATER: SegmentIndex = SegmentIndex(1);

    #[test]
    fn shuttle_merging_hides_no_segment() {
        let interleave = || {
            let (maps, [_, middle, upper]) = maps();
            let live = layer(&maps, 4, Some(3), &[]);
            let leaf = |layer| maps.leaf(layer, LATER, Blocking::Yes).unwrap();
            maps.change(&middle, LATER, &leaf(&middle), 0..1, |entries| {
                entries[0] = Entry::shared(Pba(20));
            });
            let reader = {
                let maps = Arc::clone(&maps);
                thread::spawn(move || {
                    let mut segments = Segments::under(&live);
                    for segment in [SEGMENT, LATER] {
                        assert_eq!(segments.next(&maps, segment).unwrap(), Some(segment));
                    }
                })
            };
            let (lower, above) = (leaf(&middle), leaf(&upper));
            let moved = lower.with(|entries| *entries);
            maps.merge(
                LATER,
                LeafOf {
                    layer: &middle,
                    leaf: &lower,
                },
                LeafOf {
                    layer: &upper,
                    leaf: &above,
                },
                &moved,
            );
            forget(&middle, LATER);
            reader.join().unwrap();
        };
        shuttle::check_pct(interleave, 2000, 3);
    }
}
