//! The pool's free space: finding and preallocating spare blocks, and giving others back to the host.

use crate::limits::{
    GIVE_BACK_BYTES, GIVE_BACK_BYTES_IDLE, POLL_INTERVAL, PREALLOCATE_BYTES,
    PREALLOCATE_RETRY_PAUSE, SPARE_ROOM_DIVISOR, WALK_FIRST,
};
use crate::spare::SpareTarget;
use onefold_store::{Result, Store};
use std::time::Instant;

/// Work on free space, which the collector's thread does.
pub(crate) struct FreeSpaceWork {
    target: SpareTarget,
    /// When a group's free blocks were last compared with what it needs.
    balanced: Option<Instant>,
    /// When the use of spare blocks was last noted.
    noted: Option<Instant>,
    /// When the work began.
    began: Instant,
    /// When free space is preallocated again after a failure.
    retry: Instant,
}

/// The result of one step of work on free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSpaceStep {
    /// Something was done, and more may be to do.
    Done,
    /// Up to this many bytes of spare blocks may be given back to the host.
    MayGiveBack(u64),
    Nothing,
}

impl FreeSpaceWork {
    pub(crate) fn new() -> Self {
        Self {
            target: SpareTarget::new(),
            balanced: None,
            noted: None,
            began: Instant::now(),
            retry: Instant::now(),
        }
    }

    /// Finds or preallocates some free space; if there is none to find or preallocate, says how much may be given back.
    pub(crate) fn step(
        &mut self,
        store: &Store,
        guests_are_at_rest: bool,
    ) -> Result<FreeSpaceStep> {
        let space = store.space();
        if self.is_balance_due() && space.balance()? {
            self.balanced = None;
            return Ok(FreeSpaceStep::Done);
        }
        let is_host_short = space.is_host_short()?;
        self.keep_spare(store, is_host_short)?;
        // Spare blocks of an earlier process are found first, so that no others are made in their place.
        let walks = space.find_spare()?;
        if walks && self.began.elapsed() < WALK_FIRST {
            return Ok(FreeSpaceStep::Done);
        }
        if self.preallocate(store) || walks {
            return Ok(FreeSpaceStep::Done);
        }
        let bytes = if guests_are_at_rest {
            GIVE_BACK_BYTES_IDLE
        } else {
            GIVE_BACK_BYTES
        };
        // Making a hole blocks all writes, and where that is worst the space is probably needed again.
        if guests_are_at_rest || is_host_short || !space.waits_to_allocate() {
            Ok(FreeSpaceStep::MayGiveBack(bytes))
        } else {
            Ok(FreeSpaceStep::Nothing)
        }
    }

    /// Whether a group of a shared pool should compare its free blocks with what it needs.
    fn is_balance_due(&mut self) -> bool {
        let is_due = self
            .balanced
            .is_none_or(|balanced| balanced.elapsed() >= POLL_INTERVAL);
        if is_due {
            self.balanced = Some(Instant::now());
        }
        is_due
    }

    /// Sets how many spare blocks the pool keeps, from what guests used; none if the host needs the space.
    fn keep_spare(&mut self, store: &Store, is_host_short: bool) -> Result<()> {
        let space = store.space();
        if !space.waits_to_allocate() {
            return Ok(());
        }
        let elapsed = self.noted.map_or(POLL_INTERVAL, |noted| noted.elapsed());
        if elapsed >= POLL_INTERVAL {
            let used = space.spare_use()?.small_blocks * u64::from(store.block_size());
            self.noted = Some(Instant::now());
            self.target.note(elapsed, space.size_bytes()?, used);
        }
        let kept = if is_host_short {
            0
        } else {
            let room = space.host_room_bytes()?.unwrap_or(u64::MAX);
            self.target.bytes().min(room / SPARE_ROOM_DIVISOR)
        };
        space.keep_spare(kept)
    }

    /// Prepares some free blocks. Returns whether it did.
    fn preallocate(&mut self, store: &Store) -> bool {
        if Instant::now() < self.retry {
            return false;
        }
        store
            .space()
            .preallocate(PREALLOCATE_BYTES)
            .unwrap_or_else(|error| {
                // Guests' writes then wait for the host as those of other pools do.
                tracing::warn!("no free space is preallocated for a while: {error}");
                self.retry = Instant::now() + PREALLOCATE_RETRY_PAUSE;
                false
            })
    }
}
