//! What ends a load.

use std::io;

use crate::job::Mismatch;

/// What ends a load before its time.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The target, or this machine, failed.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The target has not kept what was written.
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
