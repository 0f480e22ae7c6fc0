//! Freed space that the host may have back, as far as it is remembered: see `host_space.rs`.

use std::collections::BTreeMap;
use std::ops::Range;

/// The most ranges remembered: about 1 MiB of memory. Beyond that, some are processed at once.
const RANGES_MAX: usize = 16_384;

/// Freed space that has not been processed yet, as ranges of units.
#[derive(Default)]
pub(super) struct Freed {
    /// Ranges from their first unit to the end; they do not touch.
    ranges: BTreeMap<u64, u64>,
}

impl Freed {
    /// Remembers a range, which may overlap others. Returns whether there are now too many.
    pub(super) fn add(&mut self, mut added: Range<u64>) -> bool {
        while let Some((&start, &end)) = self.ranges.range(..=added.end).next_back()
            && end >= added.start
        {
            self.ranges.remove(&start);
            added = added.start.min(start)..added.end.max(end);
        }
        self.ranges.insert(added.start, added.end);
        self.ranges.len() > RANGES_MAX
    }

    /// Takes up to `units` units off the front.
    pub(super) fn take(&mut self, units: u64) -> Option<Range<u64>> {
        let (start, end) = self.ranges.pop_first()?;
        let cut = end.min(start.saturating_add(units));
        if cut < end {
            self.ranges.insert(cut, end);
        }
        Some(start..cut)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::{Freed, RANGES_MAX};

    fn freed(ranges: &[(u64, u64)]) -> Freed {
        let mut freed = Freed::default();
        for (start, end) in ranges {
            freed.add(*start..*end);
        }
        freed
    }

    #[test]
    fn ranges_that_touch_or_overlap_become_one() {
        for ranges in [
            &[(0, 4), (4, 8)][..],
            &[(4, 8), (0, 4)],
            &[(0, 2), (6, 8), (1, 7)],
            &[(0, 8), (2, 3)],
            &[(2, 3), (5, 6), (0, 8)],
        ] {
            let mut freed = freed(ranges);
            assert_eq!(freed.ranges.len(), 1, "{ranges:?}");
            assert_eq!(freed.take(u64::MAX), Some(0..8), "{ranges:?}");
        }
        assert_eq!(freed(&[(0, 4), (5, 8)]).ranges.len(), 2);
    }

    #[test]
    fn everything_comes_back_once_in_pieces() {
        let mut freed = freed(&[(10, 15), (0, 3)]);
        let mut pieces = Vec::new();
        while let Some(piece) = freed.take(2) {
            pieces.push((piece.start, piece.end));
        }
        assert_eq!(pieces, [(0, 2), (2, 3), (10, 12), (12, 14), (14, 15)]);
    }

    #[test]
    fn too_many_ranges_are_told() {
        let mut freed = Freed::default();
        for n in 0..RANGES_MAX as u64 {
            assert!(!freed.add(2 * n..2 * n + 1));
        }
        let beyond = 2 * RANGES_MAX as u64;
        assert!(freed.add(beyond..beyond + 1));
    }
}
