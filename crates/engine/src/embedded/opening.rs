//! Opening a part where it is, and not where a link leads.
//!
//! Other users may be able to write to a pool's directory, and the user who opens the pool is often
//! root. A link in the place of a part would make onefold write to a file of their choice. So a
//! link is followed for the data part alone, once, and only to a file or a block device; names of
//! block devices, such as those in /dev/disk/by-id, may be links themselves.

use super::{error_at, unusable};
use crate::failure::explain;
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The object to open.
pub(super) struct Found<'a> {
    path: &'a Path,
    metadata: Metadata,
    /// The name is one of the links that block devices have.
    is_device_link: bool,
}

/// The metadata of `path`; a link is refused unless `may_be_device_link` holds and it leads to a
/// block device. Opens nothing: opening a FIFO would wait for a writer.
pub(super) fn find(path: &Path, may_be_device_link: bool) -> io::Result<Found<'_>> {
    let mut metadata = fs::symlink_metadata(path)?;
    let is_link = metadata.file_type().is_symlink();
    if is_link {
        if !may_be_device_link {
            return Err(link_refused(path));
        }
        metadata = fs::metadata(path)?;
        if !metadata.file_type().is_block_device() {
            return Err(link_refused(path));
        }
    }
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(unusable(path, kind));
    }
    Ok(Found {
        path,
        metadata,
        is_device_link: is_link,
    })
}

impl Found<'_> {
    pub(super) fn is_file(&self) -> bool {
        self.metadata.file_type().is_file()
    }

    /// Which object it is: device, inode, and the device that it stands for.
    pub(super) fn identity(&self) -> (u64, u64, u64) {
        let of = &self.metadata;
        (of.dev(), of.ino(), of.rdev())
    }

    /// Opens just this for reading and writing.
    pub(super) fn open(&self, mut flags: OFlags) -> io::Result<File> {
        if !self.is_device_link {
            flags |= OFlags::NOFOLLOW;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(self.path)?;
        let opened = file
            .metadata()
            .map_err(|cause| explain(format!("examining {}", self.path.display()), cause))?;
        if (opened.dev(), opened.ino(), opened.rdev()) == self.identity() {
            return Ok(file);
        }
        Err(error_at(
            io::ErrorKind::InvalidInput,
            self.path,
            "was replaced while it was being opened",
        ))
    }
}

/// The error for a link where none is followed.
fn link_refused(path: &Path) -> io::Error {
    error_at(
        io::ErrorKind::InvalidInput,
        path,
        "is a symbolic link, which is not followed: put the file itself in its place (only 'data' \
         may be a link, to a file or a block device)",
    )
}
