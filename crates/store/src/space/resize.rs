//! The pool's size, which changes while the pool is in use.
//!
//! Growing: the data part becomes longer and that is durable, then a root with the new size is, and
//! only then new blocks are handed out. A crash between the two leaves a data part that is longer
//! than the pool, which does no harm.
//!
//! Shrinking:
//!
//! 1. a root sets the new end; from here on nothing is handed out beyond
//! 2. every block beyond that an entry refers to is copied to a new one (`moving.rs`). An entry that
//!    shared a block owns its copy, and drops its reference
//! 3. the collector releases those references
//! 4. once nothing beyond is mapped or in flight, except free bad blocks, which leave the list
//!    then, the next checkpoint ends the pool there
//! 5. the data part is cut
//!
//! A crash leaves the pool in 1 or, after 4, smaller; [`Space::shrink_step`] does the rest. The
//! finder rests while the pool shrinks, because it would find the copies to be duplicates of the
//! blocks they replace. See `docs/decisions/0019-evacuation.md`.

use std::ops::ControlFlow;

use onefold_format::entry::State;
use onefold_format::map_page::Segment;
use onefold_format::{Entry, Pba, Provisioning, SegmentIndex};
use onefold_journal::{Purpose, SpaceLevel};
use onefold_metadata::sync::lock;
use onefold_metadata::{Blocking, Result, StoreError, StoreErrorKind, Wanted, display_bytes};

use super::Space;
use crate::creation::pool_size_problem;
use crate::moving::{Chosen, Mover, Moving};
use crate::pool::Pool;
use crate::shared::check_is_alone;

/// The resolution of the search for the size to which a pool can shrink at once.
const PLAN_PARTS: u64 = 1024;

/// After shrinking, at least one block in this many must be free.
const FREE_SHARE: u64 = 64;

/// The cost of making a pool smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShrinkPlan {
    /// Entries that refer to blocks beyond the wanted end: each of them gets a copy.
    pub copied_blocks: u64,
    /// The smallest size, from the wanted one on, that the pool can be brought to at once. Where it is
    /// not the wanted one, most of the copies become one by deduplication, and then there is room for
    /// the next step.
    pub first_size_bytes: u64,
}

/// The result of a step of shrinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShrinkReport {
    /// The pool has reached its new size, or is not shrinking.
    pub is_done: bool,
    /// Blocks beyond the new end that are in use still, or were until just now.
    pub left_blocks: u64,
    /// The step was cancelled before the pool reached its new size.
    pub was_broken_off: bool,
}

