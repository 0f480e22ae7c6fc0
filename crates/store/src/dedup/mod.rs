//! Deduplication: blocks are published in the index, equal ones become one, and dropped references
//! are released. A lost index is rebuilt from the maps.
//!
//! The finder, the collector and the counting of claims announce their requests to the index, and settle its answers, so a
//! crash repeats them without counting anything twice (P4).

mod claimed;
mod collector;
mod counting;
mod finder;
mod fingerprinter;
mod index;
mod index_rebuild;
mod reading;
mod references;

pub(crate) use claimed::ClaimedFingerprints;
pub use collector::{COLLECT_BATCH_BLOCKS, CollectReport};
pub(crate) use counting::ClaimsAlarm;
pub use counting::{CountReport, HitsHeld};
pub use finder::{BatchReport, Ready};
pub(crate) use fingerprinter::Fingerprinter;
pub(crate) use index::{IndexSlot, create, create_uncounted};
pub(crate) use references::Window;
