//! How a command waits for other processes: for how long, what it says, and whether the user has interrupted it.

use std::fmt;
use std::time::Duration;

use crate::error::{RepositoryError, RepositoryErrorKind, Result};

/// A holder that cannot be looked for has lost its lease after so long without a sign of life. Network file
/// systems may show a file of up to a minute ago.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a command waits for other processes.
pub struct Waiting {
    patience: Duration,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    is_interrupted: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Silent, and for as long as it takes.
impl Default for Waiting {
    fn default() -> Self {
        Self::new(|_| (), || false)
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Waiting");
        shown
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Waiting {
    /// Hears once what is waited for, before any waiting, and is asked many times a second whether to wait no longer.
    pub fn new(
        tell: impl Fn(&str) + Send + Sync + 'static,
        is_interrupted: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            patience: PATIENCE,
            tell: Box::new(tell),
            is_interrupted: Box::new(is_interrupted),
        }
    }

    /// After so long without a sign of life, instead of two minutes, a process is dead.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn patience(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if crate::simulation::boot().is_some() {
            return Duration::from_millis(1);
        }
        self.patience
    }

    /// Says what is waited for.
    pub(crate) fn say(&self, what: &str) {
        (self.tell)(what);
    }

    /// Fails if the user has interrupted the command.
    pub(crate) fn check_interrupted(&self, when: fmt::Arguments<'_>) -> Result<()> {
        match (self.is_interrupted)() {
            false => Ok(()),
            true => {
                let message = format!("interrupted {when}");
                Err(RepositoryError::new(
                    RepositoryErrorKind::Interrupted,
                    message,
                ))
            }
        }
    }
}
