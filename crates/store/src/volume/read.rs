//! The read path: pin, look up, read consecutive runs in one go, fill holes with zeros, unpin.
//!
//! Nothing is locked while the disk is read. The pinned epoch keeps every block that the lookup
//! found from being reused, even if it is released during the read. A [`PinnedView`] makes sure that
//! a lookup saw the volume as it was at one moment, however often snapshots are made and deleted
//! concurrently.
//!
//! In a pool with bad blocks, a shared block that is listed is compared with its fingerprint before
//! it is returned. Other reads there cost a search of a short list, and without bad blocks a check
//! of one number.

use std::ops::Range;
use std::sync::Arc;

use onefold_engine::ReadRange;
use onefold_format::entry::State;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{BadBlock, Entry, Lba, Pba};
use onefold_journal::Pin;
use onefold_metadata::{
    BlockRange, Blocking, Guard, Layer, PbaRun, Result, Segments, StoreError, StoreErrorKind,
};

use smallvec::SmallVec;

use super::{Extent, Volume};
use crate::pool::Pool;

/// Blocks looked up at a time: bounds the memory of a large read.
pub(super) const PIECE_BLOCKS: u64 = 512;

impl Volume {
    pub(super) fn read_admitted(
        &self,
        offset: u64,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let mut view = PinnedView::of(self);
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let first = Lba(at / block_size);
            let piece_end = (first.0 + PIECE_BLOCKS) * block_size;
            let len = (piece_end - at).min(rest.len() as u64);
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(len as usize);
            let count = (at + len).div_ceil(block_size) - first.0;
            let entries =
                view.look_up(|layer| self.entries(layer, BlockRange::new(first, count), blocking))?;
            let reader = Reader {
                pool: &self.pool,
                layer: view.layer(),
                blocking,
            };
            let skip = (at - first.0 * block_size) as usize;
            reader.read_piece(first, &entries, skip, piece)?;
            at += len;
            rest = after;
        }
        Ok(())
    }

    pub(super) fn extents_admitted(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>> {
        let block_size = self.pool.block_size();
        let mut runs = Runs::new(range.start, extents_max);
        let mut view = PinnedView::of(self);
        let mut segments = Segments::under(&view.layer);
        let end = Lba(range.end.div_ceil(block_size));
        let mut lba = Lba(range.start / block_size);
        while lba < end && !runs.is_full() {
            let next = view.look_up(|layer| {
                if !segments.is_under(layer) {
                    segments = Segments::under(layer);
                }
                let next = segments.next(self.pool.maps(), lba.segment())?;
                let Some(segment) = next.filter(|segment| segment.first() < end) else {
                    return Ok(None);
                };
                let start = segment.first().max(lba);
                let segment_end = Lba((segment.0 + 1) * BLOCKS_PER_SEGMENT).min(end);
                let entries = self.entries(
                    layer,
                    BlockRange::new(start, segment_end.0 - start.0),
                    blocking,
                )?;
                Ok(Some((start, segment_end, entries)))
            })?;
            let Some((start, segment_end, entries)) = next else {
                runs.add(range.end, false);
                break;
            };
            runs.add((start.0 * block_size).max(range.start), false);
            lba = segment_end;
            for (entry, lba) in entries.iter().zip(start.0..) {
                let block_end = (lba + 1) * block_size;
                runs.add(block_end.min(range.end), entry.pba().is_some());
            }
        }
        let extents = runs.finish().into_iter();
        Ok(extents.map(|(len, data)| Extent { len, data }).collect())
    }
}

/// Reads blocks that a lookup in a layer has found.
struct Reader<'a> {
    pool: &'a Pool,
    layer: &'a Layer,
    blocking: Blocking,
}

