//! The pause of a group's jobs during a census of the pool.
//!
//! The host that takes the census may die. So a pause has an end, which each of that host's requests puts off.

use std::time::Instant;

use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

/// Whether the jobs of a group are paused. Its lock is held briefly, and no other is taken with it.
#[derive(Default)]
pub(crate) struct Pause(Mutex<Option<Instant>>);

impl Pause {
    /// Pauses the jobs until this time.
    pub(super) fn begin(&self, until: Instant) {
        *lock(&self.0) = Some(until);
    }

    /// Puts the end off. Returns whether the pause still lasted: otherwise jobs may have run, and it stays over.
    pub(super) fn extend(&self, until: Instant) -> bool {
        let mut end = lock(&self.0);
        let lasts = end.is_some_and(|end| Instant::now() < end);
        *end = lasts.then_some(until);
        lasts
    }

    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }

    pub(super) fn is_on(&self) -> bool {
        lock(&self.0).is_some_and(|until| Instant::now() < until)
    }

    /// Refuses a job during a pause.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let message = "the pool is being checked (`pool check`), and jobs of all groups are paused until that has ended; \
                       try again then";
        Err(StoreError::new(StoreErrorKind::Paused, message))
    }
}
