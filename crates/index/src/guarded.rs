//! A back end on a disk behind its locks: whether it is ready, being rebuilt, failed or closed, and the part of it that
//! lookups use concurrently with a batch.
//!
//! Invariants:
//! - A batch holds only the first lock, which no lookup takes.
//! - The reader of lookups is withdrawn before the rows are: closing and rebuilding wait for lookups in progress, and
//!   later ones are refused.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, TryLockError};

use onefold_engine::Blocking;

use crate::sync::{AtomicBool, Mutex, MutexGuard, RwLock};
use crate::{IndexCounts, IndexError, Result};

/// Rows of which a part can be read concurrently with a batch.
pub(crate) trait Searchable {
    /// The part that lookups read.
    type Reader;

    fn reader(&self) -> Self::Reader;
}

/// A back end's rows, and the operations that are allowed on them.
pub(crate) struct Guarded<T: Searchable> {
    /// Held during a batch, also across its I/O. Taken before the others.
    state: Mutex<State<T>>,
    /// Held for reading during a lookup, also across its I/O; for writing only where lookups become
    /// possible or end. Taken before the locks inside the reader.
    lookups: RwLock<Lookups<T::Reader>>,
    /// Set once, by the first call that fails. It publishes no other data: a lookup that misses it reads the rows that
    /// were durable before.
    has_failed: AtomicBool,
    /// Held briefly, so that reading the counts does not wait for a batch.
    summary: Mutex<Summary>,
}

enum State<T> {
    Open {
        rows: T,
        phase: Phase,
    },
    /// After any error of the disk: only reading it again shows its state.
    Failed,
    Closed,
}

/// Whether lookups are possible.
enum Lookups<R> {
    Ready(R),
    Unready,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The rows match the maps.
    Ready,
    /// There are no rows, and there should be some.
    Void,
    /// The rows are being counted from the maps.
    Rebuilding,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) counts: IndexCounts,
    pub(crate) needs_rebuild: bool,
}

impl<T: Searchable> Guarded<T> {
    pub(crate) fn new(rows: T, phase: Phase, counts: IndexCounts) -> Guarded<T> {
        let lookups = match phase {
            Phase::Ready => Lookups::Ready(rows.reader()),
            Phase::Void | Phase::Rebuilding => Lookups::Unready,
        };
        Guarded {
            state: Mutex::new(State::Open { rows, phase }),
            lookups: RwLock::new(lookups),
            has_failed: AtomicBool::new(false),
            summary: Mutex::new(Summary {
                counts,
                needs_rebuild: phase != Phase::Ready,
            }),
        }
    }

    /// Waits for the batch in progress, and begins the next call.
    pub(crate) fn turn(&self) -> Turn<'_, T> {
        let locked = self.state.lock();
        let is_poisoned = locked.is_err();
        let state = locked.unwrap_or_else(PoisonError::into_inner);
        let mut turn = Turn {
            guarded: self,
            state,
        };
        // A panic under the lock is a defect; the state it left is not relied on.
        if is_poisoned || self.has_failed.load(Acquire) {
            turn.fail();
        }
        turn
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Acquire)
    }

    pub(crate) fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks something up, concurrently with batches.
    pub(crate) fn look<R>(
        &self,
        blocking: Blocking,
        look: impl FnOnce(&T::Reader) -> Result<R>,
    ) -> Result<R> {
        let lookups = match blocking {
            Blocking::Yes => self.lookups.read().unwrap_or_else(PoisonError::into_inner),
            // A waiting writer of this lock waits for lookups, which wait for the disk.
            Blocking::No => match self.lookups.try_read() {
                Ok(lookups) => lookups,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Err(IndexError::WouldBlock),
            },
        };
        if self.has_failed.load(Acquire) {
            return Err(IndexError::Failed);
        }
        let result = match &*lookups {
            Lookups::Ready(reader) => look(reader),
            Lookups::Unready => Err(IndexError::Unready(crate::NEEDS_REBUILD)),
            Lookups::Closed => Err(IndexError::Closed),
        };
        if is_end(&result) {
            self.has_failed.store(true, Release);
        }
        result
    }

    fn set_lookups(&self, lookups: Lookups<T::Reader>) {
        *self.lookups.write().unwrap_or_else(PoisonError::into_inner) = lookups;
    }
}

