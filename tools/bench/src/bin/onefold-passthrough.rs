//! The NBD server on a raw file: the baseline of benchmarks.
//!
//! ```text
//! onefold-passthrough --file PATH [--socket PATH] [--direct] [--export NAME]
//! ```
//!
//! Serves one file or block device under one name (default: the empty name) on a unix socket, or on the sockets it was
//! started with (LISTEN_FDS), until it is killed. It does as little as possible with each request, so the difference to
//! a volume is the cost of the store.

use onefold_nbd::{
    AttachError, Attached, Blocking, Export, ExportError, ExportSummary, Exports, Extent, Failure,
    ListenAddress, ListenOptions, Listener, Peer, Server, ServerLimits, ZeroOptions,
};
use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("onefold-passthrough: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let file = RawFile::open(&arguments.file, arguments.direct)
        .map_err(|error| format!("cannot open {}: {error}", arguments.file.display()))?;
    let inherited = Listener::inherited().map_err(|error| format!("LISTEN_FDS: {error}"))?;
    let mut listeners = inherited.listeners;
    if let Some(socket) = arguments.socket {
        let bound = Listener::bind(&ListenAddress::Unix(socket), &ListenOptions::default());
        listeners.push(bound.map_err(|error| error.to_string())?);
    }
    if listeners.is_empty() {
        return Err("no --socket, and no sockets handed down by LISTEN_FDS".to_owned());
    }
    let exports = Arc::new(OneFile {
        name: arguments.export,
        file: Arc::new(file),
    });
    let _server = Server::start(listeners, exports, &ServerLimits::default())
        .map_err(|error| format!("cannot start: {error}"))?;
    loop {
        std::thread::park();
    }
}

struct Arguments {
    file: PathBuf,
    socket: Option<PathBuf>,
    direct: bool,
    export: String,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut file, mut socket, mut direct, mut export) = (None, None, false, String::new());
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--file" => file = Some(PathBuf::from(value()?)),
                "--socket" => socket = Some(PathBuf::from(value()?)),
                "--direct" => direct = true,
                "--export" => export = value()?,
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        let file = file.ok_or("which --file?")?;
        Ok(Self {
            file,
            socket,
            direct,
            export,
        })
    }
}

/// The one export of the server, open to all clients.
struct OneFile {
    name: String,
    file: Arc<RawFile>,
}

impl Exports for OneFile {
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        let names = [self.name.clone()].into_iter().take(names_max);
        names.filter(|_| after.is_none()).collect()
    }

    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError> {
        if name == self.name {
            Ok(ExportSummary::of(self.file.as_ref()))
        } else {
            Err(AttachError::Unknown)
        }
    }

    fn attach(&self, name: &str, _: &[String], _: &Peer) -> Result<Attached, AttachError> {
        self.describe(name)?;
        Ok(Attached::to(Arc::<RawFile>::clone(&self.file)))
    }
}

/// Block size of direct I/O, in bytes.
const DIRECT_BYTES: usize = 4096;

/// A file or block device.
struct RawFile {
    /// The file opened through the page cache.
    cached: File,
    /// The file opened past the page cache. Unaligned requests still use `cached`, which the kernel keeps coherent for
    /// requests that do not overlap.
    direct: Option<File>,
    size_bytes: u64,
}

