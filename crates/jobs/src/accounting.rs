//! The thread that scans all maps periodically, store by store, to find out what each volume holds alone.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, Step};
use crate::limits::{ACCOUNTING_SHARE_FLOOR, ACCOUNTING_SLICE, FIRST_ACCOUNTING, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::registry::JobRegistry;
use crate::store_jobs::StoreJobs;
use crate::thread::JobThread;
use onefold_store::Store;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of one store's accounting.
struct Accounting {
    /// When its maps are scanned again.
    due: Instant,
    failures: u32,
}

/// Runs until it is stopped.
pub(crate) fn run(
    registry: &Arc<JobRegistry>,
    thread: &Arc<JobThread>,
    latency_budget: Duration,
    interval: Duration,
) {
    let pacer = Pacer::new(latency_budget, ACCOUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(registry, thread, pacer);
    let mut states = BTreeMap::new();
    let new = |_: &StoreJobs| Accounting {
        due: Instant::now() + FIRST_ACCOUNTING.min(interval),
        failures: 0,
    };
    while !thread.is_stopping() {
        let mut is_idle = true;
        registry.take_turns(&mut states, new, |jobs, state| {
            foreground.was_idle();
            if Instant::now() >= state.due && jobs.accounting.begin() {
                is_idle = false;
                account(jobs, state, &mut foreground, interval);
            }
        });
        if is_idle {
            thread.sleep(POLL_INTERVAL.min(interval));
        }
    }
}

fn account(
    jobs: &StoreJobs,
    state: &mut Accounting,
    foreground: &mut Foreground,
    interval: Duration,
) {
    let job = &jobs.accounting;
    job.set_under_way(0);
    let pause = match go_through(jobs.store(), job, foreground) {
        Ok(is_complete) => {
            state.failures = 0;
            job.end_batch(Step::default(), |counts| {
                counts.passes += u64::from(is_complete);
            });
            // A paused scan starts again once it is resumed.
            if is_complete {
                interval
            } else {
                Duration::ZERO
            }
        }
        Err(error) => {
            state.failures += 1;
            job.fail(&error);
            retry_pause(state.failures)
        }
    };
    state.due = Instant::now() + pause;
}

fn go_through(
    store: &Store,
    job: &JobHandle,
    foreground: &mut Foreground,
) -> onefold_store::Result<bool> {
    let mut began = Instant::now();
    store.accounting().scan(&mut |_, _| {
        let worked = began.elapsed();
        if worked >= ACCOUNTING_SLICE {
            foreground.rest_after_unless(worked, &|| !job.may_work());
            began = Instant::now();
        }
        if job.may_work() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
}
