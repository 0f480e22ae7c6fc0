//! The tail copy: the log's tail in memory that outlives the process (P12).
//!
//! A guest can outlive the daemon: its client reconnects and continues as if every answered write
//! were there, because a disk that is only reset loses nothing. The data is then in the host's
//! cache or on the disk, but the records that locate it are in memory until a commit. So each
//! record is copied here before its request is answered, and the next opening takes over the
//! records that the log lacks.
//!
//! The memory has two halves. One has the records that no commit has sealed yet, the other the
//! records that a commit has sealed and is making durable. Each entry has its frame's position in
//! the log; an opening that finds the log's end there can tell which entries the log already has,
//! even if the process died in the middle of writing the frames or of taking records over.
//!
//! A copy counts only in the boot of the host that made it: after a power loss the data to which it
//! refers may be gone. After a failed sync some of the data may be gone, too; so an entry has a
//! checksum of each new block, with which an opening finds out (`left_behind.rs`).

use std::sync::Arc;

use onefold_format::TailHeader;
use onefold_format::tail::{self, TAIL_END_AT, TAIL_ENTRIES_AT, TAIL_ENTRY_BYTES, TailEntries};
use onefold_metadata::{Guard, PbaRun, Result, StoreError};

use super::ledger::first_word;
use super::log::{RECORDS_BYTES_MAX, Tail, TailMark};
use super::new_blocks::new_blocks_of;
use super::rewritten::Rewritten;
use super::tail_memory::{HALF_BYTES, TailMemory, half_at};

/// The most bytes of one request's entries: its records, which may belong to several frames, and
/// the checksums of the blocks of a piece.
const REQUEST_BYTES_MAX: usize = RECORDS_BYTES_MAX as usize + 4 * TAIL_ENTRY_BYTES + 4 * 512;

/// Writes the tail copy.
pub(super) struct TailCopy {
    memory: TailMemory,
    rewritten: Arc<Rewritten>,
    /// The half for records that no commit has sealed.
    half: usize,
    /// The place of the next entry, and the checksum to continue.
    at: usize,
    seed: u32,
    /// Whether the opening has taken over the records of earlier processes.
    has_begun: bool,
}

/// Records that a process left behind.
pub(super) struct LeftBehind {
    /// The position of the frame that has or should have them.
    pub(super) position: u64,
    /// The records, encoded as in a frame.
    pub(super) records: Vec<u8>,
    /// The checksums of their new blocks, or nothing.
    pub(super) sums: Vec<u32>,
}

impl TailCopy {
    /// A tail copy; nothing is written to the memory before a session begins.
    pub(super) fn new(memory: TailMemory, rewritten: Arc<Rewritten>) -> Self {
        Self {
            memory,
            rewritten,
            half: 0,
            at: TAIL_ENTRIES_AT,
            seed: 0,
            has_begun: false,
        }
    }

    /// Whether a request may be answered once its records are appended here.
    pub(super) fn is_there(&self) -> bool {
        self.memory.halves().is_some()
    }

    /// Whether the records of one more request fit.
    pub(super) fn has_room(&self) -> bool {
        !self.is_there() || self.at + REQUEST_BYTES_MAX < HALF_BYTES
    }

