//! Restores to an image file, a block device or standard output.

use super::chunk;
use crate::image::ImageFormat;
use crate::image::writer::{ImageWriter, check_device, is_block_device};
use crate::overwriting::Overwritten;
use onefold_api::backup::{BackupRestore, RestoreTarget, RestoredBytes, threads};
use onefold_api::transfer::ChunkPool;
use onefold_api::{Error, Result};
use onefold_backup::{ReadingOptions, RestoredBackup, Supervision};
use std::path::Path;

/// An image to create, or a device.
pub(super) struct FileTarget<'a> {
    request: &'a BackupRestore,
    file: &'a Path,
}

impl<'a> FileTarget<'a> {
    pub(super) fn new(request: &'a BackupRestore, file: &'a Path) -> Result<Self> {
        let is_raw_only = is_block_device(file) || file == Path::new("-");
        if is_raw_only && request.image_format != ImageFormat::Raw {
            return Err(Error::usage(
                "only a raw image can be written to a block device or to standard output",
            ));
        }
        Ok(Self { request, file })
    }
}

impl RestoreTarget for FileTarget<'_> {
    fn prepare(&self, backup: &RestoredBackup) -> Result<()> {
        if !is_block_device(self.file) || self.request.yes {
            return Ok(());
        }
        check_device(self.file, backup.size_bytes())?;
        Err(Overwritten::new(self.file).refusal(backup.size_bytes()))
    }

    fn write(&self, backup: &RestoredBackup, supervision: &Supervision) -> Result<RestoredBytes> {
        let size_bytes = backup.size_bytes();
        let mut image = ImageWriter::create(self.file, self.request.image_format, size_bytes)?;
        let restored = match image.anywhere() {
            Some(anywhere) => {
                let options = ReadingOptions {
                    threads: threads(self.request.threads),
                    memory_bytes: self.request.memory as usize,
                };
                let write = |at, bytes: &[u8]| anywhere.write(at, bytes);
                let counts = backup.read_anywhere(supervision, options, write)?;
                RestoredBytes {
                    written_bytes: counts.bytes,
                    pack_reads: Some(counts.pack_reads),
                }
            }
            None => {
                let pool = ChunkPool::default();
                let write = |at, bytes: &[u8]| image.write(&chunk(&pool, at, bytes));
                RestoredBytes {
                    written_bytes: backup.read_all(supervision, write)?,
                    pack_reads: None,
                }
            }
        };
        image.finish(size_bytes)?;
        Ok(restored)
    }
}
