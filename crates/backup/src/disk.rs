//! A disk as a backup reads it.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use onefold_image::Image;

use crate::error::{BackupError, Result};

/// A range of the disk that may differ from the parent, or from zeros if there is no parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The range in bytes.
    pub range: Range<u64>,
    /// The range may hold data; if false, it holds zeros.
    pub has_data: bool,
}

/// The most bytes read at a time from a disk that does not set its own limit.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// A disk to back up. It must not change while it is read.
pub trait Disk {
    /// The size of the disk in bytes.
    fn size_bytes(&self) -> u64;

    /// The first change that ends after `start`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read.
    fn next_change(&mut self, start: u64) -> Result<Option<Change>>;

    /// The most bytes that are read at a time, a multiple of every block size.
    fn piece_bytes(&self) -> usize {
        PIECE_BYTES_MAX
    }

    /// Fills `bytes` with the disk's data from byte `at`.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Checks that the disk has not changed. Called after all data has been read and before the backup exists.
    ///
    /// # Errors
    ///
    /// If the disk is known to have changed since it was opened.
    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A disk image. It cannot list changes since a parent, but it detects writes during the backup.
pub struct ImageDisk {
    image: Box<dyn Image>,
    path: PathBuf,
    /// The version of the file before it was opened.
    version: FileVersion,
}

/// A file's identity, size and modification time, which change when the file is written.
#[derive(Debug, PartialEq, Eq)]
struct FileVersion {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

impl FileVersion {
    fn of(path: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            inode: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl ImageDisk {
    /// Opens the image at `path` by calling `open`.
    ///
    /// # Errors
    ///
    /// If there is no such file; any error of `open`.
    pub fn open<E>(
        path: &Path,
        failed: impl FnOnce(std::io::Error) -> E,
        open: impl FnOnce() -> std::result::Result<Box<dyn Image>, E>,
    ) -> std::result::Result<Self, E> {
        // Taken before the image is opened, so that every write after this point is noticed.
        let version = FileVersion::of(path);
        let image = open()?;
        Ok(Self {
            image,
            path: path.to_owned(),
            version: version.map_err(failed)?,
        })
    }
}

impl Disk for ImageDisk {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        let data = self.image.next_data(start).map_err(source)?;
        Ok(data.map(|range| Change {
            range,
            has_data: true,
        }))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.image.read(at, bytes).map_err(source)
    }

    fn check_unchanged(&mut self) -> Result<()> {
        if FileVersion::of(&self.path).map_err(source)? == self.version {
            Ok(())
        } else {
            Err(BackupError::Source(
                "it was written while it was read; back up a snapshot, or a disk without a writer"
                    .to_owned(),
            ))
        }
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}

/// Runs of whole blocks that changed, in order and without overlap.
pub(crate) struct ChangedBlocks<'a> {
    disk: &'a mut dyn Disk,
    block_size: u64,
    /// Blocks below this one have been returned.
    done: u64,
}

/// Consecutive blocks that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedRun {
    pub(crate) blocks: Range<u64>,
    pub(crate) has_data: bool,
}

impl<'a> ChangedBlocks<'a> {
    pub(crate) fn new(disk: &'a mut dyn Disk, block_size: u32) -> Self {
        Self {
            disk,
            block_size: block_size.into(),
            done: 0,
        }
    }

    pub(crate) fn disk(&mut self) -> &mut dyn Disk {
        self.disk
    }

    /// The next run. A partly changed block counts as whole; the last block of the disk may be partial.
    pub(crate) fn next(&mut self) -> Result<Option<ChangedRun>> {
        let size = self.disk.size_bytes();
        let start = self.done * self.block_size;
        if start >= size {
            return Ok(None);
        }
        let Some(change) = self.disk.next_change(start)? else {
            return Ok(None);
        };
        let end = change.range.end.min(size);
        let first = (change.range.start / self.block_size).max(self.done);
        let end = end.div_ceil(self.block_size);
        if first >= end {
            return Ok(None);
        }
        let is_whole = change.range.start.is_multiple_of(self.block_size)
            && (change.range.end.is_multiple_of(self.block_size) || change.range.end >= size);
        self.done = end;
        // A partly zeroed block may also hold data.
        let has_data = change.has_data || !is_whole;
        Ok(Some(ChangedRun {
            blocks: first..end,
            has_data,
        }))
    }
}

/// Fills `bytes` with whole blocks, padded with zeros past the disk's end.
pub(crate) fn read_blocks(disk: &mut dyn Disk, at: u64, bytes: &mut [u8]) -> Result<()> {
    let there = disk.size_bytes().saturating_sub(at).min(bytes.len() as u64) as usize;
    let (there, beyond) = bytes.split_at_mut(there);
    beyond.fill(0);
    if there.is_empty() {
        Ok(())
    } else {
        disk.read(at, there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_image::RawImage;
    use std::io::Write;

    #[test]
    fn an_image_that_is_written_meanwhile_is_noticed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let path = file.path().to_owned();
        let open = || -> std::io::Result<Box<dyn Image>> {
            let file = std::fs::File::open(&path)?;
            Ok(Box::new(RawImage::new(file, "image").unwrap()))
        };
        let mut disk = ImageDisk::open(&path, |e| e, open).unwrap();
        let mut bytes = [0; 8192];
        disk.read(0, &mut bytes).unwrap();
        disk.check_unchanged().unwrap();
        // File timestamps may not advance for a few milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.write_all(&[2; 512]).unwrap();
        let refused = disk.check_unchanged().unwrap_err().to_string();
        assert!(
            refused.contains("was written while it was read"),
            "{refused}"
        );
    }
}
