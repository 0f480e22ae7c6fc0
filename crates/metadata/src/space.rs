//! Free space: which blocks maps refer to, and which may be handed out.
//!
//! Two bits are kept for each block. *Named* means that a map refers to it; only `apply` changes
//! this bit, and checkpoints store it. *Busy* is named or in flight: handed out and not yet
//! recorded, released and perhaps still being read, or not a block at all. Only blocks that are not
//! busy are handed out. After a crash nothing is in flight, so busy is not stored.
//!
//! While the pool shrinks, blocks beyond its new end are not handed out any more; once none of them
//! is busy they are cut off.
//!
//! Bitmaps come in pages of 16,384 blocks. The number of free blocks of each page is known for all
//! of them; the bitmaps themselves are loaded as needed, and stay while they have changes or blocks
//! in flight.
//!
//! A group of a shared pool has the blocks that it may hand out, and no others: for a group, *named* means that the block
//! is not the group's to hand out, and all blocks of a page that is not stored are named. So a block is in the custody
//! of one group at most: not named in its map, or owned by an entry of it.

mod allocation;
mod counts;
mod custody;
mod spare;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use onefold_format::node::Pointer;
use onefold_format::page::{PageKind, SPACE_OWNER};
use onefold_format::space_page::{self, BLOCKS_PER_SPACE_PAGE, Bitmap};
use onefold_format::units::PBA_END;
use onefold_format::{Pba, Root, TreeRoot};

use super::bits;
use super::cache::ClockCache;
use super::pages::Pages;
use super::placement::RecentPlaces;
use super::run::{PbaRun, PbaRuns};
use super::tree;
use crate::error::{Result, StoreError};
use crate::limits::Limits;

use self::counts::FreeCounts;
pub use self::custody::{SpaceOf, stored_extents};
use self::spare::Spare;
pub use self::spare::SpareUse;

const PAGE_BLOCKS: usize = BLOCKS_PER_SPACE_PAGE as usize;

/// Which blocks are free, and which will be.
pub struct Space {
    pages: Arc<Pages>,
    root: TreeRoot,
    extent: SpaceOf,
    blocks: u64,
    /// Blocks from here on are not handed out: the pool will end here.
    end: u64,
    /// Blocks of each page that are not busy.
    free: FreeCounts,
    free_total: u64,
    /// The free blocks beyond the end.
    free_beyond: u64,
    /// The number of blocks in flight: busy and not named, without positions that are no blocks.
    held_total: u64,
    resident: ClockCache<u32, SpacePage>,
    dirty: Vec<u32>,
    recent: RecentPlaces,
    /// Where the search for the next whole place starts.
    next_place: u64,
    /// Where blocks go that cannot be next to others of their segment.
    cursor: u64,
    /// Blocks that are not handed out. True if a block was released since and would be free
    /// otherwise; it stays in flight.
    quarantined: BTreeMap<u64, bool>,
    spare: Spare,
}

struct SpacePage {
    /// Shared with a checkpoint that is being written.
    named: Arc<Bitmap>,
    busy: Box<Bitmap>,
    held: u32,
    dirty: bool,
}

/// A page as it was when a checkpoint was sealed.
pub(super) struct SealedSpacePage {
    pub(super) index: u32,
    pub(super) named: Arc<Bitmap>,
}

impl SpacePage {
    fn may_go(&self) -> bool {
        !self.dirty && self.held == 0 && Arc::strong_count(&self.named) == 1
    }
}

