//! The options of a new volume.

use onefold_format::DedupMode;

/// The default hash cache of an in-line volume: the slots of 2.6 GiB of blocks of 4 KiB.
const INLINE_HASH_CACHE_BYTES: u64 = 16 << 20;

/// The default domain.
pub const DEFAULT_DOMAIN: &str = "default";

/// The options of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Size in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// Whether blocks of the volume are shared with equal ones.
    pub dedup: DedupMode,
    /// Blocks are shared only inside a domain (P11); a new name makes a new domain. The same rules
    /// apply to it as to a volume's name.
    pub domain: String,
    /// Compare the bytes before two blocks become one.
    pub verify: bool,
    /// Passes of the finder during which a block must not have been written, 1 to 16.
    pub cold_passes: u8,
    /// Seconds between the finder's passes, 1 to 86,400.
    pub interval_seconds: u32,
    /// The shortest run of duplicates that is shared, in blocks, 1 to 256. Duplicates in shorter runs
    /// stay private, so the volume is read in fewer pieces and shares less.
    pub min_run: u16,
    /// Bytes of memory for fingerprints made while blocks are written, so that the finder does not
    /// read them back; 0 for none. The caches of all volumes get a sixteenth of the pool's memory.
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
        Self::with_mode(size_bytes, DedupMode::Offline)
    }

    /// Switches the mode. Settings that have the old mode's defaults get the defaults of the new one.
    pub(crate) fn switch_to(&mut self, mode: DedupMode) {
        let usual = Self::with_mode(self.size_bytes, self.dedup);
        let next = Self::with_mode(self.size_bytes, mode);
        if self.cold_passes == usual.cold_passes {
            self.cold_passes = next.cold_passes;
        }
        if self.interval_seconds == usual.interval_seconds {
            self.interval_seconds = next.interval_seconds;
        }
        if self.hash_cache_bytes == usual.hash_cache_bytes {
            self.hash_cache_bytes = next.hash_cache_bytes;
        }
        self.dedup = mode;
    }

    /// A volume of this size in the default domain, with the defaults of the mode: an in-line volume has
    /// made the fingerprints already, and the sooner the finder publishes a block, the more hits there are.
    #[must_use]
    pub fn with_mode(size_bytes: u64, dedup: DedupMode) -> Self {
        let (cold_passes, interval_seconds, hash_cache_bytes) = match dedup {
            DedupMode::Off | DedupMode::Offline => (2, 10, 0),
            DedupMode::Inline | DedupMode::Auto => (1, 1, INLINE_HASH_CACHE_BYTES),
        };
        Self {
            size_bytes,
            dedup,
            domain: DEFAULT_DOMAIN.to_owned(),
            verify: false,
            cold_passes,
            interval_seconds,
            min_run: 1,
            hash_cache_bytes,
            quota_bytes: 0,
            reservation_bytes: 0,
        }
    }
}
