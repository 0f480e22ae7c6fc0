//! The copy of the log's tail, in memory that outlives the process (P12).
//!
//! A guest can outlive the daemon: its client reconnects and goes on as if every answered write
//! were there, because a disk that is only reset loses nothing. Data is in the host's cache or on
//! the disk by then, but the records that locate it are in memory until a commit. So each of them
//! is copied here before its request is answered, and the next opening takes over those that the
//! log lacks.
//!
//! The memory has two halves. One has the records that no commit has sealed yet, the other those
//! that a commit has sealed and is making durable. Each entry has its frame's position in the log;
//! an opening that finds the log's end there knows which entries the log has already, even if the
//! process died in the middle of writing the frames or of taking records over.
//!
//! A copy is trusted only in the boot of the host that made it. After a power loss the data that it
//! refers to may be gone, and likewise after a failed sync, which makes the copy void.

use std::sync::Arc;

use onefold_engine::{Engine, HostMemory};
use onefold_format::tail::{self, TAIL_ENTRY_BYTES, TAIL_HEADER_BYTES, TailEntries};
use onefold_format::{FormatError, PoolId, TailHeader};
use onefold_metadata::{Guard, Result, StoreError, StoreErrorKind};

use super::log::{RECORDS_BYTES_MAX, Tail, TailMark};

/// Bytes of both halves: room for some 130,000 changes between two commits. With less room, guests
/// with many random writes make housekeeping commit so often that they notice.
const MEMORY_BYTES: usize = 16 << 20;

/// Most bytes of one request's entries: its records, which may belong to several frames.
const REQUEST_BYTES_MAX: usize = RECORDS_BYTES_MAX as usize + 4 * TAIL_ENTRY_BYTES;

/// The first read of a half: room for one request, and then some.
const READ_BYTES_MIN: usize = 2 * REQUEST_BYTES_MAX;

/// The copy of the log's tail.
pub struct TailCopy {
    /// Nothing where the host had no room for it: then every request waits for a commit.
    memory: Option<Arc<dyn HostMemory>>,
    pool: PoolId,
    boot: [u8; 16],
    /// The half that has the records which no commit has sealed.
    half: usize,
    /// The place of its next entry, and the checksum to continue.
    at: usize,
    seed: u32,
    is_void: bool,
}

/// Records that a process left behind: the position of the frame that has or should have them.
pub(super) struct LeftBehind {
    pub(super) position: u64,
    pub(super) records: Vec<u8>,
}

impl TailCopy {
    /// Finds or makes the memory of a pool. Nothing is written to it before a session begins.
    pub fn open(engine: &dyn Engine, pool: PoolId) -> Result<Self> {
        let opening = |error| StoreError::io("opening the copy of the log's tail", error);
        let memory = match engine.host_memory(MEMORY_BYTES).map_err(opening) {
            Ok(memory) => Some(memory),
            Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                tracing::warn!(
                    "{error}: until the pool is opened again with room for it, every change of a \
                     volume's map waits for the disk before it is answered"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            memory,
            pool,
            boot: engine.boot_id().map_err(opening)?,
            half: 0,
            at: TAIL_HEADER_BYTES,
            seed: 0,
            // Until it is begun.
            is_void: true,
        })
    }

