//! Results of the last scan of the maps for volumes and snapshots.

use onefold_format::VolumeId;
use rustc_hash::FxHashMap;

/// The usage of a volume or a snapshot at the last scan of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// When the maps were scanned, in seconds since the Unix epoch.
    pub as_of_unix_seconds: u64,
    /// Blocks of the pool that only its own entries refer to.
    pub exclusive_blocks: u64,
    /// Blocks of the pool that both its own entries and entries of other volumes or snapshots refer to.
    pub shared_blocks: u64,
    /// Blocks that become free when it is deleted, and nothing else.
    pub freed_if_deleted_blocks: u64,
    /// Blocks that become free at least when this volume is deleted with all its snapshots; 0 for a snapshot.
    pub freed_with_snapshots_blocks: u64,
    /// Blocks of the volume or snapshot in which a reader finds data.
    pub data_blocks: u64,
    /// Runs of the pool in which this data is.
    pub data_runs: u64,
}

/// The usage of all volumes and snapshots.
pub(super) type Usages = FxHashMap<VolumeId, Usage>;
