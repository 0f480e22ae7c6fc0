//! A thread that runs the store's housekeeping, about once a second and whenever much is due.

use crate::limits::{COMMIT_INTERVAL, HOUSEKEEPING_INTERVAL};
use onefold_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Runs until dropped.
pub(super) struct Housekeeping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeping {
    pub(super) fn start(store: Arc<Store>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut committed = Instant::now();
            while !stopped.load(Ordering::Acquire) {
                store.wait_until_due(HOUSEKEEPING_INTERVAL);
                let commits = committed.elapsed() >= COMMIT_INTERVAL;
                if commits {
                    committed = Instant::now();
                }
                // Clients of an affected volume get their own errors; this is for the log.
                if let Err(error) = store.tidy(commits) {
                    tracing::error!(%error, "housekeeping failed");
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}
