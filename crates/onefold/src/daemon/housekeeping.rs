//! Threads: one for each store runs its housekeeping about once a second, and sooner if much is due; another
//! logs the pool's health. The health check may wait for a disk or a cluster, and commits must not wait for
//! it.

use crate::limits::{COMMIT_INTERVAL, HEALTH_INTERVAL, HOUSEKEEPING_INTERVAL};
use onefold_api::{Health, PoolState, Problem, Service};
use onefold_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A thread, which runs until this is dropped.
pub(super) struct Housekeeping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeping {
    /// Starts the housekeeping of a store.
    pub(super) fn tidy(store: Arc<Store>) -> Self {
        Self::run(move |stopped| tidy(&store, stopped))
    }

    /// Starts logging the health of the pool.
    pub(super) fn log_health(service: Service) -> Self {
        Self::run(move |stopped| log_health(&service, stopped))
    }

    fn run(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self {
            stop,
            thread: Some(thread::spawn(move || work(&stopped))),
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn tidy(store: &Store, stopped: &AtomicBool) {
    let mut committed = Instant::now();
    while !stopped.load(Ordering::Acquire) {
        store.wait_until_due(HOUSEKEEPING_INTERVAL);
        let commits = committed.elapsed() >= COMMIT_INTERVAL;
        if commits {
            committed = Instant::now();
        }
        // Clients of an affected volume receive their own errors; this is for the log.
        if let Err(error) = store.tidy(commits) {
            tracing::error!(%error, "housekeeping failed");
        }
    }
}

fn log_health(service: &Service, stopped: &AtomicBool) {
    let mut before = Health::default();
    while !stopped.load(Ordering::Acquire) {
        let now = service.health();
        log_changes(&before, &now);
        before = now;
        thread::park_timeout(HEALTH_INTERVAL);
    }
}

/// Logs each new problem, and when the last problem has ended.
fn log_changes(before: &Health, now: &Health) {
    let news = now
        .problems
        .iter()
        .filter(|problem| !before.has(problem.reason));
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
