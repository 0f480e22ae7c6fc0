//! Rows in sorted runs on the disk, with signatures and recent changes in memory.
//!
//! Made for the typical load of a fingerprint index: many random rows at a time, half of them new.
//! A tree rewrites a page for each of them; here a batch is one frame of a log, and its changes
//! stay in memory until many of the same range are merged with the rows on the disk at once. Two
//! bytes of each row's fingerprint stay in memory, so that absent rows are answered without
//! reading, and present ones cost one read. `docs/decisions/0015-the-hash-index.md` has the
//! arithmetic.
//!
//! | file | purpose |
//! | --- | --- |
//! | `table` | the rows: reads and changes of batches, and the schedule of writes; looking up, merging |
//! | `shared` | the directory, as batches and lookups share it |
//! | `directory` | the segments, each a range of fingerprints: a run, and changes to it |
//! | `segment` | a run of sorted rows on the disk, and the part of it kept in memory |
//! | `reads` | reading many leaves with many of them in flight |
//! | `log`, `frame` | the changes of every batch |
//! | `plan` | parts of batches, of a shard: which items are executed, and which have an answer |
//! | `root` | checkpoints, and the two slots that point to them |
//! | `space` | which pages are in use |
//!
//! Invariants:
//! - The header on the disk says whether the rest is valid. It says "void" before the first row of a rebuild, and
//!   "whole" only when all of them are durable.
//! - Pages that a durable root, or a frame behind it, refers to are never overwritten.
//! - Memory, which lookups read concurrently with a batch, changes only when the frame is durable. After any error the
//!   index refuses everything, unless a write found no room: then nothing has changed, and the next one may find some.
//!
//! Crash behaviour: answered batches survive; of a batch in progress, all or nothing does. Opening
//! reads the log since the beginning of the last turn of merges; signatures are read when a batch
//! first needs them.

mod directory;
mod frame;
mod log;
mod plan;
mod reads;
mod root;
mod segment;
mod shared;
#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests;
mod space;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use onefold_engine::{Blocking, Disk};
use onefold_format::index_message::PositionedAnswer;
use onefold_format::{IndexKind, Pba, PoolId};

use crate::batch::{self, Item};
#[cfg(feature = "conformance")]
use crate::entry;
use crate::guarded::{Guarded, Phase, Turn};
use crate::header::{self, Content};
use crate::holds::Holds;
use crate::shard::ShardBatch;
use crate::stream::Answer;
use crate::{
    Counted, Fingerprint, FingerprintIndex, IndexCounts, IndexReader, LookupAnswers, Released,
    Result, Row, StreamId,
};
use frame::Streams;
#[cfg(feature = "simulation")]
pub use plan::{forget_positions, forget_shard_numbers};
pub use table::Shape;
use table::{Lookup, Table};

/// Makes the index of a new pool: one without rows.
pub fn create(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    create_shaped(disk, pool, Shape::default())
}

/// Like [`create`], with sizes for a test.
pub fn create_shaped(disk: &Arc<dyn Disk>, pool: PoolId, shape: Shape) -> Result<()> {
    replace(disk, pool)?;
    Table::empty(disk.clone(), pool, 0, shape)?.make_durable(&[])?;
    header::write(&**disk, IndexKind::Hash, pool, Content::WHOLE)
}

/// Discards the content of the disk, damaged or not. The next opening has no rows, and needs a
/// rebuild.
pub fn replace(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    header::write(&**disk, IndexKind::Hash, pool, Content::Void)
}

/// Opens the pool's index. It takes about `limit_bytes` of memory: if signatures and changes do not
/// fit, it reads and writes more. In any case it takes half a byte for each row, and some mebibytes
/// for work in progress.
///
/// # Errors
/// [`IndexError::Damaged`] where there is none or where it cannot be read: [`replace`] makes it one
/// that can be rebuilt. [`IndexError::OtherPool`], [`IndexError::Newer`], [`IndexError::Io`].
///
/// [`IndexError::Damaged`]: crate::IndexError::Damaged
/// [`IndexError::OtherPool`]: crate::IndexError::OtherPool
/// [`IndexError::Newer`]: crate::IndexError::Newer
/// [`IndexError::Io`]: crate::IndexError::Io
pub fn open(disk: Arc<dyn Disk>, pool: PoolId, limit_bytes: u64) -> Result<HashIndex> {
    open_shaped(disk, pool, limit_bytes, Shape::default())
}

