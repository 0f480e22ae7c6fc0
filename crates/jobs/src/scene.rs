//! Stores for tests.

use crate::registry::JobRegistry;
use onefold_engine::simulated::SimulatedEngine;
use onefold_store::{CreateOptions, OpenOptions, Store};
use std::sync::Arc;

/// A new pool of this size on a simulated machine, and its store.
pub(crate) fn new_store(size_bytes: u64) -> (Arc<SimulatedEngine>, Arc<Store>) {
    let engine = Arc::new(SimulatedEngine::new(1));
    let options = CreateOptions {
        size_bytes,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let (store, _) = Store::open(engine.clone(), &OpenOptions::default()).unwrap();
    (engine, store)
}

/// A registry without threads, of one store.
pub(crate) fn new_registry() -> Arc<JobRegistry> {
    let registry = Arc::new(JobRegistry::new(&Arc::default()));
    registry.add(new_store(64 << 20).1);
    registry
}
