//! Reads for which no thread waits: in a cluster, and past the host's cache where the data is in one run.
//!
//! A read is *prepared*: its blocks are looked up and pinned, and the engine knows their places. Once it is started
//! it needs no thread; the engine's thread checks the bytes when they have arrived.
//!
//! A read that needs more (a map that is not in memory, blocks that are known to be bad, a long request, any failure)
//! goes through [`Volume::read`] with [`Blocking::Yes`], so that errors are handled in one place.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use onefold_engine::PreparedRead as PreparedIo;
use onefold_format::entry::State;
use onefold_format::{Lba, Pba};
use onefold_journal::LongPin;
use onefold_metadata::{BlockRange, Blocking, REQUEST_BYTES_MAX};

use super::Volume;
use super::read::{PIECE_BLOCKS, PinnedView};

/// A read that only has to be started. If it is dropped, nothing is read.
pub struct PreparedRead {
    io: Box<dyn PreparedIo>,
    read: UnderWay,
}

/// A read between its start and its end.
struct UnderWay {
    volume: Arc<Volume>,
    received: Instant,
    runs: Vec<Run>,
    /// Keeps the blocks from being reused until the read has ended.
    _pin: LongPin,
}

/// Blocks that are stored one after the other, and where their bytes belong.
struct Run {
    /// The bytes of the request that the run fills.
    bytes: Range<usize>,
    /// The run's place in the pool's data, in bytes.
    at: u64,
    blocks: Range<u64>,
}

/// The bytes that a read has found; between them are zeros.
pub struct FoundBytes(Vec<(Range<usize>, Vec<u8>)>);

impl FoundBytes {
    /// Fills the memory of the request.
    pub fn copy_to(&self, buf: &mut [u8]) {
        buf.fill(0);
        for (range, bytes) in &self.0 {
            buf[range.clone()].copy_from_slice(bytes);
        }
    }
}

impl Volume {
    /// The longest read for which no thread has to wait, in bytes; 0 if that is none.
    #[must_use]
    pub fn prepared_read_bytes_max(&self) -> usize {
        self.pool.data().prepared_read_bytes_max()
    }

    /// Prepares a read that waits only for cluster or device; nothing if it needs more, or less.
    #[must_use]
    pub fn prepare_read(self: &Arc<Self>, offset: u64, len: usize) -> Option<PreparedRead> {
        let received = Instant::now();
        if len == 0 || len > self.prepared_read_bytes_max() {
            return None;
        }
        self.admit(offset, len as u64, REQUEST_BYTES_MAX).ok()?;
        // Before the lookup, as P3 requires.
        let pin = self.pool.journal().reuse().epochs().pin_long();
        let runs = self.runs_to_read(offset, len)?;
        let ranges: Vec<_> = (runs.iter()).map(|run| (run.at, run.bytes.len())).collect();
        let io = self.pool.data().prepare_read(&ranges)?;
        let read = UnderWay {
            volume: Arc::clone(self),
            received,
            runs,
            _pin: pin,
        };
        Some(PreparedRead { io, read })
    }

    /// The stored runs of a range; nothing if the lookup would wait, or a block may be bad.
    fn runs_to_read(&self, offset: u64, len: usize) -> Option<Vec<Run>> {
        let block_size = self.pool.block_size();
        let first = Lba(offset / block_size);
        let count = (offset + len as u64).div_ceil(block_size) - first.0;
        if count > PIECE_BLOCKS {
            return None;
        }
        let blocks = BlockRange::new(first, count);
        let mut view = PinnedView::of(self);
        let entries = view.look_up(|layer| self.entries(layer, blocks, Blocking::No));
        let entries = entries.ok()?;
        let mut runs: Vec<Run> = Vec::new();
        for (entry, n) in entries.iter().zip(0..) {
            let Some(Pba(pba)) = entry.pba() else {
                continue;
            };
            if matches!(entry.state(), State::Shared(_)) && self.pool.bad().is_any() {
                return None;
            }
            // Offsets in the request, as if it began with its first block.
            let skip = (offset % block_size) as usize;
            let start = (n * block_size as usize).max(skip);
            let end = ((n + 1) * block_size as usize).min(skip + len);
            let at = pba * block_size + (start % block_size as usize) as u64;
            match runs.last_mut() {
                Some(run) if run.blocks.end == pba && run.bytes.end == start - skip => {
                    run.bytes.end = end - skip;
                    run.blocks.end += 1;
                }
                _ => runs.push(Run {
                    bytes: start - skip..end - skip,
                    at,
                    blocks: pba..pba + 1,
                }),
            }
        }
        Some(runs)
    }
}

impl PreparedRead {
    /// Starts the read. `ended` gets the bytes, or nothing if the caller has to use [`Volume::read`], on a thread on
    /// which it must not wait.
    pub fn start(self, ended: impl FnOnce(Option<FoundBytes>) + Send + 'static) {
        let Self { io, read } = self;
        io.start(Box::new(move |found| ended(read.end(found))));
    }
}

impl UnderWay {
    fn end(self, found: Option<Vec<Vec<u8>>>) -> Option<FoundBytes> {
        let pool = &self.volume.pool;
        let found = self.runs.iter().zip(found?);
        let mut bytes = Vec::with_capacity(self.runs.len());
        for (run, read) in found {
            pool.data().check_found(&read, run.at).ok()?;
            // A sync may have failed since the lookup.
            pool.journal().check_believed(&run.blocks).ok()?;
            bytes.push((run.bytes.clone(), read));
        }
        self.volume.count_latency(self.received, &Ok(()));
        Some(FoundBytes(bytes))
    }
}
