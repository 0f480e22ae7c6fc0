//! A disk's plain bytes.

use std::fs::File;
use std::io::{self, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::{Image, ImageError};

/// A file or device that holds a disk's plain bytes.
#[derive(Debug)]
pub struct RawImage {
    file: File,
    shown: String,
    size_bytes: u64,
}

impl RawImage {
    /// The disk in `file`, which messages call `shown`.
    ///
    /// # Errors
    ///
    /// If its size cannot be determined.
    pub fn new(mut file: File, shown: impl Into<String>) -> Result<Self, ImageError> {
        let shown = shown.into();
        // Only seeking to its end gives a device's length.
        let size_bytes = file
            .seek(io::SeekFrom::End(0))
            .map_err(|e| ImageError::io(format_args!("cannot find the size of {shown}"), &e))?;
        Ok(Self {
            file,
            shown,
            size_bytes,
        })
    }
}

impl Image for RawImage {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn next_data(&mut self, start: u64) -> Result<Option<Range<u64>>, ImageError> {
        if start >= self.size_bytes {
            return Ok(None);
        }
        let failed = |e: Errno| {
            ImageError::io(
                format_args!("cannot find the holes of {}", self.shown),
                &e.into(),
            )
        };
        let data = match rustix::fs::seek(&self.file, SeekFrom::Data(start)) {
            Ok(data) => data,
            // There is only a hole up to the end.
            Err(Errno::NXIO) => return Ok(None),
            // Devices and some file systems do not distinguish holes from data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(start..self.size_bytes)),
            Err(error) => return Err(failed(error)),
        };
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(data)).map_err(failed)?;
        // A file that has grown since still counts with its original size.
        Ok((data < self.size_bytes).then(|| data..hole.min(self.size_bytes)))
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), ImageError> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|e| match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    ImageError::new(format!("{} became shorter while it was read", self.shown))
                }
                _ => ImageError::io(
                    format_args!("cannot read {} at byte {offset}", self.shown),
                    &e,
                ),
            })
    }
}