    /// Whether a commit should make room before a request has to wait for one.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.is_there() && self.at > HALF_BYTES / 4 * 3
    }

    /// Remains of earlier processes for this pool in this boot of the host, in the log's order.
    ///
    /// # Errors
    ///
    /// `Damaged` if there are remains that cannot be decoded.
    pub(super) fn left_behind(&self) -> Result<Vec<LeftBehind>> {
        let halves = [0, 1].map(|half| self.entries_of(half));
        let mut halves = halves.into_iter().collect::<Result<Vec<_>>>()?;
        halves.retain(|entries| !entries.is_empty());
        halves.sort_by_key(|entries| entries[0].position);
        Ok(halves.into_iter().flatten().collect())
    }

    fn entries_of(&self, half: usize) -> Result<Vec<LeftBehind>> {
        let Some(memory) = self.memory.halves() else {
            return Ok(Vec::new());
        };
        let damaged = |error: &dyn std::fmt::Display| undecodable(&format!("half {half}: {error}"));
        let start = half_at(half);
        let mut header = [0; TAIL_ENTRIES_AT];
        memory.read_at(&mut header, start);
        let mut owner = self.memory.owner;
        if !Guard::TailOfThisBoot.holds() {
            owner.boot.copy_from_slice(&header[24..40]);
        }
        let found = TailHeader::decode(&header, &owner).map_err(|error| damaged(&error))?;
        let Some((_, seed)) = found else {
            return Ok(Vec::new());
        };
        let end = header[TAIL_END_AT..].iter().rev();
        let len = end.fold(0, |all, byte| all << 8 | usize::from(*byte));
        if len > HALF_BYTES - TAIL_ENTRIES_AT {
            return Err(damaged(&format_args!("{len} bytes of entries")));
        }
        let mut bytes = vec![0; len];
        memory.read_at(&mut bytes, start + TAIL_ENTRIES_AT);
        TailEntries::new(seed, &bytes)
            .map(|entry| {
                let entry = entry.map_err(|error| damaged(&error))?;
                let sums = entry.sums.chunks_exact(4);
                let sum = |bytes: &[u8]| {
                    bytes
                        .iter()
                        .rev()
                        .fold(0, |all, b| all << 8 | u32::from(*b))
                };
                Ok(LeftBehind {
                    position: entry.position,
                    records: entry.records.to_vec(),
                    sums: sums.map(sum).collect(),
                })
            })
            .collect()
    }

    /// Switches to the other half, whose records are no longer needed, for a new tail whose first
    /// frame will be at `position`.
    pub(super) fn begin(&mut self, position: u64) {
        self.half = 1 - self.half;
        self.at = TAIL_ENTRIES_AT;
        if !self.has_begun {
            return;
        }
        let Some(memory) = self.memory.halves() else {
            return;
        };
        let header = TailHeader {
            owner: self.memory.owner,
            position,
        };
        let (header, seed) = header.encode();
        self.seed = seed;
        let start = half_at(self.half);
        // Without its first word there is no header, so a process that dies here leaves an empty half.
        memory.write_word(0, start);
        self.rewritten.clear(self.half);
        memory.write_at(&header[8..], start + 8);
        memory.write_word(0, start + TAIL_END_AT);
        memory.write_word(first_word(&header), start);
    }

    /// Starts again after an opening: all old records are in the log.
    pub(super) fn begin_session(&mut self, position: u64) {
        if let Some(memory) = self.memory.halves() {
            for half in 0..2 {
                memory.write_word(0, half_at(half));
            }
        }
        self.rewritten.begin_session();
        self.has_begun = true;
        self.begin(position);
    }

    /// Notes blocks as new in the tail.
    pub(super) fn note_new(&self, run: PbaRun) {
        self.rewritten.note_new(self.half, run);
    }

    /// Appends the records that were added to `tail` after `mark`, with the checksums of their new
    /// blocks, or none. Returns whether the next process can read them.
    pub(super) fn append(&mut self, tail: &Tail, mark: TailMark, sums: &[u32]) -> bool {
        let Some(memory) = self.memory.halves().filter(|_| self.has_begun) else {
            return false;
        };
        if !Guard::TailCopied.holds() {
            return true;
        }
        let start = half_at(self.half);
        let mut rest = sums;
        let mut at = self.at;
        for (position, records) in tail.since(mark) {
            let count = if rest.is_empty() {
                0
            } else {
                new_blocks_of(records).min(rest.len())
            };
            let (own, others) = rest.split_at(count);
            rest = others;
            let sums: Vec<u8> = own.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            let end = at + TAIL_ENTRY_BYTES + records.len() + sums.len();
            if end > HALF_BYTES {
                return false;
            }
            let head = tail::encode_entry(self.seed, position, records, &sums);
            memory.write_at(&head, start + at);
            memory.write_at(records, start + at + TAIL_ENTRY_BYTES);
            memory.write_at(&sums, start + at + TAIL_ENTRY_BYTES + records.len());
            at = end;
        }
        // This one word makes all of a request's entries count.
        memory.write_word((at - TAIL_ENTRIES_AT) as u64, start + TAIL_END_AT);
        self.at = at;
        true
    }
}

/// The error for memory that this pool wrote in this boot, and that cannot be decoded.
pub(super) fn undecodable(what: &str) -> StoreError {
    StoreError::damaged(format!(
        "the copy of the log's tail cannot be decoded ({what}), so what was answered and not flushed \
         cannot be taken over: open the pool once with the release that wrote it; or remove 'tail' \
         from the pool's directory (in Ceph: from its run directory), which gives that up"
    ))
}
