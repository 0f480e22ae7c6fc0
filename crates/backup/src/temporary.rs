//! Temporary files: their folder, their size, and the memory that is used before them.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use onefold_sorter::{Record, Sorter};

use crate::error::{BackupError, Result};

/// The most temporary bytes per block that is read, or that passes the filter and is compared: a row and, while all
/// rows exist, a decision.
const BLOCK_BYTES: u64 = 48;

/// The folder of the temporary files of a backup, and the memory that its stages share with them.
#[derive(Debug, Clone)]
pub(crate) struct Temporary {
    pub(crate) folder: PathBuf,
    pub(crate) memory_bytes: usize,
}

impl Temporary {
    /// Creates a sorter that uses one part in `share` of the memory.
    pub(crate) fn sorter<R: Record>(&self, share: usize) -> Sorter<R> {
        Sorter::new(self.memory_bytes / share, &self.folder)
    }

    /// Creates an unnamed file.
    pub(crate) fn file(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.folder)
    }

    /// Checks that the folder has room for the records of `blocks` blocks.
    ///
    /// # Errors
    ///
    /// `NoRoom`, with the bytes needed and the bytes free; if the folder's file system cannot be queried.
    pub(crate) fn check_room(&self, blocks: u64) -> Result<()> {
        let needed_bytes = blocks.saturating_mul(BLOCK_BYTES);
        let found = rustix::fs::statvfs(&self.folder).map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("{:?}: {error}", self.folder))
        })?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        if needed_bytes <= free_bytes {
            Ok(())
        } else {
            Err(BackupError::NoRoom {
                folder: self.folder.clone(),
                needed_bytes,
                free_bytes,
            })
        }
    }
}