/// Like [`open`], with sizes for a test.
pub fn open_shaped(
    disk: Arc<dyn Disk>,
    pool: PoolId,
    limit_bytes: u64,
    shape: Shape,
) -> Result<HashIndex> {
    let (table, phase) = match header::read(&*disk, IndexKind::Hash, pool)? {
        Content::Whole(_) => {
            let table = Table::open(disk.clone(), pool, limit_bytes, shape)?;
            (table, Phase::Ready)
        }
        Content::Void => {
            let table = Table::empty(disk.clone(), pool, limit_bytes, shape)?;
            (table, Phase::Void)
        }
    };
    Ok(HashIndex {
        disk,
        pool,
        limit_bytes,
        shape,
        guarded: {
            let counts = table.counts();
            Guarded::new(table, phase, counts)
        },
    })
}

/// Decodes bytes as each of the structures on a disk, for fuzzing: an accepted one is exactly what
/// would be written.
#[cfg(feature = "conformance")]
pub fn decode_anything(bytes: &[u8]) {
    if let Some(checkpoint) = root::Checkpoint::decode(bytes) {
        assert_eq!(checkpoint.encode(), bytes);
    }
    for kind in log::FrameKind::ALL {
        if let Some(frame) = frame::Frame::decode(kind, bytes) {
            assert_eq!(frame.encoded(), bytes);
        }
    }
    // A leaf is opened only behind its checksum, which random bytes would never have.
    let pool = PoolId([0; 16]);
    let run = segment::Run {
        start: 0,
        rows: 1,
        generation: 0,
    };
    let mut leaf = vec![0; segment::LEAF_BYTES];
    let shorter = bytes.len().min(leaf.len());
    leaf[..shorter].copy_from_slice(&bytes[..shorter]);
    segment::seal_leaf(pool, run, 0, &mut leaf);
    if let Ok(entries) = segment::open_leaf(pool, run, 0, &leaf) {
        for entry in entries {
            segment::find(entries, entry::fingerprint_of(entry));
        }
    }
}

/// An index of sorted runs.
pub struct HashIndex {
    disk: Arc<dyn Disk>,
    pool: PoolId,
    limit_bytes: u64,
    shape: Shape,
    guarded: Guarded<Table>,
}

/// Answers to the items of a part of a batch, in the order of their positions; or why the part was refused.
pub type PartAnswers = Result<Vec<PositionedAnswer>>;

impl HashIndex {
    /// Carries out parts of batches, in order. All of their changes are durable together, in one frame of the log. A row
    /// that is held does not lose its last reference.
    ///
    /// A part of a batch with a higher number than the stream's last one replaces it; parts with the last number add to
    /// its answers. Items whose positions have an answer get that, and change nothing.
    ///
    /// # Errors
    /// For a single part, which then has no effect: [`IndexError::Stale`], [`IndexError::Sealed`],
    /// [`IndexError::Forgotten`], [`IndexError::BadBlock`]. For all of them: the errors of
    /// [`FingerprintIndex::increment`].
    ///
    /// [`IndexError::Stale`]: crate::IndexError::Stale
    /// [`IndexError::Sealed`]: crate::IndexError::Sealed
    /// [`IndexError::Forgotten`]: crate::IndexError::Forgotten
    /// [`IndexError::BadBlock`]: crate::IndexError::BadBlock
    pub fn execute(&self, parts: &[ShardBatch], holds: &Holds) -> Result<Vec<PartAnswers>> {
        self.change(Turn::ready, |table| table.execute(parts, holds))
    }

    /// The streams that may hold rows, as they are durably listed. None before a rebuild has ended.
    pub(crate) fn holders(&self) -> BTreeSet<StreamId> {
        let holders = self.change(Turn::ready, |table| Ok(table.beside().holders.clone()));
        holders.unwrap_or_default()
    }

    /// Lists the streams that may hold rows. Durable when it returns.
    ///
    /// # Errors
    /// Those of [`FingerprintIndex::increment`].
    pub(crate) fn set_holders(&self, holders: BTreeSet<StreamId>) -> Result<()> {
        self.change(Turn::ready, |table| {
            table.set_beside(Streams::Holders(holders))
        })
    }

    /// The blocks that are marked as bad, durably. None before a rebuild has ended.
    pub(crate) fn marks(&self) -> BTreeSet<Pba> {
        let marks = self.change(Turn::ready, |table| Ok(table.beside().marks.clone()));
        marks.unwrap_or_default()
    }

