//! How blocks are handed out, released, and handed out again once no reader can still see their old
//! content (P3).

use onefold_format::space_page::Bitmap;
use onefold_metadata::sync::lock;
use onefold_metadata::{
    Blocking, Guard, PbaRun, PbaRuns, Placement, Result, SpaceLimits, StoreError, StoreErrorKind,
};

use super::epoch::Epoch;
use super::watermarks::{PAGES_FOR_GUESTS, Purpose};
use super::{Journal, Uncommitted};

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
            let kept = self.kept_from(
                space_limits,
                &uncommitted.metadata,
                placement.blocks(),
                purpose,
            );
            let allocated = uncommitted.metadata.space_mut().allocate(placement, kept);
            allocated.map_err(|error| match error.kind() {
                StoreErrorKind::NoSpace => {
                    let free = uncommitted.metadata.space().free_blocks();
                    self.pool_is_full(placement.blocks(), free, kept, purpose)
                }
                _ => error,
            })
        };
        let mut uncommitted = self.uncommitted()?;
        if self
            .pages_lacking(&uncommitted.metadata, PAGES_FOR_GUESTS)
            .is_some()
        {
            drop(uncommitted);
            self.secure_pages(PAGES_FOR_GUESTS, blocking)?;
            uncommitted = self.uncommitted()?;
        }
        match allocate(&mut uncommitted) {
            Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                let may_be_released = uncommitted.metadata.space().held_blocks() > 0;
                drop(uncommitted);
                if blocking == Blocking::No {
                    return Err(StoreError::would_block());
                }
                if !may_be_released {
                    return Err(error);
                }
                self.commit()?;
                self.reclaim()?;
                allocate(&mut *self.uncommitted()?)
            }
            allocated => allocated,
        }
    }

    /// Takes back blocks that were handed out and to which no record refers.
    pub fn take_back(&self, runs: &[PbaRun]) -> Result<()> {
        let mut uncommitted = self.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        runs.iter().try_for_each(|run| space.release(*run))
    }

    /// Defers the freeing of blocks whose records are durable until their readers have drained.
    pub(super) fn give_up(&self, runs: PbaRuns) {
        if !runs.is_empty() {
            lock(&self.deferred_frees).push_back((self.epochs.current(), runs));
        }
    }

    /// Frees the blocks whose readers have drained.
    pub fn reclaim(&self) -> Result<()> {
        let _turn = lock(&self.reclaiming);
        let mut deferred_frees = lock(&self.deferred_frees);
        self.epochs.advance();
        let mut drained = Vec::new();
        while let Some((epoch, _)) = deferred_frees.front() {
            if Guard::ReuseAfterReaders.holds() && !self.epochs.is_drained(*epoch) {
                break;
            }
            drained.extend(
                deferred_frees
                    .pop_front()
                    .into_iter()
                    .flat_map(|(_, runs)| runs),
            );
        }
        drop(deferred_frees);
        self.free(&drained)
    }

    /// Whether the readers of all blocks released up to `then` have drained.
    pub fn is_reclaimed(&self, then: Epoch) -> bool {
        let _turn = lock(&self.reclaiming);
        let deferred_frees = lock(&self.deferred_frees);
        deferred_frees
            .front()
            .is_none_or(|(epoch, _)| *epoch > then)
    }

    /// Makes the free-space map agree with the maps about these blocks. Returns whether they
    /// disagreed.
    pub fn correct_space(&self, run: PbaRun, named: bool) -> Result<bool> {
        self.uncommitted()?.metadata.space_mut().correct(run, named)
    }

    /// Replaces an unreadable page of the free-space map by one counted from the maps. Returns
    /// whether it did.
    pub fn rebuild_space_page(&self, index: u32, named: Bitmap) -> Result<bool> {
        self.uncommitted()?
            .metadata
            .space_mut()
            .rebuild_page(index, named)
    }
}
