//! Failures, with the object and a remedy.

use std::fmt;
use std::io;

use onefold_format::FormatError;

/// The result of an operation on a repository.
pub type Result<T> = std::result::Result<T, RepositoryError>;

/// The kind of a failure, by which callers choose what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepositoryErrorKind {
    /// The request makes no sense.
    Invalid,
    /// There is no such repository, source or backup.
    NotFound,
    /// The name of a source, or the folder of a new repository, is taken.
    Exists,
    /// The source or the backup is in use by another process.
    InUse,
    /// The passphrase or the key file opens no key of the repository.
    Access,
    /// The file system is full.
    NoSpace,
    /// The repository cannot be written.
    ReadOnly,
    /// An object is missing or not authentic.
    Damaged,
    /// The user interrupted the wait.
    Interrupted,
    /// Any other failure of a system call.
    Io,
}

/// A failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct RepositoryError {
    kind: RepositoryErrorKind,
    message: String,
}

impl RepositoryError {
    pub(crate) fn new(kind: RepositoryErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The error for a failed system call.
    pub(crate) fn io(what: impl fmt::Display, source: &io::Error) -> Self {
        if source.kind() == io::ErrorKind::AlreadyExists {
            let message = format!(
                "{what}: it is there already; another process is backing up the same source, or has"
            );
            return Self::new(RepositoryErrorKind::InUse, message);
        }
        let kind = match source.kind() {
            io::ErrorKind::NotFound => RepositoryErrorKind::NotFound,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                RepositoryErrorKind::NoSpace
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                RepositoryErrorKind::ReadOnly
            }
            _ => RepositoryErrorKind::Io,
        };
        Self::new(kind, format!("{what}: {source}"))
    }

    /// The error for an object that is missing or not authentic.
    pub(crate) fn damaged(object: &str, why: impl fmt::Display) -> Self {
        let message = format!("object {object} of the repository is damaged: {why}");
        Self::new(RepositoryErrorKind::Damaged, message)
    }

    pub(crate) fn format(object: &str, error: FormatError) -> Self {
        match error {
            FormatError::Newer { .. } | FormatError::Older { .. } => Self::new(
                RepositoryErrorKind::Invalid,
                format!("object {object} of the repository cannot be read: {error}"),
            ),
            _ => Self::damaged(object, error),
        }
    }

    /// Whether the failure concerns only one object, so that the caller can continue with the others.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        matches!(
            self.kind,
            RepositoryErrorKind::Damaged | RepositoryErrorKind::NotFound | RepositoryErrorKind::Io
        )
    }

    /// The kind of this failure.
    #[must_use]
    pub fn kind(&self) -> RepositoryErrorKind {
        self.kind
    }
}
