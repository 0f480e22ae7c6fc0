//! A pool on one machine: a directory with a file for each [`Part`], of the part's name.
//!
//! `data` may be a symbolic link to a file elsewhere or to a block device. No other link is
//! followed. Only `data` is opened with O_DIRECT when the user asks for direct access: metadata is
//! small, read often, and not aligned.
//!
//! Invariants: a pool directory has one owner, who holds its [`PoolLock`]; because links can make
//! two directories share one `data`, that file or device is also claimed by itself while it is
//! open. Files are readable only by their owner, because they hold guests' data and the pool's
//! secret.
//!
//! Crash behaviour: a part that was created exists after a power loss, and its length is right; a
//! crash inside [`EmbeddedEngine::create`](Engine::create) leaves the part missing or empty. One part
//! takes the place of another by rename(2).

mod aligned;
mod dirty;
mod disk;
mod handoff;
mod lock;
mod opening;
mod replacement;
mod ring;
mod sync;
mod syncs;
mod together;
mod writeback;

pub use lock::{LockError, PoolLock};
pub use replacement::Replacement;

use crate::failure::explain;
use crate::host_memory::MappedFile;
use crate::{Disk, Engine, HostMemory, Part, host};
use disk::{FileDisk, direct_unsupported};
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The file of [`Engine::host_memory`]. It is next to the parts, so that every process that finds the pool finds it, in
/// any container or session.
const TAIL: &str = "tail";

/// A killed process may still own its data for a moment, while the kernel has requests of its ring that refer to the
/// file. So no write of a dead process can follow one of the next owner.
const OWNER_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause between two attempts to open a part that has an owner.
const OWNER_PAUSE: Duration = Duration::from_millis(5);

/// How the data part is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// In the host's page cache.
    Host,
    /// Not at all: O_DIRECT.
    Direct,
}

/// The parts of a pool in a directory of this machine.
#[derive(Debug, Clone)]
pub struct EmbeddedEngine {
    directory: PathBuf,
    cache: CacheMode,
    /// The path of the data part, if it is not in the directory.
    data: Option<PathBuf>,
    /// The data part as an earlier process opened it.
    kept_data: Option<Arc<File>>,
}

impl EmbeddedEngine {
    /// An engine for the pool in `directory`. Touches nothing.
    pub fn new(directory: impl Into<PathBuf>, cache: CacheMode) -> EmbeddedEngine {
        EmbeddedEngine {
            directory: directory.into(),
            cache,
            data: None,
            kept_data: None,
        }
    }

    /// Adds a description of the data part that outlived the process that opened it: the kernel reports to it the
    /// failures that this process did not live to handle. The description does not own the part.
    #[must_use]
    pub fn with_kept_data(mut self, kept: File) -> EmbeddedEngine {
        self.kept_data = Some(Arc::new(kept));
        self
    }

    /// A new description of the data part, for reading; it does not own the part.
    pub fn describe_data(&self) -> io::Result<File> {
        let path = self.location(Part::Data);
        let doing = |cause| explain(format!("opening {}", path.display()), cause);
        let file = File::open(&path).map_err(doing)?;
        if self.is_data(&file) {
            Ok(file)
        } else {
            Err(error_at(
                io::ErrorKind::InvalidInput,
                &path,
                "was replaced while it was being opened",
            ))
        }
    }

    /// Whether a description is of the present data part.
    fn is_data(&self, file: &File) -> bool {
        let identity = |of: fs::Metadata| (of.dev(), of.ino(), of.rdev());
        let path = self.location(Part::Data);
        match (file.metadata(), opening::find(&path, true)) {
            (Ok(kept), Ok(now)) => identity(kept) == now.identity(),
            _ => false,
        }
    }

