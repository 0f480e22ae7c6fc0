//! The threads of the jobs, and the signal that they wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Wakes threads that wait for a change of a flag or a job.
#[derive(Default)]
pub(crate) struct Signal {
    /// Lock order: before the locks of the jobs, so that a waiting thread either sees a change or
    /// is woken by it.
    flags: Mutex<Flags>,
    changed: Condvar,
}

/// Flags that hold for all jobs.
#[derive(Default, Clone, Copy)]
pub(crate) struct Flags {
    pub(crate) is_stopping: bool,
    /// The index matches the volumes' maps; before, nothing can be shared.
    pub(crate) is_index_ready: bool,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn flags(&self) -> Flags {
        *self.lock()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Flags)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Wakes all waiting threads: a job has changed, or there is something new to do.
    pub(crate) fn notify(&self) {
        self.change(|_| {});
    }

    /// Waits until `is_so`.
    pub(crate) fn wait_until(&self, is_so: impl Fn() -> bool) {
        drop(self.changed.wait_while(self.lock(), |_| !is_so()));
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
        self.signal.flags().is_stopping
    }

    /// Waits for a notification, at most this long.
    pub(crate) fn wait(&self, time: Duration) {
        let flags = self.signal.lock();
        if !flags.is_stopping {
            drop(self.signal.changed.wait_timeout(flags, time));
        }
    }

    /// Sleeps for this time; only stopping cuts it short.
    pub(crate) fn sleep(&self, time: Duration) {
        self.sleep_unless(time, || false);
    }

    /// Sleeps for this time; ends early on stopping, or on a notification after which `is_due`.
    pub(crate) fn sleep_unless(&self, time: Duration, is_due: impl Fn() -> bool) {
        let (flags, changed) = (self.signal.lock(), &self.signal.changed);
        let sleeps = |flags: &mut Flags| !flags.is_stopping && !is_due();
        drop(changed.wait_timeout_while(flags, time, sleeps));
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
