//! The tables, and the operations on redb.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `rows` | fingerprint, 16 bytes | packed row, 10 bytes; CRC-32C of key and row, 4 bytes |
//! | `streams` | stream id, `u64` | the last batch, as `stream` encodes it |
//! | `counts` | nothing | three counts of 8 bytes; their CRC-32C, 4 bytes |
//!
//! redb compares the checksums of its pages only when it repairs a file, so values carry their own.
//!
//! Durable commits use redb's *quick repair*: two phases, and the state of its page allocator
//! within the commit. Without it, an opening after a crash reads the whole file. It costs a second
//! sync and, for each commit, some two bits for each page of the file.
//!
//! Lookups read the table of a read transaction that is begun after each commit. They begin none themselves: redb grows
//! its file, and syncs it, under a lock that beginning one takes. This transaction keeps no pages from being used again
//! that redb itself would not keep until the next commit.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use onefold_engine::Disk;
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::storage::Storage;
use crate::batch::Rows;
use crate::fingerprint::FINGERPRINT_BYTES;
use crate::row::{PACKED_ROW_BYTES, PackedRow};
use crate::stream::LastBatch;
use crate::sync::RwLock;
use crate::{Fingerprint, IndexCounts, IndexError, LookedUp, LookupAnswers, Result, Row, StreamId};

const CHECKSUM_BYTES: usize = 4;

const ROW_BYTES: usize = PACKED_ROW_BYTES + CHECKSUM_BYTES;

const COUNTS_BYTES: usize = 3 * 8 + CHECKSUM_BYTES;

type RowKey = &'static [u8; FINGERPRINT_BYTES];
type RowValue = &'static [u8; ROW_BYTES];
type CountsValue = &'static [u8; COUNTS_BYTES];

const ROWS: TableDefinition<RowKey, RowValue> = TableDefinition::new("rows");
const STREAMS: TableDefinition<u64, &[u8]> = TableDefinition::new("streams");
const COUNTS: TableDefinition<(), CountsValue> = TableDefinition::new("counts");

/// The durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// An opening after a crash finds it at once.
    Recoverable,
    /// A crash makes the whole database void, whatever its content.
    Passing,
}

/// redb's database on a disk.
pub(super) struct Database {
    /// `None` only while it is dropped.
    redb: Option<redb::Database>,
    storage: Storage,
    latest: Arc<Latest>,
}

/// The rows of the last durable commit, for lookups during the next one.
pub(super) struct Latest {
    /// `None` where there was no such commit. Held briefly; the last lock of all.
    rows: RwLock<Option<Arc<LatestRows>>>,
    storage: Storage,
}

type LatestRows = redb::ReadOnlyTable<RowKey, RowValue>;

impl Latest {
    /// Looks fingerprints up.
    pub(super) fn lookup(&self, fingerprints: &[Fingerprint]) -> Result<LookupAnswers> {
        let Some(rows) = self.rows() else {
            return Err(IndexError::Failed);
        };
        let look = |fingerprint: &Fingerprint| {
            let found = rows.get(&fingerprint.0).map_err(from_redb)?;
            let row = found.map(|value| decode_row(*fingerprint, value.value()));
            Ok(LookedUp::of(row.transpose()?))
        };
        let answers = without_panic(|| fingerprints.iter().map(look).collect());
        // The failure is kept for the concurrent batch, which fails as well.
        answers.map_err(|error| self.storage.failed().map_or(error, IndexError::Io))
    }

    fn rows(&self) -> Option<Arc<LatestRows>> {
        let rows = self.rows.read();
        rows.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_rows(&self, rows: Option<Arc<LatestRows>>) {
        let mut place = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, rows);
        drop(place);
        // Ends a transaction, perhaps, which takes locks of redb's.
        drop(before);
    }
}

impl Database {
    /// Creates a database with empty tables, over the old content.
    pub(super) fn create(disk: Arc<dyn Disk>, cache_bytes: u64) -> Result<Database> {
        let database = Database::over(Storage::empty(disk)?, cache_bytes)?;
        let counts = IndexCounts::default();
        database.change(Commit::Recoverable, |tables| tables.set_counts(counts))?;
        Ok(database)
    }

