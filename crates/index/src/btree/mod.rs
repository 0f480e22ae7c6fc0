//! Rows in a copy-on-write B-tree on the disk: redb, on a [`Disk`].
//!
//! The back end with the least code of our own, and not a fast one: fingerprints are random, so
//! every item of a batch rewrites a page of its own. It is the baseline for [`hash`](crate::hash).
//!
//! Each batch is one transaction: rows, answers and counts together. Lookups read the rows of the last commit. redb
//! does not know whether a page is in its cache, and is unusable once a read has failed, so a lookup that must not wait
//! for the disk is always refused.
//!
//! Invariants:
//! - The header on the disk says whether the database behind it is valid. It says "void" before the first row of a
//!   rebuild, and "whole" only when all of them are durable.
//! - After any error of the disk or of redb the index refuses everything. Only reading the disk
//!   again shows the state that such an error left.
//!
//! Crash behaviour: answered batches survive; of a batch in progress, all or nothing does. Opening
//! reads a few pages, however large the index is.

mod database;
mod storage;

use std::sync::Arc;

use onefold_engine::{Blocking, Disk};
use onefold_format::{IndexKind, Pba, PoolId};

use crate::batch::{self, Item};
use crate::guarded::{Guarded, Phase, Searchable};
use crate::header::{self, Content};
use crate::stream::{self, Answer, Answers, LastBatch};
use crate::{
    Counted, Fingerprint, FingerprintIndex, IndexCounts, IndexError, IndexReader, LookupAnswers,
    Released, Result, Row, StreamId,
};
use database::{Commit, Database, Latest, Tables};

/// Memory for making a database that holds nothing.
const CREATE_CACHE_BYTES: u64 = 1 << 20;

/// Makes the index of a new pool: one without rows.
pub fn create(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    replace(disk, pool)?;
    Database::create(disk.clone(), CREATE_CACHE_BYTES)?.close()?;
    header::write(&**disk, IndexKind::Btree, pool, Content::WHOLE)
}

/// Discards the content of the disk, damaged or not. The next opening has no rows, and needs a
/// rebuild.
pub fn replace(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    header::write(&**disk, IndexKind::Btree, pool, Content::Void)
}

/// Opens the pool's index. It keeps pages in at most about `cache_bytes` of memory.
///
/// # Errors
/// [`IndexError::Damaged`] where there is none or where it cannot be read: [`replace`] makes it one
/// that can be rebuilt. [`IndexError::OtherPool`], [`IndexError::Newer`], [`IndexError::Io`].
pub fn open(disk: Arc<dyn Disk>, pool: PoolId, cache_bytes: u64) -> Result<BtreeIndex> {
    let (database, counts, phase) = match header::read(&*disk, IndexKind::Btree, pool)? {
        Content::Whole(_) => {
            let (database, counts) = Database::open(disk.clone(), cache_bytes)?;
            (database, counts, Phase::Ready)
        }
        Content::Void => {
            let database = Database::create(disk.clone(), cache_bytes)?;
            (database, IndexCounts::default(), Phase::Void)
        }
    };
    Ok(BtreeIndex {
        disk,
        pool,
        cache_bytes,
        guarded: Guarded::new(database, phase, counts),
    })
}

/// An index in a B-tree.
pub struct BtreeIndex {
    disk: Arc<dyn Disk>,
    pool: PoolId,
    cache_bytes: u64,
    guarded: Guarded<Database>,
}

impl BtreeIndex {
    /// Answers a batch: from the stream if it is the last one again, else by changing rows.
    fn batch<A: Answer>(
        &self,
        stream: StreamId,
        number: u64,
        items: &[Item],
        apply: impl FnOnce(&mut Tables<'_>, &mut IndexCounts, &[Item]) -> Result<Vec<A>>,
    ) -> Result<Vec<A>> {
        batch::check_blocks(items.iter().map(|item| item.1))?;
        let mut turn = self.guarded.turn();
        let database = turn.ready()?;
        let last = database.look(|view| view.last(stream));
        let last = turn.settled(last)?;
        if let Some(answers) = stream::repeated(stream, last.as_ref(), number)? {
            return Ok(answers);
        }
        let mut counts = self.guarded.summary().counts;
        let answers = turn.ready()?.change(Commit::Recoverable, |tables| {
            let answers = apply(tables, &mut counts, items)?;
            let last = LastBatch {
                number,
                answers: A::wrap(answers.clone()),
            };
            tables.set_last(stream, &last)?;
            tables.set_counts(counts)?;
            Ok(answers)
        });
        let answers = turn.settled(answers)?;
        self.guarded.summary().counts = counts;
        Ok(answers)
    }
}

impl Searchable for Database {
    type Reader = Arc<Latest>;

    fn reader(&self) -> Arc<Latest> {
        Arc::clone(self.latest())
    }
}

impl IndexReader for BtreeIndex {
    fn lookup(&self, fingerprints: &[Fingerprint], blocking: Blocking) -> Result<LookupAnswers> {
        self.guarded.look(blocking, |latest| match blocking {
            Blocking::Yes => latest.lookup(fingerprints),
            Blocking::No => Err(IndexError::WouldBlock),
        })
    }

    fn counts(&self) -> IndexCounts {
        self.guarded.summary().counts
    }

    fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>> {
        let mut turn = self.guarded.turn();
        let (database, _) = turn.open()?;
        let rows = database.look(|view| view.rows(from, max));
        turn.settled(rows)
    }

    fn needs_rebuild(&self) -> bool {
        self.guarded.summary().needs_rebuild
    }
}

impl FingerprintIndex for BtreeIndex {
    fn increment(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, |tables, counts, items| {
            batch::increment(tables, counts, items)
        })
    }

    fn count_existing(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, |tables, counts, items| {
            batch::count_existing(tables, counts, items)
        })
    }

    fn decrement(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Released>> {
        self.batch(stream, number, items, |tables, counts, items| {
            batch::decrement(tables, counts, items)
        })
    }

    fn begin_rebuild(&self) -> Result<()> {
        let disk = &self.disk;
        self.guarded.turn().begin_rebuild(
            || header::write(&**disk, IndexKind::Btree, self.pool, Content::Void),
            || Database::create(Arc::clone(disk), self.cache_bytes),
        )
    }

    fn add_rows(&self, rows: &[(Fingerprint, Row)]) -> Result<Vec<(Fingerprint, Row)>> {
        batch::check_blocks(rows.iter().map(|(_, row)| row.pba))?;
        let mut turn = self.guarded.turn();
        let mut counts = self.guarded.summary().counts;
        let refused = turn.rebuilding()?.change(Commit::Passing, |tables| {
            let refused = batch::add(tables, &mut counts, rows)?;
            tables.set_counts(counts)?;
            Ok(refused)
        });
        let refused = turn.settled(refused)?;
        self.guarded.summary().counts = counts;
        Ok(refused)
    }

    fn finish_rebuild(&self, stream: StreamId, last_number: u64) -> Result<()> {
        let mut turn = self.guarded.turn();
        let last = LastBatch {
            number: last_number,
            answers: Answers::Forgotten,
        };
        let database = turn.rebuilding()?;
        let finished = database
            .change(Commit::Recoverable, |tables| tables.set_last(stream, &last))
            .and_then(|()| header::write(&*self.disk, IndexKind::Btree, self.pool, Content::WHOLE));
        turn.settled(finished)?;
        turn.set_ready();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.guarded.turn().close(|database, _| database.close())
    }

    fn bytes_on_disk(&self) -> Result<u64> {
        Ok(self.disk.allocated_bytes()?)
    }
}
