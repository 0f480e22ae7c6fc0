//! Errors with the operation and the place.

use std::error::Error;
use std::fmt;
use std::io;

/// An I/O error with its operation; shown as "reading 4096 bytes at 8192 of /x/data: ...".
#[derive(Debug)]
struct Failure {
    doing: String,
    cause: io::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.cause)
    }
}

// The cause is part of the message, so it is not offered a second time as a source.
impl Error for Failure {}

/// Adds the operation to an error, and keeps its kind.
pub(crate) fn explain(doing: impl Into<String>, cause: impl Into<io::Error>) -> io::Error {
    let cause = cause.into();
    io::Error::new(
        cause.kind(),
        Failure {
            doing: doing.into(),
            cause,
        },
    )
}
