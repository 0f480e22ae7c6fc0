//! The thread that makes sure that the index is valid, then does deletions and releases dropped
//! references.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::{JobCounts, JobKind, JobState, JobStatus};
use crate::limits::{
    COLLECT_INTERVAL, COLLECTOR_SHARE_FLOOR, DELETION_SHARE_FLOOR, DELETION_SHARE_MAX,
    GIVE_BACK_BYTES, GIVE_BACK_PAUSE, POLL_INTERVAL,
};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::shrink::{Shrunk, shrink_now};
use crate::thread::JobThread;
use onefold_store::{COLLECT_BATCH_BLOCKS, PoolStat, Store, StoreErrorKind};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) static COLLECTOR: JobSpec = JobSpec {
    kind: JobKind::Collector,
    name: "the collector",
    needs_index: false,
    is_always_listed: true,
    backlog_blocks: |stat| stat.queued_blocks,
};

/// All deletions in progress. The store keeps the failure of each.
pub(crate) static DELETION: JobSpec = JobSpec {
    kind: JobKind::Deletion,
    name: "the deletion",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |stat| {
        let possible = stat.deletions.iter().filter(|it| it.failure.is_none());
        let possible = possible.filter(|it| it.needed_by.is_empty());
        possible.map(|it| it.own_blocks).sum()
    },
};

