//! The system calls on a repository's folder. The folder is opened once, and all paths are resolved beneath it.
//! Symbolic links are never followed, so nothing outside is read, written, renamed or removed.
//!
//! In simulations, the calls that change the repository are recorded and may fail, except heartbeats.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onefold_format::backup::Writers;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat,
    fallocate, fstatvfs, fsync, linkat, mkdirat, openat, openat2, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

#[cfg(feature = "simulation")]
use crate::simulation::{Op, note};

/// Files that only their owner may read.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
const PRIVATE_FOLDER: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);

/// Folders on a path are only traversed.
const PASSED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Flags for opening files. Non-blocking, because opening a foreign pipe would wait for its other end.
const FILE: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Whether paths are resolved step by step, because the kernel, or a system call filter, does not allow `openat2`.
static IS_WALKED: AtomicBool = AtomicBool::new(false);

/// Records an operation in simulations, where it may be made to fail.
macro_rules! noted {
    ($op:expr) => {
        #[cfg(feature = "simulation")]
        note(|| $op)?;
    };
}

/// In simulations, returns the error that a test has set for this call.
macro_rules! answered {
    ($call:expr) => {
        #[cfg(feature = "simulation")]
        crate::simulation::answered($call)?;
    };
}

/// A repository's folder. All paths are relative to it; the empty path is the folder itself.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    #[cfg_attr(
        not(feature = "simulation"),
        expect(dead_code, reason = "changes are noted with it there")
    )]
    path: PathBuf,
    folder: Arc<OwnedFd>,
    writers: Writers,
}

/// An entry of a folder.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The name; invalid UTF-8 is replaced, which only happens in foreign names.
    pub(crate) name: String,
    pub(crate) kind: FileType,
}

