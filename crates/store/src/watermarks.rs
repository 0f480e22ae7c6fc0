//! How full the pool is, and who still gets blocks then.
//!
//! | level | free blocks | then |
//! | --- | --- | --- |
//! | enough | | |
//! | low | a tenth | a warning |
//! | scarce | a 32nd | imports stop, so that what is left is the guests' |
//! | reserve | a 128th | only what overwrites data gets blocks |
//! | full | none, or fewer than a write wants | that write waits or fails |
//!
//! Free blocks that the host has no space for do not count: where the pool's file is sparse, its file
//! system may have less room than the pool.
//!
//! The reserve is for copy-on-write: a guest can go on overwriting what is shared or in a snapshot,
//! which it needs even for deleting its own files. Everything that frees blocks needs none: trims, deletions, merges of
//! snapshots, the finder, the collector and checkpoints work in a full pool as in an empty one.
//!
//! They do need pages for metadata, and those are the host's to give. So that a host without room stops
//! nothing that makes room, the pages of the next checkpoint are always secured before its changes are made, and
//! others stop first: the finder, whose index grows, then what maps new blocks.

use std::sync::atomic::Ordering::SeqCst;

use crate::blocking::Blocking;
use crate::error::{Result, StoreError};
use crate::guard::Guard;
use crate::pool::{Pool, Uncommitted};
use crate::space::Space;
use crate::sync::{AtomicU8, AtomicU64};

/// Bytes from which on the share of the pool is no reason for a warning, or for stopping anybody.
const LOW_BYTES_MAX: u64 = 64 << 30;
const SCARCE_BYTES_MAX: u64 = 8 << 30;
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Pages for metadata beyond two for each change, one for itself and one for those above it, without
/// which a checkpoint is written before anything else is changed: those of a whole batch, of the
/// catalogue, and to spare. This is what trims, deletions and the collector can count on.
pub(crate) const PAGES_FOR_RECLAIMING: u64 = 256;

/// Pages without which no new block is mapped.
pub(crate) const PAGES_FOR_GUESTS: u64 = 512;

/// Pages without which the finder rests.
pub(crate) const PAGES_FOR_FINDER: u64 = 768;

/// How full a pool is, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SpaceLevel {
    /// There is room.
    Enough,
    /// A tenth of the pool is free, or 64 GiB.
    Low,
    /// A 32nd is free, or 8 GiB: imports stop.
    Scarce,
    /// A 128th is free, or 1 GiB: only what overwrites data gets blocks.
    Reserve,
    /// No block is free, or a write found too few and nothing has become free since.
    Full,
}

impl SpaceLevel {
    /// From best to worst.
    const ALL: [Self; 5] = [
        Self::Enough,
        Self::Low,
        Self::Scarce,
        Self::Reserve,
        Self::Full,
    ];

    /// The levels between the one that the log was told of and this one, which it is to hear of now.
    fn news_since(self, reported: u8) -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(move |level| *level as u8 > reported && *level <= self)
    }
}

/// What a new block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An image that is being loaded.
    Import,
    /// A guest's data where it had none.
    New,
    /// A guest's data in the place of other data, which is shared or in a snapshot.
    Overwrite,
}

/// The levels of one pool: numbers of free blocks at which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermarks {
    low: u64,
    scarce: u64,
    pub(crate) reserve: u64,
}

impl Watermarks {
    pub(crate) fn of(pool_blocks: u64, block_size: u64) -> Self {
        let mark = |part: u64, bytes_max: u64| (pool_blocks / part).min(bytes_max / block_size);
        Self {
            low: mark(10, LOW_BYTES_MAX),
            scarce: mark(32, SCARCE_BYTES_MAX),
            reserve: mark(128, RESERVE_BYTES_MAX),
        }
    }

    pub(crate) fn level(&self, free: u64) -> SpaceLevel {
        match free {
            0 => SpaceLevel::Full,
            _ if free <= self.reserve => SpaceLevel::Reserve,
            _ if free <= self.scarce => SpaceLevel::Scarce,
            _ if free <= self.low => SpaceLevel::Low,
            _ => SpaceLevel::Enough,
        }
    }

    /// Blocks that have to stay free for others.
    pub(crate) fn kept_from(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Import => self.scarce,
            Purpose::New if Guard::ReserveForOverwrites.holds() => self.reserve,
            Purpose::New | Purpose::Overwrite => 0,
        }
    }
}

