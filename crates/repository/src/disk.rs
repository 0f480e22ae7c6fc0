//! The system calls by which a repository changes, but for signs of life. In simulations each is noted, and may
//! fail.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

#[cfg(feature = "simulation")]
use crate::simulation::{Op, note};

/// Notes an operation, which may be made to fail.
macro_rules! noted {
    ($op:expr) => {
        #[cfg(feature = "simulation")]
        note(|| $op)?;
    };
}

/// A new file that only its owner may read.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    noted!(Op::Create(path.into()));
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Appends to a file that is being written.
#[cfg_attr(
    not(feature = "simulation"),
    expect(unused_variables, reason = "it names the file there")
)]
pub(crate) fn append(file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<usize> {
    noted!(Op::Append(path.into(), bytes.to_vec()));
    file.write_all(bytes)?;
    Ok(bytes.len())
}

#[cfg_attr(
    not(feature = "simulation"),
    expect(unused_variables, reason = "it names the file there")
)]
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    noted!(Op::Sync(path.into()));
    file.sync_all()
}

pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    noted!(Op::SyncFolder(path.into()));
    File::open(path)?.sync_all()
}

/// One that is there is no failure.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    noted!(Op::CreateFolder(path.into()));
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// In the place of what has that name, if it is a file, or an empty folder and this is a folder.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    noted!(Op::Rename(from.into(), to.into()));
    std::fs::rename(from, to)
}

/// Fails with `AlreadyExists` if something has that name. Returns whether the old name is gone, too.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<bool> {
    noted!(Op::Rename(from.into(), to.into()));
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        // Network file systems may not have it; a second name is refused just as well.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::hard_link(from, to)?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    noted!(Op::Remove(path.into()));
    std::fs::remove_file(path)
}

/// With all that is in it.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    noted!(Op::Remove(path.into()));
    std::fs::remove_dir_all(path)
}

/// Only if it is empty.
pub(crate) fn remove_empty_folder(path: &Path) -> io::Result<()> {
    noted!(Op::RemoveEmpty(path.into()));
    std::fs::remove_dir(path)
}
