//! One owner of a pool on this machine (promise P7).
//!
//! The lock is the kernel's, on the file `lock` in the pool directory, so it ends with the process
//! however that dies. The process id in the file is for messages alone and is meaningless while the
//! lock is free.

use super::{error_at, sync_parent};
use crate::failure::explain;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::error::Error;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The right to use a pool directory, until dropped.
#[derive(Debug)]
pub struct PoolLock {
    /// Closing it releases the lock.
    _file: File,
}

/// Why a pool could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// The lock is held by another process.
    Held {
        /// The pool directory.
        directory: PathBuf,
        /// The holder, unless it has only just started.
        pid: Option<u32>,
    },
    /// The lock file could not be used.
    Io(io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held {
                directory,
                pid: Some(pid),
            } => {
                write!(
                    f,
                    "the pool {} is in use by process {pid}",
                    directory.display()
                )
            }
            LockError::Held {
                directory,
                pid: None,
            } => {
                write!(
                    f,
                    "the pool {} is in use by another process",
                    directory.display()
                )
            }
            LockError::Io(error) => error.fmt(f),
        }
    }
}

impl Error for LockError {}

impl PoolLock {
    /// Takes the lock of the pool in `directory`, which must exist, without waiting for it.
    pub fn acquire(directory: &Path) -> Result<PoolLock, LockError> {
        let path = directory.join("lock");
        let doing = |what: &str, cause: io::Error| {
            LockError::Io(explain(format!("{what} {}", path.display()), cause))
        };
        // The file is never removed or truncated before the lock is ours: removing it could leave
        // two processes with locks on two files of one name.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&path)
            .map_err(|cause| match Errno::from_io_error(&cause) {
                Some(Errno::LOOP) => refused(&path),
                _ => doing("opening", cause),
            })?;
        // A process id must not be written to a device or to another user's file.
        let opened = file.metadata().map_err(|cause| doing("examining", cause))?;
        if !opened.is_file() {
            return Err(refused(&path));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = holder(&mut file);
                return Err(LockError::Held {
                    directory: directory.to_path_buf(),
                    pid,
                });
            }
            Err(TryLockError::Error(cause)) => return Err(doing("locking", cause)),
        }
        // A process that died may have made parts and not synced their names.
        sync_parent(&path).map_err(LockError::Io)?;
        let written = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        match written.map_err(|cause| (cause.kind(), cause)) {
            // A pool on a full host can be used, and other processes get less information about its
            // owner.
            Ok(()) | Err((ErrorKind::StorageFull | ErrorKind::QuotaExceeded, _)) => {}
            Err((_, cause)) => return Err(doing("writing the process id to", cause)),
        }
        Ok(PoolLock { _file: file })
    }
}

/// The error for a lock that is a link, a device or the like.
fn refused(path: &Path) -> LockError {
    LockError::Io(error_at(
        io::ErrorKind::InvalidInput,
        path,
        "is not a file, and links are not followed: remove it",
    ))
}

/// The process id in the lock file; `None` where there is none (yet).
fn holder(file: &mut File) -> Option<u32> {
    const PID_DIGITS_MAX: u64 = 16;
    let mut text = String::new();
    file.take(PID_DIGITS_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_owner_is_told_who_the_first_is() {
        let directory = tempfile::tempdir().unwrap();
        let first = PoolLock::acquire(directory.path()).unwrap();
        let error = PoolLock::acquire(directory.path()).unwrap_err();
        let LockError::Held { pid, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*pid, Some(std::process::id()));
        assert!(
            error
                .to_string()
                .contains(&directory.path().display().to_string()),
            "{error}"
        );
        drop(first);
        PoolLock::acquire(directory.path()).unwrap();
    }

    #[test]
    fn what_an_earlier_owner_left_in_the_file_does_not_matter() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(
            directory.path().join("lock"),
            "not a process id, and rather long",
        )
        .unwrap();
        let held = PoolLock::acquire(directory.path()).unwrap();
        let text = std::fs::read_to_string(directory.path().join("lock")).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(held);
    }

    #[test]
    fn no_process_id_is_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "not a lock").unwrap();
        let lock = directory.path().join("lock");
        for target in [&precious, &directory.path().join("absent")] {
            std::os::unix::fs::symlink(target, &lock).unwrap();
            let error = PoolLock::acquire(directory.path()).unwrap_err();
            let LockError::Io(cause) = &error else {
                panic!("{error}")
            };
            assert_eq!(cause.kind(), io::ErrorKind::InvalidInput, "{error}");
            std::fs::remove_file(&lock).unwrap();
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"not a lock");
        assert!(!directory.path().join("absent").exists());
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let error = PoolLock::acquire(&directory.path().join("absent")).unwrap_err();
        let LockError::Io(cause) = &error else {
            panic!("{error}")
        };
        assert_eq!(cause.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("absent/lock"), "{error}");
    }
}