    /// Opens the existing database, and reads its counts.
    pub(super) fn open(disk: Arc<dyn Disk>, cache_bytes: u64) -> Result<(Database, IndexCounts)> {
        let storage = Storage::existing(disk)?;
        if storage.is_empty() {
            return Err(IndexError::Damaged(
                "there is nothing behind its header".into(),
            ));
        }
        let database = Database::over(storage, cache_bytes)?;
        let counts = database.look(View::counts)?;
        database.show_latest()?;
        Ok((database, counts))
    }

    fn over(storage: Storage, cache_bytes: u64) -> Result<Database> {
        let redb = guarded(&storage, || {
            redb::Builder::new()
                .set_cache_size(usize::try_from(cache_bytes).unwrap_or(usize::MAX))
                .create_with_backend(storage.clone())
                .map_err(from_redb)
        })?;
        let latest = Arc::new(Latest {
            rows: RwLock::new(None),
            storage: storage.clone(),
        });
        Ok(Database {
            redb: Some(redb),
            storage,
            latest,
        })
    }

    /// The rows that lookups read.
    pub(super) fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// Shows the committed rows to lookups. Call it only after a durable commit.
    fn show_latest(&self) -> Result<()> {
        let rows = self.look(|view| view.transaction.open_table(ROWS).map_err(from_redb))?;
        self.latest.set_rows(Some(Arc::new(rows)));
        Ok(())
    }

    /// Changes the tables as a whole or not at all. Durable when it returns.
    pub(super) fn change<T>(
        &self,
        commit: Commit,
        work: impl FnOnce(&mut Tables<'_>) -> Result<T>,
    ) -> Result<T> {
        if commit == Commit::Passing {
            // There are no lookups now, and their old rows must not be kept.
            self.latest.set_rows(None);
        }
        let result = guarded(&self.storage, || {
            let mut transaction = self.redb()?.begin_write().map_err(from_redb)?;
            transaction.set_quick_repair(commit == Commit::Recoverable);
            let result = work(&mut Tables::open(&transaction)?)?;
            transaction.commit().map_err(from_redb)?;
            Ok(result)
        })?;
        if commit == Commit::Recoverable {
            self.show_latest()?;
        }
        Ok(result)
    }

    /// Runs work on the tables in a read transaction.
    pub(super) fn look<T>(&self, work: impl FnOnce(&View) -> Result<T>) -> Result<T> {
        guarded(&self.storage, || {
            let transaction = self.redb()?.begin_read().map_err(from_redb)?;
            work(&View { transaction })
        })
    }

    /// Closes the database, so that the next opening has nothing to repair.
    pub(super) fn close(mut self) -> Result<()> {
        self.drop_redb()
    }

    fn redb(&self) -> Result<&redb::Database> {
        self.redb.as_ref().ok_or(IndexError::Closed)
    }

    /// redb writes when it is dropped, and reports no errors then.
    fn drop_redb(&mut self) -> Result<()> {
        self.latest.set_rows(None);
        let redb = self.redb.take();
        guarded(&self.storage, || {
            drop(redb);
            Ok(())
        })?;
        match self.storage.take_failure() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Callers that need errors call close. Committed data is durable either way.
        let _ = self.drop_redb();
    }
}

/// Runs redb, which reports a failed disk in several ways. Calls must not overlap.
fn guarded<T>(storage: &Storage, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // redb continues after a failed write that only made room in its cache.
    drop(storage.take_failure());
    let result = without_panic(work);
    result.map_err(|error| storage.take_failure().map_or(error, IndexError::Io))
}

/// Runs redb, which asserts some of the data it reads.
fn without_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // After a panic the database is only dropped, and redb refuses transactions that a panic
    // interrupted.
    let result = catch_unwind(AssertUnwindSafe(work));
    result.unwrap_or_else(|panic| Err(IndexError::Damaged(message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("redb stumbled over it: {}", text.unwrap_or("no message"))
}

/// An error that is not a failure of the disk: [`guarded`] replaces it.
fn from_redb(error: impl Into<redb::Error>) -> IndexError {
    match error.into() {
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => IndexError::Failed,
        error => IndexError::Damaged(format!("redb: {error}")),
    }
}

/// The tables in a write transaction.
pub(super) struct Tables<'a> {
    rows: redb::Table<'a, RowKey, RowValue>,
    streams: redb::Table<'a, u64, &'static [u8]>,
    counts: redb::Table<'a, (), CountsValue>,
}

impl Tables<'_> {
    fn open(transaction: &redb::WriteTransaction) -> Result<Tables<'_>> {
        Ok(Tables {
            rows: transaction.open_table(ROWS).map_err(from_redb)?,
            streams: transaction.open_table(STREAMS).map_err(from_redb)?,
            counts: transaction.open_table(COUNTS).map_err(from_redb)?,
        })
    }