impl Space {
    /// Bytes of the pool: its capacity, and one block for its label.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn size_bytes(&self) -> Result<u64> {
        let blocks = self.pool.journal().metadata()?.space().blocks();
        Ok(blocks * self.pool.block_size())
    }

    /// How full the pool is.
    ///
    /// # Errors
    ///
    /// As [`Space::size_bytes`].
    pub fn level(&self) -> Result<SpaceLevel> {
        Ok(self.pool.journal().free_space().room()?.level)
    }

    /// The size in bytes that the pool is being made smaller to.
    ///
    /// # Errors
    ///
    /// As [`Space::size_bytes`].
    pub fn shrinking_to(&self) -> Result<Option<u64>> {
        let metadata = self.pool.journal().metadata()?;
        let space = &metadata.space();
        let end = (space.end() < space.blocks()).then(|| space.end());
        Ok(end.map(|blocks| blocks * self.pool.block_size()))
    }

    /// Makes the pool larger, durably, while requests continue. The present size only cancels
    /// shrinking and sets the data part's length.
    ///
    /// # Errors
    ///
    /// `Invalid` for a size that is smaller, impossible, or not a multiple of the block size;
    /// `NoSpace` if the device is smaller; I/O errors.
    pub fn grow(&self, size_bytes: u64) -> Result<()> {
        check_is_alone(&self.pool, "growing the pool")?;
        let pool = &self.pool;
        let blocks = self.blocks_of_size(size_bytes)?;
        pool.journal().root().grow(blocks)
    }

    /// Allocates the host's space for a thick pool that is about to grow to `size_bytes`: up to `bytes` from `cursor` on,
    /// which moves. The added space is taken at once, too, and never given back. Returns whether there is more to
    /// allocate; for a thin pool there is nothing.
    ///
    /// # Errors
    ///
    /// As [`Space::grow`].
    pub fn allocate_step(&self, size_bytes: u64, cursor: &mut u64, bytes: u64) -> Result<bool> {
        let journal = self.pool.journal();
        if journal.data().provisioning() == Provisioning::Thin {
            return Ok(false);
        }
        let blocks = self.blocks_of_size(size_bytes)?;
        journal.root().allocate_beyond(cursor, blocks, bytes)
    }

    /// Cuts what was allocated for a pool that did not grow.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn give_up_growing(&self) -> Result<()> {
        self.pool.journal().root().cut_data()
    }

    /// The cost of shrinking the pool to this size. First releases pending references, and reads
    /// all maps.
    ///
    /// # Errors
    ///
    /// `Invalid` for a size that is not smaller, impossible, or not a multiple of the block size;
    /// `NoSpace` if the stored data does not fit, or the copies of shared blocks do not; `Damaged`
    /// if the index cannot be used; I/O errors.
    pub fn plan_shrink(&self, size_bytes: u64) -> Result<ShrinkPlan> {
        let pool = &self.pool;
        self.smaller_size(size_bytes)?;
        // This is not cancelled.
        let _ = self.release_given_up(&mut || ControlFlow::Continue(()))?;
        // A concurrent shrink may have ended.
        let end = self.smaller_size(size_bytes)?;
        self.check_fits(end)?;
        let (mut beyond, part_blocks) = self.count_beyond(end)?;
        // The number of entries that refer to blocks beyond each possible end of the pool.
        for part in (1..beyond.len()).rev() {
            beyond[part - 1] += beyond[part];
        }
        let wanted = beyond.first().copied().unwrap_or_default();
        let mut metadata = pool.journal().metadata()?;
        // A later end has fewer blocks beyond it, and more free blocks before it.
        let (mut low, mut high) = (0, beyond.len());
        while low < high {
            let middle = (low + high) / 2;
            let first = end + middle as u64 * part_blocks;
            let fits = first >= metadata.space().blocks()
                || beyond[middle] + first / FREE_SHARE <= metadata.free_before(first)?;
            (low, high) = if fits {
                (low, middle)
            } else {
                (middle + 1, high)
            };
        }
        if low < beyond.len() {
            let first = end + low as u64 * part_blocks;
            return Ok(ShrinkPlan {
                copied_blocks: wanted,
                first_size_bytes: first * pool.block_size(),
            });
        }
        let message = format!(
            "{} beyond the new end would have to be copied, and there is no room for that: delete something, or choose a \
             larger size",
            display_bytes(wanted * pool.block_size())
        );
        Err(StoreError::new(StoreErrorKind::NoSpace, message))
    }

    /// Hands out no more blocks beyond the end of a pool of this size, also after a crash.
    /// [`Space::shrink_step`] does the rest.
    ///
    /// # Errors
    ///
    /// `Invalid` and `NoSpace` as [`Space::plan_shrink`]; I/O errors.
    pub fn begin_shrink(&self, size_bytes: u64) -> Result<()> {
        check_is_alone(&self.pool, "shrinking the pool")?;
        let pool = &self.pool;
        let end = self.smaller_size(size_bytes)?;
        self.check_fits(end)?;
        // The open batch is the finder's last one for now.
        let _job = pool.batches().job()?;
        pool.journal().root().begin_shrink(end)
    }

    /// Lets the pool keep its size. Moved blocks stay where they are.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn cancel_shrink(&self) -> Result<()> {
        self.pool.journal().root().cancel_shrink()
    }

    /// Moves blocks from beyond the new end of a shrinking pool, releases shared ones there, and
    /// cuts the pool if nothing is left. A block that is left was in use at that moment, and the
    /// next step will find it free. `progress(done, all)` counts blocks, and can cancel.
    ///
    /// # Errors
    ///
    /// `NoSpace` if guests have filled the pool; `Busy` or `Damaged` if the index cannot release
    /// shared blocks; I/O errors. The pool is still shrinking then.
    pub fn shrink_step(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ShrinkReport> {
        let pool = &self.pool;
        let _alone = lock(&self.shrinking);
        let all = pool.journal().metadata()?.space().busy_beyond();
        let mut moved = 0;
        let mut told = |more: u64| {
            moved += more;
            progress(moved.min(all), all)
        };
        let evacuation = Evacuation(pool);
        let mover = Mover::new(pool, &evacuation);
        for layer in pool.maps().layers() {
            if mover.move_layer(&layer, &mut told)?.is_break() {
                return self.shrink_report(true);
            }
        }
        if self.release_given_up(&mut || told(0))?.is_break() {
            return self.shrink_report(true);
        }
        self.forget_bad_beyond()?;
        if pool.journal().metadata()?.space().is_shrinking()
            && pool.journal().metadata()?.space().busy_beyond() == 0
        {
            pool.journal().checkpoint()?;
            pool.journal().root().cut_data()?;
        }
        self.shrink_report(false)
    }

    /// Releases the references that were dropped so far. Returns whether any block became free by that.
    ///
    /// # Errors
    ///
    /// `Busy` or `Damaged` if the index cannot release them; I/O errors.
    pub fn free_dropped(&self) -> Result<bool> {
        let free = || -> Result<u64> { Ok(self.pool.journal().metadata()?.space().free_blocks()) };
        let before = free()?;
        let _never_broken_off = self.release_given_up(&mut || ControlFlow::Continue(()))?;
        Ok(free()? > before)
    }

    /// Releases dropped references, and frees blocks without references and readers.
    fn release_given_up(
        &self,
        told: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.index.rebuild_if_needed(&mut |_, _| {})?;
        while self.dedup.collect_batch()?.released > 0 {
            if told().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.pool.journal().commit_in_background()?;
        self.pool.journal().reuse().reclaim()?;
        Ok(ControlFlow::Continue(()))
    }

    /// The number of blocks of a pool of this size, if there can be one.
    fn blocks_of_size(&self, size_bytes: u64) -> Result<u64> {
        let block_size = self.pool.block_size();
        let blocks = size_bytes / block_size;
        let message = if !size_bytes.is_multiple_of(block_size) {
            format!("a size of {size_bytes} bytes is not a multiple of the block size {block_size}")
        } else if let Some(problem) = pool_size_problem(size_bytes, block_size) {
            problem
        } else {
            return Ok(blocks);
        };
        Err(StoreError::new(StoreErrorKind::Invalid, message))
    }

    /// The number of blocks of a pool of this size, which is smaller.
    fn smaller_size(&self, size_bytes: u64) -> Result<u64> {
        let end = self.blocks_of_size(size_bytes)?;
        if end < self.pool.journal().metadata()?.space().blocks() {
            return Ok(end);
        }
        let message = format!("the pool is not larger than {}", display_bytes(size_bytes));
        Err(StoreError::new(StoreErrorKind::Invalid, message))
    }

    /// Whether the blocks in use, each counted once, fit before this end.
    fn check_fits(&self, end: u64) -> Result<()> {
        let in_use = self.pool.journal().metadata()?.space().busy_blocks();
        let free = end / FREE_SHARE + self.pool.maps().unused_reservations();
        if in_use + free <= end {
            return Ok(());
        }
        let bytes = |blocks: u64| display_bytes(blocks * self.pool.block_size());
        let message = format!(
            "{} are in use, and a pool of {} has to have {} free: delete something, reserve less for volumes, or choose \
             a larger size",
            bytes(in_use),
            bytes(end),
            bytes(free)
        );
        Err(StoreError::new(StoreErrorKind::NoSpace, message))
    }

    /// Counts the entries that refer to blocks from `end` on, in up to [`PLAN_PARTS`] equal parts
    /// of them. Also returns the number of blocks in a part.
    fn count_beyond(&self, end: u64) -> Result<(Vec<u64>, u64)> {
        // There are none if a concurrent shrink has just ended.
        let beyond = self
            .pool
            .journal()
            .metadata()?
            .space()
            .blocks()
            .saturating_sub(end);
        let part_blocks = beyond.div_ceil(PLAN_PARTS).max(1);
        let mut counts = vec![0; beyond.div_ceil(part_blocks) as usize];
        for layer in self.pool.maps().layers() {
            let mut from = SegmentIndex(0);
            while let Some(segment) = self
                .pool
                .maps()
                .next_segment(&layer, from, Wanted::Mapped)?
            {
                let entries = self.pool.maps().peek(&layer, segment, Blocking::Yes)?;
                let named = entries.iter().filter_map(|entry| entry.pba());
                for pba in named.filter(|pba| pba.0 >= end) {
                    // Blocks beyond the last part exist only if the pool has grown since: then there is room.
                    let part = ((pba.0 - end) / part_blocks) as usize;
                    if let Some(count) = counts.get_mut(part) {
                        *count += 1;
                    }
                }
                from = segment + 1;
            }
        }
        Ok((counts, part_blocks))
    }

    /// Free blocks that are out of use because they are bad do not keep the pool from ending before
    /// them. They leave the list once nothing else is beyond the end, so a shrinking that is
    /// cancelled before has forgotten nothing.
    fn forget_bad_beyond(&self) -> Result<()> {
        let kept_back = {
            let metadata = self.pool.journal().metadata()?;
            let space = &metadata.space();
            let mut kept_back = space.kept_back();
            kept_back.retain(|pba| pba.0 >= space.end());
            if kept_back.len() as u64 != space.busy_beyond() {
                return Ok(());
            }
            kept_back
        };
        if kept_back.is_empty() {
            Ok(())
        } else {
            self.pool.losses().forget(self.pool.journal(), &kept_back)?;
            self.pool.bad().forget(self.pool.journal(), kept_back)
        }
    }

    fn shrink_report(&self, was_broken_off: bool) -> Result<ShrinkReport> {
        let is_done = !self.pool.journal().metadata()?.space().is_shrinking();
        let left_blocks = self.pool.journal().metadata()?.space().busy_beyond();
        Ok(ShrinkReport {
            is_done,
            left_blocks,
            was_broken_off: was_broken_off && !is_done,
        })
    }
}

/// Moves the blocks beyond the pool's new end to before it.
struct Evacuation<'a>(&'a Pool);

impl Moving for Evacuation<'_> {
    fn choose(&self, entries: &Segment) -> Result<Chosen> {
        let end = self.0.journal().metadata()?.space().end();
        Ok(entries.map(|entry| entry.pba().is_some_and(|pba| pba.0 >= end)))
    }

    fn copied(&self, old: Entry, copy: Pba) -> Entry {
        match old.state() {
            State::Unshareable(_) => Entry::unshareable(copy),
            _ => Entry::private(copy),
        }
    }

    fn is_beside(&self) -> bool {
        false
    }

    fn purpose(&self) -> Purpose {
        Purpose::Overwrite
    }
}
