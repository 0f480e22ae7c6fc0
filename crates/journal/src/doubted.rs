//! Blocks that may not hold the data written to them.
//!
//! After a failed sync the disk may lack written data, and the host's cache may drop it at any
//! time. A block that was new then shows its last owner's content: another volume's data, perhaps
//! in the place of flushed bytes of this one, because a write to part of a block copies the rest.
//! So reads of such blocks fail until the pool is opened again, which compares them with the
//! checksums. A block that was rewritten in place has older content of its own at worst.

use std::io;
use std::ops::Range;

use onefold_format::record;
use onefold_metadata::Guard;

use super::block_set::BlockSet;
use super::log::Tail;
use super::new_blocks::new_blocks;

/// The new blocks of records that no sync has made durable.
#[derive(Default)]
pub(super) struct Doubted(BlockSet);

impl Doubted {
    /// Adds the new blocks of these records, after a sync of the data failed.
    pub(super) fn add(&self, tail: &Tail) {
        let records = tail.frames().flat_map(record::decode_all);
        for record in records.filter_map(std::result::Result::ok) {
            if let Some((_, run)) = new_blocks(&record) {
                self.0.add(run.start.0..run.start.0 + run.count);
            }
        }
    }

    /// Refuses data read from blocks whose content may be another volume's.
    pub(super) fn check(&self, blocks: &Range<u64>) -> io::Result<()> {
        if !Guard::DoubtedNotRead.holds() || self.0.first_within(blocks).is_none() {
            return Ok(());
        }
        Err(io::Error::other(
            "it was written before a sync of the data failed, so the disk may not have it; once the \
             pool is opened again it can be read, or is known to be lost",
        ))
    }
}