pub(crate) static REBUILD: JobSpec = JobSpec {
    kind: JobKind::Rebuild,
    name: "the rebuild of the index",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// A line for each failed deletion.
pub(crate) fn failed_deletions(stat: &PoolStat) -> impl Iterator<Item = JobStatus> {
    stat.deletions.iter().filter_map(|deletion| {
        Some(JobStatus {
            kind: JobKind::Deletion,
            volume: Some(deletion.name.clone()),
            state: JobState::Failed,
            message: Some(deletion.failure.clone()?),
            counts: JobCounts::default(),
            backlog_blocks: deletion.own_blocks,
            bytes_per_second: 0,
        })
    })
}

/// The thread, and its jobs.
pub(crate) struct Collector {
    store: Arc<Store>,
    thread: Arc<JobThread>,
    foreground: Foreground,
    collector: Arc<JobHandle>,
    deletions: Deletions,
    rebuild: Arc<JobHandle>,
}

/// Deletions yield to guests by themselves.
struct Deletions {
    job: Arc<JobHandle>,
    foreground: Foreground,
    /// When failed ones are tried again.
    retry: Instant,
}

impl Collector {
    pub(crate) fn new(
        store: &Arc<Store>,
        [collector, deletion, rebuild]: [Arc<JobHandle>; 3],
        latency_budget: Duration,
    ) -> Self {
        let thread = Arc::clone(collector.thread());
        let pacer = Pacer::new(latency_budget, DELETION_SHARE_FLOOR).at_most(DELETION_SHARE_MAX);
        let deletions = Deletions {
            job: deletion,
            foreground: Foreground::new(store, &thread, pacer),
            retry: Instant::now(),
        };
        let pacer = Pacer::new(latency_budget, COLLECTOR_SHARE_FLOOR);
        Self {
            store: Arc::clone(store),
            foreground: Foreground::new(store, &thread, pacer),
            thread,
            collector,
            deletions,
            rebuild,
        }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(&mut self) {
        self.rebuild_index();
        let mut failures = 0;
        while !self.thread.is_stopping() {
            let deletes = self.deletions.step(&self.store);
            if (deletes && !self.is_batch_whole()) || !self.collector.begin() {
                if !deletes {
                    self.thread.wait(POLL_INTERVAL);
                }
                continue;
            }
            self.finish_shrinking();
            if !self.collector.may_work() {
                self.collector.end();
                continue;
            }
            if self.collect(&mut failures) {
                self.let_gather();
                self.deletions.foreground.was_idle();
            }
        }
    }

    /// Releases a batch of references. Returns whether it worked.
    fn collect(&mut self, failures: &mut u32) -> bool {
        let began = Instant::now();
        match self.store.collect_batch() {
            Ok(report) => {
                *failures = 0;
                let step = Step {
                    bytes: report.released * u64::from(self.store.block_size()),
                    left_blocks: 0,
                    has_more: report.released > 0,
                };
                self.collector
                    .end_batch(step, |counts| counts.add_collected(&report));
                self.foreground.rest_after(began.elapsed());
                true
            }
            Err(error) => {
                *failures += 1;
                self.collector.fail(&error);
                self.thread.sleep(retry_pause(*failures));
                // A repair that did not get to its end leaves an index to be counted again.
                if error.kind() == StoreErrorKind::Busy {
                    self.rebuild_index();
                }
                false
            }
        }
    }

    fn is_batch_whole(&self) -> bool {
        let queued = self.store.queued_blocks();
        queued.is_ok_and(|queued| queued >= COLLECT_BATCH_BLOCKS)
    }

    /// Resumes an interrupted shrinking of the pool.
    fn finish_shrinking(&mut self) {
        if !matches!(self.store.shrinking_to(), Ok(Some(_))) {
            return;
        }
        let mut began = Instant::now();
        let shrunk = shrink_now(&self.store, &mut |_, _| {
            self.foreground.rest_after(began.elapsed());
            began = Instant::now();
            match self.collector.may_work() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        match shrunk {
            Ok(Shrunk::Done | Shrunk::Cancelled | Shrunk::BrokenOff) => {}
            Ok(Shrunk::Stuck(left)) => tracing::error!(
                "the pool keeps its size: {left} blocks beyond the new end stay in use; run `pool check`"
            ),
            Err(error) => {
                tracing::error!(%error, "shrinking the pool failed");
                self.thread.sleep(retry_pause(1));
            }
        }
    }

    /// A batch costs the disk the same however few items it has, so it waits until it is full or
    /// has waited long enough.
    fn let_gather(&mut self) {
        let began = Instant::now();
        while !self.thread.is_stopping()
            && began.elapsed() < COLLECT_INTERVAL
            && !self.is_batch_whole()
            && !self.deletions.is_urgent(&self.store)
        {
            self.give_back(Instant::now() + POLL_INTERVAL);
            self.foreground.was_idle();
        }
    }

    /// Until then gives free space back to the host, a little at a time while guests are busy: a
    /// hole in the pool's file keeps all writes waiting while it is made.
    fn give_back(&mut self, until: Instant) {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero() && self.collector.begin() {
            let more = self.store.give_back(GIVE_BACK_BYTES);
            self.collector.end();
            match more {
                Ok(true) if self.foreground.guests_are_idle() => {}
                Ok(true) => self.thread.sleep(GIVE_BACK_PAUSE.min(left())),
                Ok(false) => break,
                Err(error) => {
                    tracing::error!(%error, "discarding free blocks failed");
                    break;
                }
            }
            self.foreground.was_idle();
        }
        self.thread.sleep(left());
    }

    /// Until it has worked, neither this thread nor the finder does anything else.
    fn rebuild_index(&mut self) {
        let block_size = u64::from(self.store.block_size());
        let mut failures = 0;
        while !self.thread.is_stopping() {
            let mut began = Instant::now();
            let mut done_before = 0;
            let rebuilt = self.store.rebuild_index_if_needed(&mut |done, all| {
                let left_blocks = all.saturating_sub(done);
                self.rebuild.set_under_way(left_blocks);
                let step = Step {
                    bytes: done.saturating_sub(done_before) * block_size,
                    left_blocks,
                    has_more: true,
                };
                self.rebuild.advance(step, |counts| counts.scanned = done);
                done_before = done;
                self.foreground.rest_after(began.elapsed());
                began = Instant::now();
            });
            match rebuilt {
                Ok(is_new) => {
                    let count = |counts: &mut JobCounts| counts.passes += u64::from(is_new);
                    self.rebuild.end_batch(Step::default(), count);
                    let signal = self.thread.signal();
                    return signal.change(|flags| flags.is_index_ready = true);
                }
                Err(error) => {
                    failures += 1;
                    self.rebuild.fail(&error);
                    self.thread.sleep(retry_pause(failures));
                }
            }
        }
    }
}

impl Deletions {
    /// Does a step. Returns whether there is more. Failed deletions are retried once no other is
    /// left, and not before `retry`.
    fn step(&mut self, store: &Store) -> bool {
        let Some(failures) = store.next_deletion_failures() else {
            return false;
        };
        if (failures > 0 && Instant::now() < self.retry) || !self.job.begin() {
            return false;
        }
        let began = Instant::now();
        let done = store.deletion_step();
        let blocks = done.as_ref().ok().copied().flatten();
        let step = Step {
            bytes: blocks.unwrap_or(0) * u64::from(store.block_size()),
            left_blocks: 0,
            has_more: blocks.is_some(),
        };
        self.job
            .end_batch(step, |counts| counts.deleted += blocks.unwrap_or(0));
        match done {
            Ok(blocks) => {
                self.foreground.rest_after(began.elapsed());
                blocks.is_some()
            }
            // The collector may do next what the deletion waits for; other deletions need not
            // wait for that.
            Err(_) => {
                self.retry = Instant::now() + retry_pause(failures + 1);
                store.next_deletion_failures() == Some(0)
            }
        }
    }

    /// Whether one that has not failed is to be done.
    fn is_urgent(&self, store: &Store) -> bool {
        self.job.may_work() && store.next_deletion_failures() == Some(0)
    }
}
