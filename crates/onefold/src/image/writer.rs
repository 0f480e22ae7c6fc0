//! Writes an exported volume to a file or to stdout.
//!
//! A file appears under its name only when it is complete and on disk. Until then it is called
//! `NAME.partial`, and it is removed when the export fails.

use super::ImageFormat;
use super::chunk::Chunk;
use crate::error::{Error, Result};
use onefold_image::Qcow2Writer;
use rustix::fs::{CWD, RenameFlags};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An image that is being written.
pub(crate) struct ImageWriter {
    shown: String,
    target: Target,
}

enum Target {
    Raw {
        file: File,
        guard: PartialFile,
    },
    Qcow2 {
        file: File,
        image: Qcow2Writer,
        guard: PartialFile,
    },
    /// Zeros must be written, as nobody can seek; `position` is how far it has come.
    Stdout {
        position: u64,
    },
}

/// How much is written at a time where a hole becomes zeros on stdout.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl ImageWriter {
    /// Starts an image of a disk of `size_bytes`; `-` is stdout.
    pub(crate) fn create(path: &Path, format: ImageFormat, size_bytes: u64) -> Result<Self> {
        if path == Path::new("-") {
            let (shown, target) = ("standard output".to_owned(), Target::Stdout { position: 0 });
            return Ok(Self { shown, target });
        }
        let shown = format!("{path:?}");
        let failed = |e: &io::Error| Error::io(format_args!("cannot create {shown}"), e);
        let (guard, file) = PartialFile::create(path, 0o666)?;
        let target = match format {
            ImageFormat::Raw => {
                file.set_len(size_bytes).map_err(|e| failed(&e))?;
                Target::Raw { file, guard }
            }
            ImageFormat::Qcow2 => {
                let handle = file.try_clone().map_err(|e| failed(&e))?;
                let image = Qcow2Writer::create(handle, size_bytes).map_err(|e| failed(&e))?;
                Target::Qcow2 { file, image, guard }
            }
        };
        Ok(Self { shown, target })
    }

    /// Starts a file that only its owner may read, and that becomes as long as it is written.
    pub(crate) fn create_secret(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Self::create(path, ImageFormat::Raw, 0);
        }
        let (guard, file) = PartialFile::create(path, 0o600)?;
        Ok(Self {
            shown: format!("{path:?}"),
            target: Target::Raw { file, guard },
        })
    }

    /// Writes one chunk. Chunks come in ascending order.
    pub(crate) fn write(&mut self, chunk: &Chunk) -> Result<()> {
        let data = chunk.as_ref();
        let written = match &mut self.target {
            Target::Raw { file, .. } => file.write_all_at(data, chunk.offset),
            Target::Qcow2 { image, .. } => image.write(chunk.offset, data),
            Target::Stdout { position } => write_zeros_until(position, chunk.offset)
                .and_then(|()| io::stdout().lock().write_all(data))
                .map(|()| *position += data.len() as u64),
        };
        written.map_err(|e| Error::io(format_args!("cannot write {}", self.shown), &e))
    }

    /// Completes the image and makes it durable.
    pub(crate) fn finish(self, size_bytes: u64) -> Result<()> {
        let finished = match self.target {
            Target::Raw { file, guard } => file.sync_all().and_then(|()| guard.keep()),
            Target::Qcow2 { file, image, guard } => image
                .finish()
                .and_then(|()| file.sync_all())
                .and_then(|()| guard.keep()),
            Target::Stdout { mut position } => {
                write_zeros_until(&mut position, size_bytes).and_then(|()| io::stdout().flush())
            }
        };
        finished.map_err(|e| Error::io(format_args!("cannot complete {}", self.shown), &e))
    }
}

fn write_zeros_until(position: &mut u64, end: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    while *position < end {
        let len = (end - *position).min(ZEROS.len() as u64);
        out.write_all(ZEROS.get(..len as usize).unwrap_or_default())?;
        *position += len;
    }
    Ok(())
}

/// A file that disappears unless it is kept.
struct PartialFile {
    partial: PathBuf,
    wanted: PathBuf,
    kept: bool,
}

impl PartialFile {
    /// With these permissions, as far as the umask grants them.
    fn create(wanted: &Path, mode: u32) -> Result<(Self, File)> {
        // Asked first only for the better message; `keep` makes sure of it.
        if wanted.symlink_metadata().is_ok() {
            return Err(Error::failed(format!(
                "{wanted:?} exists already; remove it, or export to another name"
            )));
        }
        let mut partial = wanted.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&partial);
        let file = file.map_err(|e| Error::io(format_args!("cannot create {partial:?}"), &e))?;
        Ok((
            Self {
                partial,
                wanted: wanted.to_owned(),
                kept: false,
            },
            file,
        ))
    }

    fn keep(mut self) -> io::Result<()> {
        rustix::fs::renameat_with(
            CWD,
            &self.partial,
            CWD,
            &self.wanted,
            RenameFlags::NOREPLACE,
        )?;
        self.kept = true;
        let directory = std::path::absolute(&self.wanted)?;
        directory
            .parent()
            .map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.kept {
            // The export has failed already, and with a message that matters more than this one.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}
