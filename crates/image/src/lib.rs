//! Disk images outside a pool: raw files and devices, and qcow2.
//!
//! May use: no other crate of onefold. Must not: know pools.
//!
//! The user states the format. Guessing it from content would let a guest, who writes the content,
//! choose which files are opened. Content can only be a reason to refuse a file.

mod container;
mod qcow2;
mod raw;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

pub use container::{Container, HEAD_BYTES};
pub use qcow2::{Backing, Qcow2Image, Qcow2Writer};
pub use raw::RawImage;

/// The first bytes of every qcow2 file.
pub const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// An image whose parts can be read in any order.
pub trait Image: Send {
    /// Size of the disk in bytes.
    fn size_bytes(&self) -> u64;

    /// The first range at or after `start` that may hold anything but zeros; `None` if only zeros
    /// follow up to the end.
    ///
    /// # Errors
    ///
    /// If the image cannot be read, or refers to data that it does not have.
    fn next_data(&mut self, start: u64) -> Result<Option<Range<u64>>, ImageError>;

    /// Fills `buf` from byte `offset` of the disk.
    ///
    /// # Errors
    ///
    /// If the image cannot be read, or is truncated.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), ImageError>;
}

/// Why an image cannot be used, with its name and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImageError(String);

impl ImageError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    fn io(what: impl std::fmt::Display, source: &io::Error) -> Self {
        Self(format!("{what}: {source}"))
    }
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Whether the file begins like a qcow2 image. A guest can make its raw disk look so.
#[must_use]
pub fn looks_like_qcow2(file: &File) -> bool {
    let mut first = [0; QCOW2_MAGIC.len()];
    file.read_exact_at(&mut first, 0).is_ok() && first == QCOW2_MAGIC
}
