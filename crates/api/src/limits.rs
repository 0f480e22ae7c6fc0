//! Bounds of requests and transfers, each with the reason for its value.

use std::time::Duration;

/// Bytes that import and export move as one piece: large enough that the cost per piece is negligible next to
/// copying the data, small enough to stay in a second-level cache.
pub const TRANSFER_CHUNK_BYTES: usize = 1 << 20;

/// Pieces buffered between the reading and the writing side of a transfer: two for each side, so that neither
/// waits for the other while both are equally fast.
pub const TRANSFER_CHUNKS_MAX: usize = 4;

/// Blocks that an import writes per published batch: as many as the store takes in one batch, so that batches
/// are full.
pub(crate) const IMPORT_BATCH_BLOCKS: u64 = 4096;

/// Batches by which an import may write ahead of publishing. A few, so that neither side waits for the other;
/// not more, so that an image of duplicates needs little room in the pool, and the blocks to publish are
/// still in the host's cache.
pub(crate) const IMPORT_BATCHES_AHEAD_MAX: u64 = 4;

/// Map segments that a list of volumes or snapshots walks in total to count their data: 32 GiB of volumes
/// with blocks of 4 KiB, within a second. Beyond this limit the list shows the last count.
pub(crate) const LIST_SEGMENTS_MAX: u64 = 16 << 10;

/// Findings that a check lists. Further findings are only counted, so that a pool that is damaged everywhere
/// does not need memory in proportion.
pub(crate) const FINDINGS_LISTED_MAX: usize = 10_000;

/// Runs of bytes that the store looks up for one page of differences: a page of some 100 KiB,
/// however large the volume is.
pub(crate) const DIFF_EXTENTS_MAX: usize = 4096;

/// Most places of bad blocks that a scrub lists. Further places are only counted, so that memory stays
/// bounded.
pub(crate) const PLACES_LISTED_MAX: usize = 10_000;

/// How often a check of a shared pool asks for an answer of a group that counts.
pub(crate) const CENSUS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often a request polls the daemon's scrub for its progress.
pub(crate) const SCRUB_POLL_INTERVAL: Duration = Duration::from_millis(100);
