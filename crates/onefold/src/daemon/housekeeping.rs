//! Two threads: one runs the store's housekeeping about once a second, and sooner if much is due; the other
//! logs the pool's health. The health check may wait for a disk or a cluster, and commits must not wait for
//! it.

use crate::limits::{COMMIT_INTERVAL, HEALTH_INTERVAL, HOUSEKEEPING_INTERVAL};
use onefold_api::{Health, PoolState, Problem, Service};
use onefold_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The two threads, which run until this is dropped.
pub(super) struct Housekeeping {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Housekeeping {
    pub(super) fn start(service: Service) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (store, stopped) = (Arc::clone(&service.store), Arc::clone(&stop));
        let tidying = thread::spawn(move || tidy(&store, &stopped));
        let stopped = Arc::clone(&stop);
        let logging = thread::spawn(move || log_health(&service, &stopped));
        Self {
            stop,
            threads: vec![tidying, logging],
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
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
