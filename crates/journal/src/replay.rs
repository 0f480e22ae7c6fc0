//! Replay: applying the records of the log and of the tail copy when a pool is opened.

use onefold_engine::Engine;
use onefold_format::{FormatError, Record, record};
use onefold_metadata::{Guard, Maps, PbaRun, PbaRuns, Result, StoreError, Target};

use super::Journal;
use super::ledger::FoundLedger;
use super::left_behind::{Doubt, LossReport, find_lost};
use super::log::{Log, LogMark, LogReader, ReadFrame, Tail};
use super::log_end::{self, End, IncompleteCommit};
use super::losses::LossList;
use super::state::Uncommitted;
use super::tail_copy::{LeftBehind, undecodable};

/// The result of replaying the log.
#[derive(Debug, Default)]
pub struct Replayed {
    pub records: u64,
    /// Bytes of frames with records.
    pub log_bytes: u64,
    /// The commit at the log's end, if it is incomplete.
    pub incomplete_commit: Option<IncompleteCommit>,
    /// There were commits, but none of them is left in the log.
    pub is_log_replaced: bool,
    /// The session that is closed at the log's end.
    pub closed_session: Option<u64>,
}

/// The process that had the pool before, and the list for its losses.
pub struct Predecessor<'a> {
    /// The predecessor's ledger.
    pub ledger: FoundLedger,
    /// Whether the predecessor closed its session.
    pub is_closed: bool,
    /// The host reports writes that it has lost since the pool was last opened.
    pub host_reports_losses: bool,
    /// The known losses of the pool.
    pub losses: &'a LossList,
    /// The engine in which the list is created.
    pub engine: &'a dyn Engine,
}

/// The result of taking over from the previous process.
#[derive(Debug, Default)]
pub struct TakenOver {
    /// Records that the log lacked.
    pub records: u64,
    /// The result of the comparison, if a sync may have failed.
    pub losses: Option<LossReport>,
}

impl Journal {
    /// Replays the log from the root's position on.
    pub fn replay(&self, is_later_minor: bool) -> Result<Replayed> {
        let mut report = Replayed::default();
        let mut closed_session = None;
        let newest_session = self.root.lock().session;
        loop {
            let log = self.commits.lock();
            let mut reader = log.reader();
            let mut end = log.end;
            let mut session = log.session;
            let mut is_commit_whole = true;
            let is_full = loop {
                let next = next_frame(&mut reader, end, session, is_commit_whole)?;
                let Some((frame, payload)) = next else {
                    break false;
                };
                let at = end.position;
                let is_closing = payload.is_empty();
                let replayed = self
                    .replay_frame(payload)
                    .map_err(|error| error.during(format_args!("replaying the log at {at}")))?;
                report.records += replayed;
                if !is_closing {
                    report.log_bytes += frame.bytes;
                }
                closed_session = is_closing.then_some(frame.header.session);
                session = frame.header.session;
                is_commit_whole = frame.header.last;
                end = frame.end();
                // Only between commits: a root cannot start replay inside one. The changes of one
                // commit were bounded when it was written.
                if is_commit_whole && !is_later_minor && self.needs_checkpoint()? {
                    break true;
                }
            };
            if !is_full {
                let behind = log_end::examine(
                    &mut reader,
                    &End {
                        mark: end,
                        session,
                        is_commit_whole,
                        newest_session,
                    },
                )?;
                report.incomplete_commit = behind.incomplete;
                report.is_log_replaced = end.commit > 0 && !behind.has_frames;
            }
            drop(log);
            let mut log = self.commits.lock();
            log.end = end;
            log.session = session;
            drop(log);
            self.log_span.set_end(end.position);
            if !is_full {
                report.closed_session = closed_session;
                return Ok(report);
            }
            // Memory is bounded here as well: a checkpoint takes the changes replayed so far.
            self.checkpoint()?;
        }
    }

    /// Replays a frame. Blocks that durable records released are free at once: there are no readers
    /// yet.
    fn replay_frame(&self, payload: &[u8]) -> Result<u64> {
        let mut uncommitted = self.state.uncommitted()?;
        let mut released = PbaRuns::new();
        let count = apply_all(&self.state.maps, payload, &mut uncommitted, &mut released)?;
        for run in released {
            uncommitted.metadata.space_mut().release(run)?;
        }
        Ok(count)
    }

