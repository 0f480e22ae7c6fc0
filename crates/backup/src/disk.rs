//! A disk as a backup reads it.

use std::ops::Range;

use onefold_image::Image;

use crate::error::{BackupError, Result};

/// A range of the disk that may hold something else than in the parent, or than zeros if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// In bytes.
    pub range: Range<u64>,
    /// It may hold data; otherwise it holds zeros.
    pub has_data: bool,
}

/// A disk that is backed up. It must stay as it is meanwhile.
pub trait Disk {
    /// Its size in bytes.
    fn size_bytes(&self) -> u64;

    /// The first change that ends behind `start`; none if there is no other.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read.
    fn next_change(&mut self, start: u64) -> Result<Option<Change>>;

    /// Fills `bytes` from byte `at` on.
    ///
    /// # Errors
    ///
    /// If the disk cannot be read.
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()>;
}

/// A disk image. It does not know what changed.
pub struct ImageDisk(pub Box<dyn Image>);

impl Disk for ImageDisk {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        let data = self.0.next_data(start).map_err(source)?;
        Ok(data.map(|range| Change {
            range,
            has_data: true,
        }))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read(at, bytes).map_err(source)
    }
}

fn source(error: impl std::fmt::Display) -> BackupError {
    BackupError::Source(error.to_string())
}

/// Runs of whole blocks that changed, in order and without overlap.
pub(crate) struct ChangedBlocks<'a> {
    disk: &'a mut dyn Disk,
    block_size: u64,
    /// Blocks before it have been.
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

    /// The next run. A block that changed in part counts whole; the last of the disk may be cut.
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
        // Parts of blocks that hold zeros may stand beside data.
        let has_data = change.has_data || !is_whole;
        Ok(Some(ChangedRun {
            blocks: first..end,
            has_data,
        }))
    }
}

/// Fills `bytes` with whole blocks; beyond the disk's end with zeros.
pub(crate) fn read_blocks(disk: &mut dyn Disk, at: u64, bytes: &mut [u8]) -> Result<()> {
    let there = disk.size_bytes().saturating_sub(at).min(bytes.len() as u64) as usize;
    let (there, beyond) = bytes.split_at_mut(there);
    beyond.fill(0);
    match there.is_empty() {
        true => Ok(()),
        false => disk.read(at, there),
    }
}
