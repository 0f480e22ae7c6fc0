//! Stage 1: reads what changed, and sorts the fingerprints of its blocks into partitions on disk.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use onefold_index::{Key, is_zero};

use crate::create::Report;
use crate::disk::{ChangedBlocks, read_blocks};
use crate::error::{Result, stopped};
use crate::partitions::Partitions;

/// The partitions over which fingerprints are spread, by their first byte.
const PARTITIONS: usize = 64;

/// A fingerprint, and the place of its block.
pub(crate) const ROW_BYTES: usize = 24;

/// A block of one of the disks that are backed up together. They are ordered by disks, and then by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    const BLOCK_BITS: u32 = 46;

    /// So many bits has a place.
    pub(crate) const BITS: u32 = 62;

    /// The most disks that are backed up together.
    pub(crate) const DISKS_MAX: usize = 1 << (Self::BITS - Self::BLOCK_BITS);

    /// The most blocks of a disk.
    pub(crate) const BLOCKS_MAX: u64 = 1 << Self::BLOCK_BITS;

    pub(crate) fn new(disk: usize, block: u64) -> Self {
        Self((disk as u64) << Self::BLOCK_BITS | block)
    }

    pub(crate) fn disk(self) -> usize {
        (self.0 >> Self::BLOCK_BITS) as usize
    }

    pub(crate) fn block(self) -> u64 {
        self.0 & (Self::BLOCKS_MAX - 1)
    }
}

/// The fingerprints of what was read, of all disks.
pub(crate) type Rows = Partitions<ROW_BYTES>;

pub(crate) fn new_rows(buffer_bytes: usize) -> Result<Rows> {
    Ok(Partitions::new(PARTITIONS, buffer_bytes)?)
}

pub(crate) fn row(fingerprint: [u8; 16], place: Place) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..16].copy_from_slice(&fingerprint);
    row[16..].copy_from_slice(&place.0.to_le_bytes());
    row
}

pub(crate) fn of_row(row: &[u8; ROW_BYTES]) -> ([u8; 16], Place) {
    let (mut fingerprint, mut place) = ([0; 16], [0; 8]);
    fingerprint.copy_from_slice(&row[..16]);
    place.copy_from_slice(&row[16..]);
    (fingerprint, Place(u64::from_le_bytes(place)))
}

/// The partition of a fingerprint.
pub(crate) fn partition(fingerprint: &[u8; 16]) -> usize {
    usize::from(fingerprint[0]) * PARTITIONS / 256
}

/// Buffers of what is read: one is filled, one is sorted, and one waits.
const BUFFERS: usize = 3;

/// Consecutive blocks that were read.
struct Piece {
    first: u64,
    blocks: u64,
    buffer: Vec<u8>,
}

/// Adds the rows of a disk. Returns how many blocks were read.
///
/// Another thread fingerprints what was read while more is read.
pub(crate) fn scan(
    disk: usize,
    changes: &mut ChangedBlocks<'_>,
    key: &Key,
    block_size: u32,
    rows: &mut Rows,
    report: Report<'_>,
) -> Result<u64> {
    let (filled, to_sort) = sync_channel::<Piece>(BUFFERS);
    let (sorted, free) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        let buffer = vec![0; changes.disk().piece_bytes()];
        sorted.send(buffer).map_err(|_| stopped())?;
    }
    thread::scope(|scope| {
        let sorter = scope.spawn(move || {
            let mut fingerprints = Vec::new();
            for Piece {
                first,
                blocks,
                buffer,
            } in to_sort
            {
                let block_bytes = block_size as usize;
                let bytes = &buffer[..blocks as usize * block_bytes];
                fingerprints.clear();
                key.fingerprints(bytes, block_bytes, &mut fingerprints);
                let each = bytes.chunks(block_bytes).zip(&fingerprints).zip(first..);
                for ((content, fingerprint), block) in each {
                    if !is_zero(content) {
                        let fingerprint = fingerprint.0;
                        let row = row(fingerprint, Place::new(disk, block));
                        rows.push(partition(&fingerprint), row)?;
                    }
                }
                // Nobody waits for the last ones.
                let _ = sorted.send(buffer);
            }
            Ok(())
        });
        let read = read_changes(changes, block_size, &free, filled, report)?;
        match sorter.join() {
            Ok(sorted) => sorted.map(|()| read),
            Err(_) => Err(stopped()),
        }
    })
}

/// Reads what changed, a piece after the other, for as long as somebody takes them. Returns how many blocks were read.
fn read_changes(
    changes: &mut ChangedBlocks<'_>,
    block_size: u32,
    free: &Receiver<Vec<u8>>,
    filled: SyncSender<Piece>,
    report: Report<'_>,
) -> Result<u64> {
    let (block_bytes, size) = (u64::from(block_size), changes.disk().size_bytes());
    let mut read = 0;
    while let Some(run) = changes.next()? {
        let mut first = run.blocks.start;
        while run.has_data && first < run.blocks.end {
            let Ok(mut buffer) = free.recv() else {
                return Ok(read);
            };
            let blocks = (run.blocks.end - first).min(buffer.len() as u64 / block_bytes);
            let bytes = &mut buffer[..(blocks * block_bytes) as usize];
            read_blocks(changes.disk(), first * block_bytes, bytes)?;
            let piece = Piece {
                first,
                blocks,
                buffer,
            };
            if filled.send(piece).is_err() {
                return Ok(read);
            }
            read += blocks;
            first += blocks;
            report(first * block_bytes, size)?;
        }
    }
    report(size, size)?;
    Ok(read)
}