impl Reader<'_> {
    /// Reads `buf` from `skip` bytes into the blocks of `entries`.
    fn read_piece(&self, first: Lba, entries: &[Entry], skip: usize, buf: &mut [u8]) -> Result<()> {
        let block_size = self.pool.block_size() as usize;
        let mut stored = SmallVec::<[StoredRun<'_>; 4]>::new();
        let (mut n, mut skip, mut rest) = (0, skip, buf);
        while n < entries.len() {
            let entry = entries[n];
            let run = entries[n..].iter().zip(0..);
            let count = run
                .take_while(|(next, i)| **next == entry.successor(*i))
                .count();
            let len = (count * block_size - skip).min(rest.len());
            let (bytes, after) = std::mem::take(&mut rest).split_at_mut(len);
            match entry.pba() {
                None => bytes.fill(0),
                Some(pba) => {
                    let run = StoredRun {
                        lba: first + n as u64,
                        pba,
                        skip: skip as u64,
                        bytes,
                    };
                    let is_shared = matches!(entry.state(), State::Shared(_));
                    if is_shared && self.pool.bad().is_any() {
                        self.read_beside_bad(run)?;
                    } else {
                        stored.push(run);
                    }
                }
            }
            (n, skip, rest) = (n + count, 0, after);
        }
        self.read_runs(&mut stored)
    }

    /// Reads the runs, all at the same time where the disk can do that.
    fn read_runs(&self, runs: &mut [StoredRun<'_>]) -> Result<()> {
        let block_size = self.pool.block_size();
        let read = {
            let ranges = runs.iter_mut().map(|run| run.range(block_size));
            let mut ranges = ranges.collect::<SmallVec<[ReadRange<'_>; 4]>>();
            match self.blocking {
                Blocking::Yes => self.pool.data().read_together(&mut ranges).map(|()| true),
                Blocking::No => self.pool.data().try_read_each(&mut ranges),
            }
        };
        match read {
            Ok(true) => {}
            Ok(false) => return Err(StoreError::would_block()),
            Err((n, error)) => {
                let blocks = runs[n].blocks(block_size);
                let run = PbaRun {
                    start: Pba(blocks.start),
                    count: blocks.end - blocks.start,
                };
                if !self.pool.data().is_any_lost(run) {
                    self.pool.bad().suspect(blocks);
                }
                return Err(StoreError::io(runs[n].describe(), error));
            }
        }
        // A sync may have failed while the disk was read.
        runs.iter().try_for_each(|run| {
            let believed = self.pool.journal().check_believed(&run.blocks(block_size));
            believed.map_err(|error| StoreError::io(run.describe(), error))
        })
    }

    /// Reads a run of shared blocks, some of which may be known to be bad.
    fn read_beside_bad(&self, run: StoredRun<'_>) -> Result<()> {
        let block_size = self.pool.block_size();
        let mut listed = self.pool.bad().within(run.blocks(block_size));
        listed.retain(|bad| bad.fingerprint.is_some());
        let (mut good_parts, mut rest) = (SmallVec::<[_; 4]>::new(), run);
        for bad in listed {
            let until_bad = ((bad.pba.0 - rest.pba.0) * block_size).saturating_sub(rest.skip);
            let (good, after) = rest.split_at(until_bad, block_size);
            good_parts.push(good);
            let of_block = block_size - after.skip;
            let (in_bad, after) = after.split_at(of_block, block_size);
            self.read_compared(in_bad, bad)?;
            rest = after;
        }
        good_parts.push(rest);
        good_parts.retain(|part| !part.bytes.is_empty());
        self.read_runs(&mut good_parts)
    }

    /// Reads part of a shared block that is known to be bad; fails unless it matches its fingerprint again.
    fn read_compared(&self, part: StoredRun<'_>, bad: BadBlock) -> Result<()> {
        if self.blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let StoredRun {
            lba, skip, bytes, ..
        } = part;
        let mut block = vec![0; self.pool.block_size() as usize];
        let whole = StoredRun {
            lba,
            pba: bad.pba,
            skip: 0,
            bytes: &mut block,
        };
        self.read_runs(&mut [whole])?;
        if !self
            .pool
            .blocks()
            .is_as_stored(&block, self.layer.domain, &bad)
        {
            let message = format!(
                "block {lba} of the volume, {} of the pool: it differs from the stored data; it heals when \
                 the same content is written anywhere, see `pool scrub --list`",
                bad.pba
            );
            return Err(StoreError::new(StoreErrorKind::Io, message));
        }
        bytes.copy_from_slice(&block[skip as usize..][..bytes.len()]);
        Ok(())
    }
}

/// The part of a request that is read from consecutive blocks of the pool.
struct StoredRun<'a> {
    lba: Lba,
    pba: Pba,
    /// Bytes of the first block that are left out.
    skip: u64,
    bytes: &'a mut [u8],
}

impl<'a> StoredRun<'a> {
    fn range(&mut self, block_size: u64) -> ReadRange<'_> {
        ReadRange {
            offset: self.pba.0 * block_size + self.skip,
            buf: self.bytes,
        }
    }

    fn blocks(&self, block_size: u64) -> Range<u64> {
        let end = self.skip + self.bytes.len() as u64;
        self.pba.0..self.pba.0 + end.div_ceil(block_size)
    }

    fn describe(&self) -> String {
        format!("block {} of the volume, {} of the pool", self.lba, self.pba)
    }

    /// The first `len` bytes, or all if there are fewer, and the rest.
    fn split_at(self, len: u64, block_size: u64) -> (StoredRun<'a>, StoredRun<'a>) {
        let len = len.min(self.bytes.len() as u64);
        let (bytes, after) = self.bytes.split_at_mut(len as usize);
        let end = self.skip + len;
        let rest = StoredRun {
            lba: self.lba + end / block_size,
            pba: self.pba + end / block_size,
            skip: end % block_size,
            bytes: after,
        };
        (StoredRun { bytes, ..self }, rest)
    }
}

