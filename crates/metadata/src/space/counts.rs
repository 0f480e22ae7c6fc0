//! How many blocks are free in each page of the free-space map.

use super::{PAGE_BLOCKS, capacity};
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;

/// The free blocks of the pages, in the order of the pages: of all pages of a pool with one owner; of those in which a
/// group has any, in a shared pool.
pub(super) struct FreeCounts {
    pages: Vec<PageCount>,
}

/// The free blocks of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageCount {
    pub(super) index: u32,
    pub(super) free: u16,
}

impl FreeCounts {
    /// The counts of a pool that has only free blocks.
    pub(super) fn of_pool(blocks: u64) -> Self {
        let mut counts = Self { pages: Vec::new() };
        counts.grow(0, blocks);
        counts
    }

    /// The counts of a group that has no blocks.
    pub(super) fn of_group() -> Self {
        Self { pages: Vec::new() }
    }

    /// The page at this position.
    pub(super) fn at(&self, position: usize) -> PageCount {
        self.pages[position]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PageCount> + '_ {
        self.pages.iter().copied()
    }

    /// The position of the first page that does not end before this one. In a pool with one owner, positions are the
    /// pages' numbers.
    pub(super) fn position(&self, index: u32) -> usize {
        match self.pages.get(index as usize) {
            Some(page) if page.index == index => index as usize,
            _ => self.pages.partition_point(|page| page.index < index),
        }
    }

    fn find(&self, index: u32) -> Result<usize, usize> {
        let position = self.position(index);
        match self.pages.get(position) {
            Some(page) if page.index == index => Ok(position),
            _ => Err(position),
        }
    }

    /// The free blocks of a page; none if it is not there.
    pub(super) fn get(&self, index: u32) -> Option<u16> {
        Some(self.pages[self.find(index).ok()?].free)
    }

    /// Sets the free blocks of a page, and returns how many it had before.
    pub(super) fn set(&mut self, index: u32, free: u16) -> u16 {
        match self.find(index) {
            Ok(position) => std::mem::replace(&mut self.pages[position].free, free),
            Err(position) => {
                self.pages.insert(position, PageCount { index, free });
                0
            }
        }
    }

    /// Counts more free blocks of a page, or fewer.
    pub(super) fn add(&mut self, index: u32, more: i32) {
        if more != 0 {
            let free = self.get(index).unwrap_or(0);
            self.set(index, free.wrapping_add_signed(more as i16));
        }
    }

    /// Adds the free blocks of a pool that grows.
    pub(super) fn grow(&mut self, before: u64, blocks: u64) {
        let first_page = before.saturating_sub(1) / BLOCKS_PER_SPACE_PAGE;
        for index in first_page..blocks.div_ceil(BLOCKS_PER_SPACE_PAGE) {
            let added = capacity(blocks, index) - capacity(before, index);
            let free = self.get(index as u32).unwrap_or(0);
            self.set(index as u32, free + added);
        }
    }

    /// Forgets the pages from this one on.
    pub(super) fn truncate(&mut self, pages: u64) {
        self.pages.truncate(self.position_before(pages));
    }

    /// Forgets the pages without free blocks.
    pub(super) fn forget_full(&mut self) {
        self.pages.retain(|page| page.free > 0);
    }

    /// The number of pages that begin before block `end`.
    pub(super) fn position_of_end(&self, end: u64) -> usize {
        self.position_before(end.div_ceil(PAGE_BLOCKS as u64))
    }

    fn position_before(&self, pages: u64) -> usize {
        match u32::try_from(pages) {
            Ok(pages) => self.position(pages),
            Err(_) => self.pages.len(),
        }
    }

    /// The free blocks of all pages.
    pub(super) fn total(&self) -> u64 {
        self.iter().map(|page| u64::from(page.free)).sum()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_all_of_its_pages() {
        let mut counts = FreeCounts::of_pool(2 * 16_384 + 5);
        assert_eq!((counts.pages.len(), counts.total()), (3, 2 * 16_384 + 4));
        assert_eq!(counts.at(2), PageCount { index: 2, free: 5 });
        counts.grow(2 * 16_384 + 5, 4 * 16_384);
        assert_eq!((counts.pages.len(), counts.total()), (4, 4 * 16_384 - 1));
        assert_eq!(counts.position_of_end(16_385), 2);
        counts.truncate(1);
        assert_eq!((counts.pages.len(), counts.total()), (1, 16_383));
    }

    #[test]
    fn a_group_has_the_pages_in_which_it_has_blocks() {
        let mut counts = FreeCounts::of_group();
        for (index, free) in [(900, 3), (7, 1), (1 << 25, 9)] {
            counts.add(index, free);
        }
        assert_eq!(counts.iter().map(|page| page.index).max(), Some(1 << 25));
        assert_eq!((counts.position(8), counts.position(900)), (1, 1));
        assert_eq!((counts.get(7), counts.get(8)), (Some(1), None));
        counts.add(7, -1);
        counts.add(8, 0);
        counts.forget_full();
        assert_eq!((counts.pages.len(), counts.total()), (2, 12));
        assert_eq!(counts.position_of_end(u64::MAX), 2);
    }
}