impl RawFile {
    fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let cached = OpenOptions::new().read(true).write(true).open(path)?;
        let size_bytes = seek(&cached, SeekFrom::End(0))?;
        let mut direct_options = OpenOptions::new();
        direct_options
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed());
        let direct = if direct {
            Some(direct_options.open(path)?)
        } else {
            None
        };
        Ok(Self {
            cached,
            direct,
            size_bytes,
        })
    }

    /// Chooses the open file for a request: direct if offset and memory are aligned.
    fn file_for(&self, offset: u64, memory: &[u8]) -> &File {
        let aligned = offset.is_multiple_of(DIRECT_BYTES as u64)
            && memory.len().is_multiple_of(DIRECT_BYTES)
            && memory.as_ptr().addr().is_multiple_of(DIRECT_BYTES);
        self.direct
            .as_ref()
            .filter(|_| aligned)
            .unwrap_or(&self.cached)
    }

    /// Reads data in the page cache, if all of it is there.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<(), ExportError> {
        let len = buf.len();
        let read = preadv2(
            &self.cached,
            &mut [IoSliceMut::new(buf)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        match read {
            Ok(read) if read == len => Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {
                Err(ExportError::WouldBlock)
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    fn punch(&self, range: &Range<u64>, flags: FallocateFlags) -> Result<(), ExportError> {
        let flags = flags | FallocateFlags::KEEP_SIZE;
        fallocate(&self.cached, flags, range.start, range.end - range.start)
            .map_err(|error| failed(error.into()))
    }

    /// The state at `at`, and the offset where it ends; the end of the file counts as a hole.
    fn extent_at(&self, at: u64, end: u64) -> io::Result<Extent> {
        let or_end = |position| match position {
            Ok(position) => Ok(position),
            Err(Errno::NXIO) => Ok(self.size_bytes),
            Err(error) => Err(io::Error::from(error)),
        };
        let data_begin = or_end(seek(&self.cached, SeekFrom::Data(at)))?;
        if data_begin > at {
            return Ok(Extent {
                len: data_begin.min(end) - at,
                data: false,
            });
        }
        let data_end = or_end(seek(&self.cached, SeekFrom::Hole(at)))?;
        Ok(Extent {
            len: data_end.min(end) - at,
            data: true,
        })
    }
}

impl Export for RawFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn preferred_block_bytes(&self) -> u32 {
        4096
    }

    fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<(), ExportError> {
        match (blocking, &self.direct) {
            (Blocking::No, None) => self.read_cached(offset, buf),
            (Blocking::No, Some(_)) => Err(ExportError::WouldBlock),
            (Blocking::Yes, _) => self
                .file_for(offset, buf)
                .read_exact_at(buf, offset)
                .map_err(failed),
        }
    }

    /// Writes to the page cache ignore `blocking`: few file systems can tell whether a write would block.
    fn write(&self, offset: u64, data: &[u8], blocking: Blocking) -> Result<(), ExportError> {
        if blocking == Blocking::No && self.direct.is_some() {
            return Err(ExportError::WouldBlock);
        }
        self.file_for(offset, data)
            .write_all_at(data, offset)
            .map_err(failed)
    }

    fn flush(&self) -> Result<(), ExportError> {
        self.cached.sync_data().map_err(failed)
    }

    fn trim(&self, range: Range<u64>, blocking: Blocking) -> Result<(), ExportError> {
        match blocking {
            Blocking::No => Err(ExportError::WouldBlock),
            Blocking::Yes => self.punch(&range, FallocateFlags::PUNCH_HOLE),
        }
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        options: ZeroOptions,
        blocking: Blocking,
    ) -> Result<(), ExportError> {
        match blocking {
            Blocking::No => Err(ExportError::WouldBlock),
            Blocking::Yes if options.keep_allocated => {
                self.punch(&range, FallocateFlags::ZERO_RANGE)
            }
            Blocking::Yes => self.punch(&range, FallocateFlags::PUNCH_HOLE),
        }
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>, ExportError> {
        if blocking == Blocking::No {
            return Err(ExportError::WouldBlock);
        }
        let mut extents = Vec::new();
        let mut at = range.start;
        while at < range.end && extents.len() < extents_max {
            let extent = self.extent_at(at, range.end).map_err(failed)?;
            at += extent.len;
            extents.push(extent);
        }
        Ok(extents)
    }

    fn prefetch(&self, range: Range<u64>, _: &mut [u8]) -> Result<(), ExportError> {
        let len = NonZeroU64::new(range.end - range.start);
        fadvise(&self.cached, range.start, len, Advice::WillNeed)
            .map_err(|error| failed(error.into()))
    }
}

fn failed(error: io::Error) -> ExportError {
    let failure = match error.kind() {
        io::ErrorKind::StorageFull => Failure::NoSpace,
        io::ErrorKind::Unsupported => Failure::Unsupported,
        _ => Failure::Io,
    };
    ExportError::Failed {
        failure,
        source: Box::new(error),
    }
}