    pub(super) fn set_last(&mut self, stream: StreamId, last: &LastBatch) -> Result<()> {
        let encoded = last.encode();
        let replaced = self.streams.insert(stream.0, encoded.as_slice());
        replaced.map(drop).map_err(from_redb)
    }

    pub(super) fn set_counts(&mut self, counts: IndexCounts) -> Result<()> {
        let replaced = self.counts.insert((), &encode_counts(counts));
        replaced.map(drop).map_err(from_redb)
    }
}

impl Rows for Tables<'_> {
    fn get(&mut self, fingerprint: Fingerprint) -> Result<Option<Row>> {
        let found = self.rows.get(&fingerprint.0).map_err(from_redb)?;
        let row = found.map(|value| decode_row(fingerprint, value.value()));
        row.transpose()
    }

    fn set(&mut self, fingerprint: Fingerprint, row: Option<Row>) -> Result<()> {
        let replaced = match row {
            Some(row) => self
                .rows
                .insert(&fingerprint.0, &encode_row(fingerprint, row)),
            None => self.rows.remove(&fingerprint.0),
        };
        replaced.map(drop).map_err(from_redb)
    }

    fn has_room(&mut self, _fingerprint: Fingerprint) -> bool {
        true
    }
}

/// The tables in a read transaction.
pub(super) struct View {
    transaction: redb::ReadTransaction,
}

impl View {
    /// The stream's last batch.
    pub(super) fn last(&self, stream: StreamId) -> Result<Option<LastBatch>> {
        let streams = self.transaction.open_table(STREAMS).map_err(from_redb)?;
        let Some(found) = streams.get(stream.0).map_err(from_redb)? else {
            return Ok(None);
        };
        match LastBatch::decode(found.value()) {
            Some(last) => Ok(Some(last)),
            None => Err(IndexError::Damaged(format!(
                "the answers of stream {}",
                stream.0
            ))),
        }
    }

    /// Rows from `from` on, at most `max`.
    pub(super) fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>> {
        let table = self.transaction.open_table(ROWS).map_err(from_redb)?;
        let range = table
            .range::<&[u8; FINGERPRINT_BYTES]>(&from.0..)
            .map_err(from_redb)?;
        let mut rows = Vec::new();
        for entry in range.take(max) {
            let (key, value) = entry.map_err(from_redb)?;
            let fingerprint = Fingerprint(*key.value());
            rows.push((fingerprint, decode_row(fingerprint, value.value())?));
        }
        Ok(rows)
    }

    /// The counts, which must fit the number of rows.
    pub(super) fn counts(&self) -> Result<IndexCounts> {
        let damaged = || IndexError::Damaged("its counts".into());
        let table = self.transaction.open_table(COUNTS).map_err(from_redb)?;
        let found = table.get(()).map_err(from_redb)?.ok_or_else(damaged)?;
        let counts = decode_counts(found.value()).ok_or_else(damaged)?;
        let table = self.transaction.open_table(ROWS).map_err(from_redb)?;
        if table.len().map_err(from_redb)? != counts.rows() {
            return Err(damaged());
        }
        Ok(counts)
    }
}

