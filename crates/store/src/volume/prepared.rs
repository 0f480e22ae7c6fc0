//! Writes past the host's cache for which no thread waits: in place, or to one run of new blocks.
//!
//! Steps 1 to 5 are the same as for every write (`write.rs`) and wait for nothing. Then the write is *prepared*:
//! its blocks are locked, and the engine has its bytes. Once it is started, step 6 needs no thread; the thread
//! that receives the completion does the rest. In place there is no step 7, because the entries stay as they are.
//! New blocks are recorded if that has to wait for nothing; otherwise they are taken back.
//!
//! A request that needs anything else (a map that is read first, a lock that another request has, room in the log) fails
//! with `WouldBlock` and has changed nothing, before it is started or at its end. The caller repeats it as
//! [`Volume::write`] with [`Blocking::Yes`].

use std::io;
use std::sync::Arc;
use std::time::Instant;

use onefold_engine::PreparedWrite as PreparedIo;
use onefold_format::{Lba, Pba, Record};
use onefold_index::Fingerprint;
use onefold_metadata::{
    BlockGuard, BlockRange, Blocking, Guard, HashCache, Layer, Leaf, MetadataState, PbaRun,
    PbaRuns, REQUEST_BYTES_MAX, Result, StoreError,
};
use smallvec::SmallVec;

use super::Volume;
use super::piece::{Fate, Piece, Placed, PlacedRuns, Run, changes};
use super::resolve::Resolved;
use super::write::{not_stored, sums, take_back};

/// A write that only has to be started. If it is dropped, nothing is written.
pub struct PreparedWrite {
    io: Box<dyn PreparedIo>,
    write: UnderWay,
}

/// The rest of a write, for when the device has written.
struct UnderWay {
    volume: Arc<Volume>,
    /// The offset of the request, in bytes.
    offset: u64,
    received: Instant,
    blocks: BlockRange,
    pba: Pba,
    /// The blocks at `pba`, if they are new.
    new: Option<NewBlocks>,
    resolved: Option<Resolved>,
    /// The volume's hash cache, and the fingerprints that it gets.
    fingerprints: Option<(Arc<HashCache>, SmallVec<[Fingerprint; 8]>)>,
    /// Keeps other requests away from the blocks until the write has ended.
    locked: Option<BlockGuard>,
}

/// New blocks that no record refers to yet. They are taken back when this is dropped.
struct NewBlocks {
    volume: Arc<Volume>,
    layer: Arc<Layer>,
    /// Keeps the entries in memory, so that the record has to read nothing.
    _leaves: SmallVec<[Arc<Leaf>; 1]>,
    placed: PlacedRuns,
    /// Entries that will hold data and did not.
    entries_more: u64,
    records: SmallVec<[Record; 2]>,
    sums: SmallVec<[u32; 8]>,
    old_blocks: PbaRuns,
    is_recorded: bool,
}

impl Volume {
    /// The longest write for which no thread has to wait, in bytes; 0 if that is none.
    #[must_use]
    pub fn prepared_bytes_max(&self) -> usize {
        self.pool.data().prepared_bytes_max()
    }

    /// Submits the requests that were started to the device.
    pub fn submit(&self) {
        self.pool.data().submit();
    }

    /// Like [`Volume::write`] with [`Blocking::No`], except that a write that would only wait for the device is
    /// returned prepared.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn write_or_prepare(
        self: &Arc<Self>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<PreparedWrite>> {
        let received = Instant::now();
        if !self.may_be_prepared(offset, data) {
            self.write(offset, data, Blocking::No)?;
            return Ok(None);
        }
        self.admit(offset, data.len() as u64, REQUEST_BYTES_MAX)?;
        self.check_writable()?;
        let written = self.write_or_prepare_admitted(offset, data, received);
        if let Ok(None) = written {
            self.count_latency(received, &Ok(()));
        }
        written.map_err(|error| self.refused(self.during("writing", offset, error)))
    }

    /// Whether these are whole blocks whose entries are in memory. A hint: nothing is locked.
    fn may_be_prepared(&self, offset: u64, data: &[u8]) -> bool {
        let block_size = self.pool.block_size();
        let (len, bytes_max) = (data.len() as u64, self.prepared_bytes_max() as u64);
        let is_whole = offset.is_multiple_of(block_size) && len.is_multiple_of(block_size);
        if len == 0 || len > bytes_max || !is_whole {
            return false;
        }
        let blocks = BlockRange::new(Lba(offset / block_size), len / block_size);
        let (maps, layer) = (self.pool.maps(), self.layer());
        let is_there = |part: BlockRange| maps.leaf(&layer, part.segment(), Blocking::No).is_ok();
        blocks.by_segment().all(is_there)
    }

    /// Steps 2 to 5.
    fn write_or_prepare_admitted(
        self: &Arc<Self>,
        offset: u64,
        data: &[u8],
        received: Instant,
    ) -> Result<Option<PreparedWrite>> {
        let block_size = self.pool.block_size();
        let (first, count) = (Lba(offset / block_size), data.len() as u64 / block_size);
        let found = self.resolve(data, Blocking::No)?;
        let resolved = found.as_ref();
        let (layer, locked) = self.lock_blocks(offset..offset + data.len() as u64, Blocking::No)?;
        if resolved.is_some_and(Resolved::is_without_new) {
            self.write_locked(&layer, first, data, resolved, Blocking::No)?;
            self.note_written(count, resolved);
            return Ok(None);
        }
        let blocks = BlockRange::new(first, count);
        let entries = self.entries_to_write(&layer, blocks, Blocking::No)?;
        let piece = Piece::new(first, data, block_size, entries, resolved);
        let runs = self.shape(&layer, &piece, Blocking::No)?;
        let (pba, new) = one_place(self, &layer, &piece, &runs)?;
        let cache = layer.hash_cache();
        if let Some(cache) = &cache {
            blocks.by_segment().for_each(|blocks| cache.forget(blocks));
        }
        if new.is_none() {
            self.rewrites
                .begin(&self.pool, PbaRun { start: pba, count });
        }
        let io = self.pool.data().prepare_write(data, pba.0 * block_size);
        let io = io.ok_or_else(StoreError::would_block)?;
        let fingerprints = cache.map(|cache| {
            let fingerprints = self.fingerprints(&layer, &cache, &piece, blocks);
            (cache, fingerprints)
        });
        let write = UnderWay {
            volume: Arc::clone(self),
            offset,
            received,
            blocks,
            pba,
            new,
            resolved: found,
            fingerprints,
            locked,
        };
        Ok(Some(PreparedWrite { io, write }))
    }
}

