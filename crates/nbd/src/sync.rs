//! The synchronisation primitives for all hand-written synchronisation of this crate.
//!
//! [`crate::buffer`], [`crate::workers`] and the NBD send queue take them only from here, so that
//! `tests/interleavings.rs` can compile the same files against shuttle's primitives and explore
//! their interleavings.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks `mutex`. No code that may panic runs under these locks (requests are executed outside of
/// them), so a poisoned lock still guards consistent state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar`; the caller checks its condition again, since wake-ups may be spurious.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
