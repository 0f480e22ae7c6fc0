//! What went wrong, in one line, and the exit code that it ends in.
//!
//! Every message says what failed, where, and what the user can do about it. A message fits on one
//! line of stderr: line breaks that a lower floor put in are replaced when it is printed.

use onefold_image::ImageError;
use onefold_store::{StoreError, StoreErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::process::ExitCode;

/// The result of everything that a command does.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it was; decides the exit code, so it also travels over the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ErrorKind {
    /// The request cannot be carried out as things are.
    Failed,
    /// The request makes no sense, whatever the state of the pool.
    Usage,
    /// Stored metadata is not what was written.
    Damaged,
}

/// A failure as the user sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Error {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

impl Error {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Failed,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Usage,
            message: message.into(),
        }
    }

    /// A failed system call, with what was being done to what.
    pub(crate) fn io(what: impl fmt::Display, source: &io::Error) -> Self {
        Self::failed(format!("{what}: {source}"))
    }

    /// The exit code outside `pool check`, where damage is a failure like any other.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self.kind {
            ErrorKind::Failed | ErrorKind::Damaged => ExitCode::from(1),
            ErrorKind::Usage => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message.replace(['\n', '\r'], " "))
    }
}

impl std::error::Error for Error {}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind() {
            StoreErrorKind::Invalid => ErrorKind::Usage,
            StoreErrorKind::Damaged => ErrorKind::Damaged,
            _ => ErrorKind::Failed,
        };
        Self {
            kind,
            message: error.to_string(),
        }
    }
}
