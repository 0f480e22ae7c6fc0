//! Deduplication: blocks are published in the index, equal ones become one, and references given up are
//! released. The index is rebuilt from the maps where it is lost.
//!
//! The finder and the collector announce what they are about to ask of the index, and settle what it
//! answered, so that a crash repeats both without counting anything twice (P4).

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
