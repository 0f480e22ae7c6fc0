//! Figures: what a pool and its volumes hold, and what each holds alone.

mod data;
mod scan;
mod stat;
mod usage;

use std::sync::Arc;

use onefold_engine::Engine;
use onefold_metadata::sync::Mutex;

use crate::pool::Pool;

pub use data::{Data, Locality};
pub use stat::{MemoryStat, PoolStat, SnapshotStat, VolumeStat};
pub use usage::Usage;
use usage::Usages;

/// Scans of the maps, and their results: see [`Store::accounting`](crate::Store::accounting).
pub struct Accounting {
    pool: Arc<Pool>,
    engine: Arc<dyn Engine>,
    /// Results of the last scan of the maps for volumes and snapshots.
    usages: Mutex<Usages>,
}

impl Accounting {
    pub(crate) fn new(pool: Arc<Pool>, engine: Arc<dyn Engine>) -> Self {
        Self {
            pool,
            engine,
            usages: Mutex::default(),
        }
    }
}