impl Space {
    /// The blocks of a pool or a group as the last checkpoint left them, according to this tree.
    pub(super) fn open(
        pages: Arc<Pages>,
        tree: TreeRoot,
        extent: SpaceOf,
        root: &Root,
        limits: &Limits,
    ) -> Result<Self> {
        let (blocks, free) = match extent {
            SpaceOf::Pool => (root.pool_blocks, FreeCounts::of_pool(root.pool_blocks)),
            SpaceOf::Group => (PBA_END, FreeCounts::of_group()),
        };
        let mut space = Self {
            pages: Arc::clone(&pages),
            root: tree,
            extent,
            blocks,
            end: blocks,
            free,
            free_total: 0,
            free_beyond: 0,
            held_total: 0,
            resident: ClockCache::new(limits.space_pages_max),
            dirty: Vec::new(),
            recent: RecentPlaces::new(),
            next_place: 0,
            cursor: 0,
            quarantined: BTreeMap::new(),
            spare: Spare::new(limits.spare_pages_max),
        };
        tree::walk(&pages, SPACE_OWNER, tree, &mut |visit| match visit {
            tree::Visit::Node(page) => pages.mark_used(page),
            tree::Visit::Leaf(index, Pointer { page, info, .. }) => {
                match capacity(blocks, index).checked_sub(info) {
                    Some(left) if index < blocks.div_ceil(BLOCKS_PER_SPACE_PAGE) => {
                        space.free.set(index as u32, left);
                    }
                    _ => {
                        return Err(StoreError::damaged(format!(
                            "free-space page {index} says {info} blocks are in use; \
                             `pool check --repair` counts them again"
                        )));
                    }
                }
                pages.mark_used(page)
            }
        })?;
        space.free_total = space.free.total();
        space.set_end(root.shrink_to.unwrap_or(blocks))?;
        Ok(space)
    }

    pub(super) fn root(&self) -> TreeRoot {
        self.root
    }

    pub(super) fn set_root(&mut self, root: TreeRoot) {
        self.root = root;
    }

    /// Blocks of the pool, the label's included.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that can be handed out now.
    pub fn free_blocks(&self) -> u64 {
        self.free_total - self.free_beyond
    }

    /// Blocks that are named or in flight, and the label.
    pub fn busy_blocks(&self) -> u64 {
        self.blocks - self.free_total
    }

    /// The pool's present or future end: nothing is handed out from there on.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether blocks are being moved from beyond the pool's new end.
    pub fn is_shrinking(&self) -> bool {
        self.end < self.blocks
    }

    /// Blocks beyond the end that are named or in flight.
    pub fn busy_beyond(&self) -> u64 {
        self.blocks - self.end - self.free_beyond
    }

    /// The number of free blocks that the pool would have if it ended at `end`.
    pub fn free_before(&mut self, end: u64) -> Result<u64> {
        Ok(self.free_total - self.count_free_from(end)?)
    }

    fn count_free_from(&mut self, end: u64) -> Result<u64> {
        if end == self.blocks {
            return Ok(0);
        }
        let mut count = self.count_free_in_pages_from(end);
        let cut = end as usize % PAGE_BLOCKS;
        if cut > 0 {
            let page = self.page((end / BLOCKS_PER_SPACE_PAGE) as u32)?;
            let runs = bits::clear_runs(&page.busy[..], cut);
            count += runs.map(|run| run.len() as u64).sum::<u64>();
        }
        Ok(count)
    }

    /// The free blocks of the pages that begin at `end` or later.
    fn count_free_in_pages_from(&self, end: u64) -> u64 {
        let beyond = self.free.iter().skip(self.free.position_of_end(end));
        beyond.map(|page| u64::from(page.free)).sum()
    }

    /// Sets the end before which blocks are handed out.
    pub fn set_end(&mut self, end: u64) -> Result<()> {
        self.free_beyond = self.count_free_from(end)?;
        if end > self.end {
            self.spare.forgot();
        }
        self.end = end;
        self.spare.cut(end);
        (self.next_place, self.cursor) = (0, 0);
        Ok(())
    }

