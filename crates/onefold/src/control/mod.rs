//! The control interface: HTTP and JSON on `DIR/control.sock`.
//!
//! `POST` to a verb's path with its request as JSON. The answer is a line of JSON for each
//! [`Event`]: any number of progress reports, then the result or an error. An import sends its
//! request in a header and the image as the body; an export answers with the image. Both are made
//! of the [`frame`]s that carry pieces.
//!
//! Only the owner of the socket can connect to it, so whoever can is allowed everything.

pub(crate) mod client;
pub(crate) mod frame;
pub(crate) mod server;

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where the request of an import or export is, its body being the image.
pub(crate) const REQUEST_HEADER: &str = "onefold-request";

/// Where the answer of an export names the size of the volume in bytes.
pub(crate) const SIZE_HEADER: &str = "onefold-size-bytes";

/// One line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event<R> {
    /// How far it has come.
    Progress {
        /// Units finished.
        done: u64,
        /// Units in all.
        all: u64,
    },
    /// It worked; the last line.
    Result(R),
    /// It did not; the last line.
    Error(Error),
}

/// Where a pool's control socket is.
pub(crate) fn socket_path(pool: &Path) -> PathBuf {
    pool.join("control.sock")
}
