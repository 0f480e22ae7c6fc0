//! Makes a disk that exists equal to a backup, and writes only blocks that differ.

use std::ops::Range;

use crate::error::BackupError;
use crate::lost::LostBlocks;
use crate::restore::Restore;
use crate::restoring::{RestoredBackup, begin, stopped_by};
use crate::supervision::Supervision;

/// Bytes that are compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The unit of comparison.
const BLOCK_BYTES: usize = 4096;

/// A disk that is made equal to a backup.
pub trait DiskToOverwrite {
    /// The type of the disk's errors.
    type Error: From<BackupError>;

    /// Size of the disk, which is at least that of the backup. The rest becomes zeros.
    fn size_bytes(&self) -> u64;

    /// The next byte with data at or after `at`, or the largest number if there is none. `at` does not decrease
    /// between calls.
    ///
    /// # Errors
    /// If the disk's extents cannot be listed.
    fn next_data(&mut self, at: u64) -> Result<u64, Self::Error>;

    /// Reads from byte `at`.
    ///
    /// # Errors
    /// If the disk cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes from byte `at`. Blocks of zeros are released, not stored.
    ///
    /// # Errors
    /// If the disk cannot be written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes everything durable that was written.
    ///
    /// # Errors
    /// If the disk cannot be flushed.
    fn flush(&mut self) -> Result<(), Self::Error>;
}

impl RestoredBackup {
    /// Makes a disk equal to the backup, and returns the number of bytes that differed. Blocks that cannot be
    /// restored keep their content if the backup is salvaged; otherwise they are errors. After an interruption,
    /// part of the disk is restored, and another run restores the rest.
    ///
    /// # Errors
    ///
    /// Damage, if the backup is not salvaged; the interruption; or an error of the disk.
    pub fn overwrite<D: DiskToOverwrite>(
        &self,
        disk: &mut D,
        supervision: &Supervision,
    ) -> Result<u64, D::Error> {
        let (show, size_bytes) = (begin(supervision), disk.size_bytes());
        let mut backup_data = BackupData::of(self.restore(), size_bytes);
        let (mut wanted, mut found) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        let (mut at, mut changed_bytes) = (0, 0);
        while at < size_bytes {
            supervision.check(
                "a part of the volume is restored, and the same command restores the rest",
            )?;
            let start = disk.next_data(at)?.min(backup_data.next(at)?);
            at = at.max(start - start % CHUNK_BYTES as u64);
            if at >= size_bytes {
                break;
            }
            let len = (size_bytes - at).min(CHUNK_BYTES as u64) as usize;
            let (wanted, found) = (&mut wanted[..len], &mut found[..len]);
            disk.read(at, found)?;
            match self.lost() {
                None => self.restore().read(at, wanted).map_err(stopped_by)?,
                Some(lost) => {
                    self.restore().read_past_damage(at, wanted, lost)?;
                    for kept in lost_bytes(lost, self.block_size(), at..at + len as u64) {
                        wanted[kept.clone()].copy_from_slice(&found[kept]);
                    }
                }
            }
            for range in differing(wanted, found) {
                changed_bytes += range.len() as u64;
                disk.write(at + range.start as u64, &wanted[range])?;
            }
            at += len as u64;
            show(at, size_bytes);
        }
        show(size_bytes, size_bytes);
        disk.flush()?;
        Ok(changed_bytes)
    }
}

/// Finds the data of the backup. Each hole is walked only once.
struct BackupData<'a> {
    restore: &'a Restore,
    end: u64,
    /// The last result.
    known: Option<u64>,
}

impl<'a> BackupData<'a> {
    fn of(restore: &'a Restore, end: u64) -> Self {
        Self {
            restore,
            end,
            known: None,
        }
    }

    /// The next byte with data at or after `at`, or the end if there is none. `at` must not decrease between
    /// calls.
    fn next(&mut self, at: u64) -> crate::Result<u64> {
        if let Some(known) = self.known.filter(|known| *known >= at) {
            return Ok(known);
        }
        let hole = match self.hole(at..at + 1)? {
            0 => 0,
            _ => self.hole(at..self.end)?,
        };
        self.known = Some(at + hole);
        Ok(at + hole)
    }

    /// Length of the hole at the start of the range, in bytes.
    fn hole(&self, range: Range<u64>) -> crate::Result<u64> {
        let runs = self.restore.extents(&range, 1)?;
        Ok(runs
            .first()
            .map_or(0, |run| if run.what { 0 } else { run.bytes }))
    }
}

/// The bytes within `chunk` whose blocks are lost, counted from the start of the chunk.
fn lost_bytes(lost: &LostBlocks, block_size: u64, chunk: Range<u64>) -> Vec<Range<usize>> {
    let blocks = lost.ranges(chunk.start / block_size..chunk.end.div_ceil(block_size));
    let bytes = blocks.into_iter().map(|blocks| {
        let from = (blocks.start * block_size).max(chunk.start) - chunk.start;
        let to = (blocks.end * block_size).min(chunk.end) - chunk.start;
        from as usize..to as usize
    });
    bytes.collect()
}

/// Ranges of blocks that differ.
fn differing(wanted: &[u8], found: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let blocks = wanted.chunks(BLOCK_BYTES).zip(found.chunks(BLOCK_BYTES));
    for ((one, other), n) in blocks.zip(0..) {
        if one == other {
            continue;
        }
        let start = n * BLOCK_BYTES;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = start + one.len(),
            _ => runs.push(start..start + one.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_that_differ_are_written_and_adjacent_ones_together() {
        let found = vec![0; 4 * BLOCK_BYTES + 512];
        let mut wanted = found.clone();
        assert!(differing(&wanted, &found).is_empty());
        for at in [0, BLOCK_BYTES, 4 * BLOCK_BYTES + 511] {
            wanted[at] = 1;
        }
        let last = 4 * BLOCK_BYTES..4 * BLOCK_BYTES + 512;
        assert_eq!(differing(&wanted, &found), [0..2 * BLOCK_BYTES, last]);
    }

    #[test]
    fn lost_blocks_are_kept_as_far_as_they_are_in_the_chunk() {
        let lost = LostBlocks::default();
        lost.add(0..3, &"damage");
        lost.add(5..9, &"damage");
        let chunk = 2 * 4096..6 * 4096 + 512;
        let kept = lost_bytes(&lost, 4096, chunk);
        assert_eq!(kept, [0..4096, 3 * 4096..4 * 4096 + 512]);
        assert!(lost_bytes(&lost, 4096, 3 * 4096..5 * 4096).is_empty());
    }
}
