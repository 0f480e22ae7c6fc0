//! The pool's blocks as its disk has them: read back, fingerprinted, listed where they are bad, and repaired.
//!
//! | file | |
//! | --- | --- |
//! | `reading.rs` | reads blocks, and notes which of them cannot be read |
//! | `fingerprinter.rs` | computes fingerprints |
//! | `fingerprints.rs` | reads blocks and computes their fingerprints; finds those under which the index has them |
//! | `listing.rs` | puts blocks that cannot be read on the list |
//! | `marks.rs` | lets other groups of a shared pool know of bad blocks |
//! | `repair.rs` | writes the content of a bad block again |

mod fingerprinter;
mod fingerprints;
mod listing;
mod marks;
mod reading;
mod repair;

use std::collections::BTreeSet;
use std::sync::Arc;

use onefold_format::Pba;
use onefold_journal::{BadBlocks, Journal};
use onefold_metadata::sync::Mutex;

pub(crate) use fingerprinter::Fingerprinter;
pub(crate) use fingerprints::Fingerprinted;
pub(crate) use listing::what_is_wrong;

/// Published and private blocks, without the maps and the index that refer to them.
pub(crate) struct Blocks {
    journal: Arc<Journal>,
    fingerprinter: Fingerprinter,
    bad: BadBlocks,
    /// Blocks that are marked in the index of a shared pool, as far as this group knows.
    marked: Mutex<BTreeSet<Pba>>,
    block_size: u64,
}

impl Blocks {
    pub(crate) fn new(
        journal: Arc<Journal>,
        fingerprinter: Fingerprinter,
        bad: BadBlocks,
        block_size: u32,
    ) -> Self {
        Self {
            journal,
            fingerprinter,
            bad,
            marked: Mutex::default(),
            block_size: block_size.into(),
        }
    }

    pub(crate) fn fingerprinter(&self) -> &Fingerprinter {
        &self.fingerprinter
    }

    /// The list of bad blocks.
    pub(crate) fn bad(&self) -> &BadBlocks {
        &self.bad
    }

    pub(crate) fn block_size(&self) -> u64 {
        self.block_size
    }
}