    /// Cuts off the blocks beyond the end, if none is busy and a durable root ends the pool there.
    pub(super) fn cut(&mut self) -> Result<()> {
        let pages = self.end.div_ceil(BLOCKS_PER_SPACE_PAGE);
        self.free_total -= self.free_beyond;
        let cut = self.end as usize % PAGE_BLOCKS;
        if cut > 0 {
            let in_pages = self.count_free_in_pages_from(self.end);
            let beyond = self.count_free_from(self.end)? - in_pages;
            let last = pages as u32 - 1;
            self.free.add(last, -(beyond as i32));
            let page = self.page(last)?;
            bits::fill(&mut page.busy[..], cut..PAGE_BLOCKS, true);
        }
        self.free.truncate(pages);
        self.resident.retain(|index| u64::from(*index) < pages);
        self.dirty.retain(|index| u64::from(*index) < pages);
        (self.blocks, self.free_beyond) = (self.end, 0);
        self.spare.cut(self.end);
        Ok(())
    }

    /// Blocks that are neither free nor named.
    pub fn held_blocks(&self) -> u64 {
        self.held_total
    }

    /// Blocks that a map, a queued reference, or an open batch refers to.
    pub fn named_count(&self) -> u64 {
        // The label is busy, and neither named nor in flight.
        self.busy_blocks() - self.held_total - 1
    }

    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Adds blocks to the pool, all of them free. The caller sets its end.
    pub fn grow(&mut self, blocks: u64) {
        let before = std::mem::replace(&mut self.blocks, blocks);
        let last_page = (before - 1) / BLOCKS_PER_SPACE_PAGE;
        self.free.grow(before, blocks);
        self.free_total = self.free.total();
        // A bitmap that is not in memory will be loaded as it is now.
        if let Some(page) = self.resident.get(last_page as u32) {
            let first = last_page * BLOCKS_PER_SPACE_PAGE;
            let bits_ =
                (before - first) as usize..(blocks - first).min(BLOCKS_PER_SPACE_PAGE) as usize;
            bits::fill(&mut page.busy[..], bits_, false);
        }
    }

    /// Marks blocks as in flight: handed out, or found in a record that is being replayed.
    pub fn take(&mut self, run: PbaRun) -> Result<()> {
        self.each_part(run, |spare, index, part| spare.remove(index, part));
        self.each_page(run, |page, index, bits_| {
            if !bits::all(&page.busy[..], bits_.clone(), false) {
                return Err(double_use(index, &bits_));
            }
            bits::fill(&mut page.busy[..], bits_.clone(), true);
            page.held += bits_.len() as u32;
            Ok(Effect {
                free: -(bits_.len() as i32),
                held: bits_.len() as i64,
                dirty: false,
            })
        })?;
        Ok(())
    }

    /// Marks blocks in flight as named: a map refers to them now.
    pub(super) fn name(&mut self, run: PbaRun) -> Result<()> {
        self.each_page(run, |page, index, bits_| {
            let held = bits::all(&page.busy[..], bits_.clone(), true)
                && bits::all(&page.named[..], bits_.clone(), false);
            if !held {
                return Err(double_use(index, &bits_));
            }
            bits::fill(&mut Arc::make_mut(&mut page.named)[..], bits_.clone(), true);
            page.held -= bits_.len() as u32;
            Ok(Effect {
                free: 0,
                held: -(bits_.len() as i64),
                dirty: true,
            })
        })
    }

    /// Marks blocks as not named: no map refers to them any more. They are in flight until
    /// [`Space::release`].
    pub(super) fn unname(&mut self, run: PbaRun) -> Result<()> {
        self.each_page(run, |page, index, bits_| {
            if !bits::all(&page.named[..], bits_.clone(), true) {
                return Err(double_use(index, &bits_));
            }
            bits::fill(
                &mut Arc::make_mut(&mut page.named)[..],
                bits_.clone(),
                false,
            );
            page.held += bits_.len() as u32;
            Ok(Effect {
                free: 0,
                held: bits_.len() as i64,
                dirty: true,
            })
        })
    }

