//! Two layers above a common one, and the differences of their maps.

use std::sync::Arc;

use onefold_engine::Blocking;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, LayerId, SegmentIndex};
use rustc_hash::FxHashSet;

use super::map::{Layer, Maps};
use super::segments::Segments;
use crate::error::Result;

/// How a run of bytes differs from an older copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Unchanged since the copy.
    Same,
    /// Data that may differ from the copy.
    Data,
    /// Zeros, or nothing because it is beyond the end; the copy may have something else.
    Zero,
}

/// The layers above the nearest common layer of two layers, each side from the bottom.
pub struct Branches {
    common: Arc<Layer>,
    old: Vec<Arc<Layer>>,
    new: Vec<Arc<Layer>>,
}

impl Branches {
    /// The branches of two layers; `None` if they have no layer in common.
    pub fn of(old: &Arc<Layer>, new: &Arc<Layer>) -> Option<Self> {
        let [mut old, mut new] = [old, new].map(Maps::lineage);
        let ids: FxHashSet<LayerId> = old.iter().map(|layer| layer.id).collect();
        let common = new.iter().find(|layer| ids.contains(&layer.id))?;
        let common = Arc::clone(common);
        for side in [&mut old, &mut new] {
            let above = side.iter().take_while(|layer| layer.id != common.id);
            side.truncate(above.count());
            side.reverse();
        }
        Some(Self { common, old, new })
    }

    /// The segments in which a layer of either branch may have entries.
    pub fn segments(&self) -> Segments {
        Segments::of(self.old.iter().chain(&self.new))
    }

    /// The change of each block of a segment. The caller has pinned the epoch.
    pub fn compare(
        &self,
        maps: &Maps,
        segment: SegmentIndex,
        blocking: Blocking,
    ) -> Result<Vec<Change>> {
        let mut sides = [EMPTY_SEGMENT; 2];
        for (side, layers) in sides.iter_mut().zip([&self.old, &self.new]) {
            for layer in layers {
                lay_over(side, &*maps.peek(layer, segment, blocking)?);
            }
        }
        let [old, new] = &sides;
        if *old == EMPTY_SEGMENT && *new == EMPTY_SEGMENT {
            return Ok(vec![Change::Same; BLOCKS_PER_SEGMENT as usize]);
        }
        let view = maps.view(&self.common, segment, blocking)?;
        let slots = old.iter().zip(new).zip(view.iter());
        let changes = slots.map(|((old, new), common)| change([*old, *new], *common));
        Ok(changes.collect())
    }
}

/// Overlays the entries of an upper layer, which hide those below.
fn lay_over(entries: &mut Segment, upper: &Segment) {
    for (entry, upper) in entries.iter_mut().zip(upper) {
        if *upper != Entry::ABSENT {
            *entry = *upper;
        }
    }
}

/// The change of a block, from its entries on both sides above `common`.
fn change(said: [Entry; 2], common: Entry) -> Change {
    if said == [Entry::ABSENT; 2] {
        return Change::Same;
    }
    let [old, new] = said.map(|entry| match entry {
        Entry::ABSENT => common.pba(),
        entry => entry.pba(),
    });
    match new {
        _ if old == new => Change::Same,
        Some(_) => Change::Data,
        None => Change::Zero,
    }
}

#[cfg(all(test, feature = "shuttle"))]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod shuttle_tests {
    use shuttle::thread;

    use super::*;
    use crate::map::shuttle_tests::{SEGMENT, layer, maps, merge_away};

    #[test]
    fn shuttle_merging_hides_no_change() {
        let interleave = || {
            let (maps, [bottom, middle, upper]) = maps();
            let top = layer(&maps, 4, Some(3), &[]);
            let beside = layer(&maps, 5, Some(1), &[(1, 20)]);
            let reader = {
                let maps = Arc::clone(&maps);
                thread::spawn(move || {
                    use Change::{Data, Same, Zero};
                    for (old, new, expected) in [
                        (&bottom, &top, [Same, Same, Data]),
                        (&beside, &top, [Same, Data, Data]),
                        (&top, &beside, [Same, Data, Zero]),
                    ] {
                        let branches = Branches::of(old, new).unwrap();
                        let next = branches.segments().next(&maps, SEGMENT).unwrap();
                        assert_eq!(next, Some(SEGMENT));
                        let changes = branches.compare(&maps, SEGMENT, Blocking::Yes).unwrap();
                        assert_eq!(changes[..3], expected);
                    }
                })
            };
            merge_away(&maps, &middle, &upper);
            reader.join().unwrap();
        };
        // Few context switches, at any place: a merge has to run in the middle of one comparison.
        shuttle::check_pct(interleave, 2000, 3);
    }
}
