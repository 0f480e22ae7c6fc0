//! A store for tests.

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
