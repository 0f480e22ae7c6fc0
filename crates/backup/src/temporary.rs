//! Temporary files: where they are, how large they get, and how much memory stands in for them.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use onefold_sorter::{Record, Sorter};

use crate::error::{BackupError, Result};

/// What a block takes at most, in bytes, that is read or with which such a block may have to be compared: a row, and while all
/// rows are there, what is decided about it.
const BLOCK_BYTES: u64 = 48;

/// The folder of the temporary files of a backup, and the memory that its stages share with them.
#[derive(Debug, Clone)]
pub(crate) struct Temporary {
    pub(crate) folder: PathBuf,
    pub(crate) memory_bytes: usize,
}

impl Temporary {
    /// Sorts with a part of the memory: one in `share`.
    pub(crate) fn sorter<R: Record>(&self, share: usize) -> Sorter<R> {
        Sorter::new(self.memory_bytes / share, &self.folder)
    }

    /// A file without a name.
    pub(crate) fn file(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.folder)
    }

    /// Checks that there is room for the records of so many blocks.
    ///
    /// # Errors
    ///
    /// `NoRoom`, with what is needed and what is free; if the folder cannot be asked.
    pub(crate) fn check_room(&self, blocks: u64) -> Result<()> {
        let needed_bytes = blocks.saturating_mul(BLOCK_BYTES);
        let found = rustix::fs::statvfs(&self.folder).map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("{:?}: {error}", self.folder))
        })?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        match needed_bytes <= free_bytes {
            true => Ok(()),
            false => Err(BackupError::NoRoom {
                folder: self.folder.clone(),
                needed_bytes,
                free_bytes,
            }),
        }
    }
}