    /// Lets blocks in flight be handed out again, except quarantined ones.
    pub fn release(&mut self, run: PbaRun) -> Result<()> {
        let pieces = self.without_quarantined(run);
        pieces.into_iter().try_for_each(|piece| self.let_go(piece))
    }

    /// The parts of released blocks that are free from now on. Notes that the others would be if they were not
    /// quarantined.
    fn without_quarantined(&mut self, run: PbaRun) -> PbaRuns {
        let end = run.start.0 + run.count;
        let (mut at, mut pieces) = (run.start.0, PbaRuns::new());
        for (&block, is_kept_back) in self.quarantined.range_mut(run.start.0..end) {
            *is_kept_back = true;
            pieces.push(PbaRun {
                start: Pba(at),
                count: block - at,
            });
            at = block + 1;
        }
        pieces.push(PbaRun {
            start: Pba(at),
            count: end - at,
        });
        pieces.retain(|piece| piece.count > 0);
        pieces
    }

    /// Keeps a block from being handed out.
    pub fn quarantine(&mut self, pba: Pba) -> Result<()> {
        let block = PbaRun {
            start: pba,
            count: 1,
        };
        if self.quarantined.contains_key(&pba.0) {
            return Ok(());
        }
        let is_free = self.is_free(block)?;
        if is_free {
            self.take(block)?;
        }
        self.quarantined.insert(pba.0, is_free);
        Ok(())
    }

    /// Lets the block be handed out, now if it has been released, or else once it is.
    pub fn end_quarantine(&mut self, pba: Pba) -> Result<()> {
        match self.quarantined.remove(&pba.0) {
            Some(true) => self.let_go(PbaRun {
                start: pba,
                count: 1,
            }),
            _ => Ok(()),
        }
    }

    /// Blocks that would be free if they were not quarantined.
    pub fn kept_back(&self) -> Vec<Pba> {
        let quarantined = self.quarantined.iter();
        let kept_back = quarantined.filter(|(_, is_kept_back)| **is_kept_back);
        kept_back.map(|(block, _)| Pba(*block)).collect()
    }

    /// The named blocks from `start` to `end`.
    pub fn named_blocks(&mut self, start: u64, end: u64) -> Result<Vec<Pba>> {
        let mut named = Vec::new();
        let run = PbaRun {
            start: Pba(start),
            count: end - start,
        };
        self.each_page(run, |page, index, bits_| {
            let first = u64::from(index) * BLOCKS_PER_SPACE_PAGE;
            named.extend(bits::ones(&page.named[..], bits_).map(|bit| Pba(first + bit as u64)));
            Ok(Effect {
                free: 0,
                held: 0,
                dirty: false,
            })
        })?;
        Ok(named)
    }

    /// The first named block of `blocks`, or the end. Pages in which nothing is busy cost a
    /// comparison each.
    pub fn next_named(&mut self, blocks: Range<u64>) -> Result<u64> {
        let end = blocks.end.min(self.blocks);
        let mut at = blocks.start;
        while at < end {
            let index = at / BLOCKS_PER_SPACE_PAGE;
            let first = index * BLOCKS_PER_SPACE_PAGE;
            let page_end = end.min(first + BLOCKS_PER_SPACE_PAGE);
            let free = self.free.get(index as u32).unwrap_or(0);
            if free < capacity(self.blocks, index) {
                let named = &self.page(index as u32)?.named;
                let found = first + bits::find(&named[..], (at - first) as usize, true) as u64;
                if found < page_end {
                    return Ok(found);
                }
            }
            at = page_end;
        }
        Ok(blocks.end)
    }

    fn let_go(&mut self, run: PbaRun) -> Result<()> {
        self.each_page(run, |page, index, bits_| {
            let held = bits::all(&page.busy[..], bits_.clone(), true)
                && bits::all(&page.named[..], bits_.clone(), false);
            if !held {
                return Err(double_use(index, &bits_));
            }
            bits::fill(&mut page.busy[..], bits_.clone(), false);
            page.held -= bits_.len() as u32;
            Ok(Effect {
                free: bits_.len() as i32,
                held: -(bits_.len() as i64),
                dirty: false,
            })
        })
    }

