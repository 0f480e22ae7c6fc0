//! The commit: the only place that syncs the pool and writes the log.
//!
//! 1. seal: take the records that are in memory; later ones belong to the next commit
//! 2. sync the pool, so that the blocks these records name are durable (P2)
//! 3. write the records and sync the log
//! 4. answer whoever waited; the blocks that the records gave up wait for their readers (P3)
//!
//! There is no thread for it. Whoever needs a commit takes the lock and runs it; the others queue
//! for the lock and find, when they get it, that a commit sealed after they arrived is done (P5).
//! So any number of flushes that arrive during one commit share the next.

use std::sync::atomic::Ordering::SeqCst;

use crate::error::{Result, StoreError};
use crate::guard::Guard;
use crate::log::{Log, Tail};
use crate::pool::{Pool, Uncommitted};
use crate::sync::{AtomicU64, Mutex, MutexGuard, lock};

/// A ticket machine: work that many want and one does.
///
/// What is guaranteed: [`GroupCommit::run`] returns only after a run of the work that *started* after
/// the call has ended.
pub(crate) struct GroupCommit<T> {
    started: AtomicU64,
    state: Mutex<GroupCommitState<T>>,
}

struct GroupCommitState<T> {
    ended: u64,
    work: T,
}

impl<T> GroupCommit<T> {
    pub(crate) fn new(work: T) -> Self {
        Self {
            started: AtomicU64::new(0),
            state: Mutex::new(GroupCommitState { ended: 0, work }),
        }
    }

    /// Does the work, unless a run of it that started after this call has ended by the time that
    /// it is this caller's turn. A failed run counts for nobody but the one who ran it.
    pub(crate) fn run(&self, work: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
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

    /// The work's state, for those who do part of it themselves.
    pub(crate) fn lock(&self) -> SharedGuard<'_, T> {
        SharedGuard(lock(&self.state))
    }
}

/// See [`GroupCommit::lock`].
pub(crate) struct SharedGuard<'a, T>(MutexGuard<'a, GroupCommitState<T>>);

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

/// Stops the pool if it is dropped by a panic: what was under way is half done, and the next one to
/// come must not go on as if it had been done.
pub(crate) struct StopsOnPanic<'a> {
    pool: &'a Pool,
    what: &'static str,
}

impl<'a> StopsOnPanic<'a> {
    pub(crate) fn new(pool: &'a Pool, what: &'static str) -> Self {
        Self { pool, what }
    }
}

impl Drop for StopsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && Guard::PanicStopsWrites.holds() {
            let what = format!(
                "{} ended by a panic; this is a defect of onefold",
                self.what
            );
            self.pool.fail(&StoreError::damaged(what));
        }
    }
}

impl Pool {
    /// Makes everything durable that was answered before this call.
    pub(crate) fn commit(&self) -> Result<()> {
        self.commits
            .run(|log| self.seal_and_commit(log, |_| Ok(())))
    }

    /// A commit that no guest waits for. Most of it is the host's work on writing the data out, so
    /// that is done aside first, and little is left for the time in which guests' flushes queue
    /// behind the commit.
    pub(crate) fn commit_in_background(&self) -> Result<()> {
        self.write_data_out()?;
        self.commit()
    }

    /// Syncs the data aside, if anyone does work aside, and once more what was written during the
    /// first sync. It stands for no commit's own sync, but a failure is told only once, so it
    /// counts as much.
    pub(crate) fn write_data_out(&self) -> Result<()> {
        if self.background.is_set() && self.unsynced.load(SeqCst) {
            self.background
                .run(|| self.sync_data().and_then(|()| self.sync_data()))?;
        }
        Ok(())
    }

    /// One commit; `at_seal` sees the uncommitted state exactly as the sealed records left it.
    pub(crate) fn seal_and_commit<T>(
        &self,
        log: &mut Log,
        at_seal: impl FnOnce(&mut Uncommitted) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        let mut uncommitted = self.uncommitted()?;
        let sealed = at_seal(&mut uncommitted)?;
        // From here on the records are nowhere but in `tail`.
        let _stops = StopsOnPanic::new(self, "a commit");
        let tail = uncommitted.seal();
        self.log_span.seal(tail.log_bytes());
        drop(uncommitted);
        // Whoever raises this flag has written its data, and does so before its record is
        // appended: a record in `tail` whose flag was seen by an earlier commit is of data that
        // this earlier commit synced.
        let has_unsynced = self.unsynced.swap(false, SeqCst);
        self.make_durable(log, &tail, has_unsynced)
            .inspect_err(|error| {
                if Guard::FailedSyncStopsWrites.holds() {
                    self.fail_sync(error);
                }
            })?;
        self.log_span.set_end(log.end.position);
        self.give_up(tail.released);
        Ok(sealed)
    }

    fn make_durable(&self, log: &mut Log, tail: &Tail, has_unsynced: bool) -> Result<()> {
        if has_unsynced && Guard::PoolSyncedBeforeLog.holds() {
            self.sync_data().inspect_err(|_| self.doubt(tail))?;
        }
        if tail.is_empty() {
            return Ok(());
        }
        log.append(tail)?;
        if Guard::LogSyncedBeforeReply.holds() {
            log.sync()?;
        }
        Ok(())
    }

    /// Once it fails there are no more writes, and records to come, so all that are not durable are in
    /// the tail and in those of commits under way.
    pub(crate) fn sync_data(&self) -> Result<()> {
        let what = || format!("syncing the pool's data {}", self.data_name);
        let synced = self.data.sync();
        synced
            .map_err(|error| StoreError::io(what(), error))
            .inspect_err(|error| {
                if Guard::FailedSyncStopsWrites.holds() {
                    self.fail_sync(error);
                    self.doubt_tail();
                }
            })
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use shuttle::thread;

    use super::GroupCommit;
    use crate::sync::AtomicBool;

    const CALLERS: usize = 4;

    /// Who was covered by the runs so far.
    #[derive(Default)]
    struct Runs {
        covered: [bool; CALLERS],
        count: usize,
    }

    #[test]
    fn shuttle_a_run_is_joined_only_if_it_started_later() {
        // Over all schedules: plain counters, so that they do not add any of their own.
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
