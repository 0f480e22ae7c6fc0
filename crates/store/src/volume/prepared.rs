//! Writes in place past the host's cache, for which no thread waits.
//!
//! Steps 1 to 5 are the same as for every write (`write.rs`) and wait for nothing. Then the write is *prepared*:
//! its blocks are locked, and the engine has its bytes. Once it is started, step 6 needs no thread; the thread
//! that receives the completion does the rest. There is no step 7, because the entries stay as they are.
//!
//! A request that needs anything else (new blocks, a device that is read first, a lock that another request has)
//! fails before it has changed anything, and the caller repeats it as [`Volume::write`] with [`Blocking::Yes`].

use std::io;
use std::sync::Arc;
use std::time::Instant;

use onefold_engine::PreparedWrite as PreparedIo;
use onefold_format::{Lba, Pba};
use onefold_index::Fingerprint;
use onefold_metadata::{
    BlockGuard, BlockRange, Blocking, Entries, HashCache, PbaRun, REQUEST_BYTES_MAX, Result,
    StoreError,
};
use smallvec::SmallVec;

use super::Volume;
use super::piece::{Fate, Piece, Run};
use super::resolve::Resolved;
use super::write::not_stored;

/// A write that only has to be started. If it is dropped, nothing is written.
pub struct PreparedWrite {
    io: Box<dyn PreparedIo>,
    in_place: InPlace,
}

/// The rest of a write in place, for when the device has written.
struct InPlace {
    volume: Arc<Volume>,
    /// The offset of the request, in bytes.
    offset: u64,
    received: Instant,
    blocks: BlockRange,
    pba: Pba,
    /// The volume's hash cache, and the fingerprints that it gets.
    fingerprints: Option<(Arc<HashCache>, SmallVec<[Fingerprint; 8]>)>,
    /// Keeps other requests away from the blocks until the write has ended.
    locked: Option<BlockGuard>,
}

impl Volume {
    /// The longest write for which no thread has to wait, in bytes; 0 if that is none.
    #[must_use]
    pub fn prepared_bytes_max(&self) -> usize {
        self.pool.data().prepared_bytes_max()
    }

    /// Submits the writes that were started to the device.
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
        if !self.may_go_in_place(offset, data) {
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

    /// Whether the live layer owns these blocks, each of them whole. A hint: nothing is locked.
    fn may_go_in_place(&self, offset: u64, data: &[u8]) -> bool {
        let block_size = self.pool.block_size();
        let (len, bytes_max) = (data.len() as u64, self.prepared_bytes_max() as u64);
        let is_whole = offset.is_multiple_of(block_size) && len.is_multiple_of(block_size);
        if len == 0 || len > bytes_max || !is_whole {
            return false;
        }
        let blocks = BlockRange::new(Lba(offset / block_size), len / block_size);
        let mut entries = Entries::new();
        for part in blocks.by_segment() {
            let Ok(leaf) = self
                .pool
                .maps()
                .leaf(&self.layer(), part.segment(), Blocking::No)
            else {
                return false;
            };
            leaf.entries(part.slots(), &mut entries);
        }
        entries.iter().all(|entry| entry.own_pba().is_some())
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
        let resolved = self.resolve(data, Blocking::No)?;
        let resolved = resolved.as_ref();
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
        let [
            Run {
                fate: Fate::InPlace(pba),
                ..
            },
        ] = runs[..]
        else {
            return Err(StoreError::would_block());
        };
        let cache = layer.hash_cache();
        if let Some(cache) = &cache {
            blocks.by_segment().for_each(|blocks| cache.forget(blocks));
        }
        self.rewrites
            .begin(&self.pool, PbaRun { start: pba, count });
        let io = self.pool.data().prepare_write(data, pba.0 * block_size);
        let io = io.ok_or_else(StoreError::would_block)?;
        let fingerprints = cache.map(|cache| {
            let fingerprints = self.fingerprints(&layer, &cache, &piece, blocks);
            (cache, fingerprints)
        });
        self.note_written(count, resolved);
        let in_place = InPlace {
            volume: Arc::clone(self),
            offset,
            received,
            blocks,
            pba,
            fingerprints,
            locked,
        };
        Ok(Some(PreparedWrite { io, in_place }))
    }
}

impl PreparedWrite {
    /// Starts the write, which may wait for [`Volume::submit`]. `ended` gets the result, as [`Volume::write`]
    /// returns it, and the bytes of the write, on a thread on which it must not wait.
    pub fn start(self, ended: impl FnOnce(Result<()>, &[u8]) + Send + 'static) {
        let Self { io, in_place } = self;
        io.start(Box::new(move |written, data| {
            ended(in_place.end(written), data);
        }));
    }
}

impl InPlace {
    /// The rest of the write, with its blocks still locked.
    fn end(self, written: io::Result<()>) -> Result<()> {
        let Self {
            volume,
            offset,
            received,
            blocks,
            pba,
            fingerprints,
            locked,
        } = self;
        let pool = &volume.pool;
        pool.data().mark_unsynced();
        let written = written.map_err(|error| not_stored(blocks, pba, error));
        if written.is_ok() {
            let count = blocks.count;
            volume.rewrites.end(pool, PbaRun { start: pba, count });
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
