//! Which pages of the body are in use.
//!
//! The map is in memory alone: the root determines the pages in use, so opening finds them again.
//! Space is taken from the front, so that free pages gather at the end.

use std::collections::BTreeMap;

use crate::header::BODY_OFFSET;

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// More pages than any part has: larger numbers from a disk are not trusted.
const PAGES_MAX: u64 = 1 << 44;

/// Consecutive pages of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) pages: u64,
}

impl Extent {
    /// The extent, if a part can have it.
    pub(super) fn checked(start: u64, pages: u64) -> Option<Extent> {
        let end = start.checked_add(pages)?;
        (pages > 0 && end <= PAGES_MAX).then_some(Extent { start, pages })
    }

    /// The extent's offset in the part, in bytes.
    pub(super) fn offset(self) -> u64 {
        page_offset(self.start)
    }

    pub(super) fn bytes(self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    fn end(self) -> u64 {
        self.start + self.pages
    }
}

/// Where a page begins in the part, in bytes.
pub(super) fn page_offset(page: u64) -> u64 {
    BODY_OFFSET + page * PAGE_BYTES as u64
}

/// The number of pages that hold this many bytes.
pub(super) fn pages_for(bytes: usize) -> u64 {
    bytes.div_ceil(PAGE_BYTES) as u64
}

/// The free pages below `end`; all pages from there on are free.
pub(super) struct Space {
    /// Start and length, which neither touch each other nor the end.
    free: BTreeMap<u64, u64>,
    free_pages: u64,
    end: u64,
}

impl Space {
    /// All but the first pages is free.
    pub(super) fn behind(pages: u64) -> Space {
        Space {
            free: BTreeMap::new(),
            free_pages: 0,
            end: pages,
        }
    }

    /// Takes the first place that is large enough.
    pub(super) fn take(&mut self, pages: u64) -> Extent {
        let found = self.free.iter().find(|(_, free)| **free >= pages);
        let Some((start, free)) = found.map(|(start, free)| (*start, *free)) else {
            // Free pages never touch the end.
            let start = self.end;
            self.end += pages;
            return Extent { start, pages };
        };
        self.free.remove(&start);
        if free > pages {
            self.free.insert(start + pages, free - pages);
        }
        self.free_pages -= pages;
        Extent { start, pages }
    }

    /// Takes just these pages; false if one of them is in use.
    pub(super) fn take_at(&mut self, extent: Extent) -> bool {
        if extent.start >= self.end {
            if extent.start > self.end {
                self.free.insert(self.end, extent.start - self.end);
                self.free_pages += extent.start - self.end;
            }
            self.end = extent.end();
            return true;
        }
        let before = self.free.range(..=extent.start).next_back();
        let Some((start, free)) = before.map(|(start, free)| (*start, *free)) else {
            return false;
        };
        let end = start + free;
        if end < extent.end() {
            return false;
        }
        self.free.remove(&start);
        if start < extent.start {
            self.free.insert(start, extent.start - start);
        }
        if extent.end() < end {
            self.free.insert(extent.end(), end - extent.end());
        }
        self.free_pages -= extent.pages;
        true
    }

    /// Frees pages that were taken.
    pub(super) fn give(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.start, extent.end());
        self.free_pages += extent.pages;
        if let Some((before, free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            start = *before;
            self.free.remove(&start);
        }
        if let Some(free) = self.free.remove(&end) {
            end += free;
        }
        if end == self.end {
            self.end = start;
            self.free_pages -= end - start;
        } else {
            self.free.insert(start, end - start);
        }
    }

    /// Whether more is free than will soon be reused, `spare_pages` and a quarter of the pages in
    /// use: then freed pages should be discarded.
    pub(super) fn is_roomy(&self, spare_pages: u64) -> bool {
        self.free_pages > (self.end - self.free_pages) / 4 + spare_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, pages: u64) -> Extent {
        Extent { start, pages }
    }

    #[test]
    fn what_is_given_back_is_taken_again_from_the_front() {
        let mut space = Space::behind(2);
        let taken: Vec<Extent> = (1..=5).map(|pages| space.take(pages)).collect();
        assert_eq!((taken[0], taken[4]), (extent(2, 1), extent(12, 5)));
        space.give(taken[3]);
        space.give(taken[1]);
        assert_eq!(space.take(3), extent(8, 3));
        assert_eq!(space.take(2), extent(3, 2));
        assert_eq!(space.take(1), extent(11, 1));
        assert_eq!(space.take(1), extent(17, 1));
    }

    #[test]
    fn neighbours_join_and_the_end_moves_back() {
        let mut space = Space::behind(0);
        let taken: Vec<Extent> = (0..4).map(|_| space.take(2)).collect();
        for at in [1, 3, 2] {
            space.give(taken[at]);
        }
        assert_eq!((space.end, space.free_pages), (2, 0));
        space.give(taken[0]);
        assert_eq!((space.end, space.free.len()), (0, 0));
    }

    #[test]
    fn random_extents_never_overlap_and_are_found_again() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut space = Space::behind(2);
            let mut taken: Vec<Extent> = Vec::new();
            for _ in 0..300 {
                if random.u8(..10) < 6 || taken.is_empty() {
                    let new = space.take(random.u64(1..9));
                    let overlaps =
                        |other: &Extent| other.start < new.end() && new.start < other.end();
                    assert!(!taken.iter().any(overlaps));
                    taken.push(new);
                } else {
                    let at = random.usize(..taken.len());
                    space.give(taken.swap_remove(at));
                }
            }
            let mut again = Space::behind(2);
            random.shuffle(&mut taken);
            assert!(taken.iter().all(|extent| again.take_at(*extent)));
            assert_eq!((&again.free, again.end), (&space.free, space.end));
            assert_eq!(again.free_pages, space.free_pages);
            for it in &taken {
                assert!(!again.take_at(*it));
            }
        }
    }
}
