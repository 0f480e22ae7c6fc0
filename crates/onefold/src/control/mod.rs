//! The control interface: HTTP and JSON on `DIR/control.sock`.
//!
//! `POST` to a request's path with the request as JSON. The answer is a line of JSON for each
//! [`Event`]: any number of progress reports, then the result or an error. An import sends its
//! request in a header and the image as the body; an export answers with the image. Both are made
//! of the [`frame`]s that carry pieces.
//!
//! Only the owner of the socket can connect to it, so every client is allowed everything. If the
//! pool's directory has no room for a socket, it is in one of [`runtime_directories`].

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

/// Where the request of an import or export is, its body being the image.
pub(crate) const REQUEST_HEADER: &str = "onefold-request";

/// How the refusal of a request begins that a daemon cannot read.
pub(crate) const NOT_UNDERSTOOD: &str = "cannot understand the request";

/// The header of an export's reply with the size of the volume in bytes.
pub(crate) const SIZE_HEADER: &str = "onefold-size-bytes";

/// One line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event<R> {
    /// Its progress.
    Progress {
        /// Units finished.
        done: u64,
        /// Units in all.
        all: u64,
    },
    /// It worked; the last line.
    Result(Versioned<R>),
    /// It did not; the last line.
    Error(Error),
}

/// The name of the control socket.
const SOCKET: &str = "control.sock";

/// Where a pool's control socket is.
pub(crate) fn socket_path(pool: &Path) -> PathBuf {
    pool.join(SOCKET)
}

/// Where it may be too: a daemon puts it into the first of these directories that takes it, if the
/// pool's own has no room for it.
pub(crate) fn other_socket_paths(pool: &Path) -> Vec<PathBuf> {
    let directories = runtime_directories(pool).into_iter();
    directories.map(|it| it.join(SOCKET)).collect()
}

/// Directories for sockets that the pool's directory has no room for. They are in memory, and named
/// after the pool's directory as the kernel identifies it, so that every path to it leads to the
/// same.
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