    /// Loads the bitmaps of these blocks, so that the next steps cannot fail to read them.
    pub fn prepare(&mut self, runs: &[PbaRun]) -> Result<()> {
        runs.iter().try_for_each(|run| {
            self.each_page(*run, |_, _, _| {
                Ok(Effect {
                    free: 0,
                    held: 0,
                    dirty: false,
                })
            })
        })
    }

    /// Pages of the free-space map in memory.
    pub fn resident_count(&self) -> usize {
        self.resident.len()
    }

    /// Whether the bitmaps of these blocks are in memory.
    pub fn is_resident(&mut self, run: PbaRun) -> bool {
        let first = run.start.0 / BLOCKS_PER_SPACE_PAGE;
        let last = (run.start.0 + run.count - 1) / BLOCKS_PER_SPACE_PAGE;
        (first..=last).all(|index| self.resident.get(index as u32).is_some())
    }

    /// Whether all of these blocks can be handed out.
    pub fn is_free(&mut self, run: PbaRun) -> Result<bool> {
        let mut free = true;
        self.each_page(run, |page, _, bits_| {
            free &= bits::all(&page.busy[..], bits_, false);
            Ok(Effect {
                free: 0,
                held: 0,
                dirty: false,
            })
        })?;
        Ok(free)
    }

    /// Corrects, in a repair, whether the maps refer to these blocks. Returns whether the change
    /// could be made; blocks that have been handed out since the count cannot be marked as named.
    pub fn correct(&mut self, run: PbaRun, named: bool) -> Result<bool> {
        if named {
            if !self.is_free(run)? {
                return Ok(false);
            }
            self.take(run)?;
            self.name(run)?;
        } else {
            self.unname(run)?;
            self.release(run)?;
        }
        Ok(true)
    }

    /// Replaces an unreadable page by one counted from the maps. Returns whether it did: a page in
    /// memory was read, or is new, and needs no rebuild.
    pub fn rebuild_page(&mut self, index: u32, named: Bitmap) -> Result<bool> {
        if self.resident.get(index).is_some() {
            return Ok(false);
        }
        let mut page = new_page(Box::new(named), self.blocks, u64::from(index));
        page.dirty = true;
        self.dirty.push(index);
        let free = page.busy.iter().map(|bits| bits.count_zeros()).sum::<u32>() as u16;
        let before = self.free.set(index, free);
        self.free_total = self.free_total + u64::from(free) - u64::from(before);
        self.resident.insert(index, page, SpacePage::may_go);
        self.spare.remove_page(index);
        self.set_end(self.end)?;
        Ok(true)
    }

    /// Takes the list of changed pages, as they are now.
    pub(super) fn seal(&mut self) -> Result<Vec<SealedSpacePage>> {
        self.forget_full_pages();
        let mut indices = std::mem::take(&mut self.dirty);
        indices.sort_unstable();
        let mut sealed = Vec::with_capacity(indices.len());
        for index in indices {
            let page = self.page(index)?;
            page.dirty = false;
            sealed.push(SealedSpacePage {
                index,
                named: Arc::clone(&page.named),
            });
        }
        Ok(sealed)
    }

    /// Marks the pages of a failed checkpoint as dirty again.
    pub(super) fn unseal(&mut self, sealed: Vec<SealedSpacePage>) -> Result<()> {
        for SealedSpacePage { index, .. } in sealed {
            let page = self.page(index)?;
            if !std::mem::replace(&mut page.dirty, true) {
                self.dirty.push(index);
            }
        }
        Ok(())
    }