/// A volume as one request sees it: every block that a lookup finds keeps its content until the
/// request drops this.
///
/// A layer answers for a volume only while it is the volume's live layer, or frozen below it. Once a
/// snapshot of the volume is deleted, its layer is emptied into the one above; a lookup that began in
/// it would fall through to older content. So a lookup counts only if its layer is still the volume's
/// own when the lookup ends, and a new one starts in the layer that has taken its place.
pub(super) struct PinnedView<'a> {
    volume: &'a Volume,
    /// Taken before the layer is looked up, as P3 requires.
    _pin: Pin<'a>,
    layer: Arc<Layer>,
}

impl<'a> PinnedView<'a> {
    pub(super) fn of(volume: &'a Volume) -> Self {
        Self {
            volume,
            _pin: volume.pool.journal().reuse().epochs().pin(),
            layer: volume.layer(),
        }
    }

    /// The layer of the last lookup.
    pub(super) fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Runs `look` on the volume's layer, and again if another layer has taken its place. `Gone` if
    /// the volume was deleted: its entries may be leaving its layer.
    pub(super) fn look_up<T>(
        &mut self,
        mut look: impl FnMut(&Arc<Layer>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let found = look(&self.layer);
            if !Guard::LookupValidated.holds() {
                return found;
            }
            self.volume.check_in_use()?;
            let layer = self.volume.layer();
            if Arc::ptr_eq(&layer, &self.layer) {
                return found;
            }
            self.layer = layer;
        }
    }
}

/// Runs of bytes collected so far, with their states. One more than requested may be begun: it ends
/// the one before.
pub(super) struct Runs<T> {
    found: Vec<(u64, T)>,
    runs_max: usize,
    at: u64,
}

impl<T: PartialEq> Runs<T> {
    /// An empty list of runs, which begins at `start`.
    pub(super) fn new(start: u64, runs_max: usize) -> Self {
        Self {
            found: Vec::new(),
            runs_max,
            at: start,
        }
    }

    /// The end of the known bytes.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn is_full(&self) -> bool {
        self.found.len() > self.runs_max
    }

    /// Adds the bytes up to `end`, which all have the state `what`.
    pub(super) fn add(&mut self, end: u64, what: T) {
        if end <= self.at || self.is_full() {
            return;
        }
        let len = end - self.at;
        match self.found.last_mut() {
            Some((last_len, last)) if *last == what => *last_len += len,
            _ => self.found.push((len, what)),
        }
        self.at = end;
    }

    pub(super) fn finish(mut self) -> Vec<(u64, T)> {
        self.found.truncate(self.runs_max);
        self.found
    }
}
