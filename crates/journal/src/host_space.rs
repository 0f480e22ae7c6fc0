//! The space that the host has allocated for free blocks: giving it back, and having some of it ready.
//!
//! Freed blocks can be handed out again at once. They are *spare* (`metadata/src/space/spare.rs`): the host has space for
//! them, until [`HostSpace::give_back`] discards it, in units of 64 KiB. That waits for guests to be idle, because making a
//! hole blocks writers to the file, and many of the blocks may be in use again by then, which saves both the hole and
//! the allocation after it.
//!
//! Where a new block in a hole makes other requests wait, some spare blocks are always kept from the host
//! ([`HostSpace::keep`]). If too few blocks are freed, [`HostSpace::preallocate`] writes zeros to others.
//!
//! Which blocks are spare is a hint in memory, and a crash loses it. So after each opening
//! all free space is walked once, for space that the host has
//! allocated. [`HostSpace::trim_step`] walks it on demand, and discards single blocks as well.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::Provisioning;
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Guard, PbaRun, Result, SpareUse, StoreError};

use super::state::State;
use super::watermarks::{SpaceLevel, Watermarks};

/// The granularity: smaller holes cost the file system more than the space is worth.
const UNIT_BYTES: u64 = 64 << 10;

/// The most ranges of the host examined in one step of the walk.
const LOOKS_MAX: usize = 64;

/// Blocks checked by a step of a trim: 256 pages of the free-space map.
const TRIM_BLOCKS: u64 = BLOCKS_PER_SPACE_PAGE << 8;

/// Free blocks for which the host has allocated space.
pub struct HostSpace {
    state: Arc<State>,
    /// The walk over free space that follows opening, unless it is over or in progress.
    free_walk: Mutex<Option<Walk>>,
}

/// A walk over free space.
#[derive(Default)]
struct Walk {
    /// The block with which it continues.
    cursor: u64,
    /// Blocks for which the host has space, as far as it was asked last.
    data: Range<u64>,
}

/// How far a walk got.
#[derive(PartialEq, Eq)]
enum Walked {
    Some,
    /// No more spare blocks can be remembered until others are gone.
    Full,
    Over,
}

impl HostSpace {
    pub(super) fn new(state: Arc<State>) -> Self {
        // A group gives space extents to the pool as a whole, and discards them then.
        let is_thin =
            state.data.provisioning() == Provisioning::Thin && state.shared_space.is_none();
        Self {
            state,
            free_walk: Mutex::new(is_thin.then(Walk::default)),
        }
    }

    /// Whether a new block for which the host has no space makes other requests wait. Spare blocks come first then.
    pub fn waits_to_allocate(&self) -> bool {
        self.state.data.waits_to_allocate()
    }

    /// Lets blocks that no reader uses any more be handed out again.
    pub(super) fn free(&self, runs: &[PbaRun]) -> Result<()> {
        for run in runs {
            let mut uncommitted = self.state.uncommitted()?;
            let space = uncommitted.metadata.space_mut();
            match self.state.data.provisioning() {
                Provisioning::Thin => space.release_spare(*run)?,
                // No block has to be told from the others.
                Provisioning::Thick => space.release(*run)?,
            }
        }
        Ok(())
    }

    /// Keeps this many spare blocks from the host.
    pub fn keep(&self, blocks: u64) -> Result<()> {
        let mut uncommitted = self.state.uncommitted()?;
        uncommitted.metadata.space_mut().keep_spare(blocks);
        Ok(())
    }

    /// How spare blocks have been used.
    pub fn spare_use(&self) -> Result<SpareUse> {
        Ok(self.state.uncommitted()?.metadata.space().spare_use())
    }

    /// Returns up to `bytes` of spare blocks that are not kept to the host, and whether there may be more.
    pub fn give_back(&self, bytes: u64) -> Result<bool> {
        let most = (bytes / self.state.block_size).max(1);
        let (free, has_more) = {
            let mut uncommitted = self.state.uncommitted()?;
            let space = uncommitted.metadata.space_mut();
            space.take_spare_units(self.unit_blocks(), most)?
        };
        self.discard(&free)?;
        Ok(has_more)
    }

