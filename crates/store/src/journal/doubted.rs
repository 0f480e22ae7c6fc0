//! Blocks that perhaps do not hold what was written to them.
//!
//! A sync that fails may leave the disk without what was written, and the host's cache keeps that only as
//! long as it likes. A block that was new then shows what its last owner left: another volume's data,
//! perhaps in the place of flushed bytes of this one, for a write to part of a block copies the rest.
//! So reads of such blocks fail until the pool is opened again, which goes back to what is durable. A
//! block that was rewritten in place has an older content of its own at worst.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use onefold_format::{Record, record};

use super::log::Tail;
use crate::guard::Guard;
use crate::sync::{RwLock, read, write};

/// Where each run begins, and where it ends.
#[derive(Default)]
pub(super) struct Doubted(RwLock<BTreeMap<u64, u64>>);

impl Doubted {
    /// A sync of the data failed: the new blocks that these records name are not believed.
    pub(super) fn add(&self, tail: &Tail) {
        let mut runs = write(&self.0);
        let records = tail.frames().flat_map(record::decode_all);
        for record in records.filter_map(std::result::Result::ok) {
            if let Record::Map { count, new, .. } = record
                && let Some(start) = new.pba()
            {
                runs.insert(start.0, start.0 + u64::from(count));
            }
        }
    }

    /// Refuses what was read of blocks whose content may be another's.
    pub(super) fn check(&self, blocks: &Range<u64>) -> io::Result<()> {
        if !Guard::DoubtedNotRead.holds() || !self.contains_any(blocks) {
            return Ok(());
        }
        Err(io::Error::other(
            "it was written before a sync of the data failed, so the disk may not have it; what is \
             durable can be read once the pool is opened again",
        ))
    }

    fn contains_any(&self, blocks: &Range<u64>) -> bool {
        let runs = read(&self.0);
        let last = runs.range(..blocks.end).next_back();
        last.is_some_and(|(_, end)| *end > blocks.start)
    }
}
