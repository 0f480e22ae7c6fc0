//! Blocks that may not hold their written data.
//!
//! After a failed sync the disk may lack written data, and the host's cache keeps it only as long
//! as it likes. A block that was new then shows its last owner's content: another volume's data,
//! perhaps in the place of flushed bytes of this one, because a write to part of a block copies the
//! rest. So reads of such blocks fail until the pool is opened again, which returns to the durable
//! state. A block that was rewritten in place has older content of its own at worst.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use onefold_format::{Record, record};
use onefold_metadata::Guard;
use onefold_metadata::sync::{RwLock, read, write};

use super::log::Tail;

/// Where each run begins, and where it ends.
#[derive(Default)]
pub(super) struct Doubted(RwLock<BTreeMap<u64, u64>>);

impl Doubted {
    /// A sync of the data failed: the new blocks of these records are not trusted.
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

    /// Refuses data read from blocks whose content may be another volume's.
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
