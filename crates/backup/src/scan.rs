//! Stage 1: reads what changed, and sorts the fingerprints of its blocks into partitions on disk.

use onefold_index::{Key, is_zero};

use crate::create::Report;
use crate::disk::{ChangedBlocks, read_blocks};
use crate::error::Result;
use crate::partitions::Partitions;

/// Bytes read at a time.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The files over which fingerprints are spread, by their first byte.
const PARTITIONS: usize = 64;

/// A fingerprint, and the address of its block.
pub(crate) const ROW_BYTES: usize = 24;

/// What was read.
pub(crate) struct Scanned {
    pub(crate) rows: Partitions<ROW_BYTES>,
    pub(crate) read_blocks: u64,
}

pub(crate) fn row(fingerprint: [u8; 16], block: u64) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..16].copy_from_slice(&fingerprint);
    row[16..].copy_from_slice(&block.to_le_bytes());
    row
}

pub(crate) fn of_row(row: &[u8; ROW_BYTES]) -> ([u8; 16], u64) {
    let (mut fingerprint, mut block) = ([0; 16], [0; 8]);
    fingerprint.copy_from_slice(&row[..16]);
    block.copy_from_slice(&row[16..]);
    (fingerprint, u64::from_le_bytes(block))
}

/// The partition of a fingerprint.
pub(crate) fn partition(fingerprint: &[u8; 16]) -> usize {
    usize::from(fingerprint[0]) * PARTITIONS / 256
}

pub(crate) fn scan(
    changes: &mut ChangedBlocks<'_>,
    key: &Key,
    block_size: u32,
    buffer_bytes: usize,
    report: Report<'_>,
) -> Result<Scanned> {
    let mut scanned = Scanned {
        rows: Partitions::new(PARTITIONS, buffer_bytes)?,
        read_blocks: 0,
    };
    let block_bytes = block_size as usize;
    let size = changes.disk().size_bytes();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut fingerprints = Vec::new();
    while let Some(run) = changes.next()? {
        let mut first = run.blocks.start;
        while run.has_data && first < run.blocks.end {
            let blocks = (run.blocks.end - first).min((CHUNK_BYTES / block_bytes) as u64);
            let bytes = &mut chunk[..blocks as usize * block_bytes];
            read_blocks(changes.disk(), first * u64::from(block_size), bytes)?;
            fingerprints.clear();
            key.fingerprints(bytes, block_bytes, &mut fingerprints);
            let read = bytes.chunks(block_bytes).zip(&fingerprints).zip(first..);
            for ((block, fingerprint), number) in read {
                if !is_zero(block) {
                    let fingerprint = fingerprint.0;
                    let row = row(fingerprint, number);
                    scanned.rows.push(partition(&fingerprint), row)?;
                }
            }
            scanned.read_blocks += blocks;
            first += blocks;
            report(first * u64::from(block_size), size)?;
        }
    }
    // The next stage counts from the start.
    report(size, size)?;
    Ok(scanned)
}
