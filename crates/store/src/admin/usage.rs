//! What is known of volumes and snapshots since the maps were last gone through.

use onefold_format::VolumeId;
use rustc_hash::FxHashMap;

/// What a volume or a snapshot held when its pool was last gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// When that was, in seconds since the Unix epoch.
    pub as_of_unix_seconds: u64,
    /// Blocks of the pool that nothing but its own entries names.
    pub exclusive_blocks: u64,
    /// Blocks of the pool that its own entries name, and those of other volumes or snapshots.
    pub shared_blocks: u64,
    /// Blocks that become free when it is deleted, and nothing else.
    pub freed_if_deleted_blocks: u64,
    /// Its blocks in which a reader finds data.
    pub data_blocks: u64,
}

/// What is known of all volumes and snapshots.
pub(crate) type Usages = FxHashMap<VolumeId, Usage>;
