//! All rows in memory; written out when the pool is closed.
//!
//! The quickest back end, and the one without a promise: rows and answers are gone with the
//! process, unless it called [`close`](FingerprintIndex::close). It takes no more memory than it
//! is allowed, and when that is used up it counts no further rows ([`Counted::Full`]); references
//! to rows that it has are always counted.
//!
//! Invariants:
//! - While an index is open, the header on the disk says that the body is void. So however the
//!   process ends, an older state is never mistaken for the present one.
//! - A header that says that the body is whole has its hash.
//!
//! Crash behaviour: after anything but a close the index comes back empty and [needs a
//! rebuild](IndexReader::needs_rebuild). The same holds if the closed content cannot be read, or differs from the
//! content written.

mod image;
mod table;

use std::sync::{Arc, TryLockError};

use onefold_engine::{Blocking, Disk};
use onefold_format::{IndexKind, Pba, PoolId};

use crate::batch::{self, Item};
use crate::header::{self, Content, Extent};
use crate::stream::{self, Answer, Answers, LastBatch};
use crate::sync::{RwLock, RwLockWriteGuard};
use crate::{
    Counted, Fingerprint, FingerprintIndex, IndexCounts, IndexError, IndexReader, LookedUp,
    LookupAnswers, Released, Result, Row, StreamId,
};
use image::{Image, Streams};
use table::Table;

/// Makes the index of a new pool: one without rows.
pub fn create(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    let extent = image::write(&**disk, &Table::new(0), &Streams::new())?;
    header::write(&**disk, IndexKind::Memory, pool, Content::Whole(extent))
}

/// Discards the content of the disk. The next opening has no rows, and needs a rebuild.
pub fn replace(disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()> {
    header::write(&**disk, IndexKind::Memory, pool, Content::Void)
}

/// Opens the pool's index, whose rows may take `limit_bytes` of memory.
///
/// # Errors
/// [`IndexError::OtherPool`], [`IndexError::Newer`], and [`IndexError::Io`] where the disk cannot
/// be written. Everything else that is wrong with it makes an index that needs a rebuild.
pub fn open(disk: Arc<dyn Disk>, pool: PoolId, limit_bytes: u64) -> Result<MemoryIndex> {
    let image = match read(&*disk, pool, limit_bytes) {
        Ok(image) => image,
        Err(error @ (IndexError::OtherPool { .. } | IndexError::Newer(_))) => return Err(error),
        Err(_) => None,
    };
    header::write(&*disk, IndexKind::Memory, pool, Content::Void)?;
    let phase = match &image {
        Some(_) => Phase::Ready,
        None => Phase::Void,
    };
    let image = image.unwrap_or_else(|| Image {
        table: Table::new(limit_bytes),
        streams: Streams::new(),
        counts: IndexCounts::default(),
    });
    Ok(MemoryIndex {
        disk,
        pool,
        limit_bytes,
        state: RwLock::new(State { image, phase }),
    })
}

/// The content that the last owner wrote; `None` if it did not finish.
fn read(disk: &dyn Disk, pool: PoolId, limit_bytes: u64) -> Result<Option<Image>> {
    match header::read(disk, IndexKind::Memory, pool)? {
        Content::Whole(extent) => image::read(disk, &extent, limit_bytes).map(Some),
        Content::Void => Ok(None),
    }
}

/// An index in memory.
pub struct MemoryIndex {
    disk: Arc<dyn Disk>,
    pool: PoolId,
    limit_bytes: u64,
    /// Lookups hold it for reading, everything else for writing. No I/O is done under it, except
    /// when the index is closed.
    state: RwLock<State>,
}

struct State {
    image: Image,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The rows match the maps.
    Ready,
    /// There are no rows, and there should be some.
    Void,
    /// The rows are being counted from the maps.
    Rebuilding,
    /// Closed; `Void` or not, as before.
    Closed { needs_rebuild: bool },
    /// A close failed, or a batch panicked.
    Failed { needs_rebuild: bool },
}

impl MemoryIndex {
    fn state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(|poisoned| {
            // A panic under the lock is a defect; the state it left is not relied on.
            let mut state = poisoned.into_inner();
            state.phase = Phase::Failed {
                needs_rebuild: true,
            };
            state
        })
    }

    fn batch<A: Answer>(
        &self,
        stream: StreamId,
        number: u64,
        items: &[Item],
        apply: fn(&mut Table, &mut IndexCounts, &[Item]) -> Result<Vec<A>>,
    ) -> Result<Vec<A>> {
        batch::check_blocks(items.iter().map(|item| item.1))?;
        let mut state = self.state();
        state.check_ready()?;
        let image = &mut state.image;
        if let Some(answers) = stream::repeated(stream, image.streams.get(&stream), number)? {
            return Ok(answers);
        }
        let answers = apply(&mut image.table, &mut image.counts, items)?;
        let last = LastBatch {
            number,
            answers: A::wrap(answers.clone()),
        };
        image.streams.insert(stream, last);
        Ok(answers)
    }
}

impl State {
    fn check_open(&self) -> Result<()> {
        match self.phase {
            Phase::Ready | Phase::Void | Phase::Rebuilding => Ok(()),
            Phase::Closed { .. } => Err(IndexError::Closed),
            Phase::Failed { .. } => Err(IndexError::Failed),
        }
    }

