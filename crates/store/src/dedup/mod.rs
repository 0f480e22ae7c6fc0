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

pub use collector::COLLECT_BATCH_BLOCKS;
pub use counting::HitsHeld;
pub use finder::Ready;
pub(crate) use references::Window;