/// What is remembered from one look at the free space to the next.
#[derive(Default)]
pub(crate) struct SpaceReport {
    /// The level that the log was told of.
    level: AtomicU8,
    /// One more than the blocks that were available when a write found too few; 0 where none has, or
    /// more are available since.
    refused_at: AtomicU64,
    /// Free blocks that the host had no space for at the last look.
    host_lacks: AtomicU64,
}

/// How many blocks can be handed out, and what that means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) level: SpaceLevel,
    /// Free blocks that the host has space for.
    pub(crate) available: u64,
    /// What the host could still allocate, where that says anything.
    pub(crate) host_free_bytes: Option<u64>,
    /// Bytes that the host has allocated for data.
    pub(crate) allocated_bytes: u64,
    /// Of these, for blocks that are free, which need no more space of the host.
    pub(crate) spare_bytes: u64,
}

impl Pool {
    /// Asks the host, and compares its space with the pool's.
    pub(crate) fn room(&self) -> Result<Room> {
        let allocated_bytes = self.data.allocated_bytes();
        let allocated_bytes = allocated_bytes.map_err(|e| StoreError::io(&self.data_name, e))?;
        let host_free_bytes = self.data.host_free_bytes();
        let uncommitted = self.uncommitted()?;
        let space = &uncommitted.metadata.space;
        let (marks, free) = (self.watermarks(space), space.free_blocks());
        let busy_bytes = space.busy_blocks() * self.block_size();
        drop(uncommitted);
        let spare_bytes = allocated_bytes.saturating_sub(busy_bytes);
        let available = host_free_bytes.map_or(free, |host_free| {
            free.min(host_free.saturating_add(spare_bytes) / self.block_size())
        });
        let report = &self.space_report;
        report.host_lacks.store(free - available, SeqCst);
        let refused_at = report.refused_at.load(SeqCst);
        if available >= refused_at {
            // One that was refused meanwhile stays.
            let _ = report
                .refused_at
                .compare_exchange(refused_at, 0, SeqCst, SeqCst);
        }
        let level = match available >= refused_at {
            true => marks.level(available),
            false => SpaceLevel::Full,
        };
        Ok(Room {
            level,
            available,
            host_free_bytes,
            allocated_bytes,
            spare_bytes,
        })
    }

    /// A guest's write found too few blocks, or the host too little space for them. The log hears of it
    /// before the client does.
    pub(crate) fn refused(&self) -> Result<()> {
        let room = self.room()?;
        let refused_at = &self.space_report.refused_at;
        let is_known = refused_at.fetch_max(room.available + 1, SeqCst) > 0;
        match is_known {
            true => Ok(()),
            false => self.report_level(),
        }
    }

    /// Free blocks that are not for imports because the host has no space for them.
    pub(crate) fn host_lacks(&self) -> u64 {
        self.space_report.host_lacks.load(SeqCst)
    }

    /// Makes sure that so many pages for metadata are left after the next checkpoint; that checkpoint
    /// is written if it helps.
    pub(crate) fn secure_pages(&self, beyond: u64, blocking: Blocking) -> Result<()> {
        let uncommitted = self.uncommitted()?;
        if self.has_pages(&uncommitted, beyond) {
            return Ok(());
        }
        let (wanted, has_changes) = (
            self.pages_wanted(&uncommitted, beyond),
            self.has_changes(&uncommitted),
        );
        drop(uncommitted);
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let secured = self.pages.secure(wanted);
        if secured.is_ok() || !has_changes {
            return secured;
        }
        self.checkpoint()?;
        let wanted = self.pages_wanted(&*self.uncommitted()?, beyond);
        self.pages.secure(wanted)
    }

    /// Makes sure that the next checkpoint can be written, after more changes or now.
    pub(crate) fn make_room_for_pages(&self) -> Result<()> {
        let wanted = self.pages_wanted(&*self.uncommitted()?, PAGES_FOR_RECLAIMING);
        match self.pages.secure(wanted) {
            Ok(()) => Ok(()),
            Err(_) => self.checkpoint(),
        }
    }

    /// Whether the next checkpoint leaves so many pages.
    pub(crate) fn has_pages(&self, uncommitted: &Uncommitted, beyond: u64) -> bool {
        self.pages.spare() >= self.pages_wanted(uncommitted, beyond)
    }

