//! The log: a ring of frames, appended by commits and read once, by recovery.
//!
//! Positions count bytes since the log began and never wrap; a position's place in the ring is its
//! remainder. The part before the durable root's log position may be overwritten.

use std::sync::Arc;

use onefold_engine::Disk;
use onefold_format::frame::{
    self, FRAME_HEADER_BYTES, FRAME_PAYLOAD_MAX, FrameHeader, UncheckedFrame,
};
use onefold_format::record::RECORD_BYTES_MAX;
use onefold_format::{FormatError, PoolId, Record};
use onefold_metadata::{Guard, PbaRuns, Result, StoreError};

/// The most log bytes that the records of one call take. A piece of a write needs at most a map
/// record of 48 bytes for each of its `write::PIECE_BLOCKS` blocks: 24 KiB.
pub(super) const RECORDS_BYTES_MAX: u64 = 32 << 10;

/// Records that no commit has sealed yet, cut where frames will be.
pub(super) struct Tail {
    /// Position of the tail's first frame.
    position: u64,
    chunks: Vec<Vec<u8>>,
    /// Bytes of records.
    bytes: usize,
    /// Log bytes of all chunks except the last.
    full_bytes: u64,
    /// Blocks that the records release.
    pub(super) released: PbaRuns,
}

/// The length of a tail at some moment.
#[derive(Clone, Copy)]
pub(super) struct TailMark {
    chunk: usize,
    bytes: usize,
}

impl Tail {
    /// An empty tail; its first frame will be at `position`.
    pub(super) fn new(position: u64) -> Self {
        Self {
            position,
            chunks: Vec::new(),
            bytes: 0,
            full_bytes: 0,
            released: PbaRuns::new(),
        }
    }

    /// Puts all of the next records, `bytes` bytes in total, into one frame: after a crash all or none
    /// of them are there.
    pub(super) fn keep_together(&mut self, bytes: usize) {
        let fits = |chunk: &&mut Vec<u8>| chunk.len() + bytes <= FRAME_PAYLOAD_MAX;
        if self.chunks.last_mut().filter(fits).is_none() {
            self.push(Vec::new());
        }
    }

    /// Appends a record ([step 7 log]).
    pub(super) fn append(&mut self, record: &Record) {
        self.keep_together(RECORD_BYTES_MAX);
        if let Some(chunk) = self.chunks.last_mut() {
            let before = chunk.len();
            record.encode(chunk);
            self.bytes += chunk.len() - before;
        }
    }

    /// Appends the records of one frame as they are.
    pub(super) fn append_frame(&mut self, records: Vec<u8>) {
        self.bytes += records.len();
        self.push(records);
    }

    pub(super) fn mark(&self) -> TailMark {
        TailMark {
            chunk: self.chunks.len().saturating_sub(1),
            bytes: self.chunks.last().map_or(0, Vec::len),
        }
    }

    /// The records, frame by frame.
    pub(super) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(Vec::as_slice)
    }

    /// The records that came after `mark`: the position of their frame, and their bytes.
    pub(super) fn since(&self, mark: TailMark) -> impl Iterator<Item = (u64, &[u8])> {
        let chunks = &self.chunks[mark.chunk.min(self.chunks.len())..];
        let mut position = self.end() - log_bytes(chunks);
        let frames = chunks.iter().zip(0..).map(move |(chunk, n)| {
            let at = position;
            position += frame::frame_bytes(chunk.len());
            (at, &chunk[if n == 0 { mark.bytes } else { 0 }..])
        });
        frames.filter(|(_, records)| !records.is_empty())
    }

    /// Position of the next tail's first frame.
    pub(super) fn end(&self) -> u64 {
        self.position + self.log_bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes of records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes that these records take in the log, wherever frames are cut.
    pub(super) fn log_bytes(&self) -> u64 {
        let last = self.chunks.last();
        self.full_bytes + last.map_or(0, |chunk| frame::frame_bytes(chunk.len()))
    }

    /// Appends a frame without records: see `session.rs`. The caller seals the tail at once, so
    /// that it stays without records.
    pub(super) fn append_closing(&mut self) {
        self.push(Vec::new());
    }

    /// Adds a chunk; the one before gets no more records.
    fn push(&mut self, chunk: Vec<u8>) {
        self.full_bytes = self.log_bytes();
        self.chunks.push(chunk);
    }
}

/// Bytes that frames with these records take in the log.
fn log_bytes(chunks: &[Vec<u8>]) -> u64 {
    let frames = chunks.iter().map(|chunk| frame::frame_bytes(chunk.len()));
    frames.sum()
}

/// A place between two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogMark {
    /// Where the next frame goes.
    pub position: u64,
    /// Number of the last commit before it.
    pub commit: u64,
    /// Checksum of the last frame before it.
    pub checksum: u32,
}

/// The end of the log, where commits append.
pub struct Log {
    disk: Arc<dyn Disk>,
    name: String,
    pool: PoolId,
    ring_bytes: u64,
    pub(super) session: u64,
    pub(super) end: LogMark,
}

impl Log {
    /// A log that continues at `end`.
    pub fn new(
        disk: Arc<dyn Disk>,
        name: String,
        pool: PoolId,
        ring_bytes: u64,
        end: LogMark,
    ) -> Self {
        Self {
            disk,
            name,
            pool,
            ring_bytes,
            session: 0,
            end,
        }
    }

