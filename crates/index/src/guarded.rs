//! A back end on a disk behind its lock: whether it is ready, being rebuilt, failed or closed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{IndexCounts, IndexError, Result};

/// A back end's rows, and the operations that are allowed on them.
pub(crate) struct Guarded<T> {
    /// Held during a batch.
    state: Mutex<State<T>>,
    /// Held briefly, so that reading the counts does not wait for a batch.
    summary: Mutex<Summary>,
}

pub(crate) enum State<T> {
    Open {
        rows: T,
        phase: Phase,
    },
    /// After any error of the disk: only reading it again shows its state.
    Failed,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The rows match the maps.
    Ready,
    /// There are none, and there should be.
    Void,
    /// They are being counted from the maps.
    Rebuilding,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) counts: IndexCounts,
    pub(crate) needs_rebuild: bool,
}

impl<T> Guarded<T> {
    pub(crate) fn new(rows: T, phase: Phase, counts: IndexCounts) -> Guarded<T> {
        Guarded {
            state: Mutex::new(State::Open { rows, phase }),
            summary: Mutex::new(Summary {
                counts,
                needs_rebuild: phase != Phase::Ready,
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| {
            // A panic under the lock is a defect; the state it left is not relied on.
            let mut state = poisoned.into_inner();
            *state = State::Failed;
            state
        })
    }

    pub(crate) fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    pub(crate) fn open(&mut self) -> Result<(&mut T, Phase)> {
        match self {
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

    /// Ends a rebuild.
    pub(crate) fn set_ready(&mut self) {
        if let State::Open { phase, .. } = self {
            *phase = Phase::Ready;
        }
    }

    /// Passes a result on. Errors of the disk, or of its content, end all use of the index.
    pub(crate) fn settled<R>(&mut self, result: Result<R>) -> Result<R> {
        if let Err(IndexError::Io(_) | IndexError::Damaged(_) | IndexError::Failed) = &result {
            *self = State::Failed;
        }
        result
    }
}
