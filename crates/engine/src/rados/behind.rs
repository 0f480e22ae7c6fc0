//! Writes that return before the cluster has acknowledged them. A sync returns their errors.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// In-flight writes that no caller waits for.
#[derive(Default)]
pub(super) struct Behind {
    state: Mutex<BehindState>,
    ended: Condvar,
}

#[derive(Default)]
struct BehindState {
    under_way: usize,
    /// The error of the first failed write. After it, nothing written since the last sync can be relied on.
    failure: Option<io::Error>,
}

impl Behind {
    fn state(&self) -> MutexGuard<'_, BehindState> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>) -> impl FnOnce(io::Result<()>) + Send + 'static {
        self.state().under_way += 1;
        let behind = Arc::clone(self);
        move |written| {
            let mut state = behind.state();
            state.under_way -= 1;
            if let Err(error) = written {
                state.failure.get_or_insert(error);
            }
            drop(state);
            behind.ended.notify_all();
        }
    }

    /// Fails if a write is known to have failed. The error itself is kept for the sync.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.state().failure {
            Some(error) => Err(io::Error::new(
                error.kind(),
                format!("an earlier write has failed: {error}"),
            )),
            None => Ok(()),
        }
    }

    /// Waits for all writes, including those that begin during the wait.
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut state = self.state();
        while state.under_way > 0 {
            state = (self.ended.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fail_after_a_failed_write_until_a_sync_returns_its_error() {
        let behind = Arc::new(Behind::default());
        let (fine, fails) = (behind.begin(), behind.begin());
        fine(Ok(()));
        behind.check().unwrap();
        let kind = io::ErrorKind::TimedOut;
        fails(Err(kind.into()));
        for _ in 0..2 {
            assert_eq!(behind.check().unwrap_err().kind(), kind);
        }
        assert_eq!(behind.wait().unwrap_err().kind(), kind);
        behind.check().unwrap();
        behind.wait().unwrap();
    }
}