    /// Makes the records of one commit durable, if there are any.
    pub(super) fn append(&mut self, tail: &Tail) -> Result<()> {
        if tail.is_empty() {
            return Ok(());
        }
        let commit = self.end.commit + 1;
        let mut bytes = Vec::new();
        let mut position = self.end.position;
        let mut checksum = self.end.checksum;
        let last = tail.chunks.len() - 1;
        for (n, chunk) in tail.chunks.iter().enumerate() {
            let header = FrameHeader {
                session: self.session,
                commit,
                position,
                previous_checksum: checksum,
                last: n == last,
            };
            bytes.clear();
            checksum = frame::encode(&header, self.pool, chunk, &mut bytes);
            self.write(&bytes, position)?;
            position += bytes.len() as u64;
        }
        self.end = LogMark {
            position,
            commit,
            checksum,
        };
        let synced = if Guard::LogSyncedBeforeReply.holds() {
            self.disk.sync()
        } else {
            Ok(())
        };
        synced.map_err(|e| StoreError::io(format_args!("syncing the log {}", self.name), e))
    }

    fn write(&self, bytes: &[u8], position: u64) -> Result<()> {
        let at = position % self.ring_bytes;
        let until_wrap = ((self.ring_bytes - at) as usize).min(bytes.len());
        let (head, rest) = bytes.split_at(until_wrap);
        let written = self.disk.write_at(head, at).and_then(|()| {
            if rest.is_empty() {
                Ok(())
            } else {
                self.disk.write_at(rest, 0)
            }
        });
        written.map_err(|e| StoreError::io(format_args!("writing the log {}", self.name), e))
    }

    pub(super) fn reader(&self) -> LogReader<'_> {
        LogReader {
            log: self,
            window: Vec::new(),
            window_start: 0,
        }
    }
}

/// Reads frames through a window, so that small frames do not cost a call each.
pub(super) struct LogReader<'a> {
    log: &'a Log,
    window: Vec<u8>,
    window_start: u64,
}

const WINDOW_BYTES: u64 = 1 << 20;

/// A frame that was read and checked.
pub(super) struct ReadFrame {
    pub(super) header: FrameHeader,
    pub(super) checksum: u32,
    pub(super) bytes: u64,
}

impl ReadFrame {
    /// The end of the frame.
    pub(super) fn end(&self) -> LogMark {
        LogMark {
            position: self.header.position + self.bytes,
            commit: self.header.commit,
            checksum: self.checksum,
        }
    }
}

impl LogReader<'_> {
    pub(super) fn pool(&self) -> PoolId {
        self.log.pool
    }

    pub(super) fn ring_bytes(&self) -> u64 {
        self.log.ring_bytes
    }

    /// The log's name in errors.
    pub(super) fn name(&self) -> &str {
        &self.log.name
    }

    /// The frame at `position` and its payload, if it is whole and of this pool; or why there is
    /// none.
    pub(super) fn frame(
        &mut self,
        position: u64,
    ) -> Result<std::result::Result<(ReadFrame, &[u8]), FormatError>> {
        let (unchecked, bytes) = match self.checked(position, self.log.pool)? {
            Ok(checked) => checked,
            Err(error) => return Ok(Err(error)),
        };
        let found = unchecked.header.position;
        if found != position {
            let field = "log position";
            return Ok(Err(FormatError::Address {
                field,
                expected: position,
                found,
            }));
        }
        let frame = ReadFrame {
            header: unchecked.header,
            checksum: unchecked.checksum,
            bytes: frame::frame_bytes(unchecked.payload_bytes),
        };
        Ok(Ok((frame, &bytes[FRAME_HEADER_BYTES..])))
    }

    /// The position in the header of a whole frame of any pool, wherever it is.
    pub(super) fn frame_of(
        &mut self,
        position: u64,
        pool: PoolId,
    ) -> Result<std::result::Result<u64, FormatError>> {
        let checked = self.checked(position, pool)?;
        Ok(checked.map(|(frame, _)| frame.header.position))
    }

    /// Header and bytes of a frame whose checksum is right.
    fn checked(
        &mut self,
        position: u64,
        pool: PoolId,
    ) -> Result<std::result::Result<(UncheckedFrame, &[u8]), FormatError>> {
        let head = self.bytes(position, FRAME_HEADER_BYTES)?;
        let unchecked = match frame::decode_header(head, pool) {
            Ok(unchecked) => unchecked,
            Err(error) => return Ok(Err(error)),
        };
        let bytes = self.bytes(position, FRAME_HEADER_BYTES + unchecked.payload_bytes)?;
        Ok(frame::check(&unchecked, bytes).map(|()| (unchecked, bytes)))
    }

    /// Bytes of the ring from a position on, at most as many as the ring has.
    pub(super) fn bytes(&mut self, position: u64, count: usize) -> Result<&[u8]> {
        let window_end = self.window_start + self.window.len() as u64;
        if position < self.window_start || position + count as u64 > window_end {
            self.load(position, WINDOW_BYTES.max(count as u64))?;
        }
        let start = (position - self.window_start) as usize;
        Ok(&self.window[start..start + count])
    }

    fn load(&mut self, position: u64, count: u64) -> Result<()> {
        let ring = self.log.ring_bytes;
        let count = count.min(ring) as usize;
        self.window.resize(count, 0);
        self.window_start = position;
        let at = position % ring;
        let until_wrap = ((ring - at) as usize).min(count);
        let (head, rest) = self.window.split_at_mut(until_wrap);
        let disk = &self.log.disk;
        let read = disk.read_at(head, at).and_then(|()| {
            if rest.is_empty() {
                Ok(())
            } else {
                disk.read_at(rest, 0)
            }
        });
        read.map_err(|e| StoreError::io(format_args!("reading the log {}", self.log.name), e))
    }
}
