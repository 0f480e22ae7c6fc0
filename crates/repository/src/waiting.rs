//! How a command waits for other processes: the lease timeout, the message, and interruption by the user.

use std::fmt;
use std::time::Duration;

use crate::error::{RepositoryError, RepositoryErrorKind, Result};

/// The default lease timeout: a holder whose process is not visible from here loses its lease after this time without a
/// heartbeat. Network file systems may show a file's state of up to a minute ago.
const LEASE_TIMEOUT: Duration = Duration::from_secs(120);

/// How a command waits for other processes.
pub struct Waiting {
    lease_timeout: Duration,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    is_interrupted: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Waits silently and without interruption.
impl Default for Waiting {
    fn default() -> Self {
        Self::new(|_| (), || false)
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Waiting");
        shown
            .field("lease_timeout", &self.lease_timeout)
            .finish_non_exhaustive()
    }
}

impl Waiting {
    /// Before it waits, a command calls `tell` once with the reason; many times a second, it asks `is_interrupted`
    /// whether to stop waiting.
    pub fn new(
        tell: impl Fn(&str) + Send + Sync + 'static,
        is_interrupted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            lease_timeout: LEASE_TIMEOUT,
            tell: Box::new(tell),
            is_interrupted: Box::new(is_interrupted),
        }
    }

    /// Sets the lease timeout.
    #[must_use]
    pub fn with_lease_timeout(self, lease_timeout: Duration) -> Self {
        Self {
            lease_timeout,
            ..self
        }
    }

    pub(crate) fn lease_timeout(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if crate::simulation::boot().is_some() {
            return Duration::from_millis(1);
        }
        self.lease_timeout
    }

    /// Reports the reason for waiting.
    pub(crate) fn say(&self, what: &str) {
        (self.tell)(what);
    }

    /// Fails if the user has interrupted the command.
    pub(crate) fn check_interrupted(&self, when: fmt::Arguments<'_>) -> Result<()> {
        if (self.is_interrupted)() {
            let message = format!("interrupted {when}");
            Err(RepositoryError::new(
                RepositoryErrorKind::Interrupted,
                message,
            ))
        } else {
            Ok(())
        }
    }
}
