//! Large requests without a large buffer: piece by piece, in their connection's memory.

use crate::execution::{AttemptError, ConnectionState, Work};
use crate::export::Export;
use crate::limits::SMALL_PAYLOAD_BYTES;
use crate::reply::Batch;
use crate::request::Command;
use onefold_store::Blocking;
use std::ops::Range;

pub(crate) fn read_of(cookie: u64, range: Range<u64>) -> Work {
    let whole = false;
    Work::new(cookie, Command::Read { range, whole }, None)
}

/// Executes a request with memory of the batch; blocks if necessary.
pub(crate) fn execute_in_slot(
    shared: &ConnectionState,
    export: &dyn Export,
    batch: &mut Batch,
    work: &mut Work,
) -> Result<Vec<u8>, AttemptError> {
    let slot = batch.slot(work.command.memory_bytes());
    work.execute(shared, export, slot, Blocking::Yes)
}

/// A range in pieces that fit the connection's own memory. They end on boundaries of device blocks, so
/// that no two touch the same block.
pub(crate) fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut begin = range.start;
    std::iter::from_fn(move || {
        let piece = SMALL_PAYLOAD_BYTES as u64;
        let end = range.end.min(begin + piece - begin % piece);
        let next = (begin < end).then_some(begin..end);
        begin = end;
        next
    })
}