    /// Replaces the marks. Durable when it returns.
    ///
    /// # Errors
    /// Those of [`FingerprintIndex::increment`].
    pub(crate) fn set_marks(&self, marks: BTreeSet<Pba>) -> Result<()> {
        self.change(Turn::ready, |table| table.set_beside(Streams::Marks(marks)))
    }

    /// Changes the table, and keeps its counts.
    fn change<'s, T>(
        &'s self,
        table: impl for<'a> FnOnce(&'a mut Turn<'s, Table>) -> Result<&'a mut Table>,
        work: impl FnOnce(&mut Table) -> Result<T>,
    ) -> Result<T> {
        let mut turn = self.guarded.turn();
        let table = table(&mut turn)?;
        let result = work(table);
        let counts = table.counts();
        let result = turn.settled(result)?;
        self.guarded.summary().counts = counts;
        Ok(result)
    }

    fn batch<A: Answer>(
        &self,
        stream: StreamId,
        number: u64,
        items: &[Item],
        apply: impl FnOnce(&mut Lookup<'_>, &mut IndexCounts, &[Item]) -> Result<Vec<A>>,
    ) -> Result<Vec<A>> {
        batch::check_blocks(items.iter().map(|item| item.1))?;
        self.change(Turn::ready, |table| {
            table.batch(stream, number, |rows, counts| apply(rows, counts, items))
        })
    }
}

impl HashIndex {
    /// As [`FingerprintIndex::finish_rebuild`], with the last numbers of several streams.
    ///
    /// # Errors
    /// Those of [`FingerprintIndex::finish_rebuild`].
    pub fn finish_rebuild_of(&self, last_numbers: &[(StreamId, u64)]) -> Result<()> {
        let mut turn = self.guarded.turn();
        let table = turn.rebuilding()?;
        let finished = table
            .make_durable(last_numbers)
            .and_then(|()| header::write(&*self.disk, IndexKind::Hash, self.pool, Content::WHOLE));
        turn.settled(finished)?;
        turn.set_ready();
        Ok(())
    }

    /// Whether an error made the index refuse everything until it is opened again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.guarded.has_failed()
    }
}

impl IndexReader for HashIndex {
    fn lookup(&self, fingerprints: &[Fingerprint], blocking: Blocking) -> Result<LookupAnswers> {
        self.guarded
            .look(blocking, |shared| shared.lookup(fingerprints, blocking))
    }

    fn counts(&self) -> IndexCounts {
        self.guarded.summary().counts
    }

    fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>> {
        let mut turn = self.guarded.turn();
        let rows = turn.open()?.0.rows(from, max);
        turn.settled(rows)
    }

    fn needs_rebuild(&self) -> bool {
        self.guarded.summary().needs_rebuild
    }
}

impl FingerprintIndex for HashIndex {
    fn increment(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, |rows, counts, items| {
            batch::increment(rows, counts, items)
        })
    }

    fn count_existing(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, |rows, counts, items| {
            batch::count_existing(rows, counts, items)
        })
    }

    fn decrement(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Released>> {
        self.batch(stream, number, items, |rows, counts, items| {
            batch::decrement(rows, counts, items)
        })
    }

    fn secure(&self, batches: &[usize]) -> Result<()> {
        self.change(Turn::ready, |table| table.secure(batches))
    }

    fn begin_rebuild(&self) -> Result<()> {
        let disk = &self.disk;
        self.guarded.turn().begin_rebuild(
            || header::write(&**disk, IndexKind::Hash, self.pool, Content::Void),
            || Table::empty(Arc::clone(disk), self.pool, self.limit_bytes, self.shape),
        )
    }

    fn add_rows(&self, rows: &[(Fingerprint, Row)]) -> Result<Vec<(Fingerprint, Row)>> {
        batch::check_blocks(rows.iter().map(|(_, row)| row.pba))?;
        self.change(Turn::rebuilding, |table| table.add(rows))
    }

    fn finish_rebuild(&self, stream: StreamId, last_number: u64) -> Result<()> {
        self.finish_rebuild_of(&[(stream, last_number)])
    }

    fn close(&self) -> Result<()> {
        self.guarded.turn().close(|mut table, phase| match phase {
            Phase::Ready => table.close(),
            Phase::Void | Phase::Rebuilding => Ok(()),
        })
    }

    fn bytes_on_disk(&self) -> Result<u64> {
        Ok(self.disk.allocated_bytes()?)
    }
}
