//! Results of the last scan of the maps for volumes and snapshots.

use onefold_format::VolumeId;
use rustc_hash::FxHashMap;

/// The usage of a volume or a snapshot at the last scan of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// When that was, in seconds since the Unix epoch.
    pub as_of_unix_seconds: u64,
    /// Blocks of the pool that only its own entries refer to.
    pub exclusive_blocks: u64,
    /// Blocks of the pool that its own entries refer to, and those of other volumes or snapshots.
    pub shared_blocks: u64,
    /// Blocks that become free when it is deleted, and nothing else.
    pub freed_if_deleted_blocks: u64,
    /// Blocks that become free at least when this volume is deleted with all its snapshots; 0 for a snapshot.
    pub freed_with_snapshots_blocks: u64,
    /// Its blocks in which a reader finds data.
    pub data_blocks: u64,
    /// The runs of the pool that these are in.
    pub data_runs: u64,
}

/// The usage of all volumes and snapshots.
pub(crate) type Usages = FxHashMap<VolumeId, Usage>;