    fn page(&mut self, index: u32) -> Result<&mut SpacePage> {
        if self.resident.get(index).is_none() {
            let page = self.load(index)?;
            self.resident.insert(index, page, SpacePage::may_go);
        }
        let missing = || StoreError::damaged(format!("free-space page {index} is not in memory"));
        self.resident.get(index).ok_or_else(missing)
    }

    fn load(&self, index: u32) -> Result<SpacePage> {
        let (pages, index) = (&self.pages, u64::from(index));
        let named = match tree::lookup(pages, SPACE_OWNER, self.root, index)? {
            None => self.extent.absent_page(index),
            Some(pointer) => {
                let page = pages.read(PageKind::Space, 0, SPACE_OWNER, index, pointer)?;
                let what = format_args!("free-space page {index}");
                space_page::decode(&page).map_err(|error| StoreError::format(what, error))?
            }
        };
        Ok(new_page(named, self.blocks, index))
    }

    /// Calls `change` for the part of `run` in each page, and counts its effects.
    fn each_page(
        &mut self,
        run: PbaRun,
        mut change: impl FnMut(&mut SpacePage, u32, Range<usize>) -> Result<Effect>,
    ) -> Result<()> {
        let end = run.start.0 + run.count;
        if end > self.blocks {
            let message = format!("block {} is beyond the pool's end {}", end - 1, self.blocks);
            return Err(StoreError::damaged(message));
        }
        let mut at = run.start.0;
        while at < end {
            let index = (at / BLOCKS_PER_SPACE_PAGE) as u32;
            let page_end = (u64::from(index) + 1) * BLOCKS_PER_SPACE_PAGE;
            let is_beyond = at >= self.end;
            let until = if is_beyond {
                end.min(page_end)
            } else {
                end.min(page_end).min(self.end)
            };
            let first = at as usize % PAGE_BLOCKS;
            let count = (until - at) as usize;
            let page = self.page(index)?;
            let effect = change(page, index, first..first + count)?;
            if effect.dirty && !page.dirty {
                page.dirty = true;
                self.dirty.push(index);
            }
            self.free.add(index, effect.free);
            self.free_total = self.free_total.wrapping_add_signed(i64::from(effect.free));
            if is_beyond {
                let beyond = i64::from(effect.free);
                self.free_beyond = self.free_beyond.wrapping_add_signed(beyond);
            }
            self.held_total = self.held_total.wrapping_add_signed(effect.held);
            at = until;
        }
        Ok(())
    }
}

/// The effect of a change on one page.
struct Effect {
    free: i32,
    held: i64,
    dirty: bool,
}

/// Blocks of a page that can ever be free: not the label, not beyond the pool's end.
fn capacity(blocks: u64, index: u64) -> u16 {
    let first = index * BLOCKS_PER_SPACE_PAGE;
    let in_page = blocks.saturating_sub(first).min(BLOCKS_PER_SPACE_PAGE);
    (in_page - u64::from(index == 0 && in_page > 0)) as u16
}

/// A page without blocks in flight; positions that are not blocks are busy for ever.
fn new_page(named: Box<Bitmap>, blocks: u64, index: u64) -> SpacePage {
    let mut busy = named.clone();
    if index == 0 {
        bits::fill(&mut busy[..], 0..1, true);
    }
    let in_page = blocks
        .saturating_sub(index * BLOCKS_PER_SPACE_PAGE)
        .min(BLOCKS_PER_SPACE_PAGE);
    bits::fill(&mut busy[..], in_page as usize..PAGE_BLOCKS, true);
    SpacePage {
        named: Arc::from(named),
        busy,
        held: 0,
        dirty: false,
    }
}

fn double_use(index: u32, bits: &Range<usize>) -> StoreError {
    let first = u64::from(index) * BLOCKS_PER_SPACE_PAGE + bits.start as u64;
    StoreError::damaged(format!(
        "the maps and the free space disagree about blocks {first} to {}; run `pool check`",
        first + bits.len() as u64 - 1
    ))
}
