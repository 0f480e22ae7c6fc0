//! The failure after which a pool takes no more writes (P8).
//!
//! The first failure is kept, and ends with the process: the state of the disk is known again only
//! once the pool has been opened again.

use std::sync::OnceLock;

use onefold_metadata::{Guard, StoreError, StoreErrorKind};

/// The first failure after which nothing may be written, if there was one.
#[derive(Default)]
pub(super) struct Failure(OnceLock<String>);

impl Failure {
    /// Stops all writes until the pool is opened again. The first reason is kept.
    pub(super) fn set(&self, error: &StoreError) {
        if self.0.set(error.to_string()).is_ok() {
            tracing::error!("the pool takes no writes from now on: {error}");
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    pub(super) fn read_only_error(&self) -> StoreError {
        let reason = self.0.get().map_or("", String::as_str);
        let message = format!("the pool takes no writes until it is opened again: {reason}");
        StoreError::new(StoreErrorKind::ReadOnly, message)
    }
}

/// Stops the pool when it is dropped during a panic: the work is half done, and the next caller
/// must not continue as if it had been completed.
pub struct StopsOnPanic<'a> {
    failure: &'a Failure,
    what: &'static str,
}

impl<'a> StopsOnPanic<'a> {
    pub(super) fn new(failure: &'a Failure, what: &'static str) -> Self {
        Self { failure, what }
    }
}

impl Drop for StopsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && Guard::PanicStopsWrites.holds() {
            let what = format!(
                "{} ended by a panic; this is a defect of onefold",
                self.what
            );
            self.failure.set(&StoreError::damaged(what));
        }
    }
}
