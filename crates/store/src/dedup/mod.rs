//! Deduplication: blocks are published in the index, equal ones become one, and dropped references
//! are released. A lost index is rebuilt from the maps.
//!
//! The finder, the collector and the counting of claims announce their requests to the index, and settle its answers, so a
//! crash repeats them without counting anything twice (P4).

mod collector;
mod counting;
mod finder;
mod index_rebuild;
mod references;
mod unshare;

use std::sync::Arc;

use crate::pool::Pool;

pub use collector::COLLECT_BATCH_BLOCKS;
pub use counting::HitsHeld;
pub use finder::Ready;
pub use index_rebuild::{IndexStat, PoolIndex};
pub(crate) use references::Window;
pub use unshare::{UnsharePlan, Unsharing};

/// Finder, collector and counting of claims: see [`Store::dedup`](crate::Store::dedup).
pub struct Dedup {
    pool: Arc<Pool>,
}

impl Dedup {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool }
    }
}
