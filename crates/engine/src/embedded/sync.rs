//! The primitives of [`super::dirty`] and [`super::handoff`], which take them only from here, so that
//! `tests/interleavings.rs` can compile the same files against shuttle's.

use std::sync::{MutexGuard, PoisonError};

pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicU64, Ordering};

/// Locks a mutex, even if it is poisoned: nothing that may panic runs under these locks, so its data is intact.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
