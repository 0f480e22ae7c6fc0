//! Why a load ends.

use std::io;

use crate::job::Mismatch;

/// Why a load ends early.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Invalid options.
    #[error("{0}")]
    Usage(String),
    /// The target, or this machine, failed.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The target did not keep the written data.
    #[error("{0}")]
    Mismatch(Mismatch),
}

impl WorkloadError {
    pub(crate) fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io(what.into(), source)
    }

    pub(crate) fn usage(what: impl ToString) -> Self {
        Self::Usage(what.to_string())
    }
}
