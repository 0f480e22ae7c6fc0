//! The cost of the counted data in a pool: the figures for a decision, with the arithmetic.

use onefold_format::node::NODE_FANOUT;
use onefold_format::page::PAGE_BYTES;
use onefold_format::units::{BLOCK_SIZES, BLOCKS_PER_SEGMENT};
use onefold_index::{HASH_ROW_DISK_BYTES, HASH_ROW_MEMORY_BYTES};
use serde::Serialize;

use crate::analysis::ChunkingReport;
use crate::chunking::Chunking;

/// The daemon's default memory, in bytes.
const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;

/// The index gets one part in this number of the daemon's memory.
const INDEX_SHARE: u64 = 8;

/// The size and the needs, in bytes, of a pool with blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Advice {
    /// The size of the pool's blocks.
    pub block_bytes: u64,
    /// Blocks of volumes that hold data.
    pub mapped_blocks: u64,
    /// Different blocks, which are stored.
    pub distinct_blocks: u64,
    /// Bytes of maps per mapped block: its part of a page, and of the pages above.
    pub map_bytes_per_block: f64,
    /// Disk space of an index row, as measured.
    pub index_bytes_per_row: f64,
    /// Memory of an index row, as measured.
    pub memory_bytes_per_row: f64,
    /// Bytes of all maps.
    pub map_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// The least `serve --memory` with which the index keeps its filters in memory.
    pub memory_bytes: u64,
    /// Size of the data, less its stored size, less maps and index; negative if deduplication costs
    /// more than it saves.
    pub saved_bytes: i64,
}

impl Advice {
    /// The advice for data that was cut into blocks of a size that a pool can have; `None` for
    /// other data.
    #[must_use]
    pub fn of(report: &ChunkingReport) -> Option<Self> {
        let Chunking::Fixed { bytes } = report.chunking else {
            return None;
        };
        let block_bytes = bytes as u64;
        if !BLOCK_SIZES
            .iter()
            .any(|size| u64::from(*size) == block_bytes)
        {
            return None;
        }
        let found = &report.redundancy;
        let page = PAGE_BYTES as f64;
        let map_bytes_per_block =
            page / BLOCKS_PER_SEGMENT as f64 * (1.0 + 1.0 / NODE_FANOUT as f64);
        let map_bytes = (found.chunks as f64 * map_bytes_per_block).ceil() as u64;
        let index_bytes = (found.distinct_chunks as f64 * HASH_ROW_DISK_BYTES).ceil() as u64;
        let for_index = (found.distinct_chunks as f64 * HASH_ROW_MEMORY_BYTES).ceil() as u64;
        let whole = |blocks: u64| blocks * block_bytes;
        let saved = whole(found.chunks - found.distinct_chunks);
        Some(Self {
            block_bytes,
            mapped_blocks: found.chunks,
            distinct_blocks: found.distinct_chunks,
            map_bytes_per_block,
            index_bytes_per_row: HASH_ROW_DISK_BYTES,
            memory_bytes_per_row: HASH_ROW_MEMORY_BYTES,
            map_bytes,
            index_bytes,
            memory_bytes: MEMORY_BYTES_DEFAULT
                .max((for_index * INDEX_SHARE).next_multiple_of(64 << 20)),
            saved_bytes: saved as i64 - (map_bytes + index_bytes) as i64,
        })
    }
}