fn encode_row(fingerprint: Fingerprint, row: Row) -> [u8; ROW_BYTES] {
    let packed = PackedRow::new(row);
    let mut bytes = [0; ROW_BYTES];
    let (body, checksum) = bytes.split_at_mut(PACKED_ROW_BYTES);
    body.copy_from_slice(&packed.0);
    checksum.copy_from_slice(&row_checksum(fingerprint, packed).to_le_bytes());
    bytes
}

fn decode_row(fingerprint: Fingerprint, bytes: &[u8; ROW_BYTES]) -> Result<Row> {
    let mut packed = PackedRow([0; PACKED_ROW_BYTES]);
    let (body, checksum) = bytes.split_at(PACKED_ROW_BYTES);
    packed.0.copy_from_slice(body);
    let is_right = row_checksum(fingerprint, packed).to_le_bytes() == checksum;
    let row = packed.row().filter(|_| is_right);
    row.ok_or_else(|| IndexError::Damaged(format!("the row of {fingerprint}")))
}

fn row_checksum(fingerprint: Fingerprint, row: PackedRow) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&fingerprint.0), &row.0)
}

fn encode_counts(counts: IndexCounts) -> [u8; COUNTS_BYTES] {
    let mut bytes = [0; COUNTS_BYTES];
    let numbers = [counts.unique, counts.shared, counts.references];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let (body, checksum) = bytes.split_at_mut(COUNTS_BYTES - CHECKSUM_BYTES);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    bytes
}

fn decode_counts(bytes: &[u8; COUNTS_BYTES]) -> Option<IndexCounts> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    if crc32c::crc32c(body).to_le_bytes() != *checksum {
        return None;
    }
    let (numbers, _) = body.as_chunks::<8>();
    let [unique, shared, references] = *<&[[u8; 8]; 3]>::try_from(numbers).ok()?;
    Some(IndexCounts {
        unique: u64::from_le_bytes(unique),
        shared: u64::from_le_bytes(shared),
        references: u64::from_le_bytes(references),
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use onefold_engine::simulated::{CrashKind, SimulatedEngine};
    use onefold_engine::{Engine, Part};
    use onefold_format::Pba;

    /// A repair would read the whole file.
    #[test]
    fn no_crash_makes_redb_repair_its_file() {
        for crash_at in 1..200 {
            let engine = SimulatedEngine::new(crash_at);
            let disk = engine.create(Part::Index, 0).unwrap();
            let database = Database::create(disk, 1 << 20).unwrap();
            engine.crash_after(crash_at);
            for n in 1.. {
                let changed = database.change(Commit::Recoverable, |tables| {
                    for of in 0..500 {
                        let fingerprint = fastrand::Rng::with_seed(n * 500 + of).u128(..);
                        let row = Row {
                            pba: Pba(n),
                            references: 1,
                        };
                        tables.set(Fingerprint(fingerprint.to_le_bytes()), Some(row))?;
                    }
                    Ok(())
                });
                if changed.is_err() {
                    break;
                }
            }
            let after = engine.crash(CrashKind::PowerLoss);
            let storage = Storage::existing(after.open(Part::Index).unwrap()).unwrap();
            let opened = redb::Builder::new()
                .set_repair_callback(redb::RepairSession::abort)
                .create_with_backend(storage);
            opened.unwrap();
        }
    }

    #[test]
    fn values_survive_encoding_and_no_flipped_bit_passes() {
        let row = Row {
            pba: Pba(0x12_3456_789a),
            references: 5,
        };
        let fingerprint = Fingerprint([0xa5; 16]);
        let bytes = encode_row(fingerprint, row);
        assert_eq!(decode_row(fingerprint, &bytes).unwrap(), row);
        assert!(decode_row(Fingerprint([0xa4; 16]), &bytes).is_err());
        for bit in 0..ROW_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_row(fingerprint, &bytes).is_err());
        }
        let counts = IndexCounts {
            unique: 1,
            shared: 1 << 40,
            references: u64::MAX,
        };
        let bytes = encode_counts(counts);
        assert_eq!(decode_counts(&bytes), Some(counts));
        for bit in 0..COUNTS_BYTES * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_counts(&bytes), None);
        }
    }
}
