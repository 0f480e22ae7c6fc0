//! Choosing free blocks for a request: next to blocks of its volume, in one run, or in pieces.

use std::ops::Range;

use onefold_format::Pba;
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use smallvec::{SmallVec, smallvec};

use super::counts::PageCount;
use super::{PAGE_BLOCKS, Space};
use crate::bits;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::placement::{PLACE_BLOCKS, Placement, PlacementOffset};
use crate::run::{BlockRange, PbaRun, PbaRuns};

/// The pages searched for a run that fits the whole request, before it is cut into pieces.
const WHOLE_RUN_TRIES: usize = 32;

/// The pages searched for a whole place, before blocks go wherever there is room.
const PLACE_TRIES: usize = 4;

/// The most new blocks of a request that are scattered over spare blocks: more are better together in a hole.
const SCATTERED_MAX: u64 = 4;

/// The free blocks from which a request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Supply {
    Spare,
    All,
}

/// A page in the order of a search.
pub(super) struct Step {
    pub(super) position: usize,
    /// Whether the search begins there.
    pub(super) is_first: bool,
}

impl Space {
    /// Hands out blocks for the runs of `placement`, in their order: next to other blocks of their
    /// segment; else in a new place; else in one run if there is one. Where spare blocks come first, none of these is
    /// tried with others while there are enough spare blocks. At least `kept` blocks stay free.
    ///
    /// # Errors
    ///
    /// `NoSpace`, with nothing handed out, if there are not as many.
    pub fn allocate(&mut self, placement: &Placement, kept: u64) -> Result<PbaRuns> {
        let count = placement.blocks();
        if count.saturating_add(kept) > self.free_blocks() {
            return Err(StoreError::new(StoreErrorKind::NoSpace, "the pool is full"));
        }
        let spare = self.spare.blocks();
        let supply = if self.spare.is_for(count) {
            Supply::Spare
        } else {
            Supply::All
        };
        let runs = self.choose(placement, supply)?;
        self.spare.count_use(count, spare - self.spare.blocks());
        Ok(runs)
    }

    /// The first run of at most `most` blocks in a range that can be handed out.
    pub fn next_free(&mut self, blocks: Range<u64>, most: u64) -> Result<Option<PbaRun>> {
        let end = blocks.end.min(self.end);
        let first_page = (blocks.start / BLOCKS_PER_SPACE_PAGE) as u32;
        for position in self.free.position(first_page)..self.free.position_of_end(end) {
            let PageCount { index, free } = self.free.at(position);
            if free == 0 {
                continue;
            }
            let first = u64::from(index) * BLOCKS_PER_SPACE_PAGE;
            let at = blocks.start.max(first);
            let page_end = end.min(first + BLOCKS_PER_SPACE_PAGE);
            let page = self.page(index)?;
            let run = bits::clear_runs(&page.busy[..], (at - first) as usize).next();
            let run = run.map(|run| first + run.start as u64..page_end.min(first + run.end as u64));
            if let Some(run) = run.filter(|run| run.start < page_end) {
                return Ok(Some(PbaRun {
                    start: Pba(run.start),
                    count: most.min(run.end - run.start),
                }));
            }
        }
        Ok(None)
    }

    fn choose(&mut self, placement: &Placement, supply: Supply) -> Result<PbaRuns> {
        let BlockRange { first, count: span } = placement.span();
        let remembered = self.recent.of(placement.layer, first.segment().0);
        let own = remembered.or(placement.beside);
        let is_before_end = |shift: &PlacementOffset| {
            placement
                .at(*shift)
                .iter()
                .all(|run| run.start.0 < self.end)
        };
        let own = own.filter(is_before_end);
        let beside: SmallVec<[PlacementOffset; 8]> = match own {
            Some(shift) => smallvec![shift],
            None => self.recent.around(placement.layer, first).collect(),
        };
        for shift in beside {
            if let Some(runs) = self.take_all(placement.at(shift), supply)? {
                self.recent.remember(placement.layer, first, shift);
                return Ok(runs);
            }
        }
        if own.is_none() {
            let slot = first.slot() as u64;
            if let Some(place) = self.find_places(slot + span, supply)? {
                let shift = PlacementOffset::between(first, Pba(place + slot));
                self.recent.remember(placement.layer, first, shift);
                if let Some(runs) = self.take_all(placement.at(shift), supply)? {
                    return Ok(runs);
                }
            }
        }
        let count = placement.blocks();
        if supply == Supply::Spare && count > SCATTERED_MAX && self.spare.find_run(count).is_none()
        {
            return self.choose(placement, Supply::All);
        }
        self.allocate_anywhere(count, supply)
    }

    /// Takes these runs if all of them are blocks of the supply.
    fn take_all(&mut self, runs: PbaRuns, supply: Supply) -> Result<Option<PbaRuns>> {
        for run in &runs {
            let end = run.start.0.checked_add(run.count);
            if end.is_none_or(|end| end > self.end) || !self.has_all(*run, supply)? {
                return Ok(None);
            }
        }
        runs.iter().try_for_each(|run| self.take(*run))?;
        Ok(Some(runs))
    }

    /// Whether all of these blocks are in the supply.
    fn has_all(&mut self, run: PbaRun, supply: Supply) -> Result<bool> {
        match supply {
            Supply::Spare => Ok(self.spare.has_all(run)),
            Supply::All => self.is_free(run),
        }
    }

    /// Finds consecutive places, wholly in the supply, for `blocks` blocks, and returns their first block.
    fn find_places(&mut self, blocks: u64, supply: Supply) -> Result<Option<u64>> {
        match supply {
            Supply::Spare => Ok(self.spare.find_places(blocks)),
            Supply::All => self.find_free_places(blocks),
        }
    }

