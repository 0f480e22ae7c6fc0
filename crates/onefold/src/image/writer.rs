//! Writes an exported volume to a file, a block device or stdout.
//!
//! A file gets its final name only when it is complete and durable. Until then it is called
//! `NAME.onefold-partial`; it is removed if the export fails, or by the next export to the same name. A block
//! device is written in place.

use super::ImageFormat;
use onefold_api::transfer::Chunk;
use onefold_api::{Error, Result};
use onefold_image::Qcow2Writer;
use rustix::fs::{CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags};
use std::fs::{File, FileType};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
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
    Device(Device),
    /// Stdout cannot seek, so holes are written as zeros; `position` is the progress.
    Stdout {
        position: u64,
    },
}

/// Zeros that are written at a time for a hole on stdout.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl ImageWriter {
    /// Starts an image of a disk of `size_bytes`. `-` is stdout; a block device is overwritten.
    pub(crate) fn create(path: &Path, format: ImageFormat, size_bytes: u64) -> Result<Self> {
        if path == Path::new("-") {
            let (shown, target) = ("standard output".to_owned(), Target::Stdout { position: 0 });
            return Ok(Self { shown, target });
        }
        let shown = format!("{path:?}");
        if is_block_device(path) {
            let target = Target::Device(Device::open(path, size_bytes)?);
            return Ok(Self { shown, target });
        }
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

    /// Starts a file of unknown length that only its owner can read.
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

    /// Writes a chunk. Chunks arrive in ascending order.
    pub(crate) fn write(&mut self, chunk: &Chunk) -> Result<()> {
        let data = chunk.as_ref();
        let written = match &mut self.target {
            Target::Raw { file, .. } => file.write_all_at(data, chunk.offset),
            Target::Qcow2 { image, .. } => image.write(chunk.offset, data),
            Target::Device(device) => device.write(chunk.offset, data),
            Target::Stdout { position } => write_zeros_until(position, chunk.offset)
                .and_then(|()| io::stdout().lock().write_all(data))
                .map(|()| *position += data.len() as u64),
        };
        written.map_err(|e| Error::io(format_args!("cannot write {}", self.shown), &e))
    }

    /// A handle for writing in any order from several threads, if the image is a raw file.
    pub(crate) fn anywhere(&self) -> Option<Anywhere<'_>> {
        match &self.target {
            Target::Raw { file, .. } => Some(Anywhere {
                file,
                shown: &self.shown,
            }),
            Target::Qcow2 { .. } | Target::Device(_) | Target::Stdout { .. } => None,
        }
    }

    /// Completes the image and makes it durable.
    pub(crate) fn finish(self, size_bytes: u64) -> Result<()> {
        let finished = match self.target {
            Target::Raw { file, guard } => file.sync_all().and_then(|()| guard.keep()),
            Target::Qcow2 { file, image, guard } => image
                .finish()
                .and_then(|()| file.sync_all())
                .and_then(|()| guard.keep()),
            Target::Device(mut device) => device
                .zero_until(size_bytes)
                .and_then(|()| device.file.sync_all()),
            Target::Stdout { mut position } => {
                write_zeros_until(&mut position, size_bytes).and_then(|()| io::stdout().flush())
            }
        };
        finished.map_err(|e| Error::io(format_args!("cannot complete {}", self.shown), &e))
    }
}

/// A text file that accompanies an image and is written in one step.
pub(crate) struct TextFile {
    shown: String,
    file: File,
    guard: PartialFile,
}

impl TextFile {
    /// Starts a new file; the name must not exist.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let (guard, file) = PartialFile::create(path, 0o666)?;
        Ok(Self {
            shown: format!("{path:?}"),
            file,
            guard,
        })
    }

    /// Writes the text and completes the file.
    pub(crate) fn write(mut self, text: &str) -> Result<()> {
        let written = self.file.write_all(text.as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        let kept = written.and_then(|()| self.guard.keep());
        kept.map_err(|e| Error::io(format_args!("cannot write {}", self.shown), &e))
    }
}

/// A raw image that can be written in any order.
pub(crate) struct Anywhere<'a> {
    file: &'a File,
    shown: &'a str,
}

impl Anywhere<'_> {
    pub(crate) fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(data, at);
        written.map_err(|e| Error::io(format_args!("cannot write {}", self.shown), &e))
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

/// A file that is removed again unless it is kept.
struct PartialFile {
    partial: PathBuf,
    wanted: PathBuf,
    kept: bool,
}