    /// The pool directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the pool directory durably; its parent must exist. `AlreadyExists` if it exists and is
    /// not empty.
    pub fn create_directory(&self) -> io::Result<()> {
        self.check_directory()?;
        let path = &self.directory;
        let doing = |cause| self.creating(cause);
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(doing(error)),
            _ => {}
        }
        let absolute = std::path::absolute(path).map_err(doing)?;
        sync_parent(&absolute)
    }

    /// Refuses a directory that [`EmbeddedEngine::create_directory`] would refuse. Changes nothing.
    pub fn check_directory(&self) -> io::Result<()> {
        let path = &self.directory;
        match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                Some(_) => Err(error_at(io::ErrorKind::AlreadyExists, path, "is not empty")),
                None => Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let absolute = std::path::absolute(path).map_err(|e| self.creating(e))?;
                if absolute.parent().is_none_or(Path::is_dir) {
                    Ok(())
                } else {
                    Err(self.creating(error))
                }
            }
            Err(error) => Err(self.creating(error)),
        }
    }

    /// Refuses a block device that is in use, or has fewer than `len` bytes. Changes nothing.
    pub fn check_device(&self, device: &Path, len: u64) -> io::Result<()> {
        let engine = self.clone().with_data(device);
        engine.create(Part::Data, len).map(drop)
    }

    fn creating(&self, cause: io::Error) -> io::Error {
        explain(
            format!("creating the directory {}", self.directory.display()),
            cause,
        )
    }

    /// Places the data part of a pool that is being created at `target`: a block device, or a file
    /// that does not exist yet and that [`Engine::create`] will make. Refuses anything else, so
    /// that no file of the user's is ever overwritten; a device's content is lost.
    pub fn create_data_link(&self, target: &Path) -> io::Result<()> {
        // Links in the path are kept: device names such as those in /dev/disk/by-id are links
        // that follow the device from boot to boot.
        let target = std::path::absolute(target)
            .map_err(|cause| explain(format!("resolving {}", target.display()), cause))?;
        match file_type(&target)? {
            None => {
                let parent = target.parent().unwrap_or(&target);
                if !parent.is_dir() {
                    return Err(error_at(
                        io::ErrorKind::NotFound,
                        parent,
                        "is not a directory",
                    ));
                }
            }
            Some(kind) if kind.is_block_device() => {}
            Some(kind) => return Err(unusable(&target, kind)),
        }
        let link = self.path(Part::Data);
        std::os::unix::fs::symlink(&target, &link)
            .map_err(|cause| explain(format!("creating the link {}", link.display()), cause))?;
        sync_parent(&link)
    }

    /// The name of a part in the pool directory.
    fn path(&self, part: Part) -> PathBuf {
        match &self.data {
            Some(data) if part == Part::Data => data.clone(),
            _ => self.directory.join(part.name()),
        }
    }

    /// The path of a part, existing or not: the data part's link is followed even if its target
    /// does not exist yet, and once. A path that the caller gave for the data is not a link of the
    /// pool's.
    fn location(&self, part: Part) -> PathBuf {
        let path = self.path(part);
        if part != Part::Data || self.data.is_some() {
            return path;
        }
        match fs::read_link(&path) {
            Ok(target) => self.directory.join(target),
            Err(_) => path,
        }
    }

    /// Opens a part, unless it has another owner.
    fn open_now(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        let name = self.describe(part);
        let path = self.location(part);
        let doing = |cause| explain(format!("opening {name}"), cause);
        let found = opening::find(&path, part == Part::Data).map_err(doing)?;
        let mut flags = OFlags::empty();
        if !found.is_file() {
            // On a block device this refuses one that is mounted or that someone else claimed,
            // and claims it while it is open.
            flags |= OFlags::EXCL;
        }
        if self.is_direct(part) {
            flags |= OFlags::DIRECT;
        }
        let file = found
            .open(flags)
            .map_err(|cause| match Errno::from_io_error(&cause) {
                Some(Errno::BUSY) => busy(&name),
                Some(Errno::INVAL) if self.is_direct(part) => direct_unsupported(&name),
                _ => doing(cause),
            })?;
        if found.is_file() && part == Part::Data {
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(busy(&name)),
                Err(TryLockError::Error(cause)) => return Err(doing(cause)),
            }
        }
        if part == Part::Index {
            // A rename may have given it its name, and a crash may have kept the rename from being
            // synced.
            sync_parent(&path)?;
        }
        if matches!(part, Part::Index | Part::NextIndex) {
            // Rows are at random places: the host's read-ahead of a row is five times as much as
            // the row's page, and pushes useful pages out. Only speed depends on it.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        }
        let mut disk = FileDisk::new(file, name, self.is_direct(part))?;
        if part == Part::Data {
            // The only part that is synced by one thread while another syncs it.
            disk.sync_from_many_threads()?;
            disk.write_without_waiting();
            disk.fail_beyond_the_end();
        }
        Ok(Arc::new(disk))
    }

    /// Whether a part is opened with O_DIRECT.
    fn is_direct(&self, part: Part) -> bool {
        part == Part::Data && self.cache == CacheMode::Direct
    }
}

