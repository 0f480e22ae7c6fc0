//! Bounds of requests and transfers, each with the reason for its value.

use std::time::Duration;

/// Bytes moved as one piece by import and export. Large enough that per-piece costs vanish
/// against copying it, small enough to stay in a second-level cache.
pub const TRANSFER_CHUNK_BYTES: usize = 1 << 20;

/// Pieces under way between the side that reads and the side that writes: two for each to work
/// on, so that neither waits for the other as long as both are equally fast.
pub const TRANSFER_CHUNKS_MAX: usize = 4;

/// Blocks that an import writes for each batch that it publishes: as many as the store takes at a
/// time, so that batches are full.
pub(crate) const IMPORT_BATCH_BLOCKS: u64 = 4096;

/// Batches by which writing an image may be ahead of publishing it. A few, so that neither waits
/// for the other; no more, so that an image of duplicates needs little room in the pool, and the
/// blocks to publish are still in the host's cache.
pub(crate) const IMPORT_BATCHES_AHEAD_MAX: u64 = 4;

/// Map segments that a list of volumes or snapshots walks in all to count their data: 32 GiB of volumes
/// with blocks of 4 KiB, within a second. Beyond it the list shows the last count.
pub(crate) const LIST_SEGMENTS_MAX: u64 = 16 << 10;

/// Findings that a check lists; beyond it they are only counted, so that a pool that is
/// broken everywhere does not need memory in proportion.
pub(crate) const FINDINGS_LISTED_MAX: usize = 10_000;

/// Runs of bytes that the store looks up for one page of differences: a page of some 100 KiB,
/// however large the volume is.
pub(crate) const DIFF_EXTENTS_MAX: usize = 4096;

/// Most places of bad blocks that a scrub lists; further ones are only counted, for the same
/// reason.
pub(crate) const PLACES_LISTED_MAX: usize = 10_000;

/// How often a request polls the daemon's scrub for its progress.
pub(crate) const SCRUB_POLL_INTERVAL: Duration = Duration::from_millis(100);
