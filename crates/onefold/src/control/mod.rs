//! The control interface: HTTP and JSON on `DIR/control.sock`.
//!
//! A request is a `POST` to its path, with the request as JSON. The answer is one line of JSON per [`Event`]:
//! any number of progress reports, then the result or an error. An import sends its request in a header and
//! the image as the body; an export answers with the image. Image data is sent in [`frame`]s.
//!
//! Only the socket's owner can connect to it, so clients are not restricted further. If the pool's directory
//! has no room for a socket, the socket is in one of [`runtime_directories`].

pub(crate) mod client;
mod connections;
pub(crate) mod frame;
pub(crate) mod server;

use onefold_api::{Error, Versioned};
use serde::{Deserialize, Serialize};
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The header with the request of an import or export; the body is the image.
pub(crate) const REQUEST_HEADER: &str = "onefold-request";

/// The beginning of the error for a request that the daemon cannot parse.
pub(crate) const NOT_UNDERSTOOD: &str = "cannot understand the request";

/// The header of an export's reply with the volume's size in bytes.
pub(crate) const SIZE_HEADER: &str = "onefold-size-bytes";

/// A line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event<R> {
    /// Progress of the request.
    Progress {
        /// Units finished.
        done: u64,
        /// Total number of units.
        all: u64,
    },
    /// The result; the last line.
    Result(Versioned<R>),
    /// The error; the last line.
    Error(Error),
}

/// The file name of the control socket.
const SOCKET: &str = "control.sock";

/// The path of a pool's control socket.
pub(crate) fn socket_path(pool: &Path) -> PathBuf {
    pool.join(SOCKET)
}

/// Other paths of a pool's control socket. A daemon uses the first of these directories in which it can
/// create the socket, if the pool's own directory has no room for it.
pub(crate) fn other_socket_paths(pool: &Path) -> Vec<PathBuf> {
    let directories = runtime_directories(pool).into_iter();
    directories
        .map(|directory| directory.join(SOCKET))
        .collect()
}

/// Directories for sockets for which the pool's directory has no room. They are in memory, and named after
/// the device and inode of the pool's directory, so that every path to it leads to the same ones.
pub(crate) fn runtime_directories(pool: &Path) -> Vec<PathBuf> {
    let Ok(metadata) = fs::metadata(pool) else {
        return Vec::new();
    };
    let of_pool = format!("onefold/{:x}-{:x}", metadata.dev(), metadata.ino());
    let of_user = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let of_owner = Path::new("/run/user").join(metadata.uid().to_string());
    let parents = of_user.into_iter().chain(["/run".into(), of_owner]);
    let absolute = parents.filter(|parent| parent.is_absolute());
    absolute.map(|parent| parent.join(&of_pool)).collect()
}
