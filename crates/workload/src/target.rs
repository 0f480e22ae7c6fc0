//! The target of a load: files, block devices, memory, and anything else that can be read and
//! written.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use onefold_image::{Image, RawImage};
use rustix::fs::OFlags;

use crate::error::WorkloadError;

/// The strictest alignment of buffers for direct access.
const ALIGNMENT: usize = 4096;

/// Bytes of memory under one lock.
const PIECE_BYTES: usize = 1 << 20;

/// Something of fixed size that can be read and written.
pub trait Target: Sync {
    /// The target's name in messages.
    fn name(&self) -> String;

    /// The target's size.
    fn bytes(&self) -> u64;

    /// Opens a connection for one job.
    ///
    /// # Errors
    ///
    /// If none can be opened.
    fn connect(&self) -> io::Result<Box<dyn Connection + '_>>;

    /// The first range from `at` on, and before `end`, that may hold anything but zeros; an empty one
    /// if there is none.
    ///
    /// # Errors
    ///
    /// If that cannot be determined.
    fn next_data(&self, at: u64, end: u64) -> io::Result<Range<u64>> {
        Ok(at..end)
    }
}

/// A job's connection to a target.
pub trait Connection: Send {
    /// Fills all of `bytes` with the data at `at`.
    ///
    /// # Errors
    ///
    /// If the data cannot be read.
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes all of `bytes` to `at`.
    ///
    /// # Errors
    ///
    /// If the data cannot be written.
    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Makes data written on any connection durable.
    ///
    /// # Errors
    ///
    /// If the data may not be durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileTarget {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl FileTarget {
    /// The size of the object under this path, in bytes; nothing if it does not exist.
    ///
    /// # Errors
    ///
    /// If it cannot be inspected, or is neither a file nor a block device.
    pub fn size(path: &Path) -> Result<Option<u64>, WorkloadError> {
        let failed = |e| WorkloadError::new(format!("cannot look at {path:?}"), e);
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if !metadata.is_file() && !is_device(&metadata) {
            let message = format!("{path:?} is neither a file nor a block device");
            return Err(WorkloadError::Usage(message));
        }
        let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        end.map(Some).map_err(failed)
    }

    /// Opens an existing target, or creates an empty file of this many bytes. Refuses a target in
    /// use: a mounted device, the data of a pool.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn open(path: &Path, bytes: u64, is_direct: bool) -> Result<Self, WorkloadError> {
        let failed = |e| WorkloadError::new(format!("cannot open {path:?}"), e);
        let found = path.metadata().ok();
        let mut flags = OFlags::empty();
        if is_direct {
            flags |= OFlags::DIRECT;
        }
        if found.as_ref().is_some_and(is_device) {
            flags |= OFlags::EXCL;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(found.is_none());
        options.custom_flags(flags.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        // The engine locks the data of a pool in the same way while it uses it.
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("{path:?} is in use: a pool or another load has locked it");
                return Err(WorkloadError::Usage(message));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if found.is_none()
            && let Err(error) = file.set_len(bytes)
        {
            let _ = fs::remove_file(path);
            return Err(failed(error));
        }
        // Only seeking to its end gives a device's length.
        let bytes = (&file).seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
        })
    }
}

fn is_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

impl Target for FileTarget {
    fn name(&self) -> String {
        format!("{:?}", self.path)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(&self.file))
    }

    fn next_data(&self, at: u64, end: u64) -> io::Result<Range<u64>> {
        let mut image =
            RawImage::new(self.file.try_clone()?, self.name()).map_err(io::Error::other)?;
        let data = image.next_data(at).map_err(io::Error::other)?;
        Ok(data.unwrap_or(end..end))
    }
}

impl Connection for &File {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Memory, to measure the load itself.
#[derive(Debug)]
pub struct MemoryTarget {
    bytes: u64,
    pieces: Vec<Mutex<Box<[u8]>>>,
}

impl MemoryTarget {
    /// This number of bytes, all zeros.
    ///
    /// # Errors
    ///
    /// If the machine has less memory.
    pub fn new(bytes: u64) -> Result<Self, WorkloadError> {
        let all = machine_memory_bytes();
        if bytes > all {
            return Err(WorkloadError::Usage(format!(
                "{bytes} bytes of memory: this machine has {all}"
            )));
        }
        let piece = || {
            let mut piece = vec![0; PIECE_BYTES];
            // Touched now, so that the system does not have to find pages for it under the load.
            piece.iter_mut().step_by(ALIGNMENT).for_each(|byte| {
                *std::hint::black_box(byte) = 0;
            });
            Mutex::new(piece.into_boxed_slice())
        };
        let pieces = bytes.div_ceil(PIECE_BYTES as u64);
        Ok(Self {
            bytes,
            pieces: (0..pieces).map(|_| piece()).collect(),
        })
    }

    /// Calls `work` for each piece of a range, with the piece's position in the range.
    fn each(
        &self,
        at: u64,
        len: usize,
        mut work: impl FnMut(&mut [u8], Range<usize>),
    ) -> io::Result<()> {
        if at
            .checked_add(len as u64)
            .is_none_or(|end| end > self.bytes)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < len {
            let at = at as usize + done;
            let (piece, start) = (at / PIECE_BYTES, at % PIECE_BYTES);
            let some = (len - done).min(PIECE_BYTES - start);
            let piece = &self.pieces[piece];
            let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut piece[start..start + some], done..done + some);
            done += some;
        }
        Ok(())
    }
}

impl Target for MemoryTarget {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(self))
    }

    fn next_data(&self, _: u64, end: u64) -> io::Result<Range<u64>> {
        Ok(end..end)
    }
}

impl Connection for &MemoryTarget {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.each(at, bytes.len(), |piece, range| {
            bytes[range].copy_from_slice(piece);
        })
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.each(at, bytes.len(), |piece, range| {
            piece.copy_from_slice(&bytes[range]);
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The memory that this machine has.
pub(crate) fn machine_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(u64::from(system.mem_unit))
}

/// A buffer aligned for direct access.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Longer than needed by one alignment, so that it contains an aligned address.
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let storage = vec![0; len + ALIGNMENT];
        let address = storage.as_ptr().addr();
        Self {
            start: address.next_multiple_of(ALIGNMENT) - address,
            storage,
            len,
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}
