//! The log after the last frame that replay could read: nothing, the rest of a commit that was cut
//! short, or damage.
//!
//! Positions never repeat, so a frame at its own position after the end was written after
//! everything that was replayed. Its commit and session decide the case:
//!
//! - A later commit was written only after the one at the end was durable: damage.
//! - A frame of the newest session belongs to a commit that was in progress, or was damaged since.
//!   The two cannot be distinguished, so it is reported.
//! - A frame of an older session was found, and reported, by the opening that ended that session.
//!
//! Frames of another pool anywhere in the ring make it the log of another pool.

use onefold_format::PoolId;
use onefold_format::frame::{self, FRAME_HEADER_BYTES};
use onefold_format::units::SECTOR_BYTES;
use onefold_metadata::{Guard, Result, StoreError};

use super::log::{LogMark, LogReader};

/// A commit at the end of the log of which some frames are missing or do not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncompleteCommit {
    /// The commit's number.
    pub commit: u64,
    /// The position in the log from which it could not be replayed.
    pub position: u64,
    /// Bytes of log from there to the end of the last frame that can still be recognised: an upper
    /// bound for the records in them. 0 if there is no such frame.
    pub bytes: u64,
}

/// Where replay ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) mark: LogMark,
    /// Session of the last replayed frame; 0 if there was none.
    pub(super) session: u64,
    /// The last replayed frame completed its commit.
    pub(super) is_commit_whole: bool,
    /// The highest session that a frame can have.
    pub(super) newest_session: u64,
}

/// The content found after the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Behind {
    pub(super) incomplete: Option<IncompleteCommit>,
    /// The ring has frames of this pool, of any age.
    pub(super) has_frames: bool,
}

/// Checks that the log has the superblock's length.
pub fn check_length(found: u64, log_bytes: u64, name: &str) -> Result<()> {
    if found == log_bytes {
        return Ok(());
    }
    Err(StoreError::damaged(format!(
        "{name} has {found} bytes, the pool's log {log_bytes}: it was cut, or is not this pool's; \
         {}",
        remedy(log_bytes)
    )))
}

/// The remedy for a log that belongs to another pool.
fn remedy(log_bytes: u64) -> String {
    format!(
        "put the pool's own log back; if that is lost, an empty file of {log_bytes} bytes in its \
         place gives the state of the last checkpoint, without the data flushed since (which is \
         nothing if the pool was closed)"
    )
}

/// Scans the whole ring after the end.
///
/// # Errors
///
/// `Damaged` if the log cannot end here, or if the ring has frames of another pool; `Io`.
pub(super) fn examine(reader: &mut LogReader<'_>, end: &End) -> Result<Behind> {
    let (start, pool) = (end.mark.position, reader.pool());
    let mut behind = Behind::default();
    let mut last = resembling(reader, end)?;
    for at in (start..start + reader.ring_bytes()).step_by(SECTOR_BYTES as usize) {
        let head = reader.bytes(at, FRAME_HEADER_BYTES)?;
        let Some(claimed) = frame::claimed_pool(head) else {
            continue;
        };
        if claimed != pool {
            check_not_foreign(reader, at, claimed)?;
            continue;
        }
        behind.has_frames = true;
        let Ok(found) = frame::decode_header(head, claimed) else {
            continue;
        };
        let header = found.header;
        if header.position != at || at == start {
            continue;
        }
        let is_later = header.commit > end.mark.commit + 1
            || header.commit == end.mark.commit + 1 && end.is_in_commit_of(header.session);
        if is_later && Guard::GapIsDamage.holds() && reader.frame(at)?.is_ok() {
            return Err(StoreError::damaged(format!(
                "the log has a bad frame at {start}, but commits behind it (at {at}): what is in \
                 between is lost; restore the pool from a copy"
            )));
        }
        if header.session >= end.newest_session {
            last = Some(at + frame::frame_bytes(found.payload_bytes));
        }
    }
    let is_cut_short = !end.is_commit_whole && end.session >= end.newest_session;
    behind.incomplete = (last.is_some() || is_cut_short).then(|| IncompleteCommit {
        commit: end.mark.commit + u64::from(end.is_commit_whole),
        position: start,
        bytes: last.map_or(0, |last| last - start),
    });
    Ok(behind)
}

impl End {
    /// Whether the session is the one that wrote the beginning of the commit at the end: later
    /// frames of the same session are then of that commit, or prove that all of it was durable.
    fn is_in_commit_of(&self, session: u64) -> bool {
        !self.is_commit_whole && self.session == session
    }
}

/// The end of the frame whose damaged header is at the log's end, if there is one.
fn resembling(reader: &mut LogReader<'_>, end: &End) -> Result<Option<u64>> {
    let (pool, mark) = (reader.pool(), end.mark);
    let head = reader.bytes(mark.position, FRAME_HEADER_BYTES)?;
    let found = frame::resembling(head, pool, mark.position, mark.checksum);
    let found = found.filter(|found| found.header.session >= end.newest_session);
    Ok(found.map(|found| mark.position + frame::frame_bytes(found.payload_bytes)))
}

/// Refuses the log if another pool wrote a whole frame at its end.
fn check_not_foreign(reader: &mut LogReader<'_>, at: u64, pool: PoolId) -> Result<()> {
    let ring_bytes = reader.ring_bytes();
    let found = reader.frame_of(at, pool)?;
    match found {
        Ok(position) if position % ring_bytes == at % ring_bytes => {
            Err(StoreError::damaged(format!(
                "{} is the log of the pool {pool}, not of {}: {}",
                reader.name(),
                reader.pool(),
                remedy(ring_bytes)
            )))
        }
        _ => Ok(()),
    }
}
