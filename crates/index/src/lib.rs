//! The fingerprint index: the block that holds a content, and the number of entries that refer to
//! it.
//!
//! May use: the engine, for its file, and identifiers of the format. Must not: know volumes or maps.
//!
//! A [`FingerprintIndex`] maps fingerprints to rows of a block's address and a number of
//! references. It is changed in batches only. A batch has a number in a stream, and the index keeps
//! the last number of each stream together with the answers, atomically with the rows: a caller
//! that crashed before it recorded the answers repeats the batch and gets the original ones. So
//! every batch takes effect exactly once (P4). Lookups change nothing, and wait for no batch.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`fingerprint`] | keyed hashes of blocks, several at once |
//! | `row` | a row in ten bytes, and the counts over all rows |
//! | `batch` | the effect of a batch on rows: the same for every back end |
//! | `stream` | the last number of a stream and its answers |
//! | [`shard`] | the parts of batches that a shard of a shared pool's index gets |
//! | `guarded` | a back end's rows behind their locks, and whether they can be used |
//! | [`holds`] | rows of a shard that stores may be about to refer to |
//! | `marks` | blocks that are marked as bad in a shard |
//! | `header` | the first sector of the part: whose index it is, and whether it counts |
//! | [`memory`] | all rows in memory; written out when the pool is closed |
//! | `entry` | a row with its fingerprint |
//! | [`btree`] | rows in a copy-on-write B-tree on the disk |
//! | [`hash`] | rows in sorted runs on the disk, with signatures and recent changes in memory |
//! | [`served`] | answers the calls to one shard of a shared pool's index |
//! | [`sharded`] | the index of a shared pool, as one of its stores uses it |
//! | `sync` | locks and atomics |
//! | `conformance` | the suite that every back end must pass (cargo feature of that name) |
//!
//! A back end owns the pool's part `index`, a [`Disk`]. `docs/format/index.md` has its layout, and
//! the effects of torn and lost writes.
//!
//! Invariants, of every back end:
//! - An increment or decrement takes effect as a whole or not at all, and after an error of one it is unknown which:
//!   the index then refuses everything until it is opened again, and the batch is repeated. [`IndexError::NoRoom`] is
//!   different: nothing was changed, and the index stays usable.
//! - The rows are derived: they can be counted again from the pool's maps. A back end that cannot
//!   vouch for its rows reports it by [`IndexReader::needs_rebuild`], durably.

use std::io;
use std::sync::Arc;

use onefold_engine::{Blocking, Disk};
use onefold_format::{IndexKind, Pba, PoolId, Shard};
use smallvec::SmallVec;

mod batch;
pub mod btree;
#[cfg(feature = "conformance")]
pub mod conformance;
mod entry;
pub mod fingerprint;
mod guarded;
pub mod hash;
mod header;
pub mod holds;
mod marks;
pub mod memory;
mod row;
pub mod served;
pub mod shard;
pub mod sharded;
mod stream;
mod sync;

pub use fingerprint::{Fingerprint, Key, is_zero};

/// Disk space of a row of a `hash` index, in bytes, with the room for merging its segments: as
/// measured with twenty million rows (`docs/benchmarks-index.md`).
pub const HASH_ROW_DISK_BYTES: f64 = 51.0;

/// Memory of a row of a `hash` index, in bytes, as measured there (`docs/benchmarks-index.md`).
pub const HASH_ROW_MEMORY_BYTES: f64 = 5.8;

pub use row::{IndexCounts, REFERENCES_MAX, Row};
#[cfg(feature = "simulation")]
pub use stream::forget_answers;

/// The result of a request to an index.
pub type Result<T> = std::result::Result<T, IndexError>;

/// Identifies a stream of batches. The caller decides its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The result of counting a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counted {
    /// The row has the item's own block; in most cases it is new.
    Inserted,
    /// The row has this other block, which holds the same content.
    Shared(Pba),
    /// Nothing was counted: the index has no room for a further row, or the row has
    /// [`REFERENCES_MAX`] references.
    Full,
}

