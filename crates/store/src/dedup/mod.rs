//! Deduplication: blocks are published in the index, equal ones become one, and dropped references
//! are released. A lost index is rebuilt from the maps.
//!
//! The finder and the collector announce their requests to the index, and settle its answers, so a
//! crash repeats both without counting anything twice (P4).

mod collector;
mod finder;
mod fingerprinter;
mod index;
mod index_rebuild;
mod reading;
mod references;

pub use collector::{COLLECT_BATCH_BLOCKS, CollectReport};
pub use finder::{BatchReport, Ready};
pub(crate) use fingerprinter::Fingerprinter;
pub(crate) use index::{IndexSlot, create, create_uncounted};
pub(crate) use references::Window;
