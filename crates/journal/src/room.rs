//! The pool's room: space that the host lacks, and blocks kept free for others.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::GivenRun;
#[cfg(feature = "simulation")]
use onefold_metadata::PbaRun;
use onefold_metadata::{
    Guard, MetadataState, Result, Space, SpaceLimits, StoreError, StoreErrorKind, display_bytes,
};

use super::shared_space::SharedSpace;
use super::state::State;
use super::watermarks::{Purpose, SpaceLevel, SpaceReport, Watermarks};

/// The number of blocks that can be handed out, and the host's figures behind it.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// How full the pool is by that.
    pub level: SpaceLevel,
    /// Free blocks for which the host has space.
    pub available: u64,
    /// Space that the host could still allocate, if that is known.
    pub host_free_bytes: Option<u64>,
    /// Bytes that the host has allocated for data.
    pub allocated_bytes: u64,
    /// Bytes that the host has allocated for free blocks, which therefore need no more space.
    pub spare_bytes: u64,
}

/// The pool's free blocks: how many there are, and which requests may take them.
pub struct FreeSpace {
    state: Arc<State>,
    report: SpaceReport,
}

impl FreeSpace {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self {
            state,
            report: SpaceReport::default(),
        }
    }

    /// The space of the pool, in a group of a shared one.
    pub fn shared(&self) -> Option<&SharedSpace> {
        self.state.shared_space.as_ref()
    }

    /// Takes up to `most` runs of free blocks into flight, to give them to the shared pool: see [`Space::take_to_give`].
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    pub fn take_to_give(&self, most: usize, kept: u64, scattered: bool) -> Result<Vec<GivenRun>> {
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        space.take_to_give(most, kept, scattered)
    }

    /// Takes space from the shared pool. Returns whether there was any.
    pub(super) fn take_more(&self, blocks: u64) -> Result<bool> {
        self.shared()
            .map_or(Ok(false), |shared| shared.take(blocks))
    }

    /// Queries the host, and compares its space with the pool's.
    pub fn room(&self) -> Result<Room> {
        let allocated_bytes = self.state.data.allocated_bytes();
        let allocated_bytes =
            allocated_bytes.map_err(|e| StoreError::io(self.state.data.name(), e))?;
        let host_free_bytes = self.state.data.host_free_bytes();
        let metadata = self.state.metadata()?;
        let space = &metadata.space();
        let (marks, free) = (
            self.watermarks(space),
            space.free_blocks() + self.elsewhere(),
        );
        let busy_bytes = space.busy_blocks() * self.state.block_size;
        drop(metadata);
        let spare_bytes = allocated_bytes.saturating_sub(busy_bytes);
        let available = host_free_bytes.map_or(free, |host_free| {
            free.min(host_free.saturating_add(spare_bytes) / self.state.block_size)
        });
        let report = &self.report;
        report.host_lacks.store(free - available, SeqCst);
        let refused_at = report.refused_at.load(SeqCst);
        if available >= refused_at {
            // A refusal that came in concurrently stays.
            let _ = report
                .refused_at
                .compare_exchange(refused_at, 0, SeqCst, SeqCst);
        }
        let level = if available >= refused_at {
            marks.level(available)
        } else {
            SpaceLevel::Full
        };
        Ok(Room {
            level,
            available,
            host_free_bytes,
            allocated_bytes,
            spare_bytes,
        })
    }

    /// Notes that a guest's write found too few blocks, or too little space on the host. Logs it before
    /// the client gets the error.
    pub fn refused(&self) -> Result<()> {
        let room = self.room()?;
        let refused_at = &self.report.refused_at;
        let is_known = refused_at.fetch_max(room.available + 1, SeqCst) > 0;
        if is_known {
            Ok(())
        } else {
            self.report_level()
        }
    }

    /// Free blocks that imports cannot use because the host has no space for them.
    pub(super) fn host_lacks(&self) -> u64 {
        self.report.host_lacks.load(SeqCst)
    }

    /// Takes all but the first `kept` free blocks out of use until the next opening.
    #[cfg(feature = "simulation")]
    pub fn leave_free(&self, mut kept: u64) -> Result<()> {
        for run in self.free_runs()? {
            let left = run.count.min(kept);
            kept -= left;
            let taken = PbaRun {
                start: run.start + left,
                count: run.count - left,
            };
            if taken.count > 0 {
                self.state.uncommitted()?.metadata.space_mut().take(taken)?;
            }
        }
        Ok(())
    }

    /// The blocks that can be handed out, as runs.
    #[cfg(feature = "simulation")]
    pub fn free_runs(&self) -> Result<Vec<PbaRun>> {
        let mut uncommitted = self.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some(run) = space.next_free(at..u64::MAX, u64::MAX)? {
            at = run.start.0 + run.count;
            runs.push(run);
        }
        Ok(runs)
    }

    /// The number of blocks kept for writes that overwrite data.
    pub fn reserve_blocks(&self, metadata: &MetadataState) -> u64 {
        self.watermarks(metadata.space()).reserve
    }

    fn watermarks(&self, space: &Space) -> Watermarks {
        let shared = self.shared();
        let blocks = shared.map_or(space.blocks(), SharedSpace::pool_blocks);
        Watermarks::of(blocks, self.state.block_size)
    }

    /// The blocks of the pool, and those of them that can be handed out. A group of a shared pool counts those that it could
    /// take from the pool.
    pub fn counts(&self, metadata: &MetadataState) -> (u64, u64) {
        let space = metadata.space();
        let shared = self.shared();
        let blocks = shared.map_or(space.blocks(), SharedSpace::pool_blocks);
        (blocks, space.free_blocks() + self.elsewhere())
    }

    /// Blocks that a group of a shared pool could still take from the pool.
    fn elsewhere(&self) -> u64 {
        self.shared().map_or(0, SharedSpace::elsewhere)
    }

    /// Logs each level that is reached, one after the other, and the end of scarcity. An
    /// improvement by less than an eighth is not logged: the next write may take it.
    pub fn report_level(&self) -> Result<()> {
        let refused_at = self.report.refused_at.load(SeqCst);
        let room = self.room()?;
        let marks = self.watermarks(self.state.metadata()?.space());
        let fewer = room.available - room.available / 8;
        let surely = if fewer >= refused_at {
            marks.level(fewer)
        } else {
            SpaceLevel::Full
        };
        let reported = &self.report.level;
        let before = reported.load(SeqCst);
        if room.level as u8 > before {
            if reported.swap(room.level as u8, SeqCst) == before {
                for level in room.level.news_since(before) {
                    tracing::warn!("{}", self.describe_level(level, room.available));
                }
            }
        } else if (surely as u8) < before {
            reported.store(surely as u8, SeqCst);
            if surely == SpaceLevel::Ok {
                tracing::info!("{}", self.describe_level(surely, room.available));
            }
        }
        Ok(())
    }

    fn describe_level(&self, level: SpaceLevel, free: u64) -> String {
        let then = match level {
            SpaceLevel::Ok => "the pool has enough space again",
            SpaceLevel::Low => "the pool is low on space",
            SpaceLevel::Scarce => "the pool is short of space, and imports stop",
            SpaceLevel::Reserve => {
                "the pool is down to its reserve, and only what overwrites data is written"
            }
            SpaceLevel::Full => "the pool is full",
        };
        let free = display_bytes(free * self.state.block_size);
        match self.host_lacks() {
            0 => format!("{then}: {free} are free"),
            _ => format!("{then}: the file system under it has room for {free}"),
        }
    }

    /// Blocks that a volume must leave to others when it takes this many: the blocks kept for it
    /// come before the pool's reserve.
    pub(super) fn kept_from(
        &self,
        space_limits: &SpaceLimits,
        metadata: &MetadataState,
        count: u64,
        purpose: Purpose,
    ) -> u64 {
        let reserve = if count <= space_limits.unused_reservation() {
            0
        } else {
            let reserve = self.watermarks(metadata.space()).kept_from(purpose);
            reserve.saturating_sub(self.elsewhere())
        };
        let host_lacks = self.lacking_for(purpose);
        if Guard::ReservedKeptFromOthers.holds() {
            host_lacks + reserve + space_limits.unused_by_others()
        } else {
            host_lacks + reserve
        }
    }

    /// The error of a request that gets no blocks although `free` are free: they are kept for others, or the host has
    /// no room for them.
    pub(super) fn pool_is_full(
        &self,
        wanted: u64,
        free: u64,
        kept: u64,
        purpose: Purpose,
    ) -> StoreError {
        let bytes = |blocks: u64| display_bytes(blocks * self.state.block_size);
        let lacking = self.lacking_for(purpose).min(free);
        let kept = kept.saturating_sub(lacking).min(free - lacking);
        let mut uses = Vec::new();
        if lacking > 0 {
            let lacking = bytes(lacking);
            uses.push(format!(
                "{lacking} have no room in the file system under the pool"
            ));
        }
        if kept > 0 {
            uses.push(format!("{} are kept for other uses", bytes(kept)));
        }
        let uses = if uses.is_empty() {
            String::new()
        } else {
            format!(", of which {}", uses.join(" and "))
        };
        let message = format!(
            "the pool is full: {} wanted, {} free{uses}; delete volumes or snapshots, or trim unused data",
            bytes(wanted),
            bytes(free)
        );
        StoreError::new(StoreErrorKind::NoSpace, message)
    }

    /// Free blocks for which the host has no room. A guest's write may find blocks that the host has already allocated;
    /// an import leaves those to guests.
    fn lacking_for(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Import => self.host_lacks(),
            Purpose::New | Purpose::Overwrite => 0,
        }
    }

    /// How many of the volume's own blocks could become shared, with enough free blocks left to keep
    /// for it instead.
    pub fn sharable(&self, space_limits: &SpaceLimits) -> Result<u64> {
        let reserved = space_limits.reserved();
        if reserved == 0 {
            return Ok(u64::MAX);
        }
        let metadata = self.state.metadata()?;
        let space = &metadata.space();
        let reserve = self.watermarks(space).reserve;
        let reserve = reserve.saturating_sub(self.elsewhere());
        let spoken_for = self.state.maps.unused_reservations() + reserve;
        let unclaimed = space.free_blocks().saturating_sub(spoken_for);
        let beyond = space_limits.owned().saturating_sub(reserved);
        Ok(beyond + unclaimed)
    }

    /// Whether the volume may own this many blocks fewer, because more are then kept for it.
    pub fn admit_sharing(
        &self,
        space_limits: &SpaceLimits,
        metadata: &MetadataState,
        fewer: u64,
    ) -> Result<()> {
        let reserved = space_limits.reserved();
        self.admit_keeping(
            metadata,
            space_limits.unused_reservation(),
            space_limits.unused_reservation_if(fewer, reserved),
        )
    }

    /// Whether this many bytes can be reserved for a volume; for a new one if no limits are given.
    pub fn admit_reservation(
        &self,
        space_limits: Option<&SpaceLimits>,
        metadata: &MetadataState,
        bytes: u64,
    ) -> Result<()> {
        let blocks = bytes / self.state.block_size;
        let (before, after) = space_limits.map_or((0, blocks), |space_limits| {
            (
                space_limits.unused_reservation(),
                space_limits.unused_reservation_if(0, blocks),
            )
        });
        self.admit_keeping(metadata, before, after)
    }

    /// Whether the pool can keep `after` free blocks for a volume instead of `before`.
    fn admit_keeping(&self, metadata: &MetadataState, before: u64, after: u64) -> Result<()> {
        let space = &metadata.space();
        let reserve = self.watermarks(space).reserve;
        let reserve = reserve.saturating_sub(self.elsewhere());
        let kept = self.state.maps.unused_reservations() + reserve;
        let (more, free) = (after.saturating_sub(before), space.free_blocks());
        if more == 0 || kept.saturating_add(more) <= free {
            return Ok(());
        }
        let bytes = |blocks: u64| display_bytes(blocks.saturating_mul(self.state.block_size));
        let message = format!(
            "{} cannot be kept free for it: {} are free, of which {} are kept already; make room, or reserve less",
            bytes(more),
            bytes(free),
            bytes(kept)
        );
        Err(StoreError::new(StoreErrorKind::NoSpace, message))
    }
}
