//! A failure, as users see it.
//!
//! Every message gives the operation, the place and a remedy. A message is printed on one line of stderr:
//! line breaks from lower layers are replaced.

use std::fmt;
use std::io;

use onefold_backup::BackupError;
use onefold_repository::{RepositoryError, RepositoryErrorKind};
use onefold_store::{StoreError, StoreErrorKind};
use serde::{Deserialize, Serialize};

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure, on which programs base decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is invalid, whatever the state of the pool.
    Usage,
    /// No volume or snapshot has this name.
    NotFound,
    /// The name is taken.
    Exists,
    /// Clients, other requests or another process use the volume or pool.
    InUse,
    /// The pool, its host or a quota is out of space.
    NoSpace,
    /// The pool takes no writes.
    ReadOnly,
    /// Stored metadata is damaged.
    Damaged,
    /// The daemon went away before it replied; it is not known whether it carried the request out.
    Lost,
    /// Any other failure.
    Failed,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Error {
    /// The kind of the failure.
    pub kind: ErrorKind,
    /// The operation, the place and a remedy, on one line, for people.
    pub message: String,
}

impl Error {
    /// A failure of the given kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// A failure of no special kind.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// A failure because the request is invalid.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// A failed system call, with the operation and its object.
    #[must_use]
    pub fn io(what: impl fmt::Display, source: &io::Error) -> Self {
        Self::failed(format!("{what}: {source}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message.replace(['\n', '\r'], " "))
    }
}

impl std::error::Error for Error {}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind() {
            StoreErrorKind::Invalid => ErrorKind::Usage,
            StoreErrorKind::NotFound => ErrorKind::NotFound,
            StoreErrorKind::Exists => ErrorKind::Exists,
            StoreErrorKind::Busy | StoreErrorKind::Paused => ErrorKind::InUse,
            StoreErrorKind::NoSpace | StoreErrorKind::QuotaReached => ErrorKind::NoSpace,
            StoreErrorKind::ReadOnly => ErrorKind::ReadOnly,
            StoreErrorKind::Damaged => ErrorKind::Damaged,
            _ => ErrorKind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<RepositoryErrorKind> for ErrorKind {
    fn from(kind: RepositoryErrorKind) -> Self {
        match kind {
            RepositoryErrorKind::Invalid => Self::Usage,
            RepositoryErrorKind::NotFound => Self::NotFound,
            RepositoryErrorKind::Exists => Self::Exists,
            RepositoryErrorKind::InUse => Self::InUse,
            RepositoryErrorKind::NoSpace => Self::NoSpace,
            RepositoryErrorKind::ReadOnly => Self::ReadOnly,
            RepositoryErrorKind::Damaged => Self::Damaged,
            _ => Self::Failed,
        }
    }
}

impl From<RepositoryError> for Error {
    fn from(error: RepositoryError) -> Self {
        Self::new(error.kind().into(), error.to_string())
    }
}

impl From<BackupError> for Error {
    fn from(error: BackupError) -> Self {
        if let BackupError::Host(host) = &error
            && let Some(own) = host.downcast_ref::<Self>()
        {
            return own.clone();
        }
        Self::new(error.kind().into(), error.to_string())
    }
}
