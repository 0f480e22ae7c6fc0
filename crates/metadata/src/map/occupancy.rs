//! Which segments of a layer may have entries, in memory.
//!
//! A clear bit is certain: such a segment is empty. A set bit means "perhaps": it stays set when the segment is
//! emptied, and if a layer has more segments than bits, several share one. So a lookup can skip a layer that did not
//! change a segment without reading its tree. Bits are not stored: opening a pool walks the trees and sets them.
//!
//! All layers share one budget. A layer that finds the budget exhausted has no bits: it may have entries everywhere.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use onefold_format::SegmentIndex;

use crate::sync::{AtomicU64, AtomicUsize};

/// The most bits of a layer, one for each segment of 32 GiB in blocks of 4 KiB: the layers of a thousand snapshots
/// take 2 MiB.
const BITS_MAX: u64 = 1 << 14;

/// The smallest number of bits: one word.
const BITS_MIN: u64 = 64;

/// The memory still available for the bits of all layers.
pub(super) struct OccupancyBudget {
    left_bytes: AtomicUsize,
}

impl OccupancyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            left_bytes: AtomicUsize::new(bytes),
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.left_bytes.fetch_update(SeqCst, SeqCst, take).is_ok()
    }
}

/// Which segments of one layer may have entries.
pub(super) struct Occupancy {
    /// Set with the layer's first entry; without bits if the budget had nothing left.
    bits: OnceLock<Option<Box<[AtomicU64]>>>,
    words: usize,
    budget: Arc<OccupancyBudget>,
}

impl Occupancy {
    /// The occupancy of a layer with this many segments, all of them empty.
    pub(super) fn new(segments: u64, budget: Arc<OccupancyBudget>) -> Self {
        let bits = segments.clamp(BITS_MIN, BITS_MAX).next_power_of_two();
        Self {
            bits: OnceLock::new(),
            words: (bits / u64::from(u64::BITS)) as usize,
            budget,
        }
    }

    /// Whether the layer never had an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.bits.get().is_none()
    }

    pub(super) fn may_have(&self, segment: SegmentIndex) -> bool {
        match self.bits.get() {
            None => false,
            Some(None) => true,
            Some(Some(bits)) => {
                let (word, bit) = place(bits, segment);
                word.load(SeqCst) & bit != 0
            }
        }
    }

    /// Marks the segment as having entries. Callers must not run concurrently.
    pub(super) fn insert(&self, segment: SegmentIndex) {
        if self.is_empty() {
            let words = (0..self.words).map(|_| AtomicU64::new(0));
            let has_room = self.budget.take(self.words * size_of::<u64>());
            let bits = has_room.then(|| words.collect::<Box<[_]>>());
            if let Some(bits) = &bits {
                let (word, bit) = place(bits, segment);
                word.fetch_or(bit, SeqCst);
            }
            let _is_first = self.bits.set(bits);
        } else if let Some(Some(bits)) = self.bits.get() {
            let (word, bit) = place(bits, segment);
            if word.load(SeqCst) & bit == 0 {
                word.fetch_or(bit, SeqCst);
            }
        }
    }
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        if let Some(Some(bits)) = self.bits.get() {
            let bytes = size_of_val(&bits[..]);
            self.budget.left_bytes.fetch_add(bytes, SeqCst);
        }
    }
}

/// The word and the bit of a segment.
fn place(bits: &[AtomicU64], segment: SegmentIndex) -> (&AtomicU64, u64) {
    let at = segment.0 % (bits.len() as u64 * u64::from(u64::BITS));
    (&bits[(at / 64) as usize], 1 << (at % 64))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_may_have_entries_once_it_got_some_and_no_other_does() {
        let budget = Arc::new(OccupancyBudget::new(1 << 20));
        let occupancy = Occupancy::new(1000, Arc::clone(&budget));
        let found = |occupancy: &Occupancy| -> Vec<u64> {
            let all = (0..1000).filter(|n| occupancy.may_have(SegmentIndex(*n)));
            all.collect()
        };
        assert!(occupancy.is_empty() && found(&occupancy).is_empty());
        for n in [0, 63, 64, 999] {
            occupancy.insert(SegmentIndex(n));
        }
        assert!(!occupancy.is_empty());
        assert_eq!(found(&occupancy), [0, 63, 64, 999]);
        // A segment beyond the original end: the volume has grown since.
        occupancy.insert(SegmentIndex(u64::MAX));
        assert!(occupancy.may_have(SegmentIndex(u64::MAX)));
    }

    #[test]
    fn layers_for_which_no_memory_is_left_may_have_entries_everywhere() {
        let budget = Arc::new(OccupancyBudget::new(3 * 2048));
        let large = || Occupancy::new(BITS_MAX * 4, Arc::clone(&budget));
        let mut layers: Vec<Occupancy> = (0..4).map(|_| large()).collect();
        for layer in &layers {
            assert!(!layer.may_have(SegmentIndex(1)));
            layer.insert(SegmentIndex(1));
            assert!(layer.may_have(SegmentIndex(1)) && !layer.is_empty());
        }
        let elsewhere = |layer: &Occupancy| layer.may_have(SegmentIndex(2));
        assert_eq!(
            layers.iter().map(elsewhere).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        layers.remove(0);
        let next = large();
        next.insert(SegmentIndex(1));
        assert!(
            !elsewhere(&next),
            "the blocks of a removed layer are free again"
        );
    }
}
