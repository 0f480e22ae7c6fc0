//! The threads of the jobs, the signal that they wait for, and the flags that they heed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Wakes threads that wait for a change of a flag or a job.
#[derive(Default)]
pub(crate) struct Signal {
    /// Held while a flag or a job changes, so that a waiting thread either sees a change or is woken by it. Lock order:
    /// after the registry's locks, before the locks of the jobs.
    changing: Mutex<()>,
    changed: Condvar,
    /// Relaxed: changed under the lock, and a thread that does not hold it may see the change a moment later.
    is_stopping: AtomicBool,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all jobs are being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends the work of all jobs.
    pub(crate) fn stop(&self) {
        self.change(|| self.is_stopping.store(true, Ordering::Relaxed));
    }

    /// Changes a flag, and wakes all waiting threads.
    pub(crate) fn change(&self, change: impl FnOnce()) {
        let _changing = self.lock();
        change();
        self.changed.notify_all();
    }

    /// Wakes all waiting threads: a job has changed, or there is something new to do.
    pub(crate) fn notify(&self) {
        self.change(|| {});
    }

    /// Waits until `is_so`, which must take no lock of the registry.
    pub(crate) fn wait_until(&self, is_so: impl Fn() -> bool) {
        drop(self.changed.wait_while(self.lock(), |()| !is_so()));
    }
}

/// Flags of one store, which its jobs heed. They are changed under the signal's lock. Relaxed: they publish no data, and a
/// thread that does not hold the lock may see a change a moment later.
#[derive(Debug, Default)]
pub(crate) struct StoreFlags {
    is_leaving: AtomicBool,
    is_index_ready: AtomicBool,
}

impl StoreFlags {
    /// Whether the store is being removed: none of its jobs begins, and a batch in progress ends soon.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the index matches the volumes' maps; before, nothing can be shared.
    pub(crate) fn is_index_ready(&self) -> bool {
        self.is_index_ready.load(Ordering::Relaxed)
    }

    pub(crate) fn set_index_ready(&self) {
        self.is_index_ready.store(true, Ordering::Relaxed);
    }
}

/// The threads of the jobs. Open because each user takes its own.
pub(crate) struct JobThreads {
    pub(crate) finder: Arc<JobThread>,
    pub(crate) collector: Arc<JobThread>,
    pub(crate) counter: Arc<JobThread>,
    pub(crate) accountant: Arc<JobThread>,
    pub(crate) scrubber: Arc<JobThread>,
    /// Stands for the threads of backup clients.
    pub(crate) copier: Arc<JobThread>,
}

impl JobThreads {
    pub(crate) fn new(signal: &Arc<Signal>) -> Self {
        let thread = || JobThread::new(signal);
        Self {
            finder: thread(),
            collector: thread(),
            counter: thread(),
            accountant: thread(),
            scrubber: thread(),
            copier: thread(),
        }
    }
}

/// A thread, as its jobs see it.
pub(crate) struct JobThread {
    signal: Arc<Signal>,
    /// Whether the thread rests to let guests go first. Relaxed: only shown.
    is_resting: AtomicBool,
    /// Set when the thread has ended: whether by a panic.
    panicked: OnceLock<bool>,
}

impl JobThread {
    pub(crate) fn new(signal: &Arc<Signal>) -> Arc<Self> {
        Arc::new(Self {
            signal: Arc::clone(signal),
            is_resting: AtomicBool::new(false),
            panicked: OnceLock::new(),
        })
    }

    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.signal.is_stopping()
    }

    /// Waits for a notification, at most this long.
    pub(crate) fn wait(&self, time: Duration) {
        self.wait_unless(time, || false);
    }

    /// Waits for a notification, at most this long; not at all if `is_due`, which must take no lock of the registry.
    pub(crate) fn wait_unless(&self, time: Duration, is_due: impl Fn() -> bool) {
        let changing = self.signal.lock();
        if !self.is_stopping() && !is_due() {
            drop(self.signal.changed.wait_timeout(changing, time));
        }
    }

    /// Sleeps for this time; only stopping cuts it short.
    pub(crate) fn sleep(&self, time: Duration) {
        self.sleep_unless(time, || false);
    }

    /// Sleeps for this time; ends early on stopping, or on a notification after which `is_due`, which must take no lock
    /// of the registry.
    pub(crate) fn sleep_unless(&self, time: Duration, is_due: impl Fn() -> bool) {
        let (changing, changed) = (self.signal.lock(), &self.signal.changed);
        let sleeps = |(): &mut ()| !self.is_stopping() && !is_due();
        drop(changed.wait_timeout_while(changing, time, sleeps));
    }

    pub(crate) fn set_resting(&self, is_resting: bool) {
        self.is_resting.store(is_resting, Ordering::Relaxed);
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.is_resting.load(Ordering::Relaxed)
    }

    /// Notes that the thread has ended. Unless it is stopping, its jobs count as failed.
    pub(crate) fn end(&self) {
        let _ = self.panicked.set(!self.is_stopping());
        self.signal.notify();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.panicked.get().is_some()
    }

    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.get() == Some(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn news_of_something_due_ends_a_sleep_and_other_news_does_not() {
        let (signal, due) = (Arc::default(), AtomicU64::new(0));
        let sleeper = JobThread::new(&signal);
        let (looked, is_looking) = channel();
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| {
                sleeper.sleep_unless(Duration::from_secs(3600), || {
                    looked.send(()).unwrap();
                    due.load(Ordering::Relaxed) >= 2
                });
            });
            for _ in 0..2 {
                is_looking.recv().unwrap();
                assert!(!sleeping.is_finished());
                due.fetch_add(1, Ordering::Relaxed);
                signal.notify();
            }
            sleeping.join().unwrap();
        });
    }
}
