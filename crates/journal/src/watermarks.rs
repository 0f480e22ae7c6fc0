//! How full the pool is, and which writes still get blocks.
//!
//! | level | free blocks | then |
//! | --- | --- | --- |
//! | enough | | |
//! | low | a tenth | a warning |
//! | scarce | a 32nd | imports stop, to leave the rest to guests |
//! | reserve | a 128th | only writes that overwrite data get blocks |
//! | full | none, or fewer than a write needs | that write waits or fails |
//!
//! Free blocks for which the host has no space do not count: if the pool's file is sparse, its file
//! system may have less room than the pool.
//!
//! The reserve is for copy-on-write: a guest can continue to overwrite blocks that are shared or in
//! a snapshot, which it needs even for deleting its own files. Operations that free blocks need no
//! reserve: trims, deletions, merges of snapshots, the finder, the collector and checkpoints work
//! in a full pool as in an empty one.
//!
//! They do need pages for metadata, which come from the host. So that a host without room does not
//! stop operations that make room, the pages of the next checkpoint are always secured before its
//! changes are made, and other work stops first: the finder, whose index grows, then writes that
//! map new blocks.

use onefold_metadata::Guard;
use onefold_metadata::sync::{AtomicU8, AtomicU64};

/// The cap on the levels: this much free space is never a reason for a warning, or for stopping
/// anything.
const LOW_BYTES_MAX: u64 = 64 << 30;
const SCARCE_BYTES_MAX: u64 = 8 << 30;
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Pages for metadata, besides two for each change (one for itself and one for those above it).
/// With fewer, a checkpoint is written before anything else changes. They suffice for the pages of
/// a whole batch and of the catalogue, with some to spare, so trims, deletions and the collector
/// can rely on them.
pub(super) const PAGES_FOR_RECLAIMING: u64 = 256;

/// With fewer pages, no new block is mapped.
pub(super) const PAGES_FOR_GUESTS: u64 = 512;

/// With fewer pages, the finder rests.
pub const PAGES_FOR_FINDER: u64 = 768;

/// How full a pool is, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[repr(u8)]
pub enum SpaceLevel {
    /// There is room.
    Ok,
    /// A tenth of the pool is free, or 64 GiB.
    Low,
    /// A 32nd is free, or 8 GiB: imports stop.
    Scarce,
    /// A 128th is free, or 1 GiB: only writes that overwrite data get blocks.
    Reserve,
    /// No block is free, or a write found too few and nothing has become free since.
    Full,
}

impl SpaceLevel {
    /// All levels, from best to worst.
    const ALL: [Self; 5] = [Self::Ok, Self::Low, Self::Scarce, Self::Reserve, Self::Full];

    /// The levels after the one logged last, up to this one, which should be logged now.
    pub(super) fn news_since(self, reported: u8) -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(move |level| *level as u8 > reported && *level <= self)
    }
}

/// The purpose of a new block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An image that is being loaded.
    Import,
    /// A guest's data where it had none.
    New,
    /// A guest's data in the place of other data, which is shared or in a snapshot.
    Overwrite,
}

/// The levels of one pool: numbers of free blocks at which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watermarks {
    low: u64,
    scarce: u64,
    pub(super) reserve: u64,
}

impl Watermarks {
    pub(super) fn of(pool_blocks: u64, block_size: u64) -> Self {
        let mark = |part: u64, bytes_max: u64| (pool_blocks / part).min(bytes_max / block_size);
        Self {
            low: mark(10, LOW_BYTES_MAX),
            scarce: mark(32, SCARCE_BYTES_MAX),
            reserve: mark(128, RESERVE_BYTES_MAX),
        }
    }

    pub(super) fn level(&self, free: u64) -> SpaceLevel {
        match free {
            0 => SpaceLevel::Full,
            _ if free <= self.reserve => SpaceLevel::Reserve,
            _ if free <= self.scarce => SpaceLevel::Scarce,
            _ if free <= self.low => SpaceLevel::Low,
            _ => SpaceLevel::Ok,
        }
    }

    /// The number of blocks that must stay free for other purposes.
    pub(super) fn kept_from(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Import => self.scarce,
            Purpose::New if Guard::ReserveForOverwrites.holds() => self.reserve,
            Purpose::New | Purpose::Overwrite => 0,
        }
    }
}

/// State between two checks of the free space.
#[derive(Default)]
pub(super) struct SpaceReport {
    /// The level logged last.
    pub(super) level: AtomicU8,
    /// The number of available blocks, plus one, when a write found too few; 0 if no write has, or
    /// if more are available since.
    pub(super) refused_at: AtomicU64,
    /// Free blocks for which the host had no space at the last check.
    pub(super) host_lacks: AtomicU64,
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::{Purpose, SpaceLevel, Watermarks};

    #[test]
    fn levels_follow_each_other_down_to_the_last_block() {
        for (blocks, block_size) in [(2, 4096), (300, 4096), (26_214_400, 4096), (1 << 40, 65536)] {
            let marks = Watermarks::of(blocks, block_size);
            assert_eq!(marks.level(0), SpaceLevel::Full);
            assert_eq!(marks.level(blocks), SpaceLevel::Ok, "{blocks}");
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
        use SpaceLevel::{Full, Low, Reserve, Scarce};
        let news = |now: SpaceLevel, reported: SpaceLevel| -> Vec<SpaceLevel> {
            now.news_since(reported as u8).collect()
        };
        assert_eq!(news(Full, SpaceLevel::Ok), [Low, Scarce, Reserve, Full]);
        assert_eq!(news(Reserve, Low), [Scarce, Reserve]);
        assert_eq!(news(Low, Low), []);
        assert_eq!(news(SpaceLevel::Ok, Full), []);
    }

    #[test]
    fn large_pools_keep_no_more_than_is_of_use() {
        let marks = Watermarks::of(1 << 40, 4096);
        assert_eq!(marks.low, (64 << 30) / 4096);
        assert_eq!(marks.reserve, (1 << 30) / 4096);
    }
}
