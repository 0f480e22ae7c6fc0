//! Giving free space back to the host.
//!
//! Freed blocks can be handed out again at once. Discarding their space is only noted, and done
//! later by [`HostSpace::give_back`]: hole punching blocks writers to the file, and in the meantime
//! many of the blocks may be in use again, which saves both the hole and the allocation after it.
//!
//! The notes are hints in memory, of whole units of 64 KiB, and a crash loses them. So after each
//! opening all free space is walked once, at the same slow pace, for other space that the host has
//! allocated. [`HostSpace::trim_step`] walks it on demand, and discards single blocks as well.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::Pba;
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Guard, PbaRun, PbaRuns, Result, StoreError};

use super::freed::Freed;
use super::state::State;

/// The granularity: smaller holes cost the file system more than the space is worth.
const UNIT_BYTES: u64 = 64 << 10;

/// The most ranges checked for one that can be discarded: a check is cheap, but not free.
const LOOKS_MAX: usize = 64;

/// Blocks checked by a step of the walk: 256 pages of the free-space map.
const WALK_BLOCKS: u64 = BLOCKS_PER_SPACE_PAGE << 8;

/// Free blocks for which the host has allocated space.
pub struct HostSpace {
    state: Arc<State>,
    freed: Mutex<Freed>,
    /// Where the walk over free space that follows opening continues.
    free_walk: Mutex<Option<u64>>,
}

impl HostSpace {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self {
            state,
            freed: Mutex::default(),
            free_walk: Mutex::new(Some(0)),
        }
    }

    /// Lets blocks that no reader uses any more be handed out again.
    pub(super) fn free(&self, runs: &[PbaRun]) -> Result<()> {
        let unit = self.unit_blocks();
        for run in runs {
            self.state
                .uncommitted()?
                .metadata
                .space_mut()
                .release(*run)?;
            let end = (run.start.0 + run.count).div_ceil(unit);
            if lock(&self.freed).add(run.start.0 / unit..end) {
                self.give_back(UNIT_BYTES)?;
            }
        }
        Ok(())
    }

    /// Returns up to `bytes` of freed space to the host, and whether there may be more.
    pub fn give_back(&self, bytes: u64) -> Result<bool> {
        for _ in 0..LOOKS_MAX {
            let Some(units) = lock(&self.freed).take(bytes.div_ceil(UNIT_BYTES).max(1)) else {
                return Ok(false);
            };
            let free = self.take_free_units(units)?;
            if !free.is_empty() {
                self.discard(&free)?;
                break;
            }
        }
        Ok(true)
    }

    /// Continues the walk that is due after opening. Returns whether more of it is left for this
    /// caller: one walks at a time, and holds no lock while the host punches holes.
    pub fn walk_free(&self, bytes: u64) -> Result<bool> {
        let Some(mut cursor) = lock(&self.free_walk).take() else {
            return Ok(false);
        };
        let most = (bytes / self.state.block_size).max(1);
        let walked = self.walk_free_from(&mut cursor, most);
        let is_over = matches!(walked, Ok(true));
        *lock(&self.free_walk) = (!is_over).then_some(cursor);
        walked.map(|is_over| !is_over)
    }

    /// Continues the walk from the cursor. Returns whether it is over.
    fn walk_free_from(&self, cursor: &mut u64, most: u64) -> Result<bool> {
        for _ in 0..LOOKS_MAX {
            match self.trim_step(cursor, most, self.unit_blocks().min(most))? {
                None => return Ok(true),
                Some(0) => {}
                Some(_) => break,
            }
        }
        Ok(false)
    }

    /// Gives back the next free blocks at or after the cursor for which the host may have allocated
    /// space, if at least `fewest` are consecutive. Returns the number of blocks, or `None` at the
    /// end.
    pub fn trim_step(&self, cursor: &mut u64, most: u64, fewest: u64) -> Result<Option<u64>> {
        let block_size = self.state.block_size;
        let data = self.state.data.next_data(*cursor * block_size);
        let data = data.map_err(|error| StoreError::io(self.state.data.name(), error))?;
        let Some(from) = data.map(|at| at / block_size) else {
            return Ok(None);
        };
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        if from >= space.end() {
            return Ok(None);
        }
        let found = space.next_free(from..from + WALK_BLOCKS, most)?;
        *cursor = found.map_or(from + WALK_BLOCKS, |run| run.start.0 + run.count);
        let Some(run) = found.filter(|run| run.count >= fewest) else {
            return Ok(Some(0));
        };
        space.take(run)?;
        drop(uncommitted);
        // The byte found may be data before the run, and the run may already be a hole.
        let end = (run.start.0 + run.count) * block_size;
        match self.state.data.next_data(run.start.0 * block_size) {
            Ok(Some(at)) if at < end => {
                self.discard(&[run])?;
                Ok(Some(run.count))
            }
            looked => {
                self.state.take_back(&[run])?;
                let failed = |error| StoreError::io(self.state.data.name(), error);
                looked.map_err(failed).map(|_| Some(0))
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

    /// Takes the units whose blocks are all free.
    fn take_free_units(&self, units: Range<u64>) -> Result<PbaRuns> {
        let unit = self.unit_blocks();
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        let mut taken = PbaRuns::new();
        let looked = units.map(|number| number * unit).try_for_each(|start| {
            let run = PbaRun {
                start: Pba(start),
                count: unit.min(space.end().saturating_sub(start)),
            };
            if run.count == 0 || !space.is_free(run)? {
                return Ok(());
            }
            space.take(run)?;
            match taken.last_mut() {
                Some(last) if last.start.0 + last.count == start => last.count += run.count,
                _ => taken.push(run),
            }
            Ok(())
        });
        if looked.is_err() {
            taken.iter().try_for_each(|run| space.release(*run))?;
        }
        looked.map(|()| taken)
    }

    fn unit_blocks(&self) -> u64 {
        (UNIT_BYTES / self.state.block_size).max(1)
    }
}