impl Engine for EmbeddedEngine {
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>> {
        let path = self.location(part);
        let there = match part {
            Part::Data => file_type(&path)?,
            _ => own_file_type(&path)?,
        };
        match there {
            None => {
                create_file(&path, len)?;
                let opened = self.open(part);
                if opened.is_err() {
                    // The file is still empty. The error that made it useless is reported.
                    let _ = fs::remove_file(&path);
                }
                opened
            }
            Some(kind) if kind.is_block_device() => {
                let disk = self.open(part)?;
                let size = disk.len()?;
                if len > size {
                    return Err(io::Error::new(
                        io::ErrorKind::StorageFull,
                        format!(
                            "{} has {size} bytes, too few for {len}",
                            self.describe(part)
                        ),
                    ));
                }
                Ok(disk)
            }
            Some(kind) => Err(unusable(&path, kind)),
        }
    }

    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        let started = Instant::now();
        loop {
            match self.open_now(part) {
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && started.elapsed() < OWNER_TIME_MAX =>
                {
                    thread::sleep(OWNER_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    fn replace(&self, place: Part, part: Part) -> io::Result<()> {
        let (from, to) = (self.path(part), self.path(place));
        fs::rename(&from, &to).map_err(|cause| {
            let (from, to) = (from.display(), to.display());
            explain(format!("renaming {from} to {to}"), cause)
        })?;
        sync_parent(&to)
    }

    fn remove(&self, part: Part) -> io::Result<()> {
        let path = self.path(part);
        match fs::remove_file(&path) {
            Ok(()) => sync_parent(&path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(explain(format!("removing {}", path.display()), cause)),
        }
    }

    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>> {
        Ok(Arc::new(MappedFile::open(&self.directory.join(TAIL), len)?))
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        host::boot_id()
    }

    /// The kernel reports a failed write once to each description that was open at the time, and once to the file
    /// system's next syncfs(2). It forgets unreported failures for later descriptions of the file once it drops the
    /// inode, or once a process has received the report, even one that died before it could act.
    fn has_lost_writes(&self) -> io::Result<bool> {
        let failed = |synced: Result<(), Errno>| match synced {
            Err(Errno::IO | Errno::NOSPC | Errno::DQUOT) => Ok(true),
            synced => synced.map(|()| false),
        };
        let name = self.describe(Part::Data);
        let doing = |cause: Errno| explain(format!("asking the host about {name}"), cause);
        let mut has_lost = false;
        if let Some(kept) = self.kept_data.as_ref().filter(|kept| self.is_data(kept)) {
            has_lost |= failed(rustix::fs::fdatasync(kept)).map_err(doing)?;
        }
        let path = self.location(Part::Data);
        let found = opening::find(&path, true)?;
        if found.is_file() {
            // A new descriptor samples failures that have not been reported yet.
            let file = found.open(OFlags::empty())?;
            has_lost |= failed(rustix::fs::syncfs(&file)).map_err(doing)?;
        }
        Ok(has_lost)
    }

    fn describe(&self, part: Part) -> String {
        let path = self.path(part);
        match fs::read_link(&path) {
            Ok(target) => format!("{} (link to {})", path.display(), target.display()),
            Err(_) => path.display().to_string(),
        }
    }

    fn random_id(&self) -> io::Result<[u8; 16]> {
        host::random_id()
    }

    fn unix_seconds(&self) -> u64 {
        host::unix_seconds()
    }
}

/// The metadata of `path`, links followed; `None` if it does not exist.
fn file_type(path: &Path) -> io::Result<Option<FileType>> {
    type_of(path, fs::metadata(path))
}

/// The metadata of `path` itself, even if it is a link; `None` if it does not exist.
fn own_file_type(path: &Path) -> io::Result<Option<FileType>> {
    type_of(path, fs::symlink_metadata(path))
}

fn type_of(path: &Path, metadata: io::Result<fs::Metadata>) -> io::Result<Option<FileType>> {
    match metadata {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(explain(format!("examining {}", path.display()), error)),
    }
}

/// Makes a new file, with its length and its name durable. Leaves nothing behind if it fails.
fn create_file(path: &Path, len: u64) -> io::Result<()> {
    let doing = |cause| explain(format!("creating {}", path.display()), cause);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(doing)?;
    let filled = file
        .set_len(len)
        .and_then(|()| file.sync_all())
        .map_err(doing);
    let result = filled.and_then(|()| sync_parent(path));
    if result.is_err() {
        let _ = fs::remove_file(path);
    }
    result
}

/// Makes the name of a new file durable, which a sync of the file itself does not do.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|cause| explain(format!("syncing the directory {}", parent.display()), cause))
}

/// The error for a path to an object that is not a part and cannot become one.
pub(crate) fn unusable(path: &Path, kind: FileType) -> io::Error {
    if kind.is_file() {
        error_at(io::ErrorKind::AlreadyExists, path, "exists already")
    } else {
        error_at(
            io::ErrorKind::InvalidInput,
            path,
            "is neither a file nor a block device",
        )
    }
}

/// The error for a data part that has an owner.
fn busy(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("{name} is in use: it is mounted, or belongs to another pool that is open"),
    )
}

/// An error about a path.
pub(crate) fn error_at(kind: io::ErrorKind, path: &Path, what: &str) -> io::Error {
    io::Error::new(kind, format!("{} {what}", path.display()))
}