    /// Finds consecutive places, wholly free, for `blocks` blocks, and returns their first block.
    /// Searches only a few pages, and continues from there the next time.
    fn find_free_places(&mut self, blocks: u64) -> Result<Option<u64>> {
        let wanted = blocks.next_multiple_of(PLACE_BLOCKS);
        let next_page = (self.next_place / BLOCKS_PER_SPACE_PAGE) as u32;
        let mut tries = 0;
        for step in self.pages_around(next_page) {
            let PageCount { index, free } = self.free.at(step.position);
            if u64::from(free) < PLACE_BLOCKS {
                continue;
            }
            let page_start = u64::from(index) * BLOCKS_PER_SPACE_PAGE;
            if tries == PLACE_TRIES {
                self.next_place = page_start;
                break;
            }
            tries += 1;
            let page_end = page_start + BLOCKS_PER_SPACE_PAGE;
            let from = if step.is_first && index == next_page {
                self.next_place
            } else {
                page_start
            };
            for start in (from..page_end).step_by(PLACE_BLOCKS as usize) {
                let run = PbaRun {
                    start: Pba(start),
                    count: wanted,
                };
                if start + wanted <= self.end && self.is_free(run)? {
                    self.next_place = (start + wanted) % self.end / PLACE_BLOCKS * PLACE_BLOCKS;
                    return Ok(Some(start));
                }
            }
        }
        Ok(None)
    }

    fn allocate_anywhere(&mut self, count: u64, supply: Supply) -> Result<PbaRuns> {
        let whole = match supply {
            Supply::Spare => self.spare.find_run(count),
            Supply::All => self.find_whole_run(count)?,
        };
        if let Some(run) = whole {
            self.take(run)?;
            if supply == Supply::All {
                self.cursor = (run.start.0 + run.count) % self.end;
            }
            return Ok(PbaRuns::from_elem(run, 1));
        }
        let mut runs = PbaRuns::new();
        let mut missing = count;
        while missing > 0 {
            let spare = match supply {
                Supply::Spare => self.spare.find_piece(missing),
                Supply::All => None,
            };
            let found = spare.map_or_else(|| self.find_piece(missing), Ok);
            match found.and_then(|run| self.take(run).map(|()| run)) {
                Ok(run) => {
                    missing -= run.count;
                    runs.push(run);
                }
                Err(error) => {
                    runs.iter().try_for_each(|run| self.release(*run))?;
                    return Err(error);
                }
            }
        }
        Ok(runs)
    }

    /// The run after the one found last; else one at the start of whole places; else the first that
    /// fits.
    fn find_whole_run(&mut self, count: u64) -> Result<Option<PbaRun>> {
        let next = PbaRun {
            start: Pba(self.cursor),
            count,
        };
        let in_place = !self.cursor.is_multiple_of(PLACE_BLOCKS);
        if in_place && self.cursor + count <= self.end && self.is_free(next)? {
            return Ok(Some(next));
        }
        if let Some(place) = self.find_free_places(count)? {
            let start = Pba(place);
            return Ok(Some(PbaRun { start, count }));
        }
        let cursor_page = (self.cursor / BLOCKS_PER_SPACE_PAGE) as u32;
        let mut tries = 0;
        for step in self.pages_around(cursor_page) {
            let PageCount { index, free } = self.free.at(step.position);
            if u64::from(free) < count {
                continue;
            }
            // The cursor's page is searched from the cursor on first, and from its start last.
            let from = if step.is_first && index == cursor_page {
                self.cursor as usize % PAGE_BLOCKS
            } else {
                0
            };
            let in_page = self.end_in_page(index);
            let page = self.page(index)?;
            let fits =
                |run: &Range<usize>| (run.start as u64 + count) as usize <= run.end.min(in_page);
            if let Some(run) = bits::clear_runs(&page.busy[..], from).find(fits) {
                let start = Pba(u64::from(index) * BLOCKS_PER_SPACE_PAGE + run.start as u64);
                return Ok(Some(PbaRun { start, count }));
            }
            tries += 1;
            if tries == WHOLE_RUN_TRIES {
                break;
            }
        }
        Ok(None)
    }

    fn find_piece(&mut self, count: u64) -> Result<PbaRun> {
        let cursor_page = (self.cursor / BLOCKS_PER_SPACE_PAGE) as u32;
        for step in self.pages_around(cursor_page) {
            let PageCount { index, free } = self.free.at(step.position);
            if free == 0 {
                continue;
            }
            let in_page = self.end_in_page(index);
            let page = self.page(index)?;
            let run = bits::clear_runs(&page.busy[..], 0).next();
            if let Some(run) = run.filter(|run| run.start < in_page) {
                let start = Pba(u64::from(index) * BLOCKS_PER_SPACE_PAGE + run.start as u64);
                let found = (run.end.min(in_page) - run.start) as u64;
                return Ok(PbaRun {
                    start,
                    count: count.min(found),
                });
            }
        }
        Err(StoreError::damaged(
            "free blocks are counted that no page has",
        ))
    }

    /// The pages from which blocks are handed out: from this one on to the last, from the first on, and this one again.
    pub(super) fn pages_around(&self, index: u32) -> impl Iterator<Item = Step> + use<> {
        let pages = self.free.position_of_end(self.end);
        let first = self.free.position(index);
        let steps = if pages == 0 { 0..0 } else { 0..pages + 1 };
        steps.map(move |step| Step {
            position: (first + step) % pages,
            is_first: step == 0,
        })
    }

    /// The end, in a page, of the blocks that are handed out.
    fn end_in_page(&self, index: u32) -> usize {
        let first = u64::from(index) * BLOCKS_PER_SPACE_PAGE;
        self.end.saturating_sub(first).min(BLOCKS_PER_SPACE_PAGE) as usize
    }
}