    /// Whether appending records to it lets a request be answered.
    pub(super) fn is_there(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the records of one more request fit.
    pub(super) fn has_room(&self) -> bool {
        let free = |memory: &Arc<dyn HostMemory>| (memory.len() / 2).saturating_sub(self.at);
        self.memory.as_ref().map(free) > Some(REQUEST_BYTES_MAX) || self.memory.is_none()
    }

    /// Whether a commit should make room before a request has to wait for one.
    pub(super) fn is_nearly_full(&self) -> bool {
        let most = self.memory.as_ref().map(|memory| memory.len() / 8 * 3);
        most.is_some_and(|most| self.at > most)
    }

    /// Remains of earlier processes for this pool in this boot of the host, in the log's order.
    pub(super) fn left_behind(&self) -> Vec<LeftBehind> {
        let Some(memory) = &self.memory else {
            return Vec::new();
        };
        let mut halves: Vec<Vec<LeftBehind>> = Vec::new();
        for half in 0..2 {
            match self.entries_of(&**memory, half * (memory.len() / 2)) {
                Ok(entries) => halves.push(entries),
                Err(error) => tracing::debug!("half {half} of the tail's copy: {error}"),
            }
        }
        halves.retain(|entries| !entries.is_empty());
        halves.sort_by_key(|entries| entries[0].position);
        halves.into_iter().flatten().collect()
    }

    /// The entries of the half that begins at `start`.
    fn entries_of(
        &self,
        memory: &dyn HostMemory,
        start: usize,
    ) -> std::result::Result<Vec<LeftBehind>, FormatError> {
        let mut bytes = vec![0; TAIL_HEADER_BYTES];
        memory.read_at(&mut bytes, start);
        let (header, seed) = TailHeader::decode(&bytes)?;
        if header.pool != self.pool {
            return Err(FormatError::Pool);
        }
        if header.boot != self.boot && Guard::TailOfThisBoot.holds() {
            return Ok(Vec::new());
        }
        let half = memory.len() / 2 - TAIL_HEADER_BYTES;
        // Most tails are short.
        let mut len = half.min(READ_BYTES_MIN);
        loop {
            bytes.resize(len, 0);
            memory.read_at(&mut bytes, start + TAIL_HEADER_BYTES);
            let entries = TailEntries::new(seed, &bytes);
            let used: usize = entries
                .clone()
                .map(|entry| TAIL_ENTRY_BYTES + entry.records.len())
                .sum();
            if len == half || used + REQUEST_BYTES_MAX <= len {
                let left = entries.map(|entry| LeftBehind {
                    position: entry.position,
                    records: entry.records.to_vec(),
                });
                return Ok(left.collect());
            }
            len = half.min(len * 8);
        }
    }

    /// From now on the half whose records are no longer needed takes those of a new tail, whose
    /// first frame will be at `position`.
    pub(super) fn begin(&mut self, position: u64) {
        self.half = 1 - self.half;
        self.at = TAIL_HEADER_BYTES;
        let Some(memory) = self.memory.as_ref().filter(|_| !self.is_void) else {
            return;
        };
        let header = TailHeader {
            pool: self.pool,
            boot: self.boot,
            position,
        };
        let (bytes, seed) = header.encode();
        self.seed = seed;
        let start = self.half * (memory.len() / 2);
        memory.write_at(&[0; TAIL_ENTRY_BYTES], start + TAIL_HEADER_BYTES);
        memory.write_at(&bytes, start);
    }

    /// Starts again after an opening: all old records are in the log.
    pub(super) fn begin_session(&mut self, position: u64) {
        self.erase();
        self.is_void = false;
        self.begin(position);
    }

    /// Appends the records that came to `tail` after `mark`. Returns whether they are there for the
    /// next process.
    pub(super) fn append(&mut self, tail: &Tail, mark: TailMark) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.is_void) else {
            return false;
        };
        if !Guard::TailCopied.holds() {
            return true;
        }
        let half = memory.len() / 2;
        for (position, records) in tail.since(mark) {
            let end = self.at + TAIL_ENTRY_BYTES + records.len();
            if end + TAIL_ENTRY_BYTES > half {
                return false;
            }
            let start = self.half * half;
            // The end of an entry is written before the entry itself.
            memory.write_at(&[0; TAIL_ENTRY_BYTES], start + end);
            memory.write_at(records, start + self.at + TAIL_ENTRY_BYTES);
            let head = tail::encode_entry(self.seed, position, records);
            memory.write_at(&head, start + self.at);
            self.at = end;
        }
        true
    }

    /// Nothing of it may be taken over, now or later.
    pub fn make_void(&mut self) {
        self.is_void = true;
        self.erase();
    }

    fn erase(&self) {
        if let Some(memory) = &self.memory {
            for half in 0..2 {
                memory.write_at(&[0; TAIL_HEADER_BYTES], half * (memory.len() / 2));
            }
        }
    }
}