impl PartialFile {
    /// Creates the partial file with these permissions, subject to the umask.
    ///
    /// The process that writes the file holds a lock on it. An unlocked partial file was left by a dead
    /// process and is removed, because writing into it could mean writing into another user's file.
    fn create(wanted: &Path, mode: u32) -> Result<(Self, File)> {
        // Checked here only for the better message; `keep` enforces it.
        if let Ok(metadata) = wanted.symlink_metadata() {
            return Err(in_the_way(wanted, metadata.file_type()));
        }
        let mut partial = wanted.as_os_str().to_owned();
        partial.push(".onefold-partial");
        let partial = PathBuf::from(partial);
        let failed = |e: &io::Error| Error::io(format_args!("cannot create {partial:?}"), e);
        let file = loop {
            let mut options = File::options();
            options.read(true).write(true).mode(mode);
            match options.clone().create_new(true).open(&partial) {
                Ok(file) => {
                    if lock(&file, &partial).map_err(|e| failed(&e))? {
                        break file;
                    }
                }
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(&error));
                }
                Err(_) => remove_left_over(&partial)?,
            }
        };
        let wanted = wanted.to_owned();
        let kept = false;
        Ok((
            Self {
                partial,
                wanted,
                kept,
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
            // The export has already failed with a more important error.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// The error for an export to an existing name.
fn in_the_way(wanted: &Path, what: FileType) -> Error {
    if what.is_file() || what.is_symlink() || what.is_dir() {
        return Error::failed(format!(
            "{wanted:?} exists already; choose another name, or move it away"
        ));
    }
    Error::failed(format!(
        "{wanted:?} is no regular file; export to - and redirect that"
    ))
}

/// Locks the file, and returns whether it still has this name: another process may have taken it for a stale
/// file before it was locked.
fn lock(file: &File, path: &Path) -> io::Result<bool> {
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        there => there?,
    };
    let ours = file.metadata()?;
    Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

/// Removes a partial file that a killed process left.
fn remove_left_over(partial: &Path) -> Result<()> {
    let failed = |e: &io::Error| Error::io(format_args!("cannot replace {partial:?}"), e);
    let mut options = File::options();
    options.read(true);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = match options.open(partial) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|e| failed(&e))?,
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(Error::failed(format!(
            "{partial:?} is in the way, and no file"
        )));
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => match std::fs::remove_file(partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&error)),
            _ => Ok(()),
        },
        Err(_) => Err(Error::failed(format!(
            "{partial:?} is being written by another process"
        ))),
    }
}

/// A block device that is being overwritten.
struct Device {
    file: File,
    /// The end of the data written so far. Gaps between chunks are filled with zeros.
    position: u64,
}

impl Device {
    /// Opens the device exclusively: fails if it is mounted or otherwise in use by the host.
    fn open(path: &Path, size_bytes: u64) -> Result<Self> {
        let failed = |e: &io::Error| Error::io(format_args!("cannot write to {path:?}"), e);
        let mut options = File::options();
        options.write(true).custom_flags(OFlags::EXCL.bits() as i32);
        let mut file = options.open(path).map_err(|e| failed(&e))?;
        let device_bytes = file.seek(SeekFrom::End(0)).map_err(|e| failed(&e))?;
        if device_bytes < size_bytes {
            return Err(Error::failed(format!(
                "{path:?} has {device_bytes} bytes, fewer than the volume's {size_bytes}"
            )));
        }
        Ok(Self { file, position: 0 })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.zero_until(offset)?;
        self.file.write_all_at(data, offset)?;
        self.position = offset + data.len() as u64;
        Ok(())
    }

    fn zero_until(&mut self, end: u64) -> io::Result<()> {
        if self.position < end {
            // The kernel writes zeros itself if the device has no command for that.
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, self.position, end - self.position)?;
            self.position = end;
        }
        Ok(())
    }
}

/// Refuses a device that is in use or too small for a disk of `size_bytes`. Changes nothing.
pub(crate) fn check_device(path: &Path, size_bytes: u64) -> Result<()> {
    Device::open(path, size_bytes).map(drop)
}

/// Whether `path` is a block device, which an export overwrites.
pub(crate) fn is_block_device(path: &Path) -> bool {
    let metadata = path.metadata();
    metadata.is_ok_and(|metadata| metadata.file_type().is_block_device())
}
