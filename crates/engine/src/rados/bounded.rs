//! Work that waits for the cluster, on threads of its own, so that its callers wait for a limited time.
//!
//! An operation on a placement group that is inactive ends when the group is active again, which may take hours. A guest's
//! request that needs more space waits for such an operation, and would keep a worker from the guests of other groups.

use onefold_format::GroupId;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The kinds of work. There is one piece of each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// The exchanges of a group, and questions about the last one.
    Exchange(GroupId),
    /// Counting the space extents of the pool.
    Count,
}

/// The work in progress.
#[derive(Clone, Default)]
pub(super) struct Bounded(Arc<InProgress>);

#[derive(Default)]
struct InProgress {
    /// Until when the caller of each piece waits for it. No other lock is taken while this one is held.
    until: Mutex<BTreeMap<Work, Instant>>,
    ended: Condvar,
}

impl InProgress {
    fn until(&self) -> MutexGuard<'_, BTreeMap<Work, Instant>> {
        // Each change is complete in itself.
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bounded {
    /// Carries out some work, and waits for its result for at most this time.
    ///
    /// # Errors
    ///
    /// `TimedOut` afterwards: the work continues until the cluster answers. `TimedOut`, too, once the caller of earlier work
    /// of this kind has given up waiting for it, or if no thread can be started: then this has not begun. Errors of the
    /// work.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: Work,
        time_max: Duration,
        carry_out: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = self.begin(work, time_max).ok_or_else(late)?;
        let (ended, end) = channel();
        let run = move || {
            let result = carry_out();
            // Before the caller knows: its next work must not find this in its way.
            drop(turn);
            // After that time, nobody receives it.
            let _ = ended.send(result);
        };
        let thread = thread::Builder::new().name("rados-space".to_owned());
        thread.spawn(run).map_err(|error| {
            let message = format!("cannot start a thread: {error}");
            io::Error::new(io::ErrorKind::TimedOut, message)
        })?;
        end.recv_timeout(time_max).unwrap_or_else(|why| {
            Err(match why {
                RecvTimeoutError::Timeout => late(),
                RecvTimeoutError::Disconnected => io::Error::other("a thread panicked"),
            })
        })
    }

    /// Waits until no other work of this kind is in progress, but no longer than the caller of that one.
    fn begin(&self, work: Work, time_max: Duration) -> Option<Turn> {
        let mut works = self.0.until();
        while let Some(until) = works.get(&work) {
            let left = until.checked_duration_since(Instant::now())?;
            let woken = self.0.ended.wait_timeout(works, left);
            works = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        works.insert(work, Instant::now() + time_max);
        let in_progress = Arc::clone(&self.0);
        Some(Turn { in_progress, work })
    }
}

fn late() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the cluster has not answered in time",
    )
}

/// A piece of work in progress.
struct Turn {
    in_progress: Arc<InProgress>,
    work: Work,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.in_progress.until().remove(&self.work);
        self.in_progress.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_result_of_work_in_time_is_returned() {
        let bounded = Bounded::default();
        let exchange = Work::Exchange(GroupId(1));
        for n in 0..100 {
            assert_eq!(bounded.run(exchange, LONG, move || Ok(n)).unwrap(), n);
        }
        let failed = bounded.run(exchange, LONG, || -> io::Result<()> {
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        let panicked = bounded.run(exchange, LONG, || -> io::Result<()> { panic!("of a test") });
        assert!(panicked.unwrap_err().to_string().contains("panicked"));
        assert!(bounded.run(exchange, LONG, || Ok(())).is_ok());
    }

    #[test]
    fn work_that_hangs_is_left_alone_and_no_other_of_its_kind_begins() {
        let bounded = Bounded::default();
        let (release, hangs) = channel::<()>();
        let exchange = Work::Exchange(GroupId(1));
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let hung = bounded.run(exchange, SHORT, move || {
            let _ = hangs.recv();
            Ok(())
        });
        assert_eq!(kind(hung), io::ErrorKind::TimedOut);
        let refused = bounded.run(exchange, LONG, || -> io::Result<()> { unreachable!() });
        assert_eq!(kind(refused), io::ErrorKind::TimedOut);
        for other in [Work::Exchange(GroupId(2)), Work::Count] {
            bounded.run(other, LONG, || Ok(())).unwrap();
        }
        drop(release);
        while bounded.run(exchange, LONG, || Ok(())).is_err() {}
    }

    #[test]
    fn work_of_one_kind_waits_for_its_turn() {
        let bounded = Bounded::default();
        let (release, hangs) = channel::<()>();
        let (begun, begins) = channel();
        let first = bounded.clone();
        let first = thread::spawn(move || {
            first.run(Work::Count, LONG, move || {
                begun.send(()).unwrap();
                let _ = hangs.recv();
                Ok(())
            })
        });
        begins.recv().unwrap();
        let second = bounded.clone();
        let second = thread::spawn(move || second.run(Work::Count, LONG, || Ok(())));
        thread::sleep(SHORT);
        assert!(!second.is_finished());
        drop(release);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    }
}