/// A call that runs alone, except for lookups.
pub(crate) struct Turn<'a, T: Searchable> {
    guarded: &'a Guarded<T>,
    state: MutexGuard<'a, State<T>>,
}

impl<T: Searchable> Turn<'_, T> {
    pub(crate) fn open(&mut self) -> Result<(&mut T, Phase)> {
        match &mut *self.state {
            State::Open { rows, phase } => Ok((rows, *phase)),
            State::Failed => Err(IndexError::Failed),
            State::Closed => Err(IndexError::Closed),
        }
    }

    pub(crate) fn ready(&mut self) -> Result<&mut T> {
        match self.open()? {
            (rows, Phase::Ready) => Ok(rows),
            _ => Err(IndexError::Unready(crate::NEEDS_REBUILD)),
        }
    }

    pub(crate) fn rebuilding(&mut self) -> Result<&mut T> {
        match self.open()? {
            (rows, Phase::Rebuilding) => Ok(rows),
            _ => Err(IndexError::Unready(crate::NO_REBUILD)),
        }
    }

    /// Passes a result on. Errors of the disk, or of its content, end all use of the index.
    pub(crate) fn settled<R>(&mut self, result: Result<R>) -> Result<R> {
        if is_end(&result) {
            self.fail();
        }
        result
    }

    fn fail(&mut self) {
        self.guarded.has_failed.store(true, Release);
        *self.state = State::Failed;
    }

    /// Begins a rebuild. `make_rows` creates the new rows once the disk says that the old ones do not count.
    pub(crate) fn begin_rebuild(
        &mut self,
        make_void: impl FnOnce() -> Result<()>,
        make_rows: impl FnOnce() -> Result<T>,
    ) -> Result<()> {
        self.open()?;
        self.guarded.set_lookups(Lookups::Unready);
        if let Err(error) = make_void() {
            if matches!(error, IndexError::NoRoom(_)) {
                self.allow_lookups();
            } else {
                self.fail();
            }
            return Err(error);
        }
        *self.guarded.summary() = Summary {
            counts: IndexCounts::default(),
            needs_rebuild: true,
        };
        // The old rows must be done with the disk before others are made in their place.
        *self.state = State::Failed;
        let rows = make_rows().inspect_err(|_| self.guarded.has_failed.store(true, Release))?;
        *self.state = State::Open {
            rows,
            phase: Phase::Rebuilding,
        };
        Ok(())
    }

    /// Ends a rebuild.
    pub(crate) fn set_ready(&mut self) {
        if let State::Open { phase, .. } = &mut *self.state {
            *phase = Phase::Ready;
        }
        self.guarded.summary().needs_rebuild = false;
        self.allow_lookups();
    }

    fn allow_lookups(&mut self) {
        if let Ok(rows) = self.ready() {
            let reader = rows.reader();
            self.guarded.set_lookups(Lookups::Ready(reader));
        }
    }

    /// Closes the index, with the last work on its rows. A repeated close does nothing.
    pub(crate) fn close(&mut self, work: impl FnOnce(T, Phase) -> Result<()>) -> Result<()> {
        if matches!(*self.state, State::Failed) {
            return Err(IndexError::Failed);
        }
        self.guarded.set_lookups(Lookups::Closed);
        match std::mem::replace(&mut *self.state, State::Closed) {
            State::Open { rows, phase } => {
                let closed = work(rows, phase);
                self.settled(closed)
            }
            State::Failed | State::Closed => Ok(()),
        }
    }
}

/// Whether the result is an error after which only reading the disk again shows its state.
fn is_end<R>(result: &Result<R>) -> bool {
    matches!(
        result,
        Err(IndexError::Io(_) | IndexError::Damaged(_) | IndexError::Failed)
    )
}