    /// Takes over the requests that a dead process had answered and not made durable, and makes them
    /// durable (P12). If a sync may have failed, finds its losses, and lists them first.
    ///
    /// The log has been replayed, and the host's cache has been synced. Records become frames at the
    /// very positions for which they were meant. So if this process dies as well, the next one can see
    /// from the log's end which of them are still missing.
    ///
    /// # Errors
    ///
    /// `Damaged` if the tail copy cannot be decoded, unless the session `is_closed`: then the log has
    /// everything.
    pub fn take_over_tail(&self, from: &Predecessor<'_>) -> Result<TakenOver> {
        let end = self.commits.lock().end.position;
        self.state.uncommitted()?.tail = Tail::new(end);
        let mut left = Vec::new();
        let mut ledger = None;
        if !from.is_closed {
            left = self.state.uncommitted()?.copy.left_behind()?;
            let found = from.ledger.as_ref();
            ledger = found
                .map_err(|error| undecodable(&format!("the ledger: {error}")))?
                .as_ref();
        }
        if Guard::TailMatchedToLog.holds() {
            left.retain(|entry| entry.position >= end);
        }
        let doubt = Doubt::new(ledger, from.host_reports_losses, from.is_closed);
        let unsynced = ledger.map_or(&[][..], |ledger| &ledger.unsynced);
        let marks = self.rewritten.left_behind();
        let lost = find_lost(&self.state, &left, &marks, unsynced, &doubt)?;
        if lost.report.has_failed {
            let volumes = lost.volumes.iter().copied();
            from.losses.add(self, from.engine, &lost.blocks, volumes)?;
        }
        if doubt != Doubt::None && !lost.report.has_failed {
            tracing::info!(
                "the last process died during a sync of the data; {} new blocks were compared \
                 with the disk, which has them all",
                lost.report.compared_blocks
            );
        }
        let records = self.apply_left_behind(&left)?;
        from.losses.quarantine(self)?;
        if records > 0 {
            // Their data was synced when the pool was opened; with the flag, the commit syncs it like
            // any other.
            self.state.data.mark_unsynced();
            self.commit()?;
            self.reuse.reclaim()?;
        }
        let end = self.commits.lock().end.position;
        self.state.uncommitted()?.copy.begin_session(end);
        self.state.ledger.begin_session();
        Ok(TakenOver {
            records,
            losses: (doubt != Doubt::None).then_some(lost.report),
        })
    }

    /// Applies the records that the log lacks, and returns their number.
    fn apply_left_behind(&self, left: &[LeftBehind]) -> Result<u64> {
        let mut count = 0;
        for frame in left.chunk_by(|a, b| a.position == b.position) {
            let mut uncommitted = self.state.uncommitted()?;
            let (position, expected) = (frame[0].position, uncommitted.tail.end());
            if position != expected && Guard::TailMatchedToLog.holds() {
                tracing::warn!(
                    "an earlier process left records for the log at {position}, but the log goes on \
                     at {expected}: they are ignored"
                );
                break;
            }
            let records = frame.iter().flat_map(|entry| &entry.records);
            let records: Vec<u8> = records.copied().collect();
            let mut released = std::mem::take(&mut uncommitted.tail.released);
            let applied = apply_all(&self.state.maps, &records, &mut uncommitted, &mut released);
            count += applied.map_err(|error| {
                error.during(format_args!(
                    "taking over what an earlier process had answered, for the log at {position}"
                ))
            })?;
            uncommitted.tail.released = released;
            uncommitted.tail.append_frame(records);
            drop(uncommitted);
            if self.needs_checkpoint()? {
                self.checkpoint()?;
            }
        }
        Ok(count)
    }

    /// Ends recovery: everything in the log and in the tail copy has been applied.
    pub fn end_recovery(&self) -> Result<()> {
        self.state.uncommitted()?.metadata.end_recovery();
        Ok(())
    }
}

/// Applies encoded records, after taking the new blocks in them. Returns the number of records.
fn apply_all(
    maps: &Maps,
    payload: &[u8],
    uncommitted: &mut Uncommitted,
    released: &mut PbaRuns,
) -> Result<u64> {
    let mut count = 0;
    for record in record::decode_all(payload) {
        let record = record.map_err(|error| StoreError::format("a record", error))?;
        if let Record::Map { count, new, .. } = &record
            && let Some(start) = new.own_pba()
        {
            uncommitted.metadata.space_mut().take(PbaRun {
                start,
                count: u64::from(*count),
            })?;
        }
        let mut target = Target {
            maps,
            metadata: &mut uncommitted.metadata,
            released,
        };
        target.apply(&record)?;
        count += 1;
    }
    Ok(count)
}

/// The frame that follows the frames read so far, if there is one.
fn next_frame<'a>(
    reader: &'a mut LogReader<'_>,
    end: LogMark,
    session: u64,
    is_commit_whole: bool,
) -> Result<Option<(ReadFrame, &'a [u8])>> {
    match reader.frame(end.position)? {
        Ok((frame, payload)) if follows(&frame, end, session, is_commit_whole) => {
            Ok(Some((frame, payload)))
        }
        Err(newer @ FormatError::Newer { .. }) => Err(StoreError::format("the log", newer)),
        _ => Ok(None),
    }
}

/// The end of a log, by its frames alone. `Damaged` if they do not continue without a gap.
pub fn follow_log(log: &Log) -> Result<LogMark> {
    let mut reader = log.reader();
    let (mut end, mut session, mut is_commit_whole) = (log.end, log.session, true);
    while let Some((frame, _)) = next_frame(&mut reader, end, session, is_commit_whole)? {
        (end, session, is_commit_whole) = (frame.end(), frame.header.session, frame.header.last);
    }
    let found = End {
        mark: end,
        session,
        is_commit_whole,
        newest_session: u64::MAX,
    };
    log_end::examine(&mut reader, &found)?;
    Ok(end)
}

/// Whether a whole frame directly follows the frames read so far.
fn follows(frame: &ReadFrame, end: LogMark, session: u64, is_commit_whole: bool) -> bool {
    let header = &frame.header;
    if !Guard::SessionsKeptApart.holds() {
        return header.commit >= end.commit;
    }
    let same_session = header.session == session;
    let commit_follows = if same_session && !is_commit_whole {
        header.commit == end.commit
    } else {
        header.commit == end.commit + 1
    };
    header.previous_checksum == end.checksum && header.session >= session && commit_follows
}
