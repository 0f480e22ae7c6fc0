//! How connections end.

use crate::send_queue::Broken;
use crate::wire::NotARequest;
use std::io;

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// Earlier requests are still answered.
    #[error("the stream ended in the middle of a request")]
    CutShort,
    #[error("{0}")]
    NotARequest(#[from] NotARequest),
    #[error("the client does not take its replies")]
    Broken,
    #[error("a request panicked")]
    Panicked,
    /// Earlier requests are still answered.
    #[error("the server stops while a request of the client waits for space")]
    Unanswered,
    #[error("a read failed after its reply had begun")]
    ReplyCutOff,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ConnectionError::CutShort,
            _ => ConnectionError::Io(error),
        }
    }
}

impl From<Broken> for ConnectionError {
    fn from(Broken: Broken) -> Self {
        ConnectionError::Broken
    }
}

impl ConnectionError {
    /// Whether requests in progress get no reply.
    pub(crate) fn cuts_off(&self) -> bool {
        !matches!(
            self,
            ConnectionError::CutShort | ConnectionError::Unanswered
        )
    }
}