    fn check_ready(&self) -> Result<()> {
        self.check_open()?;
        match self.phase {
            Phase::Ready => Ok(()),
            _ => Err(IndexError::Unready(crate::NEEDS_REBUILD)),
        }
    }

    fn check_rebuilding(&self) -> Result<()> {
        self.check_open()?;
        match self.phase {
            Phase::Rebuilding => Ok(()),
            _ => Err(IndexError::Unready(crate::NO_REBUILD)),
        }
    }

    fn needs_rebuild(&self) -> bool {
        match self.phase {
            Phase::Ready => false,
            Phase::Void | Phase::Rebuilding => true,
            Phase::Closed { needs_rebuild } | Phase::Failed { needs_rebuild } => needs_rebuild,
        }
    }
}

impl IndexReader for MemoryIndex {
    fn lookup(&self, fingerprints: &[Fingerprint], blocking: Blocking) -> Result<LookupAnswers> {
        let state = match blocking {
            Blocking::Yes => self.state.read().map_err(|_| IndexError::Failed)?,
            // A batch takes milliseconds, and closing waits for the disk.
            Blocking::No => self.state.try_read().map_err(|error| match error {
                TryLockError::Poisoned(_) => IndexError::Failed,
                TryLockError::WouldBlock => IndexError::WouldBlock,
            })?,
        };
        state.check_ready()?;
        let table = &state.image.table;
        let look = |fingerprint: &Fingerprint| LookedUp::of(table.row(*fingerprint));
        Ok(fingerprints.iter().map(look).collect())
    }

    fn counts(&self) -> IndexCounts {
        self.state().image.counts
    }

    fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>> {
        let state = self.state();
        state.check_open()?;
        Ok(state.image.table.sorted(from, max))
    }

    fn needs_rebuild(&self) -> bool {
        self.state().needs_rebuild()
    }
}

impl FingerprintIndex for MemoryIndex {
    fn increment(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, batch::increment)
    }

    fn count_existing(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Counted>> {
        self.batch(stream, number, items, batch::count_existing)
    }

    fn decrement(
        &self,
        stream: StreamId,
        number: u64,
        items: &[(Fingerprint, Pba)],
    ) -> Result<Vec<Released>> {
        self.batch(stream, number, items, batch::decrement)
    }

    fn begin_rebuild(&self) -> Result<()> {
        let mut state = self.state();
        state.check_open()?;
        // On the disk it has been void since it was opened.
        *state = State {
            image: Image {
                table: Table::new(self.limit_bytes),
                streams: Streams::new(),
                counts: IndexCounts::default(),
            },
            phase: Phase::Rebuilding,
        };
        Ok(())
    }

    fn add_rows(&self, rows: &[(Fingerprint, Row)]) -> Result<Vec<(Fingerprint, Row)>> {
        batch::check_blocks(rows.iter().map(|(_, row)| row.pba))?;
        let mut state = self.state();
        state.check_rebuilding()?;
        let image = &mut state.image;
        batch::add(&mut image.table, &mut image.counts, rows)
    }

    fn finish_rebuild(&self, stream: StreamId, last_number: u64) -> Result<()> {
        let mut state = self.state();
        state.check_rebuilding()?;
        let last = LastBatch {
            number: last_number,
            answers: Answers::Forgotten,
        };
        state.image.streams.insert(stream, last);
        state.phase = Phase::Ready;
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let mut state = self.state();
        if matches!(state.phase, Phase::Closed { .. }) {
            return Ok(());
        }
        state.check_open()?;
        let needs_rebuild = state.needs_rebuild();
        // Whatever happens below, the content of the disk is no longer known to be void.
        state.phase = Phase::Failed { needs_rebuild };
        if !needs_rebuild {
            let Image { table, streams, .. } = &state.image;
            let extent: Extent = image::write(&*self.disk, table, streams)?;
            header::write(
                &*self.disk,
                IndexKind::Memory,
                self.pool,
                Content::Whole(extent),
            )?;
        }
        state.phase = Phase::Closed { needs_rebuild };
        Ok(())
    }

    fn bytes_on_disk(&self) -> Result<u64> {
        Ok(self.disk.allocated_bytes()?)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is how a test fails")]
mod tests {
    use super::*;
    use onefold_engine::simulated::SimulatedEngine;
    use onefold_engine::{Engine, Part};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn after_a_panic_in_a_batch_nothing_is_relied_on() {
        let (engine, pool, stream) = (SimulatedEngine::new(1), PoolId([4; 16]), StreamId(1));
        create(&engine.create(Part::Index, 0).unwrap(), pool).unwrap();
        let opened = || super::open(engine.open(Part::Index).unwrap(), pool, 1 << 20).unwrap();
        let index = opened();
        let batch = || index.batch::<Counted>(stream, 1, &[], |_, _, _| panic!("made by a test"));
        assert!(catch_unwind(AssertUnwindSafe(batch)).is_err());
        assert!(matches!(
            index.increment(stream, 1, &[]),
            Err(IndexError::Failed)
        ));
        assert!(index.needs_rebuild());
        assert!(matches!(index.close(), Err(IndexError::Failed)));
        assert!(opened().needs_rebuild(), "half a batch was written out");
    }
}
