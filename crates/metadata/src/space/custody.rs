//! How the blocks of a shared pool pass between a group and the pool.

use std::sync::Arc;

use onefold_format::page::SPACE_OWNER;
use onefold_format::space_page::{Bitmap, EMPTY_BITMAP};
use onefold_format::{GivenRun, SpaceExtent, TreeRoot};

use super::counts::PageCount;
use super::{Effect, PAGE_BLOCKS, Space, capacity, double_use, tree};
use crate::bits;
use crate::error::Result;
use crate::pages::Pages;
use crate::run::PbaRun;

/// The owner of the blocks of a free-space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceOf {
    /// A pool with one owner, which has all of its blocks.
    Pool,
    /// A group of a shared pool, which has the blocks that it leased or freed.
    Group,
}

impl SpaceOf {
    /// The content of a page that is not stored.
    pub fn absent_page(self, index: u64) -> Box<Bitmap> {
        let mut named = Box::new(EMPTY_BITMAP);
        if self == SpaceOf::Group {
            // The pool's label is never named.
            let first = usize::from(index == 0);
            bits::fill(&mut named[..], first..PAGE_BLOCKS, true);
        }
        named
    }
}

impl Space {
    /// Whether the blocks are those of a group of a shared pool.
    pub fn of(&self) -> SpaceOf {
        self.extent
    }

    /// Makes all blocks of a space extent the group's, and free.
    pub(crate) fn lease(&mut self, extent: SpaceExtent) -> Result<()> {
        let first = extent.first();
        let blocks = capacity(self.blocks, extent.0);
        let label = PAGE_BLOCKS as u64 - u64::from(blocks);
        self.unname(PbaRun {
            start: first + label,
            count: blocks.into(),
        })?;
        self.release(PbaRun {
            start: first + label,
            count: blocks.into(),
        })
    }

    /// Takes blocks that no map refers to from the group. They may be in flight: a live group holds them before it gives
    /// them to the pool.
    pub(crate) fn give(&mut self, given: GivenRun) -> Result<()> {
        let run = PbaRun {
            start: given.pba,
            count: given.count.into(),
        };
        self.each_part(run, |spare, index, part| spare.remove(index, part));
        self.each_page(run, |page, index, bits_| {
            if !bits::all(&page.named[..], bits_.clone(), false) {
                return Err(double_use(index, &bits_));
            }
            let in_flight = bits::ones(&page.busy[..], bits_.clone()).count();
            bits::fill(&mut page.busy[..], bits_.clone(), true);
            let named = Arc::make_mut(&mut page.named);
            bits::fill(&mut named[..], bits_.clone(), true);
            page.held -= in_flight as u32;
            Ok(Effect {
                free: in_flight as i32 - bits_.len() as i32,
                held: -(in_flight as i64),
                dirty: true,
            })
        })
    }

    /// Takes up to `most` runs of free blocks into flight, to give them to the pool, if at least `kept` blocks stay free:
    /// whole space extents first; with `scattered`, then all free blocks of other extents.
    pub fn take_to_give(
        &mut self,
        most: usize,
        kept: u64,
        scattered: bool,
    ) -> Result<Vec<GivenRun>> {
        let mut taken = Vec::new();
        let ended = self.take_runs(&mut taken, most, kept, scattered);
        if ended.is_err() {
            for GivenRun { pba, count } in taken.drain(..) {
                self.release(PbaRun {
                    start: pba,
                    count: count.into(),
                })?;
            }
        }
        ended.map(|()| taken)
    }

    fn take_runs(
        &mut self,
        taken: &mut Vec<GivenRun>,
        most: usize,
        kept: u64,
        scattered: bool,
    ) -> Result<()> {
        let mut spare = self.free_blocks().saturating_sub(kept);
        let pages = self.free.iter();
        let pages: Vec<_> = pages
            .filter(|page| page.free > 0 && may_be_given(page))
            .collect();
        let (whole, parts): (Vec<_>, Vec<_>) = pages
            .into_iter()
            .partition(|page| page.free == capacity(self.blocks, page.index.into()));
        let parts = parts.into_iter().filter(|_| scattered);
        for page in whole.into_iter().chain(parts) {
            if u64::from(page.free) > spare {
                continue;
            }
            let first = SpaceExtent(page.index.into()).first();
            let busy = &self.page(page.index)?.busy;
            let runs: Vec<_> = bits::clear_runs(&busy[..], 0).collect();
            spare -= u64::from(page.free);
            // What is left is given the next time.
            let room = most - taken.len();
            for run in runs.into_iter().take(room) {
                let (start, count) = (first + run.start as u64, run.len());
                self.take(PbaRun {
                    start,
                    count: count as u64,
                })?;
                taken.push(GivenRun {
                    pba: start,
                    count: count as u32,
                });
            }
        }
        Ok(())
    }

    /// The number of space extents whose blocks are all free and the group's.
    pub fn whole_extents(&self) -> u64 {
        let is_whole = |page: &PageCount| {
            page.free == capacity(self.blocks, page.index.into()) && may_be_given(page)
        };
        self.free.iter().filter(is_whole).count() as u64
    }

    /// Forgets that pages without free blocks are there.
    pub(super) fn forget_full_pages(&mut self) {
        if self.extent == SpaceOf::Group {
            self.free.forget_full();
        }
    }

    /// Whether a page of the free-space map must be stored.
    pub(crate) fn is_stored(extent: SpaceOf, index: u64, named: &Bitmap) -> bool {
        *named != *extent.absent_page(index)
    }
}

/// Whether the pool takes free blocks of this page. Blocks next to the label stay with the groups: only a pool that was
/// converted from one with one owner has any in use.
fn may_be_given(page: &PageCount) -> bool {
    page.index > 0
}

/// The space extents of which a free-space map has a page. In a group's map, the blocks of all others are not the group's.
///
/// # Errors
///
/// `Damaged`, `Io`.
pub fn stored_extents(pages: &Pages, map: TreeRoot) -> Result<Vec<SpaceExtent>> {
    let mut stored = Vec::new();
    let mut from = 0;
    while let Some((extent, _)) = tree::next_leaf(pages, SPACE_OWNER, map, from, &|_| true)? {
        stored.push(SpaceExtent(extent));
        from = extent + 1;
    }
    Ok(stored)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::new_page;
    use super::*;

    #[test]
    fn an_absent_page_of_a_group_has_no_block_to_hand_out() {
        for index in [0, 1, 70_000] {
            let page = new_page(SpaceOf::Group.absent_page(index), 1 << 40, index);
            assert!(bits::all(&page.busy[..], 0..PAGE_BLOCKS, true));
        }
    }
}
