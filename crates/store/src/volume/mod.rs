//! One volume, as front ends see it: bytes to read, write, flush, trim and ask about.
//!
//! The steps of a write are in `write.rs`, of a read in `read.rs`; this file checks requests before
//! they start and adds the volume to their errors.

mod changes;
mod inline;
mod piece;
mod prepared;
mod prepared_read;
mod read;
mod recent;
mod resolve;
mod rewrites;
mod trim;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use onefold_format::{VolumeId, VolumeRecord, VolumeSettings, VolumeState, WhenFull};
use onefold_journal::Hurry;
use onefold_metadata::sync::{AtomicBool, AtomicU64, RwLock, read, write};
use onefold_metadata::{
    Blocking, Guard, HashCache, Layer, REQUEST_BYTES_MAX, Result, StoreError, StoreErrorKind,
};

use crate::pool::Pool;
use crate::volume_options::VolumeOptions;

use self::inline::Inline;
use self::rewrites::Rewrites;

pub use changes::ChangedExtent;
pub use inline::{AutoHeldBack, AutoSwitch, InlineStat, RefusedCounts};
pub use prepared::PreparedWrite;
pub use prepared_read::{FoundBytes, PreparedRead};
pub(crate) use recent::Recent;

/// A run of bytes that are stored, or that read as zeros because nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Whether anything is stored.
    pub data: bool,
}

/// An open volume. Any range of bytes works; whole blocks are faster.
pub struct Volume {
    pool: Arc<Pool>,
    pub(crate) id: VolumeId,
    /// The live layer; of a snapshot, its frozen layer.
    layer: RwLock<Arc<Layer>>,
    /// The volume of which it is a snapshot; then nothing can be written.
    pub(crate) snapshot_of: Option<VolumeId>,
    pub(crate) created_unix_seconds: u64,
    name: RwLock<String>,
    options: RwLock<VolumeOptions>,
    size_bytes: AtomicU64,
    importing: AtomicBool,
    gone: AtomicBool,
    inline: Inline,
    rewrites: Rewrites,
}

impl Volume {
    pub(crate) fn new(pool: Arc<Pool>, record: &VolumeRecord) -> Result<Self> {
        let key = pool.blocks().fingerprinter().key(record.domain);
        let volume = Self {
            id: record.id,
            layer: RwLock::new(pool.maps().layer(record.layer)?),
            snapshot_of: record.snapshot_of,
            created_unix_seconds: record.created_unix_seconds,
            pool,
            name: RwLock::new(record.name.clone()),
            options: RwLock::new(VolumeOptions {
                size_bytes: record.size_bytes,
                domain: record.domain_name.clone(),
                settings: record.settings,
            }),
            size_bytes: AtomicU64::new(record.size_bytes),
            importing: AtomicBool::new(record.state == VolumeState::Importing),
            gone: AtomicBool::new(false),
            inline: Inline::new(key),
            rewrites: Rewrites::new(record.id),
        };
        volume.renew_hash_cache(record.settings.hash_cache_bytes);
        Ok(volume)
    }

    /// The volume's present name.
    #[must_use]
    pub fn name(&self) -> String {
        read(&self.name).clone()
    }

    pub(crate) fn set_name(&self, name: &str) {
        name.clone_into(&mut write(&self.name));
    }