/// The place of a write that is one run: that of its own blocks, or new ones.
fn one_place(
    volume: &Arc<Volume>,
    layer: &Arc<Layer>,
    piece: &Piece<'_>,
    runs: &[Run],
) -> Result<(Pba, Option<NewBlocks>)> {
    match runs {
        [run] => match run.fate {
            Fate::InPlace(pba) => Ok((pba, None)),
            Fate::New => {
                let (pba, new) = NewBlocks::allocate(volume, layer, piece, runs)?;
                Ok((pba, Some(new)))
            }
            Fate::Hit(_) | Fate::Zero(_) | Fate::Nothing => Err(StoreError::would_block()),
        },
        _ => Err(StoreError::would_block()),
    }
}

impl PreparedWrite {
    /// Starts the write, which may wait for [`Volume::submit`]. `ended` gets the result, as [`Volume::write`]
    /// returns it, and the bytes of the write, on a thread on which it must not wait.
    pub fn start(self, ended: impl FnOnce(Result<()>, &[u8]) + Send + 'static) {
        let Self { io, write } = self;
        io.start(Box::new(move |written, data| {
            ended(write.end(written), data);
        }));
    }
}

impl UnderWay {
    /// The rest of the write, with its blocks still locked.
    fn end(self, written: io::Result<()>) -> Result<()> {
        let Self {
            volume,
            offset,
            received,
            blocks,
            pba,
            new,
            resolved,
            fingerprints,
            locked,
        } = self;
        let (pool, count) = (&volume.pool, blocks.count);
        pool.data().mark_unsynced();
        let written = written.map_err(|error| not_stored(blocks, pba, error));
        let written = written.and_then(|()| match new {
            Some(new) => new.record(),
            None => {
                volume.rewrites.end(pool, PbaRun { start: pba, count });
                Ok(())
            }
        });
        if written.is_ok() {
            volume.note_written(count, resolved.as_ref());
            if let Some((cache, fingerprints)) = fingerprints {
                let mut rest = &fingerprints[..];
                for part in blocks.by_segment() {
                    let (now, later) = rest.split_at(part.count as usize);
                    cache.note(part.first, pba + (part.first.0 - blocks.first.0), now);
                    rest = later;
                }
            }
        }
        drop(locked);
        volume.count_latency(received, &written);
        written.map_err(|error| volume.refused(volume.during("writing", offset, error)))
    }
}

impl NewBlocks {
    /// Allocates one run of blocks, and makes the records that will refer to it.
    fn allocate(
        volume: &Arc<Volume>,
        layer: &Arc<Layer>,
        piece: &Piece<'_>,
        runs: &[Run],
    ) -> Result<(Pba, Self)> {
        let entries_more = piece.entries_more(runs);
        layer.space_limits.admit(entries_more, piece.block_size)?;
        let leaf = |part: BlockRange| {
            let maps = volume.pool.maps();
            maps.leaf(layer, part.segment(), Blocking::No)
        };
        let leaves = piece.blocks().by_segment().map(leaf);
        let leaves = leaves.collect::<Result<_>>()?;
        let placed = volume.place(layer, piece, runs, Blocking::No)?;
        let (records, old_blocks) = changes(layer.id, piece, &placed);
        let sums = if volume.pool.journal().wants_sums() {
            sums(piece, &placed)
        } else {
            SmallVec::new()
        };
        let pba = match placed[..] {
            [Placed { new, .. }] => new,
            _ => None,
        };
        let new = Self {
            volume: Arc::clone(volume),
            layer: Arc::clone(layer),
            _leaves: leaves,
            placed,
            entries_more,
            records,
            sums,
            old_blocks,
            is_recorded: false,
        };
        // Scattered blocks are several writes.
        let pba = pba.ok_or_else(StoreError::would_block)?;
        Ok((pba, new))
    }

    /// [step 7 log] Makes the entries refer to the blocks, which are stored.
    fn record(mut self) -> Result<()> {
        let admit = |_: &MetadataState| {
            // Other requests may have used up the quota since.
            if Guard::QuotaLookedAtLocked.holds() {
                let block_size = self.volume.pool.block_size();
                let limits = &self.layer.space_limits;
                limits.admit(self.entries_more, block_size)?;
            }
            Ok(())
        };
        self.volume.pool.journal().append_new(
            &self.records,
            &self.sums,
            &self.old_blocks,
            Blocking::No,
            Some(&admit),
        )?;
        self.is_recorded = true;
        Ok(())
    }
}

impl Drop for NewBlocks {
    fn drop(&mut self) {
        if !self.is_recorded
            && let Err(error) = take_back(self.volume.pool.journal(), &self.placed)
        {
            tracing::error!("blocks of a write that was not made stay allocated: {error}");
        }
    }
}
