//! TRIM and WRITE_ZEROES: giving up whatever a range maps.
//!
//! One record for each segment in which something is mapped; what is not mapped costs nothing, so
//! trimming an empty terabyte is a look at a few inner pages.

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Entry, Lba, Record, SegmentIndex, UnmapTo};

use crate::apply::owned_runs;
use crate::error::{Result, StoreError};
use crate::volume::{Volume, Wait};

/// Zeros for the parts of blocks at the ends of a range.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Volume {
    pub(crate) fn trim_admitted(&self, offset: u64, len: u64, wait: Wait) -> Result<()> {
        let block_size = self.pool.block_size();
        let first = Lba(offset.div_ceil(block_size));
        let end = Lba((offset + len) / block_size);
        if first >= end {
            return Ok(());
        }
        if wait == Wait::No {
            // Segments may have to be loaded, and how many is not known beforehand.
            return Err(StoreError::would_wait());
        }
        let _locked = self.lock_blocks(first.0..end.0, wait)?;
        self.unmap(first, end, &mut |_| {})
    }

    pub(crate) fn zero_admitted(&self, offset: u64, len: u64, wait: Wait) -> Result<()> {
        let block_size = self.pool.block_size();
        let end = offset + len;
        let (first_whole, last_whole) = (
            offset.next_multiple_of(block_size),
            end / block_size * block_size,
        );
        if first_whole >= last_whole {
            return self.write_zero_bytes(offset, end, wait);
        }
        self.write_zero_bytes(offset, first_whole, wait)?;
        self.trim_admitted(first_whole, last_whole - first_whole, wait)?;
        self.write_zero_bytes(last_whole, end, wait)
    }

    /// Less than two blocks.
    fn write_zero_bytes(&self, start: u64, end: u64, wait: Wait) -> Result<()> {
        let mut at = start;
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64);
            self.write_admitted(at, &ZEROS[..len as usize], wait)?;
            at += len;
        }
        Ok(())
    }

    /// Gives up what the blocks from `first` to `end` map. `progress` is told each segment that
    /// was looked at. The blocks are locked, or nobody else uses the volume any more.
    pub(crate) fn unmap(
        &self,
        first: Lba,
        end: Lba,
        progress: &mut dyn FnMut(SegmentIndex),
    ) -> Result<()> {
        let maps = &self.pool.maps;
        let mut lba = first;
        while let Some(segment) = maps.next_segment(&self.layer, lba.segment())? {
            let start = segment.first().max(lba);
            if start >= end {
                break;
            }
            let segment_end = Lba((segment.0 + 1) * BLOCKS_PER_SEGMENT);
            let stop = segment_end.min(end);
            self.unmap_in_segment(start, stop.0 - start.0)?;
            progress(segment);
            lba = segment_end;
            if lba >= end {
                break;
            }
        }
        Ok(())
    }

    fn unmap_in_segment(&self, lba: Lba, count: u64) -> Result<()> {
        let entries = self.entries(lba, count, Wait::Yes)?;
        if entries.iter().all(|entry| *entry == Entry::ABSENT) {
            return Ok(());
        }
        let record = Record::Unmap {
            layer: self.layer.id,
            lba,
            count: count as u32,
            to: UnmapTo::Absent,
        };
        self.pool
            .record(&[record], &owned_runs(&entries), Wait::Yes)
    }
}