    /// Continues the walk over free space that is due after opening, which finds spare blocks. Returns whether more of it
    /// can be done now by this caller: one walks at a time.
    pub fn find_spare(&self) -> Result<bool> {
        let begins_again = {
            let mut uncommitted = self.state.uncommitted()?;
            uncommitted.metadata.space_mut().take_forgot_spare()
        };
        // A host that cannot tell holes from data would be walked again and again.
        let begins_again = begins_again && self.state.data.host_free_bytes().is_some();
        let walk = lock(&self.free_walk).take();
        let Some(mut walk) = walk.or(begins_again.then(Walk::default)) else {
            return Ok(false);
        };
        let walked = self.continue_walk(&mut walk);
        let is_over = matches!(walked, Ok(Walked::Over));
        if walked.is_err() {
            // Not the same page again and again.
            walk.cursor = (walk.cursor / BLOCKS_PER_SPACE_PAGE + 1) * BLOCKS_PER_SPACE_PAGE;
        }
        *lock(&self.free_walk) = (!is_over).then_some(walk);
        walked.map(|walked| walked == Walked::Some)
    }

    fn continue_walk(&self, walk: &mut Walk) -> Result<Walked> {
        let block_size = self.state.block_size;
        for _ in 0..LOOKS_MAX {
            let found = {
                let mut uncommitted = self.state.uncommitted()?;
                let space = uncommitted.metadata.space_mut();
                if walk.cursor >= space.end() {
                    return Ok(Walked::Over);
                }
                if !space.remembers_spare(walk.cursor) {
                    return Ok(Walked::Full);
                }
                let page_end = (walk.cursor / BLOCKS_PER_SPACE_PAGE + 1) * BLOCKS_PER_SPACE_PAGE;
                let free = space.next_free(walk.cursor..page_end, BLOCKS_PER_SPACE_PAGE)?;
                walk.cursor = free.map_or(page_end, |run| run.start.0);
                free
            };
            let Some(run) = found else { continue };
            if !walk.data.contains(&walk.cursor) {
                let failed = |error| StoreError::io(self.state.data.name(), error);
                let data = self.state.data.next_data(walk.cursor * block_size);
                let Some(start) = data.map_err(failed)? else {
                    return Ok(Walked::Over);
                };
                let end = self.state.data.data_end(start).map_err(failed)?;
                walk.data =
                    start / block_size..end.div_ceil(block_size).max(start / block_size + 1);
                walk.cursor = walk.cursor.max(walk.data.start);
            }
            let end = (run.start.0 + run.count).min(walk.data.end);
            if walk.cursor < end {
                let mut uncommitted = self.state.uncommitted()?;
                uncommitted
                    .metadata
                    .space_mut()
                    .note_spare(walk.cursor..end)?;
                walk.cursor = end;
            }
        }
        Ok(Walked::Some)
    }

    /// Writes zeros to free blocks, up to `bytes`, if fewer blocks are spare than are kept and neither pool nor host is
    /// short of space. Returns whether it wrote any.
    pub fn preallocate(&self, bytes: u64) -> Result<bool> {
        let block_size = self.state.block_size;
        let Some(run) = self.take_to_preallocate(bytes / block_size)? else {
            return Ok(false);
        };
        if !Guard::ZerosBeforeReuse.holds() {
            self.state.take_back(&[run])?;
        }
        let (at, len) = (run.start.0 * block_size, run.count * block_size);
        let written = self.state.data.allocate(at, len);
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        match written {
            _ if !Guard::ZerosBeforeReuse.holds() => {
                space.note_spare(run.start.0..run.start.0 + run.count)?;
            }
            Ok(()) => space.release_spare(run)?,
            Err(_) => space.release(run)?,
        }
        drop(uncommitted);
        let name = self.state.data.name();
        let what = format_args!("preallocating {len} bytes at {at} of {name}");
        written.map_err(|error| StoreError::io(what, error))?;
        Ok(true)
    }

