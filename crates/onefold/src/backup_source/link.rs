//! Access to a pool for commands that take hours: it survives a restart of the daemon, as guests do.

use crate::output::Output;
use crate::session::Session;
use onefold_api::{ErrorKind, Request, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest absence of the daemon. Upgrading the package takes less, and a host that has lost its daemon
/// for good should not look busy all night.
const AWAY_MAX: Duration = Duration::from_secs(300);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Access to a pool that waits while the daemon is away.
#[derive(Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) session: &'a Session,
    pub(super) output: &'a Output,
    pub(super) interrupted: &'a AtomicBool,
}

impl Link<'_> {
    /// Carries out a request that may safely run twice.
    pub(super) fn call<R: Request>(&self, request: &R) -> Result<R::Reply> {
        self.outlast(|| self.session.call(request, &mut |_, _| {}))
    }

    /// Retries while the daemon is away.
    pub(super) fn outlast<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut away_since = None;
        loop {
            let error = match attempt() {
                Err(error) if error.kind == ErrorKind::Lost => error,
                done => return done,
            };
            let is_first = away_since.is_none();
            let since = *away_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= AWAY_MAX || self.interrupted.load(Ordering::Relaxed) {
                return Err(error);
            }
            if is_first {
                let minutes = AWAY_MAX.as_secs() / 60;
                self.output.note(format_args!(
                    "{error}; the backup waits up to {minutes} minutes for it to start again"
                ));
            }
            thread::sleep(PAUSE);
        }
    }
}