/// The result of releasing a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Released {
    /// The reference is released, and others are left.
    Remaining,
    /// The last reference is released: the row is gone, and the block is unused.
    Zero,
    /// The row has another block. Nothing was changed.
    Mismatch,
    /// There is no row. Nothing was changed.
    Unknown,
    /// It is the last reference, and a store may be about to refer to the block. Nothing was changed. Only a shard of a
    /// shared pool's index answers so.
    Held,
}

/// The result of looking a fingerprint up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookedUp {
    /// The fingerprint has a row with this block.
    Present(Pba),
    /// There is no row: the index looked where it would be.
    Absent,
    /// There is no row, as the signatures in memory show. Only [`hash`] has signatures.
    AbsentBySignature,
}

impl LookedUp {
    /// The block, if there is a row.
    #[must_use]
    pub fn pba(self) -> Option<Pba> {
        match self {
            LookedUp::Present(pba) => Some(pba),
            LookedUp::Absent | LookedUp::AbsentBySignature => None,
        }
    }

    /// The answer for a row that was looked for where it would be.
    pub(crate) fn of(row: Option<Row>) -> LookedUp {
        row.map_or(LookedUp::Absent, |row| LookedUp::Present(row.pba))
    }
}

/// The answers to a lookup, one for each fingerprint. A small write's need no allocation.
pub type LookupAnswers = SmallVec<[LookedUp; 8]>;

/// Reads fingerprints, the blocks that hold their contents, and the numbers of references to them.
///
/// Calls may come from many threads, and run concurrently with batches.
pub trait IndexReader: Send + Sync {
    /// Looks fingerprints up, one answer for each. A lookup never waits for a batch's I/O. A disk error of a lookup
    /// ends all use of the index, as in any other call.
    ///
    /// A hint, with one promise: a block that it names had a durable row with this fingerprint at some time during the
    /// call. So rows of a batch are not visible before the batch is durable; rows that a batch removes may be, until it
    /// is answered. The changes of an answered batch are visible to every lookup that begins later.
    ///
    /// # Errors
    /// [`IndexError::WouldBlock`], only with [`Blocking::No`]: an answer is not in memory, or another call keeps the
    /// index busy. [`btree`] does not know which rows are in memory and always returns it, [`memory`] while a batch
    /// changes its rows. [`IndexError::Unready`] before a rebuild has ended; errors of the disk.
    fn lookup(&self, fingerprints: &[Fingerprint], blocking: Blocking) -> Result<LookupAnswers>;

    /// How many rows and references there are.
    fn counts(&self) -> IndexCounts;

    /// Rows in the order of their fingerprints, from `from` on, at most `max`.
    fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>>;

    /// Whether the rows do not match the pool's maps: after a stop that the index could not
    /// survive, or a rebuild that did not end.
    fn needs_rebuild(&self) -> bool;
}