    /// Takes up to `most` blocks of those that are free and not spare, if more have to be spare.
    fn take_to_preallocate(&self, most: u64) -> Result<Option<PbaRun>> {
        let most = most.min(self.state.metadata()?.space().lacking_spare());
        if most == 0 || self.is_short()? {
            return Ok(None);
        }
        self.state.check_writable()?;
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        let marks = Watermarks::of(space.blocks(), self.state.block_size);
        // Writes that need the last blocks must not miss those that are being preallocated.
        if marks.level(space.free_blocks().saturating_sub(most)) >= SpaceLevel::Scarce {
            return Ok(None);
        }
        let found = space.next_not_spare(self.unit_blocks().min(most), most)?;
        if let Some(run) = found {
            space.take(run)?;
        }
        Ok(found)
    }

    /// Whether the host's file system has so little space left that a pool with as much would be scarce.
    pub fn is_short(&self) -> Result<bool> {
        let blocks = self.state.metadata()?.space().blocks();
        let marks = Watermarks::of(blocks, self.state.block_size);
        let free = self.state.data.host_free_bytes();
        Ok(
            free.is_some_and(|free| {
                marks.level(free / self.state.block_size) >= SpaceLevel::Scarce
            }),
        )
    }

    /// Bytes that the host's file system still has, with those that it has allocated for spare blocks; nothing on a device
    /// or in a cluster.
    pub fn room_bytes(&self) -> Result<Option<u64>> {
        let spare = self.state.metadata()?.space().spare_blocks() * self.state.block_size;
        let free = self.state.data.host_free_bytes();
        Ok(free.map(|free| free.saturating_add(spare)))
    }

    /// Gives back the next free blocks at or after the cursor, at most this many, for which the host may have allocated
    /// space. Returns whether the end has not been reached.
    pub fn trim_step(&self, cursor: &mut u64, most: u64) -> Result<bool> {
        let block_size = self.state.block_size;
        let data = self.state.data.next_data(*cursor * block_size);
        let data = data.map_err(|error| StoreError::io(self.state.data.name(), error))?;
        let Some(from) = data.map(|at| at / block_size) else {
            return Ok(false);
        };
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        if from >= space.end() {
            return Ok(false);
        }
        let found = space.next_free(from..from + TRIM_BLOCKS, most)?;
        *cursor = found.map_or(from + TRIM_BLOCKS, |run| run.start.0 + run.count);
        let Some(run) = found else {
            return Ok(true);
        };
        space.take(run)?;
        drop(uncommitted);
        // The byte found may be data before the run, and the run may already be a hole.
        let end = (run.start.0 + run.count) * block_size;
        match self.state.data.next_data(run.start.0 * block_size) {
            Ok(Some(at)) if at < end => {
                self.discard(&[run])?;
                Ok(true)
            }
            found => {
                self.state.take_back(&[run])?;
                let failed = |error| StoreError::io(self.state.data.name(), error);
                found.map_err(failed).map(|_| true)
            }
        }
    }

    /// Discards free blocks. The caller keeps them from being handed out, because data written to
    /// them would be lost.
    fn discard(&self, free: &[PbaRun]) -> Result<()> {
        if !Guard::DiscardBeforeReuse.holds() {
            self.state.take_back(free)?;
        }
        for run in free {
            let (at, len) = (
                run.start.0 * self.state.block_size,
                run.count * self.state.block_size,
            );
            if let Err(error) = self.state.data.discard(at, len) {
                let name = self.state.data.name();
                tracing::warn!("giving back {len} bytes at {at} of {name}: {error}");
            }
        }
        if Guard::DiscardBeforeReuse.holds() {
            self.state.take_back(free)?;
        }
        Ok(())
    }

    fn unit_blocks(&self) -> u64 {
        (UNIT_BYTES / self.state.block_size).max(1)
    }
}