    /// Whether there is anything for a checkpoint to write.
    pub(crate) fn has_changes(&self, uncommitted: &Uncommitted) -> bool {
        self.maps.dirty_count() + uncommitted.metadata.dirty_pages() > 0
    }

    /// Pages that the next checkpoint may write, and so many more.
    fn pages_wanted(&self, uncommitted: &Uncommitted, beyond: u64) -> u64 {
        let changes = self.maps.dirty_count() + uncommitted.metadata.dirty_pages();
        2 * changes as u64 + beyond
    }

    pub(crate) fn watermarks(&self, space: &Space) -> Watermarks {
        Watermarks::of(space.blocks(), self.block_size())
    }

    /// Tells the log of each level that is reached, one after the other, and once there is enough
    /// again. What is better by less than an eighth is not news: the next write may take it.
    pub(crate) fn report_level(&self) -> Result<()> {
        let refused_at = self.space_report.refused_at.load(SeqCst);
        let room = self.room()?;
        let marks = self.watermarks(&self.uncommitted()?.metadata.space);
        let fewer = room.available - room.available / 8;
        let surely = match fewer >= refused_at {
            true => marks.level(fewer),
            false => SpaceLevel::Full,
        };
        let reported = &self.space_report.level;
        let before = reported.load(SeqCst);
        if room.level as u8 > before {
            if reported.swap(room.level as u8, SeqCst) == before {
                for level in room.level.news_since(before) {
                    tracing::warn!("{}", self.describe_level(level, room.available));
                }
            }
        } else if (surely as u8) < before {
            reported.store(surely as u8, SeqCst);
            if surely == SpaceLevel::Enough {
                tracing::info!("{}", self.describe_level(surely, room.available));
            }
        }
        Ok(())
    }

    fn describe_level(&self, level: SpaceLevel, free: u64) -> String {
        let then = match level {
            SpaceLevel::Enough => "the pool has enough space again",
            SpaceLevel::Low => "the pool is low on space",
            SpaceLevel::Scarce => "the pool is short of space, and imports stop",
            SpaceLevel::Reserve => {
                "the pool is down to its reserve, and only what overwrites data is written"
            }
            SpaceLevel::Full => "the pool is full",
        };
        let bytes = free * self.block_size();
        match self.host_lacks() {
            0 => format!("{then}: {free} blocks, {bytes} bytes, are free"),
            _ => format!(
                "{then}: the file system under it has room for {free} blocks, {bytes} bytes"
            ),
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::{Purpose, SpaceLevel, Watermarks};

    #[test]
    fn levels_follow_each_other_down_to_the_last_block() {
        for (blocks, block_size) in [(2, 4096), (300, 4096), (26_214_400, 4096), (1 << 40, 65536)] {
            let marks = Watermarks::of(blocks, block_size);
            assert_eq!(marks.level(0), SpaceLevel::Full);
            assert_eq!(marks.level(blocks), SpaceLevel::Enough, "{blocks}");
            assert!(marks.reserve <= marks.scarce && marks.scarce <= marks.low);
            assert_eq!(marks.kept_from(Purpose::Overwrite), 0);
            let marked = [marks.reserve, marks.scarce, marks.low];
            let levels = marked.map(|free| marks.level(free));
            assert!(
                levels.is_sorted_by(|worse, better| worse >= better),
                "{levels:?}"
            );
        }
    }

    #[test]
    fn the_log_hears_of_every_level_in_order() {
        use SpaceLevel::{Enough, Full, Low, Reserve, Scarce};
        let news = |now: SpaceLevel, reported: SpaceLevel| -> Vec<SpaceLevel> {
            now.news_since(reported as u8).collect()
        };
        assert_eq!(news(Full, Enough), [Low, Scarce, Reserve, Full]);
        assert_eq!(news(Reserve, Low), [Scarce, Reserve]);
        assert_eq!(news(Low, Low), []);
        assert_eq!(news(Enough, Full), []);
    }

    #[test]
    fn large_pools_keep_no_more_than_is_of_use() {
        let marks = Watermarks::of(1 << 40, 4096);
        assert_eq!(marks.low, (64 << 30) / 4096);
        assert_eq!(marks.reserve, (1 << 30) / 4096);
    }
}