impl Root {
    /// Opens a repository's folder. The user may give a link as `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            path: path.to_owned(),
            folder: Arc::new(folder),
            writers: Writers::Many,
        })
    }

    /// Sets the number of writers, which decides how files are renamed.
    pub(crate) fn for_writers(self, writers: Writers) -> Self {
        Self { writers, ..self }
    }

    /// Opens a file for reading.
    pub(crate) fn open_file(&self, path: &str) -> io::Result<File> {
        answered!("open");
        let open = |flags| open_beneath(&self.folder, path, flags, Mode::empty());
        let file = match open(FILE) {
            // Another host caches the file under a lease, and this open asks for it back.
            Err(Errno::AGAIN) if self.kind(path)? == Some(FileType::RegularFile) => {
                open(OFlags::empty())
            }
            opened => opened,
        };
        let file = File::from(file.map_err(named)?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other("it is no file"))
        }
    }

    /// Overwrites the first bytes of a file durably. In simulations, this is not recorded as a change.
    pub(crate) fn overwrite(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        answered!("pwrite");
        let file = self.open_beneath(path, FILE | OFlags::WRONLY, Mode::empty())?;
        let file = File::from(file);
        file.write_all_at(bytes, 0)?;
        file.sync_data()
    }

    /// The entries of a folder; empty if the path does not exist or is not a folder.
    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<Entry>> {
        answered!("readdir");
        let folder = match self.open_folder(path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
            folder => folder.map_err(named)?,
        };
        let mut entries = Vec::new();
        for entry in Dir::new(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if matches!(name.as_str(), "." | "..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not return the type. A file that has vanished since does not matter.
                FileType::Unknown => self
                    .kind(&joined(path, &name))?
                    .unwrap_or(FileType::Unknown),
                kind => kind,
            };
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    /// The type of a file; `None` if it does not exist, or part of its path is not a folder.
    pub(crate) fn kind(&self, path: &str) -> io::Result<Option<FileType>> {
        let stat = self.stat(path)?;
        Ok(stat.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }

    /// The status of a file: type, size and times; `None` as in [`Root::kind`].
    pub(crate) fn stat(&self, path: &str) -> io::Result<Option<Stat>> {
        let found = self.in_parent(path, |parent, name| {
            statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        });
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a file that only its owner may read.
    pub(crate) fn create_new(&self, path: &str) -> io::Result<File> {
        noted!(Op::Create(self.path.join(path)));
        answered!("open with O_EXCL");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(File::from(self.open_beneath(path, flags, PRIVATE)?))
    }

    /// Appends to a file that is being written.
    #[cfg_attr(
        not(feature = "simulation"),
        expect(unused_variables, reason = "it names the file there")
    )]
    pub(crate) fn append(&self, file: &mut File, path: &str, bytes: &[u8]) -> io::Result<usize> {
        noted!(Op::Append(self.path.join(path), bytes.to_vec()));
        answered!("write");
        file.write_all(bytes)?;
        Ok(bytes.len())
    }

    /// Extends a file that is being written by `bytes` of allocated blocks with arbitrary content.
    pub(crate) fn allocate(&self, file: &mut File, path: &str, bytes: u64) -> io::Result<()> {
        noted!(Op::Append(self.path.join(path), vec![0; bytes as usize]));
        answered!("fallocate");
        let end = file.metadata()?.len();
        match fallocate(&*file, FallocateFlags::empty(), end, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            allocated => return Ok(allocated?),
        }
        // Pseudorandom bytes, because a file system could compress zeros to nothing.
        let mut hasher = blake3::Hasher::new();
        hasher.update(path.as_bytes());
        let mut random = hasher.finalize_xof().take(bytes);
        io::copy(&mut random, file).map(drop)
    }

    /// Bytes of free space that this process may use in the file system.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let room = fstatvfs(&self.folder)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    #[cfg_attr(
        not(feature = "simulation"),
        expect(unused_variables, reason = "it names the file there")
    )]
    pub(crate) fn sync(&self, file: &File, path: &str) -> io::Result<()> {
        noted!(Op::Sync(self.path.join(path)));
        answered!("fsync");
        file.sync_all()
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync_folder(&self, path: &str) -> io::Result<()> {
        noted!(Op::SyncFolder(self.path.join(path)));
        let folder = File::from(self.open_folder(path).map_err(named)?);
        let sync = || {
            answered!("fsync of a folder");
            fsync(&folder)
        };
        names_synced(sync())
    }

    /// Creates a folder unless it exists.
    pub(crate) fn create_folder(&self, path: &str) -> io::Result<()> {
        noted!(Op::CreateFolder(self.path.join(path)));
        answered!("mkdir");
        match self.in_parent(path, |parent, name| mkdirat(parent, name, PRIVATE_FOLDER)) {
            Err(Errno::EXIST) => Ok(()),
            made => made.map_err(named),
        }
    }

    /// Renames a file or folder. Replaces an existing file, or an existing empty folder if `from` is a folder.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        noted!(Op::Rename(self.path.join(from), self.path.join(to)));
        answered!(match self.kind(from)? {
            Some(FileType::Directory) => "rename of a folder",
            _ => "rename",
        });
        let renamed = self.in_parents(from, to, |(from, old), (to, new)| {
            renameat(from, old, to, new)
        });
        renamed.map_err(named)
    }

    /// Renames a file; fails with `AlreadyExists` if the new name is taken. Returns whether the old name is gone,
    /// too. With one writer, the check and the rename may be two calls.
    pub(crate) fn rename_new(&self, from: &str, to: &str) -> io::Result<bool> {
        noted!(Op::Rename(self.path.join(from), self.path.join(to)));
        let renamed = self.in_parents(from, to, |(from, old), (to, new)| {
            match rename_no_replace(from, old, to, new) {
                // Network file systems may lack this call.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::IO) => {}
                renamed => return renamed.map(|()| true),
            }
            if self.writers == Writers::Many {
                answered!("link");
                // Creating a second name also fails if the name is taken.
                return linkat(from, old, to, new, AtFlags::empty()).map(|()| false);
            }
            match statat(to, new, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => renameat(from, old, to, new).map(|()| true),
                found => Err(found.err().unwrap_or(Errno::EXIST)),
            }
        });
        renamed.map_err(named)
    }

    /// Removes a file; of a link, the link itself.
    pub(crate) fn remove_file(&self, path: &str) -> io::Result<()> {
        noted!(Op::Remove(self.path.join(path)));
        answered!("unlink");
        let removed = self.in_parent(path, |parent, name| {
            unlinkat(parent, name, AtFlags::empty())
        });
        removed.map_err(named)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_empty_folder(&self, path: &str) -> io::Result<()> {
        noted!(Op::RemoveEmpty(self.path.join(path)));
        answered!("rmdir");
        let removed = self.in_parent(path, |parent, name| {
            unlinkat(parent, name, AtFlags::REMOVEDIR)
        });
        removed.map_err(named)
    }

    fn open_beneath(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        open_beneath(&self.folder, path, flags, mode).map_err(named)
    }

    fn open_folder(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(&self.folder, path, flags, Mode::empty())
    }

    /// Calls `call` with the parent folder of a path and the name in it.
    fn in_parent<T>(
        &self,
        path: &str,
        call: impl FnOnce(&OwnedFd, &str) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let (parent, name) = split(path);
        let parent = open_beneath(&self.folder, parent, PASSED, Mode::empty())?;
        call(&parent, name)
    }

    fn in_parents<T>(
        &self,
        from: &str,
        to: &str,
        call: impl FnOnce((&OwnedFd, &str), (&OwnedFd, &str)) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        self.in_parent(from, |from, old| {
            self.in_parent(to, |to, new| call((from, old), (to, new)))
        })
    }
}

