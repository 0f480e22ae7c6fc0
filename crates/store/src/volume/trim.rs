//! TRIM and WRITE_ZEROES: releasing the blocks that a range maps.
//!
//! One record for each segment with mapped blocks; the rest costs nothing, so trimming an empty
//! terabyte reads a few inner pages.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, Lba, Record, UnmapTo};

use super::Volume;
use onefold_metadata::{Blocking, Layer, Result, Segments, StoreError, owned_runs};
use smallvec::SmallVec;

/// Zeros for the parts of blocks at the ends of a range.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Volume {
    pub(super) fn trim_admitted(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        let block_size = self.pool.block_size();
        let first = Lba(offset.div_ceil(block_size));
        let end = Lba((offset + len) / block_size);
        if first >= end {
            return Ok(());
        }
        if blocking == Blocking::No {
            // Segments may have to be loaded, and how many is not known beforehand.
            return Err(StoreError::would_block());
        }
        let blocks = first.0..end.0;
        self.with_blocks(blocks, blocking, |layer| self.unmap(layer, first..end))
    }

    pub(super) fn zero_admitted(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        let block_size = self.pool.block_size();
        let end = offset + len;
        let (first_whole, last_whole) = (
            offset.next_multiple_of(block_size),
            end / block_size * block_size,
        );
        if first_whole >= last_whole {
            return self.write_zero_bytes(offset, end, blocking);
        }
        self.write_zero_bytes(offset, first_whole, blocking)?;
        self.trim_admitted(first_whole, last_whole - first_whole, blocking)?;
        self.write_zero_bytes(last_whole, end, blocking)
    }

    /// Less than two blocks.
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
                .map(|it| it.pba().is_some())
                .collect(),
        };
        let mut records: SmallVec<[Record; 1]> = SmallVec::new();
        let mut at = 0;
        for same in hidden.chunk_by(|one, other| one == other) {
            let (to, entry) = match same[0] {
                true => (UnmapTo::Zero, Entry::ZERO),
                false => (UnmapTo::Absent, Entry::ABSENT),
            };
            if entries[at..at + same.len()].iter().any(|it| *it != entry) {
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
            .journal
            .append(&records, &owned_runs(&entries), Blocking::Yes, None)
    }
}
