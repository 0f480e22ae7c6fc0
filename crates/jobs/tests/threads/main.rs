//! The number of threads of background jobs. This is the only test of its process, because it counts the threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

use onefold_engine::simulated::SimulatedEngine;
use onefold_jobs::{Maintenance, MaintenanceOptions};
use onefold_store::{CreateOptions, IndexKind, OpenOptions, Store};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn new_store() -> Arc<Store> {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes: 16 << 20,
        index: IndexKind::Memory,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    Store::open(engine, &OpenOptions::default()).unwrap().0
}

/// The least number of threads at some moments: work on an idle processor has a thread of its own for a short time.
fn threads() -> usize {
    let count = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let counts = (0..50).map(|_| {
        thread::sleep(Duration::from_millis(10));
        count()
    });
    counts.min().unwrap()
}

#[test]
fn twenty_stores_have_as_many_threads_as_none() {
    let options = MaintenanceOptions {
        latency_budget: Duration::from_millis(100),
        accounting_interval: Duration::from_secs(3600),
    };
    let before = threads();
    let maintenance = Maintenance::start(options).unwrap();
    let without_stores = threads();
    assert_eq!(without_stores, before + 5);
    let stores: Vec<_> = (0..20).map(|_| new_store()).collect();
    for store in &stores {
        maintenance.add(Arc::clone(store));
    }
    assert_eq!(threads(), without_stores);
    assert_eq!(maintenance.jobs().unwrap().len(), 20, "a collector each");
    maintenance.stop();
    assert_eq!(threads(), before);
}
