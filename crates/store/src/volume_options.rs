//! How a volume is made.

use onefold_format::DedupMode;

/// The hash cache of a volume in line that asks for none: the slots of 2.6 GiB of blocks of 4 KiB.
const INLINE_HASH_CACHE_BYTES: u64 = 16 << 20;

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
    /// The shortest run of duplicates that is shared, in blocks, 1 to 256. Duplicates in shorter runs
    /// stay private, so the volume is read in fewer pieces and shares less.
    pub min_run: u16,
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
        Self::with_mode(size_bytes, DedupMode::Offline)
    }

    /// Switches the mode. Settings that are the usual ones of the old mode become those of the new.
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

    /// The same in another mode, with what suits it: a volume that looks up what is written has made the
    /// fingerprints already, and the sooner the finder publishes a block, the more hits there are.
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
