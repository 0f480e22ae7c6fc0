//! Spare blocks: free blocks for which the host is known to have written space.
//!
//! On some disks a write to any other free block has to wait for the host to allocate space, and makes other requests
//! wait. So there spare blocks are handed out first ([`Space::spare_first`]). On all disks they are the blocks that the
//! host may have back.
//!
//! The bitmaps are a hint about the host, in memory only: a wrong bit costs time and no data. About the pool they are
//! exact: a spare block is free, because [`Space::take`] removes it from them.

use std::collections::BTreeMap;
use std::ops::Range;

use onefold_format::Pba;
use onefold_format::space_page::{BLOCKS_PER_SPACE_PAGE, Bitmap, EMPTY_BITMAP};
use onefold_format::units::BLOCKS_PER_SEGMENT;

use super::counts::PageCount;
use super::{PAGE_BLOCKS, Space, capacity};
use crate::bits;
use crate::error::Result;
use crate::placement::PLACE_BLOCKS;
use crate::run::{PbaRun, PbaRuns};

/// Requests for more new blocks leave half of the spare blocks that are kept to smaller requests, which suffer more: a
/// volume that is filled would take all of them.
const SMALL_BLOCKS: u64 = BLOCKS_PER_SEGMENT / 32;

/// Pages searched for a run that fits a request, of those that have as many spare blocks, while everything else waits.
const PAGES_TRIED: usize = 32;

/// Pages whose number of spare blocks is looked at for that.
const PAGES_PASSED: usize = 512;

/// Pages of the free-space map that may have to be loaded while everything else waits.
const PAGES_LOADED: usize = 4;

/// Spare blocks, and the use of them.
pub(super) struct Spare {
    pages: BTreeMap<u32, SparePage>,
    /// Pages beyond this are not remembered.
    pages_max: usize,
    /// Blocks were not remembered, because there were too many pages.
    is_incomplete: bool,
    blocks: u64,
    /// Whether spare blocks are handed out before others.
    is_first: bool,
    /// Blocks that are kept from the host.
    kept: u64,
    /// Where the next search for a run begins.
    cursor: u64,
    /// Where the next search for free blocks that are not spare begins.
    cursor_of_others: u64,
    /// Blocks handed out to small requests, and new blocks that were not spare, since the pool was opened.
    used: SpareUse,
}

/// The use of spare blocks on a disk where they are handed out first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpareUse {
    /// New blocks of small requests since the pool was opened.
    pub small_blocks: u64,
    /// New blocks since the pool was opened that were not known to be spare.
    pub hole_blocks: u64,
}

/// The spare blocks of one page of the free-space map.
struct SparePage {
    bits: Box<Bitmap>,
    blocks: u64,
    /// A block was added since the page was last searched for units that the host may have back.
    is_fresh: bool,
}

impl Spare {
    pub(super) fn new(pages_max: usize) -> Self {
        Self {
            pages: BTreeMap::new(),
            pages_max,
            is_incomplete: false,
            blocks: 0,
            is_first: false,
            kept: 0,
            cursor: 0,
            cursor_of_others: 0,
            used: SpareUse::default(),
        }
    }

    /// Whether a request for `count` new blocks gets spare ones.
    pub(super) fn is_for(&self, count: u64) -> bool {
        let left = if count <= SMALL_BLOCKS {
            0
        } else {
            self.kept / 2
        };
        self.is_first && count.saturating_add(left) <= self.blocks
    }