/// Fingerprints, the blocks that hold their contents, and the numbers of references to them.
///
/// Calls may come from many threads; batches take effect one after the other, and lookups run concurrently with them.
pub trait FingerprintIndex: IndexReader {
    /// Counts one reference for each item, in order; equal fingerprints of a batch meet each other.
    /// A row that has the item's own block answers [`Counted::Inserted`], and counts.
    ///
    /// The answers, one for each item, are durable with the rows when this returns. A repeat of the stream's last
    /// number returns the original answers and changes nothing: its items are not compared, so a batch without items
    /// can be used to consume a number. Numbers may be skipped.
    ///
    /// # Errors
    /// [`IndexError::Stale`] for an older number, or for the last one if that was a decrement or
    /// its answers are not kept; [`IndexError::Unready`] before a rebuild has ended;
    /// [`IndexError::BadBlock`] for an address that no pool has. None of these changes anything.
    fn increment(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>>;

    /// Counts one reference for each item whose row has the item's own block, and answers [`Counted::Inserted`] for it;
    /// for any other item it counts nothing and answers [`Counted::Full`]. So no row is created: one that is gone would
    /// come back with too few references. Numbers, repeats and errors work as in [`FingerprintIndex::increment`], whose
    /// stream it shares.
    fn count_existing(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>>;

    /// Releases one reference for each item, in order. The row must have the item's block. The last reference removes
    /// the row. Numbers, repeats and errors work as in [`FingerprintIndex::increment`], whose stream it shares.
    fn decrement(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Released>>;

    /// Secures room on the disk for the next batches, with this many items each, so that they do
    /// not fail for want of it. A back end that cannot tell succeeds.
    ///
    /// # Errors
    /// [`IndexError::NoRoom`]; [`IndexError::Unready`]; errors of the disk.
    fn secure(&self, _batches: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Forgets everything: rows, streams and answers. From here on
    /// [`IndexReader::needs_rebuild`] is true, also after a crash, until
    /// [`FingerprintIndex::finish_rebuild`].
    fn begin_rebuild(&self) -> Result<()>;

    /// Adds rows counted from the maps. Returns the rows that are refused: those whose fingerprint has a row with
    /// another block, and those beyond [`REFERENCES_MAX`]. If the row exists with the same block, the references are
    /// added. A limit in bytes does not apply: these references exist. They may become durable as late as
    /// [`FingerprintIndex::finish_rebuild`].
    ///
    /// # Errors
    /// [`IndexError::Unready`] unless [`FingerprintIndex::begin_rebuild`] was called since the
    /// index was opened; [`IndexError::BadBlock`] as above.
    fn add_rows(&self, rows: &[(Fingerprint, Row)]) -> Result<Vec<(Fingerprint, Row)>>;

    /// Ends a rebuild. The last number of `stream` becomes `last_number`, without answers, so that
    /// a repeat of it is [`IndexError::Stale`]; other streams have none. Durable when it returns,
    /// as far as the back end ever is.
    ///
    /// # Errors
    /// The errors of [`FingerprintIndex::add_rows`].
    fn finish_rebuild(&self, stream: StreamId, last_number: u64) -> Result<()>;

    /// Makes the next opening quick. Every later call is refused with [`IndexError::Closed`],
    /// except [`IndexReader::counts`], [`IndexReader::needs_rebuild`],
    /// [`FingerprintIndex::bytes_on_disk`] and a further close.
    fn close(&self) -> Result<()>;

    /// Bytes that the host has allocated for the index.
    fn bytes_on_disk(&self) -> Result<u64>;
}

/// Makes the index of a new pool: one without rows.
pub fn create(kind: IndexKind, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    match kind {
        IndexKind::Btree => btree::create(disk, pool),
        IndexKind::Memory => memory::create(disk, pool),
        IndexKind::Hash => hash::create(disk, pool),
    }
}

/// Discards the content of the disk, of whatever kind. The next opening has no rows, and needs a
/// rebuild.
pub fn replace(kind: IndexKind, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    header::write(&**disk, kind, pool, header::Content::Void)?;
    let len = disk.len()?;
    if len > header::BODY_OFFSET {
        disk.discard(header::BODY_OFFSET, len - header::BODY_OFFSET)?;
    }
    Ok(())
}

/// Opens the pool's index, which may take this many `bytes` of memory.
///
/// # Errors
/// [`IndexError::Damaged`] if there is none of this kind or it cannot be read;
/// [`IndexError::OtherPool`], [`IndexError::Newer`], [`IndexError::Io`].
pub fn open(
    kind: IndexKind,
    disk: Arc<dyn Disk>,
    pool: PoolId,
    bytes: u64,
) -> Result<Arc<dyn FingerprintIndex>> {
    Ok(match kind {
        IndexKind::Btree => Arc::new(btree::open(disk, pool, bytes)?),
        IndexKind::Memory => Arc::new(memory::open(disk, pool, bytes)?),
        IndexKind::Hash => Arc::new(hash::open(disk, pool, bytes)?),
    })
}

/// Makes sure that an index of this kind and of this pool is on the disk. Writes nothing.
///
/// # Errors
/// [`IndexError::Damaged`], [`IndexError::OtherPool`], [`IndexError::Newer`], [`IndexError::Io`].
pub fn check_header(disk: &dyn Disk, kind: IndexKind, pool: PoolId) -> Result<()> {
    header::read(disk, kind, pool).map(drop)
}

/// The kind of the index on the disk; `None` if there is none of this pool.
///
/// # Errors
/// [`IndexError::Io`].
pub fn kind_of(disk: &dyn Disk, pool: PoolId) -> Result<Option<IndexKind>> {
    header::kind(disk, pool)
}

/// Why an index could not carry out a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The disk failed. The message gives the part and the place.
    #[error(transparent)]
    Io(io::Error),
    /// The disk has no room for a write. Nothing was changed, and the same call may be made again.
    /// Back ends that cannot promise that return [`IndexError::Io`].
    #[error(transparent)]
    NoRoom(io::Error),
    /// The disk returns other content than was written. The index can be replaced, and counted again from the maps.
    #[error("the index is damaged: {0}")]
    Damaged(String),
    /// A later release wrote the index.
    #[error("the index has format version {0}, which a later version of onefold can read")]
    Newer(u16),
    /// The index is whole, but belongs to another pool.
    #[error("the index belongs to the pool {found}, not to {expected}")]
    OtherPool {
        /// The pool that was expected.
        expected: PoolId,
        /// The pool in the index's header.
        found: PoolId,
    },
    /// A batch number that was used up, and whose answers are no longer kept.
    #[error("batch {number} of stream {} is not the last one, {last}, or was of another kind",
        stream.0)]
    Stale {
        /// The stream.
        stream: StreamId,
        /// The number of the batch that was refused.
        number: u64,
        /// The stream's last number.
        last: u64,
    },
    /// A part of a batch whose stream has closed it: no further item of it is executed.
    #[error("batch {number} of stream {} is sealed: an item of it can no longer be executed", stream.0)]
    Sealed {
        /// The stream.
        stream: StreamId,
        /// The number of the batch.
        number: u64,
    },
    /// The answers to a batch were lost when the index was rebuilt.
    #[error("the answers to batch {number} of stream {} were lost when the index was rebuilt", stream.0)]
    Forgotten {
        /// The stream.
        stream: StreamId,
        /// The number of the batch.
        number: u64,
    },
    /// Shards of a shared pool's index cannot be asked now. What was asked of them may take effect, or not; the index
    /// stays usable, and the same batch may be repeated under its number.
    #[error("the fingerprint index has no answer of {}: {reason}", list(.shards))]
    Away {
        /// The shards.
        shards: Vec<Shard>,
        /// Why the first shard has not answered.
        reason: String,
    },
    /// A shard of a shared pool's index refused a request, and would refuse it again.
    #[error("shard {shard} of the fingerprint index refused a request: {reason}")]
    Refused {
        /// The shard.
        shard: Shard,
        /// The shard's reason.
        reason: String,
    },
    /// Batches are refused because a rebuild has not ended, or rows because none has begun.
    #[error("the index is not ready: {0}")]
    Unready(&'static str),
    /// An address that no pool has: 0, or beyond the largest.
    #[error("there can be no block {0}")]
    BadBlock(Pba),
    /// An earlier call failed, and the state of the disk is unknown.
    #[error("the index failed before: the pool must be opened again")]
    Failed,
    /// The index was closed.
    #[error("the index is closed")]
    Closed,
    /// A lookup was not allowed to wait, and would have had to.
    #[error("the index would have to wait")]
    WouldBlock,
}

impl IndexError {
    /// Whether there was no room left on the disk.
    #[must_use]
    pub fn is_storage_full(&self) -> bool {
        match self {
            IndexError::NoRoom(_) => true,
            IndexError::Io(error) => is_storage_full(error),
            _ => false,
        }
    }

    /// The error of a write or a reservation, which changes nothing when it fails. Not for a sync: a failed sync is
    /// never repeated, for any reason.
    pub(crate) fn of_write(error: io::Error) -> IndexError {
        if is_storage_full(&error) {
            IndexError::NoRoom(error)
        } else {
            IndexError::Io(error)
        }
    }
}

/// Names some shards.
fn list(shards: &[Shard]) -> String {
    const NAMED_MAX: usize = 4;
    let named: Vec<String> = shards
        .iter()
        .take(NAMED_MAX)
        .map(|shard| format!("shard {shard}"))
        .collect();
    let others = shards.len() - named.len();
    let named = named.join(", ");
    if others > 0 {
        format!("{named} and {others} more")
    } else {
        named
    }
}

fn is_storage_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> Self {
        IndexError::Io(error)
    }
}

/// Why batches are refused.
const NEEDS_REBUILD: &str = "its rows have to be counted from the maps first";

/// Why rows are refused.
const NO_REBUILD: &str = "no rebuild has begun";
