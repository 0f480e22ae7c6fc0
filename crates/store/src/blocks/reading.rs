//! Reading blocks back.

use std::io;

use onefold_engine::ReadRange;
use onefold_format::Pba;
use onefold_metadata::{Result, StoreError, StoreErrorKind};

use super::Blocks;

/// Bytes read back and hashed at a time, where the host may have them in memory: enough to hash many blocks at
/// once, few enough to stay in the processor's nearest cache, and to keep a kernel without preemption from delaying
/// others for long.
const READ_BYTES: usize = 256 << 10;

/// Bytes read back and hashed at a time where every read waits for the disk: enough for many reads at once.
const WAITING_READ_BYTES: usize = 4 << 20;

impl Blocks {
    /// How many bytes are best read and hashed at a time.
    pub(crate) fn read_bytes(&self) -> usize {
        if self.journal.data().writes_wait() {
            WAITING_READ_BYTES
        } else {
            READ_BYTES
        }
    }

    /// Reads blocks in this order, all of them at the same time where the disk can do that, and notes which of them
    /// cannot be read.
    pub(crate) fn read_blocks_back(
        &self,
        blocks: &[Pba],
        buf: &mut [u8],
        unreadable: &mut Vec<Pba>,
    ) -> Result<()> {
        let mut ranges = self.ranges(blocks, buf);
        if self.journal.data().read_together(&mut ranges).is_ok() {
            return Ok(());
        }
        // Reads one run after the other, to find the blocks that cannot be read.
        for ReadRange { buf, offset } in ranges {
            self.read_run_back(Pba(offset / self.block_size()), buf, unreadable)?;
        }
        Ok(())
    }

    /// Reads blocks in this order. A few are read one run after the other, so that guests' requests do not meet a burst.
    pub(crate) fn read_blocks_now(&self, blocks: &[Pba], buf: &mut [u8]) -> io::Result<()> {
        let data = self.journal.data();
        let is_short = buf.len() <= READ_BYTES;
        let mut ranges = self.ranges(blocks, buf);
        if is_short {
            let mut ranges = ranges.into_iter();
            return ranges.try_for_each(|range| data.read_at(range.buf, range.offset));
        }
        data.read_together(&mut ranges).map_err(|(_, error)| error)
    }

    /// A range for each run of blocks.
    fn ranges<'a>(&self, blocks: &[Pba], buf: &'a mut [u8]) -> Vec<ReadRange<'a>> {
        let block_size = self.block_size() as usize;
        let (mut ranges, mut rest) = (Vec::new(), buf);
        for run in blocks.chunk_by(|a, b| *a + 1 == *b) {
            let (buf, after) = rest.split_at_mut(run.len() * block_size);
            let offset = run[0].0 * self.block_size();
            ranges.push(ReadRange { buf, offset });
            rest = after;
        }
        ranges
    }

    /// Reads consecutive blocks, and notes which of them cannot be read.
    fn read_run_back(&self, first: Pba, buf: &mut [u8], unreadable: &mut Vec<Pba>) -> Result<()> {
        let failure = match self.read_back(first, buf) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == StoreErrorKind::Io => error,
            Err(error) => return Err(error),
        };
        let before = unreadable.len();
        let blocks = buf.chunks_exact_mut(self.block_size() as usize);
        for (block, n) in blocks.zip(0..) {
            if !self.read_if_readable(first + n, block)? {
                unreadable.push(first + n);
            }
        }
        // Once for the run, and not again for blocks that are listed: it names the object or device that failed.
        let mut found = unreadable[before..].iter();
        if found.any(|pba| self.bad.get(*pba).is_none()) {
            tracing::error!("{failure}");
        }
        Ok(())
    }

    pub(crate) fn read_back(&self, pba: Pba, buf: &mut [u8]) -> Result<()> {
        let at = pba.0 * self.block_size();
        self.journal.data().read_at(buf, at).map_err(|error| {
            let what = format_args!("reading block {pba} of the pool to fingerprint it");
            StoreError::io(what, error)
        })
    }

    /// Whether the block can be read; an error of another kind than the device's is passed on.
    pub(crate) fn read_if_readable(&self, pba: Pba, buf: &mut [u8]) -> Result<bool> {
        match self.read_back(pba, buf) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == StoreErrorKind::Io => Ok(false),
            Err(error) => Err(error),
        }
    }
}