    /// Counts `count` new blocks, of which `spare` were spare.
    pub(super) fn count_use(&mut self, count: u64, spare: u64) {
        if count <= SMALL_BLOCKS {
            self.used.small_blocks += count;
        }
        if self.is_first {
            self.used.hole_blocks += count.saturating_sub(spare);
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether all of these blocks are spare.
    pub(super) fn has_all(&self, run: PbaRun) -> bool {
        let end = run.start.0 + run.count;
        let mut at = run.start.0;
        while at < end {
            let until = end.min(next_page(at));
            let is_spare = |page: &SparePage| {
                let first = at as usize % PAGE_BLOCKS;
                bits::all(&page.bits[..], first..first + (until - at) as usize, true)
            };
            if !self.pages.get(&page_of(at)).is_some_and(is_spare) {
                return false;
            }
            at = until;
        }
        true
    }

    /// Whether blocks of this page can be remembered.
    fn remembers(&self, index: u32) -> bool {
        self.pages.len() < self.pages_max || self.pages.contains_key(&index)
    }

    /// Remembers free blocks of one page; false if it cannot.
    fn add(&mut self, index: u32, blocks: Range<usize>) -> bool {
        if !self.remembers(index) {
            return false;
        }
        let page = self.pages.entry(index).or_insert_with(|| SparePage {
            bits: Box::new(EMPTY_BITMAP),
            blocks: 0,
            is_fresh: true,
        });
        let before = bits::ones(&page.bits[..], blocks.clone()).count();
        let added = (blocks.len() - before) as u64;
        bits::fill(&mut page.bits[..], blocks, true);
        page.blocks += added;
        page.is_fresh |= added > 0;
        self.blocks += added;
        true
    }

    /// Notes that blocks are missing here which another walk would find.
    pub(super) fn forgot(&mut self) {
        self.is_incomplete = true;
    }

    /// Forgets blocks of one page.
    #[inline]
    pub(super) fn remove(&mut self, index: u32, blocks: Range<usize>) {
        if self.blocks == 0 {
            return;
        }
        let Some(page) = self.pages.get_mut(&index) else {
            return;
        };
        let removed = bits::ones(&page.bits[..], blocks.clone()).count() as u64;
        bits::fill(&mut page.bits[..], blocks, false);
        page.blocks -= removed;
        self.blocks -= removed;
        if page.blocks == 0 {
            self.pages.remove(&index);
        }
    }

    /// Forgets all blocks of a page.
    pub(super) fn remove_page(&mut self, index: u32) {
        self.remove(index, 0..PAGE_BLOCKS);
    }

    /// Forgets the blocks from `end` on.
    pub(super) fn cut(&mut self, end: u64) {
        let cut = end as usize % PAGE_BLOCKS;
        if cut > 0 {
            self.remove(page_of(end), cut..PAGE_BLOCKS);
        }
        let beyond = self
            .pages
            .split_off(&page_of(end + (PAGE_BLOCKS - 1) as u64));
        self.blocks -= beyond.values().map(|page| page.blocks).sum::<u64>();
    }

    /// Consecutive places of spare blocks that have room for `blocks` blocks.
    pub(super) fn find_places(&self, blocks: u64) -> Option<u64> {
        let wanted = blocks.next_multiple_of(PLACE_BLOCKS) as usize;
        for (index, page) in self.pages_from(self.cursor, wanted as u64) {
            let starts = (0..PAGE_BLOCKS).step_by(PLACE_BLOCKS as usize);
            let mut starts = starts.take_while(|start| start + wanted <= PAGE_BLOCKS);
            if let Some(start) =
                starts.find(|start| bits::all(&page.bits[..], *start..start + wanted, true))
            {
                return Some(first_of(index) + start as u64);
            }
        }
        None
    }

    /// A run of `count` spare blocks: after the one found last, if possible.
    pub(super) fn find_run(&mut self, count: u64) -> Option<PbaRun> {
        let found = self
            .pages_from(self.cursor, count)
            .find_map(|(index, page)| {
                let from = if index == page_of(self.cursor) {
                    self.cursor as usize % PAGE_BLOCKS
                } else {
                    0
                };
                let fits = |run: &Range<usize>| run.len() as u64 >= count;
                let mut runs = bits::set_runs(&page.bits[..], from);
                let run = runs
                    .find(fits)
                    .or_else(|| bits::set_runs(&page.bits[..], 0).find(fits))?;
                Some(first_of(index) + run.start as u64)
            })?;
        self.cursor = found + count;
        let start = Pba(found);
        Some(PbaRun { start, count })
    }

    /// Any run of at most `most` spare blocks.
    pub(super) fn find_piece(&mut self, most: u64) -> Option<PbaRun> {
        let (index, page) = self.pages_from(self.cursor, 1).next()?;
        let run = bits::set_runs(&page.bits[..], 0).next()?;
        Some(PbaRun {
            start: Pba(first_of(index) + run.start as u64),
            count: most.min(run.len() as u64),
        })
    }

    /// The pages with at least `fewest` spare blocks, the one with block `from` first; not too many of them.
    fn pages_from(&self, from: u64, fewest: u64) -> impl Iterator<Item = (u32, &SparePage)> {
        let after = self.pages.range(page_of(from)..);
        let before = self.pages.range(..page_of(from));
        after
            .chain(before)
            .map(|(index, page)| (*index, page))
            .take(PAGES_PASSED)
            .filter(move |(_, page)| page.blocks >= fewest)
            .take(PAGES_TRIED)
    }
}

impl Space {
    /// Hands out spare blocks before others from now on.
    pub fn spare_first(&mut self) {
        self.spare.is_first = true;
    }

    /// Keeps this many spare blocks from the host.
    pub fn keep_spare(&mut self, blocks: u64) {
        self.spare.kept = blocks;
    }

    /// The number of spare blocks.
    pub fn spare_blocks(&self) -> u64 {
        self.spare.blocks
    }

    /// Spare blocks that are missing from the number that is kept.
    pub fn lacking_spare(&self) -> u64 {
        self.spare.kept.saturating_sub(self.spare.blocks)
    }

    /// How spare blocks have been used.
    pub fn spare_use(&self) -> SpareUse {
        self.spare.used
    }

    /// Like [`Space::release`], for blocks for which the host has written space.
    pub fn release_spare(&mut self, run: PbaRun) -> Result<()> {
        for piece in self.without_quarantined(run) {
            self.let_go(piece)?;
            // What is beyond the end of a shrinking pool is not handed out.
            let count = piece.count.min(self.end.saturating_sub(piece.start.0));
            let piece = PbaRun { count, ..piece };
            self.each_part(piece, |spare, index, part| {
                if !spare.add(index, part) {
                    spare.is_incomplete = true;
                }
            });
        }
        Ok(())
    }

    /// Notes that the host has written space for the free ones of these blocks, which are in one page of the free-space
    /// map.
    pub fn note_spare(&mut self, blocks: Range<u64>) -> Result<()> {
        let blocks = blocks.start..blocks.end.min(self.end);
        let index = page_of(blocks.start);
        let Some(free) = self.free.get(index) else {
            return Ok(());
        };
        if blocks.is_empty() || free == 0 {
            return Ok(());
        }
        let first = first_of(index);
        let wanted = (blocks.start - first) as usize..(blocks.end - first) as usize;
        // The label is never free.
        if index > 0 && free == capacity(self.blocks, index.into()) {
            self.spare.add(index, wanted);
            return Ok(());
        }
        let page = self.page(index)?;
        let runs = bits::clear_runs(&page.busy[..], wanted.start);
        let runs = runs.take_while(|run| run.start < wanted.end);
        let runs: Vec<Range<usize>> = runs.map(|run| run.start..run.end.min(wanted.end)).collect();
        for run in runs {
            self.spare.add(index, run);
        }
        Ok(())
    }

    /// Pages of spare blocks in memory.
    pub fn spare_pages(&self) -> usize {
        self.spare.pages.len()
    }

    /// Whether spare blocks in the page of the free-space map with this block can be remembered.
    pub fn remembers_spare(&self, block: u64) -> bool {
        self.spare.remembers(page_of(block))
    }

    /// Whether spare blocks were forgotten that there is room for now. Returns true once.
    pub fn take_forgot_spare(&mut self) -> bool {
        let has_room = self.spare.pages.len() <= self.spare.pages_max / 2;
        has_room && std::mem::take(&mut self.spare.is_incomplete)
    }

    /// Takes units of `unit` free blocks of which some are spare, beyond those that are kept, until they have `most`
    /// blocks; blocks before the pool's end that are no whole unit count as one. Also returns whether there may be more.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map. Nothing is taken then.
    pub fn take_spare_units(&mut self, unit: u64, most: u64) -> Result<(PbaRuns, bool)> {
        let mut taken = PbaRuns::new();
        match self.take_units(unit, most, &mut taken) {
            Ok(has_more) => Ok((taken, has_more)),
            Err(error) => {
                taken.iter().try_for_each(|run| self.release_spare(*run))?;
                Err(error)
            }
        }
    }

    fn take_units(&mut self, unit: u64, most: u64, taken: &mut PbaRuns) -> Result<bool> {
        let mut most = most.min(self.spare.blocks.saturating_sub(self.spare.kept));
        if self.spare.kept > 0 {
            // A part of a unit would have to be preallocated again.
            most -= most % unit;
        }
        let mut count = 0;
        for _ in 0..PAGES_LOADED {
            let fresh = self.spare.pages.iter().find(|(_, page)| page.is_fresh);
            let Some((index, _)) = fresh else {
                return Ok(false);
            };
            let index = *index;
            for start in (0..PAGE_BLOCKS).step_by(unit as usize) {
                if count >= most {
                    return Ok(most > 0);
                }
                let unit = self.unit_at(index, start, unit);
                let is_wanted = self.spare.has_any(index, start, unit.count);
                let is_free = !is_wanted || self.is_free(unit)?;
                if !(is_wanted && is_free) {
                    continue;
                }
                self.take(unit)?;
                count += unit.count;
                match taken.last_mut() {
                    Some(last) if last.start.0 + last.count == unit.start.0 => {
                        last.count += unit.count;
                    }
                    _ => taken.push(unit),
                }
            }
            if let Some(page) = self.spare.pages.get_mut(&index) {
                page.is_fresh = false;
            }
        }
        Ok(true)
    }

    fn unit_at(&self, index: u32, start: usize, unit: u64) -> PbaRun {
        let start = first_of(index) + start as u64;
        PbaRun {
            start: Pba(start),
            count: unit.min(self.end.saturating_sub(start)),
        }
    }

    /// A run of `fewest` to `most` free blocks that are not spare, after the one found last; none if there is none in
    /// the pages tried.
    pub fn next_not_spare(&mut self, fewest: u64, most: u64) -> Result<Option<PbaRun>> {
        let cursor_page = page_of(self.spare.cursor_of_others);
        let mut tried = 0;
        for step in self.pages_around(cursor_page) {
            let PageCount { index, free } = self.free.at(step.position);
            let known = self.spare.pages.get(&index).map_or(0, |page| page.blocks);
            let is_full = u64::from(free) < known + fewest;
            if is_full || !self.spare.remembers(index) {
                continue;
            }
            let from = if step.is_first && index == cursor_page {
                self.spare.cursor_of_others as usize % PAGE_BLOCKS
            } else {
                0
            };
            let mut taken: Bitmap = *self.page(index)?.busy;
            if let Some(page) = self.spare.pages.get(&index) {
                for (word, spare) in taken.iter_mut().zip(page.bits.iter()) {
                    *word |= spare;
                }
            }
            let end = self
                .end
                .saturating_sub(first_of(index))
                .min(PAGE_BLOCKS as u64) as usize;
            let runs = bits::clear_runs(&taken, from);
            let mut runs = runs.map(|run| run.start..run.end.min(end));
            if let Some(run) = runs.find(|run| run.len() as u64 >= fewest) {
                let start = Pba(first_of(index) + run.start as u64);
                let count = most.min(run.len() as u64);
                self.spare.cursor_of_others = (start.0 + count) % self.end;
                return Ok(Some(PbaRun { start, count }));
            }
            tried += 1;
            if tried == PAGES_LOADED {
                self.spare.cursor_of_others = first_of(index + 1) % self.end;
                break;
            }
        }
        Ok(None)
    }

    /// Calls `change` for the part of `run` in each page.
    pub(super) fn each_part(
        &mut self,
        run: PbaRun,
        change: impl Fn(&mut Spare, u32, Range<usize>),
    ) {
        let end = run.start.0 + run.count;
        let mut at = run.start.0;
        while at < end {
            let until = end.min(next_page(at));
            let first = at as usize % PAGE_BLOCKS;
            let part = first..first + (until - at) as usize;
            change(&mut self.spare, page_of(at), part);
            at = until;
        }
    }
}

impl Spare {
    /// Whether any of `count` blocks from `start` on, in one page, is spare.
    fn has_any(&self, index: u32, start: usize, count: u64) -> bool {
        let blocks = start..start + count as usize;
        let has = |page: &SparePage| !bits::all(&page.bits[..], blocks, false);
        self.pages.get(&index).is_some_and(has)
    }
}

fn page_of(block: u64) -> u32 {
    (block / BLOCKS_PER_SPACE_PAGE) as u32
}

fn first_of(index: u32) -> u64 {
    u64::from(index) * BLOCKS_PER_SPACE_PAGE
}

fn next_page(block: u64) -> u64 {
    (block / BLOCKS_PER_SPACE_PAGE + 1) * BLOCKS_PER_SPACE_PAGE
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn run(start: u64, count: u64) -> PbaRun {
        PbaRun {
            start: Pba(start),
            count,
        }
    }

    /// Spare blocks that are handed out first.
    fn spare(runs: &[(usize, usize)]) -> Spare {
        let mut spare = Spare::new(4);
        spare.is_first = true;
        for (start, end) in runs {
            spare.add(0, *start..*end);
        }
        spare
    }

    #[test]
    fn each_block_counts_once() {
        let mut spare = spare(&[(10, 20), (15, 30)]);
        assert_eq!(spare.blocks(), 20);
        assert!(spare.has_all(run(10, 20)) && !spare.has_all(run(9, 2)));
        spare.remove(0, 0..12);
        assert_eq!(spare.blocks(), 18);
        spare.remove_page(0);
        assert_eq!((spare.blocks(), spare.pages.len()), (0, 0));
    }

    #[test]
    fn a_run_may_cross_pages_and_is_cut_at_the_end() {
        let mut spare = spare(&[(PAGE_BLOCKS - 8, PAGE_BLOCKS)]);
        spare.add(1, 0..8);
        spare.add(2, 0..8);
        let across = run(PAGE_BLOCKS as u64 - 8, 16);
        assert!(spare.has_all(across));
        spare.cut(PAGE_BLOCKS as u64 + 4);
        assert_eq!(spare.blocks(), 12);
        assert!(!spare.has_all(across));
        spare.cut(PAGE_BLOCKS as u64);
        assert_eq!(spare.blocks(), 8);
    }

    #[test]
    fn runs_follow_each_other_and_begin_again() {
        let mut spare = spare(&[(100, 104), (200, 264)]);
        assert_eq!(spare.find_run(8), Some(run(200, 8)));
        assert_eq!(spare.find_run(8), Some(run(208, 8)));
        assert_eq!(spare.find_run(100), None);
        spare.remove(0, 200..264);
        assert_eq!(spare.find_run(4), Some(run(100, 4)));
        assert_eq!(spare.find_piece(3), Some(run(100, 3)));
    }

    #[test]
    fn places_are_whole() {
        let place = PLACE_BLOCKS as usize;
        let spare = spare(&[(10, 3 * place)]);
        assert_eq!(spare.find_places(5), Some(PLACE_BLOCKS));
        assert_eq!(spare.find_places(PLACE_BLOCKS + 1), Some(PLACE_BLOCKS));
        assert_eq!(spare.find_places(2 * PLACE_BLOCKS + 1), None);
    }

    #[test]
    fn large_requests_leave_half_to_small_ones() {
        let mut spare = spare(&[(0, 1000)]);
        spare.kept = 1000;
        assert!(spare.is_for(SMALL_BLOCKS) && spare.is_for(500));
        assert!(!spare.is_for(501) && !spare.is_for(1001));
        spare.count_use(SMALL_BLOCKS, 4);
        spare.count_use(500, 500);
        let used = SpareUse {
            small_blocks: SMALL_BLOCKS,
            hole_blocks: SMALL_BLOCKS - 4,
        };
        assert_eq!(spare.used, used);
        spare.is_first = false;
        assert!(!spare.is_for(1));
    }

    #[test]
    fn pages_beyond_the_limit_are_forgotten() {
        let mut spare = Spare::new(2);
        let added = [0, 1, 2, 1].map(|index| spare.add(index, 0..4));
        assert_eq!(added, [true, true, false, true]);
        assert_eq!(spare.blocks(), 8);
    }
}
