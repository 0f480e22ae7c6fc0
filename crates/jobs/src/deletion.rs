//! Deletions of volumes and snapshots, step by step, on the collector's thread.

use crate::foreground::Foreground;
use crate::handle::Step;
use crate::limits::{DELETION_SHARE_FLOOR, DELETION_SHARE_MAX};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::registry::JobRegistry;
use crate::store_jobs::StoreJobs;
use crate::thread::JobThread;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The deletions of all stores. They have a pacer of their own, so they yield to guests independently of the
/// collector.
pub(crate) struct Deletions {
    foreground: Foreground,
}

/// The state of one store's deletions.
pub(crate) struct Deletion {
    /// When failed deletions are retried.
    retry: Instant,
}

impl Deletion {
    pub(crate) fn new() -> Self {
        Self {
            retry: Instant::now(),
        }
    }
}

impl Deletions {
    pub(crate) fn new(
        registry: &Arc<JobRegistry>,
        thread: &Arc<JobThread>,
        latency_budget: Duration,
    ) -> Self {
        let pacer = Pacer::new(latency_budget, DELETION_SHARE_FLOOR).at_most(DELETION_SHARE_MAX);
        Self {
            foreground: Foreground::new(registry, thread, pacer),
        }
    }

    /// Does one step of a store's deletion, and returns whether more is to do. A failed deletion is retried
    /// only after all others of the store are done, and not before `retry`.
    pub(crate) fn step(&mut self, jobs: &StoreJobs, state: &mut Deletion) -> bool {
        let (store, job) = (jobs.store(), &jobs.deletion);
        let Some(failures) = store.deletions().next_failures() else {
            return false;
        };
        if (failures > 0 && Instant::now() < state.retry) || !job.begin() {
            return false;
        }
        let began = Instant::now();
        let done = store.deletions().step();
        let blocks = done.as_ref().ok().copied().flatten();
        let step = Step {
            bytes: blocks.unwrap_or(0) * u64::from(store.block_size()),
            left_blocks: 0,
            has_more: blocks.is_some(),
        };
        job.end_batch(step, |counts| counts.deleted += blocks.unwrap_or(0));
        match done {
            Ok(blocks) => {
                self.foreground
                    .rest_after_unless(began.elapsed(), &|| job.is_leaving());
                blocks.is_some()
            }
            // The deletion may wait for the next batch of the collector. Other deletions can
            // proceed without it.
            Err(_) => {
                state.retry = Instant::now() + retry_pause(failures + 1);
                store.deletions().next_failures() == Some(0)
            }
        }
    }

    /// Whether a deletion of the store that has not failed is pending.
    pub(crate) fn are_urgent(jobs: &StoreJobs) -> bool {
        jobs.deletion.may_work() && jobs.store().deletions().next_failures() == Some(0)
    }

    /// Notes that the thread was idle for a while.
    pub(crate) fn were_idle(&mut self) {
        self.foreground.was_idle();
    }
}
