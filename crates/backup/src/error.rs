//! Failures of a backup.

use std::io;
use std::path::PathBuf;

use onefold_repository::{RepositoryError, RepositoryErrorKind};

/// The result of making or restoring a backup.
pub type Result<T> = std::result::Result<T, BackupError>;

/// Why a backup was not made, or not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// An operation on the repository failed.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The source cannot be read.
    #[error("cannot read the source: {0}")]
    Source(String),
    /// The source changed while it was read.
    #[error(
        "block {block} of the source changed while it was read; back up a snapshot, or a disk that nobody \
         writes"
    )]
    Changed {
        /// The number of the block on the disk.
        block: u64,
    },
    /// Blocks of the backup cannot be read.
    #[error("{} of the backup cannot be restored: {error}", places(*block, *blocks))]
    Damaged {
        /// The first affected block.
        block: u64,
        /// How many consecutive blocks cannot be read for the same reason.
        blocks: u64,
        /// Why they cannot be read.
        error: RepositoryError,
    },
    /// A pack cannot be read, so it is not known which popular blocks it refers to.
    #[error(
        "{0}; it may refer to any popular block, so none is removed: put the pack back, or forget the backups that \
         'onefold backup verify' names and prune their source"
    )]
    UnknownMoves(String),
    /// The temporary files may not fit.
    #[error(
        "its temporary files may take {} MiB, and {folder:?} has {} MiB free: give another folder with --temp, or back up \
         fewer disks at once", .needed_bytes.div_ceil(1 << 20), .free_bytes >> 20
    )]
    NoRoom {
        /// The folder of the temporary files.
        folder: PathBuf,
        /// The most bytes that the temporary files may take.
        needed_bytes: u64,
        /// Free bytes in the folder.
        free_bytes: u64,
    },
    /// A temporary file cannot be created, read or written.
    #[error("cannot use a temporary file: {0}{remedy}", remedy = remedy(.0))]
    Temporary(#[from] io::Error),
    /// Backing up one of several disks failed.
    #[error("'{name}': {error}")]
    OfDisk {
        /// The name of the disk's source.
        name: String,
        /// Why the disk cannot be backed up.
        error: Box<BackupError>,
    },
    /// The receiver of a restore stopped it.
    #[error("{0}")]
    Receiver(String),
    /// The host of the disks failed.
    #[error(transparent)]
    Host(Box<dyn std::error::Error + Send + Sync>),
    /// The repository, or this host's memory of it, does not allow the request.
    #[error("{message}")]
    Refused {
        /// The kind of the refusal.
        kind: RepositoryErrorKind,
        /// The object and a remedy.
        message: String,
    },
}

fn places(block: u64, blocks: u64) -> String {
    match blocks {
        0 | 1 => format!("block {block}"),
        _ => format!("blocks {block} to {}", block + blocks - 1),
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::NotFound => {
            "; --temp names the folder for them"
        }
        _ => "",
    }
}

/// The error for a backup thread that panicked.
pub(crate) fn stopped() -> BackupError {
    BackupError::Temporary(io::Error::other("a thread of the backup ended early"))
}

impl BackupError {
    /// The error for a request that is refused.
    pub fn refused(kind: RepositoryErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Refused { kind, message }
    }

    /// The error of the host of the disks.
    pub fn of_host(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Host(Box::new(error))
    }

    /// The error for a request that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::refused(RepositoryErrorKind::Invalid, message)
    }

    /// A failure of no special kind.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::refused(RepositoryErrorKind::Io, message)
    }

    /// The kind of the failure, by which callers choose what to do.
    #[must_use]
    pub fn kind(&self) -> RepositoryErrorKind {
        match self {
            Self::Repository(error) => error.kind(),
            Self::Refused { kind, .. } => *kind,
            Self::Damaged { .. } => RepositoryErrorKind::Damaged,
            Self::NoRoom { .. } => RepositoryErrorKind::NoSpace,
            _ => RepositoryErrorKind::Io,
        }
    }

    /// Puts words before the message, and keeps the kind.
    pub(crate) fn within(self, what: impl std::fmt::Display) -> Self {
        Self::refused(self.kind(), format!("{what}: {self}"))
    }

    /// Whether the error says that an object of the repository is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Repository(error) => error.kind() == RepositoryErrorKind::Damaged,
            Self::Damaged { .. } => true,
            _ => false,
        }
    }
}
