//! Locks and atomics: the standard library's or, under the `shuttle` feature, those from a
//! scheduler that tries interleavings.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize},
};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize},
};

use std::sync::PoisonError;

#[cfg(not(feature = "shuttle"))]
pub use std::thread::yield_now;

#[cfg(feature = "shuttle")]
pub use shuttle::thread::yield_now;

/// Takes a lock whose data is valid between any two statements, so that poisoning can be ignored.
/// The uncommitted state, the job lock and the catalogue's are not such locks: see
/// `State::uncommitted` in the journal, `Batches::job` and `CatalogueWriter::turn` in the store.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], for reading.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], for writing.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
