//! The read path: pin, look up, read consecutive runs in one go, fill holes with zeros, unpin.
//!
//! Nothing is locked while the disk is read. The pinned epoch keeps every block that the lookup
//! found from being reused, even if it is released meanwhile. A [`PinnedView`] makes sure that a
//! lookup saw the volume as it was at one moment, however often snapshots are made and deleted
//! meanwhile.
//!
//! In a pool with bad blocks, a shared block that is listed is compared with its fingerprint before
//! it is returned. Other reads there cost a search of a short list, and without bad blocks a check
//! of one number.

use std::ops::Range;
use std::sync::Arc;

use onefold_format::entry::State;
use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{BadBlock, Entry, Lba, Pba};
use onefold_journal::Pin;
use onefold_metadata::{
    BlockRange, Blocking, Guard, Layer, Result, Segments, StoreError, StoreErrorKind,
};

use super::{Extent, Volume};

/// Blocks looked up at a time: bounds the memory of a large read.
const PIECE_BLOCKS: u64 = 512;

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
            self.read_piece(
                view.layer(),
                first,
                &entries,
                (at - first.0 * block_size) as usize,
                piece,
                blocking,
            )?;
            at += len;
            rest = after;
        }
        Ok(())
    }

    /// Reads `buf` from `skip` bytes into the blocks of `entries`.
    fn read_piece(
        &self,
        layer: &Layer,
        first: Lba,
        entries: &[Entry],
        skip: usize,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size() as usize;
        let end = skip + buf.len();
        let mut n = 0;
        while n < entries.len() {
            let entry = entries[n];
            let run = entries[n..].iter().zip(0..);
            let count = run
                .take_while(|(next, i)| **next == entry.successor(*i))
                .count();
            let from = (n * block_size).max(skip);
            let to = ((n + count) * block_size).min(end);
            let bytes = &mut buf[from - skip..to - skip];
            match entry.pba() {
                None => bytes.fill(0),
                Some(pba) => {
                    let (lba, into_run) = (first + n as u64, (from - n * block_size) as u64);
                    let is_shared = matches!(entry.state(), State::Shared(_));
                    if is_shared && self.pool.bad.is_any() {
                        self.read_beside_bad(layer, lba, pba, into_run, bytes, blocking)?;
                    } else {
                        self.read_run(lba, pba, into_run, bytes, blocking)?;
                    }
                }
            }
            n += count;
        }
        Ok(())
    }

    fn read_run(
        &self,
        lba: Lba,
        pba: Pba,
        skip: u64,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let at = pba.0 * block_size + skip;
        let blocks = at / block_size..(at + buf.len() as u64).div_ceil(block_size);
        let what = || format!("block {lba} of the volume, {pba} of the pool");
        let read = match blocking {
            Blocking::Yes => self.pool.data().read_at(buf, at).map(|()| true),
            Blocking::No => self.pool.data().try_read_at(buf, at),
        };
        match read {
            // A sync may have failed while the disk was read.
            Ok(true) => self
                .pool
                .journal
                .check_believed(&blocks)
                .map_err(|error| StoreError::io(what(), error)),
            Ok(false) => Err(StoreError::would_block()),
            Err(error) => {
                self.pool.bad.suspect(blocks);
                Err(StoreError::io(what(), error))
            }
        }
    }

    /// A run of shared blocks, of which some may be known to be bad.
    fn read_beside_bad(
        &self,
        layer: &Layer,
        lba: Lba,
        pba: Pba,
        skip: u64,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let end = skip + buf.len() as u64;
        let blocks = pba.0 + skip / block_size..pba.0 + end.div_ceil(block_size);
        let mut listed = self.pool.bad.within(blocks);
        listed.retain(|bad| bad.fingerprint.is_some());
        let (mut at, mut rest) = (skip, buf);
        for bad in listed {
            let start = (bad.pba.0 - pba.0) * block_size;
            let before = start.saturating_sub(at);
            let (good, after) = std::mem::take(&mut rest).split_at_mut(before as usize);
            if !good.is_empty() {
                self.read_run(lba, pba, at, good, blocking)?;
            }
            at += before;
            let in_block = (start + block_size).min(end) - at;
            let (bytes, after) = after.split_at_mut(in_block as usize);
            let of_block = lba + (bad.pba.0 - pba.0);
            self.read_compared(layer, of_block, bad, (at - start) as usize, bytes, blocking)?;
            at += in_block;
            rest = after;
        }
        if rest.is_empty() {
            return Ok(());
        }
        self.read_run(lba, pba, at, rest, blocking)
    }

    /// Part of a shared block that is known to be bad, if by now it is as it should be.
    fn read_compared(
        &self,
        layer: &Layer,
        lba: Lba,
        bad: BadBlock,
        skip: usize,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> Result<()> {
        if blocking == Blocking::No {
            return Err(StoreError::would_block());
        }
        let mut block = vec![0; self.pool.block_size() as usize];
        self.read_run(lba, bad.pba, 0, &mut block, blocking)?;
        if !self.pool.is_as_stored(&block, layer.domain, &bad) {
            let message = format!(
                "block {lba} of the volume, {} of the pool: it is not what was stored; it heals when \
                 the same content is written anywhere, see `pool scrub --list`",
                bad.pba
            );
            return Err(StoreError::new(StoreErrorKind::Io, message));
        }
        buf.copy_from_slice(&block[skip..skip + buf.len()]);
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

/// A volume as one request sees it: every block that a lookup finds keeps its content until the
/// request drops this.
///
/// A layer answers for a volume only while it is the volume's live layer, or frozen below it. Once a
/// snapshot of the volume is deleted, its layer is emptied into the one above; a lookup that began in
/// it would fall through to older content. So a lookup counts only if its layer is still the volume's
/// own when the lookup ends, and a new one starts in the layer that has taken its place.
pub(super) struct PinnedView<'a> {
    volume: &'a Volume,
    /// Taken before the layer is looked up, as P3 asks.
    _pin: Pin<'a>,
    layer: Arc<Layer>,
}

impl<'a> PinnedView<'a> {
    pub(super) fn of(volume: &'a Volume) -> Self {
        Self {
            volume,
            _pin: volume.pool.journal.pin(),
            layer: volume.layer(),
        }
    }

    /// The layer of the last lookup.
    pub(super) fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Runs `look` on the volume's layer, again if another one took its place meanwhile. `Gone` if
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
    /// None yet, from `start` on.
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

    /// Everything up to `end` is alike.
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
