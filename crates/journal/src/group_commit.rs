//! Work that many callers request and one of them does: commits and checkpoints.

use std::sync::atomic::Ordering::SeqCst;

use onefold_metadata::sync::{AtomicU64, Mutex, MutexGuard, lock};
use onefold_metadata::{Guard, Result};

/// A ticket machine: many callers request the work and one does it.
///
/// Guarantee: [`GroupCommit::run`] returns only after a run of the work that *started* after the
/// call has ended.
pub(super) struct GroupCommit<T> {
    started: AtomicU64,
    state: Mutex<GroupCommitState<T>>,
}

struct GroupCommitState<T> {
    ended: u64,
    work: T,
}

impl<T> GroupCommit<T> {
    pub(super) fn new(work: T) -> Self {
        Self {
            started: AtomicU64::new(0),
            state: Mutex::new(GroupCommitState { ended: 0, work }),
        }
    }

    /// Does the work, unless a run of it that started after this call has ended before it is this
    /// caller's turn. A failed run counts only for its own caller.
    pub(super) fn run(&self, work: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
        let arrived = self.started.load(SeqCst);
        let mut state = lock(&self.state);
        let joins = if Guard::FlushJoinsLaterCommit.holds() {
            state.ended > arrived
        } else {
            state.ended >= arrived && arrived > 0
        };
        if joins {
            return Ok(());
        }
        let number = self.started.fetch_add(1, SeqCst) + 1;
        work(&mut state.work)?;
        state.ended = number;
        Ok(())
    }

    /// The work's state, for callers that do part of it themselves.
    pub(super) fn lock(&self) -> SharedGuard<'_, T> {
        SharedGuard(lock(&self.state))
    }
}

/// The guard of [`GroupCommit::lock`].
pub(super) struct SharedGuard<'a, T>(MutexGuard<'a, GroupCommitState<T>>);

impl<T> std::ops::Deref for SharedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.work
    }
}

impl<T> std::ops::DerefMut for SharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.work
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use shuttle::thread;

    use super::GroupCommit;
    use onefold_metadata::sync::AtomicBool;

    const CALLERS: usize = 4;

    /// The callers covered by the runs so far.
    #[derive(Default)]
    struct Runs {
        covered: [bool; CALLERS],
        count: usize,
    }

    #[test]
    fn shuttle_a_run_is_joined_only_if_it_started_later() {
        // Across all schedules: plain counters, so that they do not add schedules of their own.
        static FEWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        shuttle::check_random(
            || {
                let shared = Arc::new(GroupCommit::new(Runs::default()));
                let written: Arc<[AtomicBool; CALLERS]> = Arc::default();
                let callers = [0, 1, 2, 3].map(|caller: usize| {
                    let (shared, written) = (Arc::clone(&shared), Arc::clone(&written));
                    thread::spawn(move || {
                        written[caller].store(true, SeqCst);
                        let run = shared.run(|runs| {
                            runs.count += 1;
                            for (covered, written) in runs.covered.iter_mut().zip(&*written) {
                                *covered = written.load(SeqCst);
                            }
                            thread::yield_now();
                            Ok(())
                        });
                        run.unwrap();
                        assert!(
                            shared.lock().covered[caller],
                            "{caller} joined an earlier run"
                        );
                    })
                });
                for caller in callers {
                    caller.join().unwrap();
                }
                let count = shared.lock().count;
                FEWEST.fetch_min(count, SeqCst);
                MOST.fetch_max(count, SeqCst);
            },
            5_000,
        );
        let (fewest, most) = (FEWEST.load(SeqCst), MOST.load(SeqCst));
        assert!(
            fewest < most && most <= CALLERS,
            "from {fewest} to {most} runs"
        );
    }

    #[test]
    fn shuttle_a_failed_run_counts_for_nobody_else() {
        shuttle::check_random(
            || {
                let shared = Arc::new(GroupCommit::new(0));
                let failing = {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let failed = crate::StoreError::damaged("it failed");
                        let _ = shared.run(|_| Err(failed));
                    })
                };
                shared
                    .run(|runs| {
                        *runs += 1;
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(*shared.lock(), 1);
                failing.join().unwrap();
            },
            2_000,
        );
    }
}