    /// A unique name: unlike the volume's name, no other volume or snapshot of the pool has ever
    /// had it or will have it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id.0
    }

    /// The volume's size in bytes, a multiple of 512. If the last block is short, the rest of it is zeros,
    /// because whole blocks are stored, compared and fingerprinted.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(SeqCst)
    }

    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, SeqCst);
    }

    /// The volume's present size, domain and settings.
    #[must_use]
    pub fn options(&self) -> VolumeOptions {
        VolumeOptions {
            size_bytes: self.size_bytes(),
            ..read(&self.options).clone()
        }
    }

    /// The volume's present settings.
    #[must_use]
    pub fn settings(&self) -> VolumeSettings {
        read(&self.options).settings
    }

    /// Counts of in-line deduplication since the volume was opened.
    #[must_use]
    pub fn inline_stat(&self) -> InlineStat {
        self.inline.stat(self.settings().dedup)
    }

    pub(crate) fn set_options(&self, options: &VolumeOptions) {
        let hash_cache_bytes = options.settings.hash_cache_bytes;
        if hash_cache_bytes != self.settings().hash_cache_bytes {
            self.renew_hash_cache(hash_cache_bytes);
        }
        options.clone_into(&mut write(&self.options));
    }

    /// Drops the hash cache, and makes an empty one of this many bytes, if any.
    fn renew_hash_cache(&self, bytes: u64) {
        let layer = self.layer();
        layer.set_hash_cache(None);
        if bytes > 0 && !self.is_snapshot() {
            let key = self.pool.blocks().fingerprinter().key(layer.domain);
            let cache = HashCache::new(self.pool.hash_cache_room(), bytes, key);
            layer.set_hash_cache(cache);
        }
    }

    /// The pool that has the volume.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The live layer; of a snapshot, its frozen layer.
    pub(crate) fn layer(&self) -> Arc<Layer> {
        Arc::clone(&read(&self.layer))
    }

    /// Makes `layer` the live layer. The caller holds all blocks of the previous one.
    pub(crate) fn set_layer(&self, layer: Arc<Layer>) {
        let before = std::mem::replace(&mut *write(&self.layer), layer);
        before.set_hash_cache(None);
        self.renew_hash_cache(self.settings().hash_cache_bytes);
    }

    /// Bytes in a block: 4096, 8192, 16384 or 65536.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.pool.superblock().block_size
    }

    /// Blocks that hold data, without those that only its snapshots have.
    #[must_use]
    pub fn logical_blocks(&self) -> u64 {
        self.layer().logical_blocks()
    }

    /// Whether this is a snapshot, which cannot be written.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_of.is_some()
    }

    /// Whether the pool's setting is to retry a write that failed with [`StoreErrorKind::NoSpace`]
    /// until there is room. A write that waits holds nothing.
    #[must_use]
    pub fn pauses_when_full(&self) -> bool {
        self.pool.journal().when_full() == WhenFull::Pause
    }

    /// Whether the volume is being loaded from an image.
    pub(crate) fn is_importing(&self) -> bool {
        self.importing.load(SeqCst)
    }

    pub(crate) fn end_import(&self) {
        self.importing.store(false, SeqCst);
    }

    /// Blocks that are pending dedup.
    #[must_use]
    pub fn pending_dedup_blocks(&self) -> u64 {
        self.layer().counts().private
    }

    /// Whether the pool is doing work that waits for idle processors: see
    /// [`crate::Store::set_background_executor`].
    #[must_use]
    pub fn works_in_background(&self) -> bool {
        self.pool.background().is_working()
    }

    /// See [`Store::hurry_background`](crate::Store::hurry_background).
    pub fn hurry_background(&self) -> Hurry {
        self.pool.background().hurry()
    }

    /// Fills `buf` from `offset`. Unwritten ranges, and zeros, read as zeros.
    ///
    /// # Errors
    ///
    /// `Invalid` beyond the end or over 32 MiB; `Io` and `Damaged` with the block's addresses;
    /// `Gone` once the volume is deleted; `WouldBlock`.
    pub fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<()> {
        self.admit(offset, buf.len() as u64, REQUEST_BYTES_MAX)?;
        let started = Instant::now();
        let read = self.read_admitted(offset, buf, blocking);
        self.count_latency(started, &read);
        read.map_err(|error| self.told(self.during("reading", offset, error)))
    }

    /// Like [`Volume::read`], for copying the volume: not counted as a guest's request.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`].
    pub fn read_to_copy(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<()> {
        self.admit(offset, buf.len() as u64, REQUEST_BYTES_MAX)?;
        let read = self.read_admitted(offset, buf, blocking);
        read.map_err(|error| self.told(self.during("reading", offset, error)))
    }

    /// Writes `data` at `offset`: see `docs/life-of-a-write.md`. Durable after [`Volume::flush`].
    ///
    /// # Errors
    ///
    /// As [`Volume::read`], and `NoSpace`, `ReadOnly`. A write that fails may have changed part of
    /// its range, as on any disk.
    pub fn write(&self, offset: u64, data: &[u8], blocking: Blocking) -> Result<()> {
        self.admit(offset, data.len() as u64, REQUEST_BYTES_MAX)?;
        self.check_writable()?;
        let started = Instant::now();
        let written = self.write_admitted(offset, data, blocking);
        self.count_latency(started, &written);
        written.map_err(|error| self.refused(self.during("writing", offset, error)))
    }

    /// Makes every write answered before this call durable, on any connection (P5). Always waits
    /// for the disk.
    ///
    /// # Errors
    ///
    /// `Io` where the disk failed: from then on the pool takes no writes until it is opened again. Also
    /// where a failure before that lost answered writes of the volume: see [`Store::accept_loss`].
    ///
    /// [`Store::accept_loss`]: crate::Store::accept_loss
    pub fn flush(&self) -> Result<()> {
        self.pool
            .journal()
            .commit()
            .and_then(|()| self.check_undamaged())
            .map_err(|e| e.during(format_args!("flushing '{}'", self.name())))
    }

    /// A client that outlived a loss must get an error: it continues as if its writes were there.
    fn check_undamaged(&self) -> Result<()> {
        if !self.pool.losses().is_damaged(self.id) || !Guard::LossTold.holds() {
            return Ok(());
        }
        let name = self.name();
        Err(StoreError::new(
            StoreErrorKind::Io,
            format!(
                "a sync of the pool's data failed, and answered writes of '{name}' are lost: restore \
                 it or check its file systems, then `onefold volume accept-loss {name} --yes`"
            ),
        ))
    }

    /// Releases the whole blocks of the range, which then read as zeros. Takes time in proportion
    /// to the blocks stored there. Parts of blocks at the ends are left.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`]; no limit on the length.
    pub fn trim(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        self.admit(offset, len, u64::MAX)?;
        self.check_writable()?;
        self.trim_admitted(offset, len, blocking)
            .map_err(|error| self.refused(self.during("trimming", offset, error)))
    }

    /// Makes the range read as zeros, to the byte.
    ///
    /// # Errors
    ///
    /// As [`Volume::trim`].
    pub fn write_zeroes(&self, offset: u64, len: u64, blocking: Blocking) -> Result<()> {
        self.admit(offset, len, u64::MAX)?;
        self.check_writable()?;
        self.zero_admitted(offset, len, blocking)
            .map_err(|error| self.refused(self.during("zeroing", offset, error)))
    }

    /// The state of `range`, from its start: at most `extents_max` runs, so perhaps less than the
    /// whole range.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`]; no limit on the length.
    pub fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>> {
        self.admit(range.start, range.end.saturating_sub(range.start), u64::MAX)?;
        let start = range.start;
        self.extents_admitted(range, extents_max, blocking)
            .map_err(|error| self.during("looking up", start, error))
    }

    /// Reads the range into the host's cache, and its map into ours, by way of `scratch`, which is as
    /// [`Volume::read`] needs it and not empty. A hint.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`]; no limit on the length.
    pub fn prefetch(&self, offset: u64, len: u64, scratch: &mut [u8]) -> Result<()> {
        self.admit(offset, len, u64::MAX)?;
        let mut at = offset;
        while at < offset + len && !scratch.is_empty() {
            let piece = (scratch.len() as u64).min(offset + len - at) as usize;
            self.read(at, &mut scratch[..piece], Blocking::Yes)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// Counts a request's latency, unless it would block: then its retry is counted.
    fn count_latency(&self, started: Instant, done: &Result<()>) {
        if !matches!(done, Err(error) if error.kind() == StoreErrorKind::WouldBlock) {
            self.pool.latencies().add(started.elapsed());
        }
    }

    /// [step 1 admit] A request of `len_max` bytes at most.
    fn admit(&self, offset: u64, len: u64, len_max: u64) -> Result<()> {
        if len > len_max {
            let message = format!("a request of {len} bytes exceeds {len_max}");
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        self.check_in_use()?;
        let size = self.size_bytes();
        if offset.checked_add(len).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Invalid,
            format!(
                "{len} bytes at {offset} are beyond the end of '{}' at {size}",
                self.name()
            ),
        ))
    }

    fn check_writable(&self) -> Result<()> {
        if self.is_snapshot() {
            let message = format!("'{}' is a snapshot, which cannot be written", self.name());
            return Err(StoreError::new(StoreErrorKind::ReadOnly, message));
        }
        self.pool.journal().check_writable()
    }

    pub(crate) fn check_in_use(&self) -> Result<()> {
        if self.gone.load(SeqCst) {
            let message = format!("volume '{}' is gone", self.name());
            return Err(StoreError::new(StoreErrorKind::Gone, message));
        }
        Ok(())
    }

    /// Makes sure that the volume's blocks may still be published: a deleted layer's only while others need it.
    pub(crate) fn check_has_blocks(&self) -> Result<()> {
        let layer = self.layer();
        if !layer.above().is_empty() && self.pool.maps().layer(layer.id).is_ok() {
            return Ok(());
        }
        self.check_in_use()
    }

    /// Refuses all requests from now on.
    pub(crate) fn mark_gone(&self) {
        self.gone.store(true, SeqCst);
    }

    /// Logs an I/O error that the client gets, but not more often than the log can bear.
    fn told(&self, error: StoreError) -> StoreError {
        if error.kind() == StoreErrorKind::Io && self.pool.bad().may_tell(Instant::now()) {
            tracing::error!("{error}");
        }
        error
    }

    /// Reports the pool full if a guest's request found no room.
    fn refused(&self, error: StoreError) -> StoreError {
        if error.kind() == StoreErrorKind::NoSpace
            && !self.is_importing()
            && let Err(error) = self.pool.journal().free_space().refused()
        {
            tracing::error!("how full the pool is cannot be found out: {error}");
        }
        error
    }

    pub(crate) fn during(&self, verb: &str, offset: u64, error: StoreError) -> StoreError {
        error.during(format_args!("{verb} '{}' at byte {offset}", self.name()))
    }
}
