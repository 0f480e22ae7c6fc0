//! How the store's memory limit is shared out, and the other bounds, each with its reason.

/// The most bytes that one request may read or write: the largest that the front ends advertise.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// The most volumes in a pool: their records are kept in memory, 256 bytes each and as much again
/// for finding them.
pub const VOLUMES_MAX: u64 = 65_535;

/// The deepest chain of layers. Making a view visits all of them, and dropping the chain recurses on a
/// thread's stack.
pub const LAYERS_DEEP_MAX: usize = 1024;

/// Smallest memory limit that the shares below still make sense for.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Bytes that a cached segment takes: its entries, the ages of its blocks, the finder's candidates, the locks, the
/// places in index and clock.
pub const LEAF_BYTES: u64 = 4096 + 512 + 64 + 384;

/// Bytes that a cached inner page takes: 256 pointers of 24 bytes in memory.
pub const NODE_BYTES: u64 = 6144 + 192;

/// Bytes that a resident page of the free-space map takes: two bitmaps.
pub const SPACE_PAGE_BYTES: u64 = 4096 + 256;

/// Bytes that a page of spare blocks takes: one bitmap.
pub const SPARE_PAGE_BYTES: u64 = 2048 + 128;

/// Bytes that the fingerprint of a claim takes.
pub const CLAIM_FINGERPRINT_BYTES: u64 = 16;

/// More claims than this would make the collector wait for minutes.
const CLAIM_FINGERPRINTS_BYTES_MAX: u64 = 64 << 20;

/// The number of claims for each claim fingerprint that is kept. Counting a claim without a fingerprint
/// reads its block, which costs no more than storing the block and having the finder read it. After a crash
/// no fingerprint is left, so all claims are read before the collector releases anything.
const CLAIMS_PER_FINGERPRINT: u64 = 4;

/// A larger table would not stay in the processor's caches, and a query would cost as much as a lookup
/// in the index.
const RECENT_BYTES_MAX: usize = 4 << 20;

/// The shares of one memory limit.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Segments of maps kept in memory.
    pub leaves_max: usize,
    /// Segments changed since the last checkpoint, which cannot be dropped before the next. While
    /// a checkpoint is being written, each may exist twice.
    pub dirty_leaves_max: usize,
    /// Inner pages kept in memory.
    pub nodes_max: usize,
    /// The memory for the occupancy of all layers, in bytes.
    pub occupancy_bytes: usize,
    /// Pages of the free-space map kept in memory.
    pub space_pages_max: usize,
    /// Pages of spare blocks kept in memory.
    pub spare_pages_max: usize,
    /// Pages of the free-space map changed since the last checkpoint.
    pub dirty_space_pages_max: usize,
    /// Records that no commit has sealed yet, in bytes.
    pub tail_bytes_max: usize,
    /// Counts for the pool's blocks while all maps are scanned, by one scan at a time, in bytes:
    /// pools with more blocks are scanned in several passes.
    pub check_bytes: usize,
    /// The scrub's notes on the fingerprints that blocks should have, in bytes.
    pub scrub_bytes: usize,
    /// The memory of the fingerprint index, in bytes.
    pub index_bytes: usize,
    /// The memory of the hash caches of all volumes, in bytes.
    pub hash_cache_bytes: u64,
    /// The memory for recent lookups of volumes in line, in bytes.
    pub recent_bytes: usize,
    /// Claims whose fingerprints are kept in memory.
    pub claim_fingerprints_max: u64,
    /// The most claims. Their elements are in pages that count as pages of free space.
    pub claims_max: u64,
}

impl Limits {
    /// The shares: five sixteenths for segments; an eighth each for their copies during a checkpoint,
    /// for free space, a quarter of it for spare blocks, and for the index; a sixteenth each for inner pages and for records; three
    /// sixty-fourths for hash caches; at most a sixty-fourth for recent lookups; and a thirty-second
    /// each for occupancy, for scans such as `check`, for the scrub and, at most, for fingerprints of
    /// claims.
    pub fn from_memory(memory_bytes: u64) -> Self {
        let memory = memory_bytes.max(MEMORY_BYTES_MIN);
        let count = |share: u64, each: u64| (share / each) as usize;
        let claim_fingerprints_max =
            (memory / 32).min(CLAIM_FINGERPRINTS_BYTES_MAX) / CLAIM_FINGERPRINT_BYTES;
        Self {
            leaves_max: count(memory / 16 * 5, LEAF_BYTES),
            dirty_leaves_max: count(memory / 8, LEAF_BYTES),
            nodes_max: count(memory / 16, NODE_BYTES),
            occupancy_bytes: (memory / 32) as usize,
            space_pages_max: count(memory / 32 * 3, SPACE_PAGE_BYTES),
            spare_pages_max: count(memory / 32, SPARE_PAGE_BYTES),
            dirty_space_pages_max: count(memory / 32, SPACE_PAGE_BYTES),
            tail_bytes_max: (memory / 32) as usize,
            check_bytes: (memory / 32) as usize,
            scrub_bytes: (memory / 32) as usize,
            index_bytes: index_bytes(memory / 8),
            hash_cache_bytes: memory / 64 * 3,
            recent_bytes: ((memory / 64) as usize).min(RECENT_BYTES_MAX),
            claim_fingerprints_max,
            claims_max: claim_fingerprints_max * CLAIMS_PER_FINGERPRINT,
        }
    }
}

#[cfg(not(feature = "simulation"))]
fn index_bytes(share: u64) -> usize {
    share as usize
}

#[cfg(feature = "simulation")]
fn index_bytes(share: u64) -> usize {
    let scarce = crate::guard::Scarcity::now().index_bytes;
    scarce.unwrap_or(share as usize)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_most_claims_grow_with_the_memory() {
        // The store gets half of `serve --memory`.
        let most = |mib: u64| Limits::from_memory(mib << 20).claims_max;
        assert_eq!(most(32), 262_144);
        assert_eq!(most(256), 2_097_152);
        assert_eq!(most(2048), 16_777_216);
        assert_eq!(most(1 << 20), most(2048));
    }
}
