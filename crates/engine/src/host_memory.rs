//! [`HostMemory`](crate::HostMemory) as a mapped file.
//!
//! The kernel keeps data that a process wrote to a shared mapping, however the process ends, and
//! shows it to the next one that maps the file. The kernel writes the file out now and then, which
//! is neither useful nor harmful.
//!
//! Invariant: the file has space for all of its length before it is mapped, so that no write to the
//! mapping can fail for want of it, which would kill the process (SIGBUS).

use crate::HostMemory;
use crate::embedded::{error_at, unusable};
use crate::failure::explain;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A file, mapped as a whole.
pub(crate) struct MappedFile {
    /// Behind a lock, because a read concurrent with a write of the same bytes would be a data
    /// race.
    map: Mutex<MmapRaw>,
    len: usize,
}

impl MappedFile {
    /// Opens or makes the file, at least `len` bytes long, and maps it.
    pub(crate) fn open(path: &Path, len: usize) -> io::Result<MappedFile> {
        let doing = |what: &str| {
            let what = format!("{what} {}", path.display());
            move |cause: io::Error| explain(what, cause)
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)
            .map_err(doing("opening"))?;
        let metadata = file.metadata().map_err(doing("examining"))?;
        if !metadata.is_file() {
            return Err(unusable(path, metadata.file_type()));
        }
        if metadata.nlink() > 1 {
            // Otherwise another user's file would be written to.
            return Err(error_at(
                io::ErrorKind::InvalidInput,
                path,
                "has another name elsewhere: remove it",
            ));
        }
        let len = len.max(usize::try_from(metadata.len()).unwrap_or(usize::MAX));
        if let Err(cause) = allocate(&file, len as u64) {
            if metadata.len() == 0 {
                // Reports the first error. An empty file is as good as none.
                let _ = fs::remove_file(path);
            }
            return Err(doing("reserving space for")(cause));
        }
        let map = MmapOptions::new().len(len).map_raw(&file);
        let map = map.map_err(doing("mapping"))?;
        if map.len() != len {
            return Err(error_at(io::ErrorKind::Other, path, "is not mapped whole"));
        }
        Ok(MappedFile {
            map: Mutex::new(map),
            len,
        })
    }

    /// Runs `access` on the address of these bytes.
    fn with<T>(&self, offset: usize, len: usize, access: impl FnOnce(*mut u8) -> T) -> T {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} of a mapping of {}",
            self.len
        );
        // The bytes have no invariant that a panic could have broken.
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        access(map.as_mut_ptr().wrapping_add(offset))
    }
}

impl MappedFile {
    /// Replaces a word in one store, so that a process that dies leaves the old one or the new one.
    fn with_word(&self, offset: usize, change: impl FnOnce(u64) -> u64) {
        assert!(
            offset.is_multiple_of(size_of::<u64>()),
            "a word at {offset}"
        );
        self.with(offset, size_of::<u64>(), |at| {
            #[expect(
                clippy::cast_ptr_alignment,
                reason = "a mapping begins at a page, and the offset was checked"
            )]
            let at = at.cast::<u64>();
            // SAFETY: `with` has checked that the word is inside the mapping, which lives as long as
            // `self`, and holds the lock that all accesses take. The address is a multiple of 8, as
            // asserted above, because a mapping begins at a page. Volatile accesses are neither split
            // nor left out.
            unsafe {
                let word = u64::from_le(at.read_volatile());
                at.write_volatile(change(word).to_le());
            }
        });
    }
}

impl HostMemory for MappedFile {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: usize) {
        self.with(offset, buf.len(), |from| {
            // SAFETY: `with` has checked that the range is inside the mapping, which lives as long
            // as `self`, and holds the lock that all accesses take. `buf` is not part of the
            // mapping, which no reference points into.
            unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) }
        });
    }

    fn write_at(&self, bytes: &[u8], offset: usize) {
        self.with(offset, bytes.len(), |to| {
            // SAFETY: as in `read_at`; the file is mapped for writing.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        });
    }

    fn write_word(&self, word: u64, offset: usize) {
        self.with_word(offset, |_| word);
    }

    fn set_bits(&self, bits: u64, offset: usize) {
        self.with_word(offset, |word| word | bits);
    }
}

/// Allocates space for a file of this length, so that all of it can be written from then on.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return fill(file, len),
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// Allocates space by writing zeros beyond the end.
fn fill(file: &File, len: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = file.metadata()?.len();
    while at < len {
        let count = (len - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..count as usize], at)?;
        at += count;
    }
    Ok(())
}
