//! Syncs of one file that several threads may ask for at once.
//!
//! When data cannot be written out, the kernel drops it, and reports the failure once to each open file description.
//! The next sync succeeds, even before the thread that got the error could prevent it. So only one thread at a time
//! syncs a description here, and records a failure before the next one may do so; another thread uses another
//! description, which reports the same failure itself. After a failure no sync succeeds until the part is opened again.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// An object that can be synced: a file, or a test's stand-in.
pub(super) trait Description {
    fn sync(&self) -> io::Result<()>;
}

impl Description for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

pub(super) struct Syncs<D> {
    /// Descriptions of the same file, at least one.
    descriptions: Vec<Mutex<D>>,
    has_failed: AtomicBool,
}

impl Syncs<File> {
    /// Opens a second description of a file that was just opened. Where the host does not allow this, syncs wait for
    /// each other.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let own = file.try_clone()?;
        let other = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self::of([own].into_iter().chain(other.ok())))
    }
}

impl<D: Description> Syncs<D> {
    fn of(descriptions: impl IntoIterator<Item = D>) -> Self {
        Self {
            descriptions: descriptions.into_iter().map(Mutex::new).collect(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Like [`crate::Disk::sync`], but no sync succeeds after one has failed.
    pub(super) fn sync(&self) -> io::Result<()> {
        let description = self.free_description()?;
        if self.has_failed.load(Ordering::SeqCst) {
            return Err(io::Error::other(
                "an earlier sync failed, and its data may be lost",
            ));
        }
        let synced = description.sync();
        if synced.is_err() {
            self.has_failed.store(true, Ordering::SeqCst);
        }
        synced
    }

    /// Locks a description that no other thread is syncing, or the first one once it is free.
    fn free_description(&self) -> io::Result<MutexGuard<'_, D>> {
        let mut all = self.descriptions.iter();
        let free = all.find_map(|one| match one.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        let first = || {
            let first = self.descriptions.first();
            first.map(|first| first.lock().unwrap_or_else(PoisonError::into_inner))
        };
        free.or_else(first)
            .ok_or_else(|| io::Error::other("no open file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// Behaves like the kernel: each description that was open before reports a failure once.
    #[derive(Default)]
    struct Kernel {
        failures: AtomicBool,
    }

    struct Open {
        kernel: Arc<Kernel>,
        is_told: AtomicBool,
        /// Lets a test act after the caller has received the error and before it continues.
        told: Option<(Sender<()>, Mutex<Receiver<()>>)>,
    }

    impl Description for Open {
        fn sync(&self) -> io::Result<()> {
            let fails = self.kernel.failures.load(Ordering::SeqCst)
                && !self.is_told.swap(true, Ordering::SeqCst);
            if let Some((told, go_on)) = &self.told {
                told.send(()).unwrap();
                go_on.lock().unwrap().recv().unwrap();
            }
            if fails {
                Err(io::Error::other("the disk is broken"))
            } else {
                Ok(())
            }
        }
    }

    /// A thread has just received a failure. No later sync may succeed, with one description or with two.
    #[test]
    fn no_sync_succeeds_beside_or_after_one_that_failed() {
        for others in [0, 1, 2] {
            let kernel = Arc::new(Kernel::default());
            let (told, was_told) = channel();
            let (go_on, may_go_on) = channel();
            let open = |told| Open {
                kernel: Arc::clone(&kernel),
                is_told: AtomicBool::new(false),
                told,
            };
            let first = open(Some((told, Mutex::new(may_go_on))));
            let others = (0..others).map(|_| open(None));
            let syncs = Syncs::of([first].into_iter().chain(others));
            kernel.failures.store(true, Ordering::SeqCst);
            thread::scope(|scope| {
                let failing = scope.spawn(|| syncs.sync());
                was_told.recv().unwrap();
                let beside: Vec<_> = (0..3).map(|_| scope.spawn(|| syncs.sync())).collect();
                // Threads that have a description of their own do not wait for the first one.
                go_on.send(()).unwrap();
                assert!(failing.join().unwrap().is_err());
                for beside in beside {
                    assert!(beside.join().unwrap().is_err());
                }
            });
            assert!(syncs.sync().is_err(), "nor later");
        }
    }

    #[test]
    fn a_file_is_synced_through_two_descriptions() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let syncs = Syncs::new(file.as_file()).unwrap();
        assert_eq!(syncs.descriptions.len(), 2);
        let held = syncs.free_description().unwrap();
        syncs.sync().unwrap();
        drop(held);
        syncs.sync().unwrap();
    }
}
