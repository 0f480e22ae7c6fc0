//! How a volume is made.

use onefold_format::DedupMode;

/// The default domain.
pub const DEFAULT_DOMAIN: &str = "default";

/// How a volume is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Size in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// Whether its blocks are shared with equal ones.
    pub dedup: DedupMode,
    /// Blocks are shared only inside a domain (P11); a new name makes a new domain. The rules for
    /// names are those of volumes.
    pub domain: String,
    /// Compare the bytes before two blocks become one.
    pub verify: bool,
    /// Looks of the finder for which a block must not have been written, 1 to 16.
    pub cold_passes: u8,
    /// Seconds between the finder's looks, 1 to 86,400.
    pub interval_seconds: u32,
    /// Bytes of memory for fingerprints made while blocks are written, so that the finder need not
    /// read them back; 0 for none. All volumes' together get a sixteenth of the pool's memory.
    pub hash_cache_bytes: u64,
    /// The most data that the volume and its snapshots may map, in bytes, a multiple of the block
    /// size; 0 for no bound. Each snapshot counts the data written before it; shared blocks count.
    pub quota_bytes: u64,
    /// Bytes of the pool that others leave to the volume and its snapshots, a multiple of the block
    /// size. Blocks that they own alone count against it; for the missing part free blocks are
    /// kept.
    pub reservation_bytes: u64,
}

impl VolumeOptions {
    /// A volume of this size that shares its blocks in the default domain.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            dedup: DedupMode::Offline,
            domain: DEFAULT_DOMAIN.to_owned(),
            verify: false,
            cold_passes: 2,
            interval_seconds: 10,
            hash_cache_bytes: 0,
            quota_bytes: 0,
            reservation_bytes: 0,
        }
    }
}
