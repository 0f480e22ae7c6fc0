//! TRIM and WRITE_ZEROES: releasing the blocks that a range maps.
//!
//! One record for each segment with mapped blocks; the rest costs nothing, so trimming an empty
//! terabyte reads a few inner pages.
//!
//! The last block of a volume may be short for clients. A range that reaches the volume's end covers all
//! of it.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, Lba, Record, UnmapTo};
use onefold_index::is_zero;

use super::Volume;
use onefold_metadata::{Blocking, Guard, Layer, Result, Segments, StoreError, owned_runs};
use smallvec::SmallVec;

/// Zeros for the parts of blocks at the ends of a range.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Volume {
    pub(super) fn trim_admitted(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        self.release_whole(offset..offset + len, blocking).map(drop)
    }

    pub(super) fn zero_admitted(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        let (end, block_size) = (offset + len, self.pool.block_size());
        if Lba(offset.div_ceil(block_size)) >= self.end_of_whole(end) {
            return self.write_zero_bytes(offset, end, blocking);
        }
        let first_whole = offset.next_multiple_of(block_size);
        self.write_zero_bytes(offset, first_whole, blocking)?;
        let released = self.release_whole(first_whole..end, blocking)?;
        self.write_zero_bytes(released, end, blocking)
    }

    /// Releases the whole blocks of the range. Returns where they end, or the start of the range if it has none.
    fn release_whole(&self, bytes: Range<u64>, blocking: Blocking) -> Result<u64> {
        let block_size = self.pool.block_size();
        let first = Lba(bytes.start.div_ceil(block_size));
        let end = self.end_of_whole(bytes.end);
        if first >= end {
            return Ok(bytes.start);
        }
        if blocking == Blocking::No {
            // Segments may have to be loaded, and how many is not known beforehand.
            return Err(StoreError::would_block());
        }
        let whole = first.0 * block_size..bytes.end.min(end.0 * block_size);
        self.with_blocks(whole, blocking, |layer| {
            // A volume that has grown since has other bytes in the block that was its last.
            let end = end.min(self.end_of_whole(bytes.end));
            self.unmap(layer, first..end)?;
            Ok(bytes.end.min(end.0 * block_size))
        })
    }

    /// The end of the blocks that a range up to this byte has as a whole, as far as its end decides that.
    fn end_of_whole(&self, end: u64) -> Lba {
        let block_size = self.pool.block_size();
        if end == self.size_bytes() {
            Lba(end.div_ceil(block_size))
        } else {
            Lba(end / block_size)
        }
    }

    /// Zeroes the bytes that a smaller volume loses: the rest of a block that becomes its short last one, and all
    /// blocks after it. The caller keeps the live layer from being frozen or deleted until this returns.
    pub(crate) fn cut(&self, bytes: Range<u64>) -> Result<()> {
        let block_size = self.pool.block_size();
        let (last, kept) = (Lba(bytes.start / block_size), bytes.start % block_size);
        let beyond = Lba(bytes.start.div_ceil(block_size))..Lba(bytes.end.div_ceil(block_size));
        let layer = self.layer();
        let _locked = layer.locks.lock(last.0..beyond.end.0, Blocking::Yes);
        if kept > 0 && Guard::LastBlockCut.holds() {
            let mut block = vec![0; block_size as usize];
            self.read_admitted(last.0 * block_size, &mut block, Blocking::Yes)?;
            let rest = &mut block[kept as usize..];
            if !is_zero(rest) {
                rest.fill(0);
                self.write_locked(&layer, last, &block, None, Blocking::Yes)?;
            }
        }
        self.unmap(&layer, beyond)
    }

    /// Writes zeros over less than two blocks.
    fn write_zero_bytes(&self, start: u64, end: u64, blocking: Blocking) -> Result<()> {
        let mut at = start;
        while at < end {
            // A crash between two writes tears no sector.
            let piece = ZEROS.len() as u64;
            let len = (end - at).min(piece - at % piece);
            self.write_admitted(at, &ZEROS[..len as usize], blocking)?;
            at += len;
        }
        Ok(())
    }

    /// Releases the blocks that these entries, which are locked, map, and hides the layers below.
    pub(crate) fn unmap(&self, layer: &Arc<Layer>, blocks: Range<Lba>) -> Result<()> {
        let maps = &self.pool.maps();
        let mut segments = Segments::under(layer);
        let mut lba = blocks.start;
        while lba < blocks.end {
            let Some(segment) = segments.next(maps, lba.segment())? else {
                break;
            };
            let start = segment.first().max(lba);
            let end = Lba((segment.0 + 1) * BLOCKS_PER_SEGMENT);
            if start < blocks.end {
                self.unmap_in_segment(layer, start..end.min(blocks.end))?;
            }
            lba = end;
        }
        Ok(())
    }

    fn unmap_in_segment(&self, layer: &Arc<Layer>, blocks: Range<Lba>) -> Result<()> {
        let maps = &self.pool.maps();
        let (first, slots) = (blocks.start, blocks.start.slot());
        let slots = slots..slots + (blocks.end.0 - first.0) as usize;
        let mut entries = Vec::with_capacity(slots.len());
        maps.leaf(layer, first.segment(), Blocking::Yes)?
            .entries(slots.clone(), &mut entries);
        let hidden: Vec<bool> = match layer.below() {
            None => vec![false; slots.len()],
            Some(below) => maps.view(&below, first.segment(), Blocking::Yes)?[slots]
                .iter()
                .map(|entry| entry.pba().is_some())
                .collect(),
        };
        let mut records: SmallVec<[Record; 1]> = SmallVec::new();
        let mut at = 0;
        for same in hidden.chunk_by(|one, other| one == other) {
            let (to, entry) = if same[0] {
                (UnmapTo::Zero, Entry::ZERO)
            } else {
                (UnmapTo::Absent, Entry::ABSENT)
            };
            if entries[at..at + same.len()].iter().any(|old| *old != entry) {
                records.push(Record::Unmap {
                    layer: layer.id,
                    lba: first + at as u64,
                    count: same.len() as u32,
                    to,
                });
            }
            at += same.len();
        }
        if records.is_empty() {
            return Ok(());
        }
        self.pool
            .journal()
            .append(&records, &owned_runs(&entries), Blocking::Yes, None)
    }
}
