//! Receives the pieces of an export for a file.

use onefold_api::transfer::{Chunk, Piece, PieceReceiver};
use onefold_api::{Error, Report, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Receives an export's pieces, reports progress, and passes them to `write`. Returns the number of bytes;
/// fails if it is `interrupted`.
pub(super) fn receive(
    size_bytes: u64,
    pieces: &mut PieceReceiver,
    interrupted: &AtomicBool,
    report: Report<'_>,
    write: &mut dyn FnMut(&Chunk) -> Result<()>,
) -> Result<u64> {
    let mut written_bytes = 0;
    loop {
        match pieces.blocking_recv() {
            None => return Err(Error::failed("the export was interrupted")),
            Some(Err(error)) => return Err(error),
            Some(Ok(Piece::End { .. })) => return Ok(written_bytes),
            Some(Ok(Piece::Data(_))) if interrupted.load(Ordering::Relaxed) => {
                return Err(Error::failed("interrupted; the export is not complete"));
            }
            Some(Ok(Piece::Data(chunk))) => {
                write(&chunk)?;
                written_bytes += chunk.as_ref().len() as u64;
                report(chunk.offset + chunk.as_ref().len() as u64, size_bytes);
            }
        }
    }
}