/// Opens a path beneath a folder; fails with `LOOP` on a symbolic link.
fn open_beneath(
    folder: &OwnedFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { "." } else { path };
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if !IS_WALKED.load(Ordering::Relaxed) {
        match openat2(folder, path, flags, mode, resolve) {
            // `PERM` may come from a system call filter. If it is real, resolving by steps is refused, too.
            Err(Errno::NOSYS | Errno::PERM) => IS_WALKED.store(true, Ordering::Relaxed),
            opened => return opened,
        }
    }
    open_by_steps(folder, path, flags, mode)
}

/// Does the work of [`open_beneath`] without `openat2`, one folder at a time.
fn open_by_steps(
    folder: &OwnedFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let step = |at: &OwnedFd, name: &str, flags: OFlags, mode: Mode| {
        if name == ".." || name.is_empty() {
            return Err(Errno::XDEV);
        }
        match openat(at, name, flags | OFlags::NOFOLLOW, mode) {
            // Opening a link as a folder returns this error, too.
            Err(Errno::NOTDIR) if is_link(at, name) => Err(Errno::LOOP),
            opened => opened,
        }
    };
    let passed = PASSED | OFlags::CLOEXEC;
    let (parent, name) = split(path);
    let mut at = openat(folder, ".", passed, Mode::empty())?;
    for name in parent.split('/').filter(|_| !parent.is_empty()) {
        at = step(&at, name, passed, Mode::empty())?;
    }
    step(&at, name, flags, mode)
}

fn is_link(at: &OwnedFd, name: &str) -> bool {
    let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Converts an error, and explains refused links.
fn named(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::other(
            "a symbolic link is in the way, and none is followed inside a repository",
        ),
        error => error.into(),
    }
}

fn rename_no_replace(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> rustix::io::Result<()> {
    answered!("renameat2");
    renameat_with(from, old, to, new, RenameFlags::NOREPLACE)
}

/// Ignores errors of file systems that cannot sync folders (older CIFS, some in user space) because they make names
/// durable at once. For a file, the same errors are failures.
fn names_synced(synced: rustix::io::Result<()>) -> io::Result<()> {
    match synced {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Splits a path into its folder and the name in it.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

pub(crate) fn joined(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

/// Creates a repository's folder durably, unless it exists.
pub(crate) fn create_root(path: &Path) -> io::Result<()> {
    noted!(Op::CreateFolder(path.into()));
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let absolute = std::path::absolute(path)?;
    let parent = absolute.parent().unwrap_or(&absolute);
    let synced = names_synced(fsync(File::open(parent)?));
    synced.map_err(|e| io::Error::new(e.kind(), format!("fsync of the folder {parent:?}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Tried with `openat2` and without it.
    #[test]
    fn nothing_is_opened_by_way_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        for folder in [&inside.join("a/b"), &outside] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("file"), b"content").unwrap();
        }
        symlink("b", inside.join("a/to-folder")).unwrap();
        symlink("b/file", inside.join("a/to-file")).unwrap();
        symlink(&outside, inside.join("out")).unwrap();
        let root = Root::open(&inside).unwrap();
        let read = OFlags::CLOEXEC;
        for open in [open_beneath, open_by_steps] {
            let open = |path: &str, flags: OFlags| {
                let mode = if flags.contains(OFlags::CREATE) {
                    PRIVATE
                } else {
                    Mode::empty()
                };
                open(&root.folder, path, flags, mode).map(drop)
            };
            assert_eq!(open("a/b/file", read), Ok(()));
            assert_eq!(open("a/b", read | PASSED), Ok(()));
            assert_eq!(open("a/c", read), Err(Errno::NOENT));
            assert_eq!(open("../outside/file", read), Err(Errno::XDEV));
            for link in [
                "a/to-file",
                "a/to-folder",
                "a/to-folder/file",
                "out",
                "out/file",
            ] {
                assert_eq!(open(link, read), Err(Errno::LOOP), "{link}");
                assert_eq!(
                    open(link, read | OFlags::DIRECTORY),
                    Err(Errno::LOOP),
                    "{link}"
                );
            }
            let new = read | OFlags::CREATE | OFlags::WRONLY | OFlags::EXCL;
            assert_eq!(open("out/new", new), Err(Errno::LOOP));
            assert_eq!(open("a/new", new), Ok(()));
            std::fs::remove_file(inside.join("a/new")).unwrap();
        }
    }

    /// Opening a pipe for reading would wait for a writer.
    #[test]
    fn what_is_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, PRIVATE, 0).unwrap();
        let root = Root::open(folder.path()).unwrap();
        assert!(root.open_file("pipe").is_err());
        assert!(root.open_file("").is_err());
        assert!(root.overwrite("pipe", b"sign").is_err());
    }
}
