//! A thread that runs the store's housekeeping, about once a second and whenever much is due, and logs how well the pool is.

use crate::limits::{COMMIT_INTERVAL, HOUSEKEEPING_INTERVAL};
use onefold_api::{Health, PoolState, Problem, Service};
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
    pub(super) fn start(service: Service) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let store = Arc::clone(&service.store);
            let (mut committed, mut verdict) = (Instant::now(), Health::default());
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
                if commits {
                    let now = service.health();
                    log_news(&verdict, &now);
                    verdict = now;
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

/// Logs what has become wrong, and that nothing is any more.
fn log_news(before: &Health, now: &Health) {
    let news = now.problems.iter().filter(|it| !before.has(it.reason));
    for Problem { reason, message } in news {
        match reason.state() {
            PoolState::NotReady => tracing::error!("the pool is not ready: {message}"),
            PoolState::Degraded | PoolState::Ok => {
                tracing::warn!("the pool is degraded: {message}");
            }
        }
    }
    match (before.state(), now.state()) {
        (PoolState::Degraded | PoolState::NotReady, PoolState::Ok) => {
            tracing::info!("the pool is well again");
        }
        (PoolState::NotReady, PoolState::Degraded) => tracing::info!("the pool is ready again"),
        _ => {}
    }
}
