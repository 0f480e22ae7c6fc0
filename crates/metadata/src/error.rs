//! Errors of requests, and their messages.

use std::io;

use onefold_format::FormatError;
use onefold_index::IndexError;

/// The result of a request to the store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// The kind of a failure, by which callers decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Only with [`crate::Blocking::No`]: nothing was changed; repeat the call with
    /// [`crate::Blocking::Yes`].
    WouldBlock,
    /// The device failed.
    Io,
    /// Stored metadata is not as it was written.
    Damaged,
    /// The pool, or the device under it, has no room left.
    NoSpace,
    /// The volume has reached its quota.
    QuotaReached,
    /// The pool takes no writes: after a failure, or because a newer version wrote it.
    ReadOnly,
    /// Beyond the volume's end, or otherwise not acceptable.
    Invalid,
    /// No such volume.
    NotFound,
    /// The name is taken, or the pool exists already.
    Exists,
    /// The volume was deleted while in use, or the pool was closed.
    Gone,
    /// Cannot be done just now.
    Busy,
    /// The jobs of a group of a shared pool are paused, because the blocks of all groups are counted.
    Paused,
    /// A part of the pool is missing.
    MissingPart,
    /// Written by a newer version that this one cannot read.
    NewerFormat,
}

/// A failure: its kind, and a message with the operation, the volume, the address and a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    #[source]
    source: Option<io::Error>,
}

impl StoreError {
    /// A failure of this kind; the message is for the user.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The error of a device; lack of room has a kind of its own.
    pub fn io(what: impl std::fmt::Display, error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::NoSpace,
            _ => StoreErrorKind::Io,
        };
        Self {
            kind,
            message: format!("{what}: {error}"),
            source: Some(error),
        }
    }

    /// An error for the bytes at `place`, which are not as they were written.
    pub fn format(place: impl std::fmt::Display, error: FormatError) -> Self {
        let kind = match error {
            FormatError::Newer { .. } => StoreErrorKind::NewerFormat,
            _ => StoreErrorKind::Damaged,
        };
        Self::new(kind, format!("{place}: {error}"))
    }

    /// An error for invalid metadata or an invalid state in memory.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Damaged, message)
    }

    /// The request must be repeated by a thread that may wait.
    pub fn would_block() -> Self {
        // An empty string allocates nothing: this error is part of the ordinary course.
        Self::new(StoreErrorKind::WouldBlock, String::new())
    }

    /// Prefixes the message with the operation that failed.
    pub fn during(mut self, what: impl std::fmt::Display) -> Self {
        if self.kind != StoreErrorKind::WouldBlock {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl From<IndexError> for StoreError {
    fn from(error: IndexError) -> Self {
        let kind = match &error {
            error if error.is_storage_full() => StoreErrorKind::NoSpace,
            IndexError::Io(_) | IndexError::Failed => StoreErrorKind::Io,
            IndexError::Newer(_) => StoreErrorKind::NewerFormat,
            IndexError::Closed => StoreErrorKind::Gone,
            IndexError::WouldBlock => StoreErrorKind::WouldBlock,
            IndexError::Away { .. } => StoreErrorKind::Busy,
            _ => StoreErrorKind::Damaged,
        };
        Self::new(kind, error.to_string())
    }
}
