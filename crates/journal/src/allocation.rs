//! How blocks are handed out, and free space is corrected.

use std::thread;
use std::time::Duration;

use onefold_format::space_page::Bitmap;
use onefold_metadata::{
    Blocking, PbaRun, PbaRuns, Placement, Result, SpaceLimits, StoreError, StoreErrorKind,
};

use super::Journal;
use super::room::FreeSpace;
use super::state::Uncommitted;
use super::watermarks::{PAGES_FOR_GUESTS, Purpose};

/// The pause after which an import asks again for space that the cluster has not given.
const LATE_PAUSE: Duration = Duration::from_millis(100);

impl Journal {
    /// Hands out new blocks ([step 5 place]). If only deferred frees are left, a commit may free
    /// them.
    pub fn allocate(
        &self,
        placement: &Placement,
        space_limits: &SpaceLimits,
        purpose: Purpose,
        blocking: Blocking,
    ) -> Result<PbaRuns> {
        let allocate = |uncommitted: &mut Uncommitted| {
            let kept = self.free_space.kept_from(
                space_limits,
                &uncommitted.metadata,
                placement.blocks(),
                purpose,
            );
            let allocated = uncommitted.metadata.space_mut().allocate(placement, kept);
            allocated.map_err(|error| match error.kind() {
                StoreErrorKind::NoSpace => {
                    let free = uncommitted.metadata.space().free_blocks();
                    self.free_space
                        .pool_is_full(placement.blocks(), free, kept, purpose)
                }
                _ => error,
            })
        };
        let mut uncommitted = self.state.uncommitted()?;
        // A write to new blocks would be in vain if its record had to wait.
        let waits = || !uncommitted.copy.is_there() || self.pressure(&uncommitted).is_some();
        if blocking == Blocking::No && waits() {
            return Err(StoreError::would_block());
        }
        if self
            .state
            .pages_lacking(&uncommitted.metadata, PAGES_FOR_GUESTS)
            .is_some()
        {
            drop(uncommitted);
            self.secure_pages(PAGES_FOR_GUESTS, blocking)?;
            uncommitted = self.state.uncommitted()?;
        }
        match allocate(&mut uncommitted) {
            Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                let may_be_released = uncommitted.metadata.space().held_blocks() > 0;
                drop(uncommitted);
                if blocking == Blocking::No {
                    return Err(StoreError::would_block());
                }
                let mut allocated = Err(error);
                if may_be_released {
                    self.commit()?;
                    self.reuse.reclaim()?;
                    allocated = allocate(&mut *self.state.uncommitted()?);
                }
                let is_full = |error: &StoreError| error.kind() == StoreErrorKind::NoSpace;
                if allocated.as_ref().is_err_and(is_full)
                    && take_more(&self.free_space, placement.blocks(), purpose)?
                {
                    allocated = allocate(&mut *self.state.uncommitted()?);
                }
                allocated
            }
            allocated => allocated,
        }
    }

    /// Takes back blocks that were handed out and to which no record refers.
    pub fn take_back(&self, runs: &[PbaRun]) -> Result<()> {
        self.state.take_back(runs)
    }

    /// Makes the free-space map agree with the maps about these blocks. Returns whether they
    /// disagreed.
    pub fn correct_space(&self, run: PbaRun, named: bool) -> Result<bool> {
        self.state
            .uncommitted()?
            .metadata
            .space_mut()
            .correct(run, named)
    }

    /// Replaces an unreadable page of the free-space map by one counted from the maps. Returns
    /// whether it did.
    pub fn rebuild_space_page(&self, index: u32, named: Bitmap) -> Result<bool> {
        self.state
            .uncommitted()?
            .metadata
            .space_mut()
            .rebuild_page(index, named)
    }
}

/// Takes space from the shared pool. Guests' requests do not wait for a cluster that is late; an import does.
fn take_more(free_space: &FreeSpace, blocks: u64, purpose: Purpose) -> Result<bool> {
    loop {
        match free_space.take_more(blocks) {
            Err(error) if error.kind() == StoreErrorKind::Busy && purpose == Purpose::Import => {
                thread::sleep(LATE_PAUSE);
            }
            taken => return taken,
        }
    }
}
