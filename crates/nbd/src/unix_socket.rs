//! A listening unix socket under a name in a directory.
//!
//! Invariants:
//! - No client can connect before group and permissions are as requested: a name is made with the
//!   permissions of its owner alone, and `listen` comes after they were changed.
//! - The socket of an earlier process is replaced at once, by a rename, as long as the directory
//!   has room for a second name. On a full file system the old name is removed first, to make room
//!   for the new one.

use rustix::fs::{Gid, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Clients that may wait to be accepted: all guests of a host, which come back at the same time when
/// a daemon is restarted. The kernel's own limit (`somaxconn`) counts as well.
const BACKLOG: i32 = 1024;

/// Bytes of the longest path at which [`listen_unix`] can listen: the kernel takes 107, and the name of a new socket is
/// one byte longer until it takes its place.
pub const SOCKET_PATH_BYTES_MAX: usize = 106;

/// The name of a listening socket, which is removed on drop.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Listens at `path`, in place of an existing socket, with exactly this `mode` and this group if
/// one is given. The caller ensures that no other process listens there.
///
/// # Errors
/// Errors of the system. With `StorageFull` and `QuotaExceeded` the file system has no room for a
/// socket; an old one may then be gone.
pub fn listen_unix(
    path: &Path,
    mode: u32,
    group: Option<u32>,
) -> io::Result<(UnixListener, SocketName)> {
    let len = path.as_os_str().len();
    if len > SOCKET_PATH_BYTES_MAX {
        let message = format!(
            "its path has {len} bytes, and the path of a socket at most {SOCKET_PATH_BYTES_MAX}; choose a shorter one"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, message));
    }
    let hidden = hidden_name(path);
    // Left by a process that died at just this point.
    remove_if_there(&hidden)?;
    let replaced = make(&hidden, mode, group).and_then(|made| {
        fs::rename(&hidden, path)?;
        Ok(made)
    });
    let (listener, metadata) = match replaced {
        Ok(made) => made,
        Err(error) => {
            let _ = fs::remove_file(&hidden);
            if !lacks_space(&error) {
                return Err(error);
            }
            remove_if_there(path)?;
            make(path, mode, group).inspect_err(|_| {
                let _ = fs::remove_file(path);
            })?
        }
    };
    let name = SocketName {
        path: path.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
    };
    Ok((listener, name))
}

/// Whether a file system has no room for a new file, or none for this user.
pub fn lacks_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The temporary name, as short as possible: the kernel takes 107 bytes of path.
fn hidden_name(path: &Path) -> PathBuf {
    let mut hidden = path.file_name().map_or_else(OsString::new, OsString::from);
    hidden.push("~");
    path.with_file_name(hidden)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn make(path: &Path, mode: u32, group: Option<u32>) -> io::Result<(UnixListener, Metadata)> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // `bind` makes the name with the present permissions of the socket.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = group {
        let given = rustix::fs::chown(path, None, Some(Gid::from_raw(group)));
        given.map_err(|error| not_given(error, group))?;
    }
    // After the group, so that the wrong group is never let in.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    let metadata = fs::symlink_metadata(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), metadata))
}

/// The error of a socket that could not be given to a group.
fn not_given(error: Errno, group: u32) -> io::Error {
    match error {
        Errno::PERM => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "a socket can be given to group {group} only by root or by a member of the group, and this process is neither"
            ),
        ),
        error => error.into(),
    }
}

impl Drop for SocketName {
    /// Removes the name, unless another socket has taken its place.
    fn drop(&mut self) {
        if let Ok(metadata) = fs::symlink_metadata(&self.path)
            && (metadata.dev(), metadata.ino()) == (self.device, self.inode)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_of_an_earlier_process_is_replaced_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        drop(UnixListener::bind(hidden_name(&path)).unwrap());
        let (_listener, name) = listen_unix(&path, 0o640, None).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        drop(name);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_refusal_says_what_is_too_long_and_whose_group_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let begin = directory.path().as_os_str().len() + 1;
        for (len, fits) in [
            (SOCKET_PATH_BYTES_MAX, true),
            (SOCKET_PATH_BYTES_MAX + 1, false),
        ] {
            let path = directory.path().join("s".repeat(len - begin));
            let listens = listen_unix(&path, 0o600, None);
            assert_eq!(listens.is_ok(), fits, "{len}");
            let said = listens.err().map(|error| error.to_string());
            assert!(said.is_none_or(
                |message| message.contains("107 bytes") && message.contains("at most 106")
            ));
        }
        let said = not_given(Errno::PERM, 36).to_string();
        assert!(
            said.contains("group 36 only by root or by a member"),
            "{said}"
        );
        assert_eq!(
            not_given(Errno::NOSPC, 36).kind(),
            io::ErrorKind::StorageFull
        );
    }
}
