//! Writing out the host's cache in small steps.
//!
//! A sync of many scattered blocks is a hundred milliseconds of the kernel's work, in stretches of
//! up to a millisecond that cannot be interrupted on a kernel without preemption: not even by a
//! request that waits for the same processor. The same work in many short calls lets the scheduler
//! decide after each. So the regions that were written since the last sync are written out call by
//! call, and little is left for the sync proper, which alone counts.
//!
//! Everything in here is a hint: an omission costs time, never data.

use super::dirty::Dirty;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Most bytes that one call writes out: 16 scattered blocks take the kernel some 50 us.
const STEP_BYTES: u64 = 64 << 10;

/// The least bytes that one mark covers.
const REGION_BYTES_MIN: u64 = 256 << 10;

/// Marks of one file: 8 KiB of memory, and less than a microsecond to scan.
const REGIONS: usize = 65_536;

/// Regions of a file that were written and may not have reached the medium yet.
pub(super) struct Writeback {
    dirty: Dirty,
    region_bytes: u64,
}

impl Writeback {
    /// Marks for a file of `len` bytes. If the file grows, regions share marks.
    pub(super) fn new(len: u64) -> Writeback {
        let even = len.div_ceil(REGIONS as u64).next_power_of_two();
        Writeback {
            dirty: Dirty::new(REGIONS),
            region_bytes: even.max(REGION_BYTES_MIN),
        }
    }

    /// Marks the regions of bytes that are in the cache now.
    pub(super) fn written(&self, offset: u64, len: usize) {
        for region in self.regions(offset, len as u64) {
            self.dirty.mark(region as usize % REGIONS);
        }
    }

    /// Begins to write out everything that was written before this call.
    pub(super) fn begin(&self, file: &File) {
        self.dirty.take(|region| {
            let start = region as u64 * self.region_bytes;
            for step in (start..start + self.region_bytes).step_by(STEP_BYTES as usize) {
                begin_range(file, step, STEP_BYTES);
            }
        });
    }

    fn regions(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.region_bytes..offset.saturating_add(len).div_ceil(self.region_bytes)
    }
}

/// Begins to write out a range, without waiting. The next sync returns the error of a failure.
fn begin_range(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
        return;
    };
    // SAFETY: the call takes an open file and two numbers, and touches no memory of ours.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_marks_every_region_that_it_touches() {
        let writeback = Writeback::new(1 << 30);
        let region = REGION_BYTES_MIN;
        for (offset, len, touched) in [
            (0, 0, 0..0),
            (0, 1, 0..1),
            (region - 1, 1, 0..1),
            (region - 1, 2, 0..2),
            (3 * region, 2 * region, 3..5),
        ] {
            assert_eq!(writeback.regions(offset, len), touched, "{len} at {offset}");
        }
    }

    #[test]
    fn marks_cover_files_of_any_length() {
        for len in [0, 1, 16 << 30, (16 << 30) + 1, 64 << 40, u64::MAX >> 1] {
            let writeback = Writeback::new(len);
            assert!(writeback.region_bytes * REGIONS as u64 >= len);
            writeback.written(len, 4096);
        }
    }
}
