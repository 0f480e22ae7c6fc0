//! The thread that scans all maps periodically, to find out what each volume holds alone.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{ACCOUNTING_SHARE_FLOOR, ACCOUNTING_SLICE, FIRST_ACCOUNTING, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use onefold_store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) static ACCOUNTING: JobSpec = JobSpec {
    kind: JobKind::Accounting,
    name: "the accounting",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// Runs until it is stopped.
pub(crate) fn run(
    store: &Arc<Store>,
    job: &JobHandle,
    latency_budget: Duration,
    interval: Duration,
) {
    let thread = job.thread();
    let pacer = Pacer::new(latency_budget, ACCOUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, thread, pacer);
    let mut due = Instant::now() + FIRST_ACCOUNTING.min(interval);
    let mut failures = 0;
    while !thread.is_stopping() {
        foreground.was_idle();
        if Instant::now() < due || !job.begin() {
            thread.sleep(POLL_INTERVAL.min(interval));
            continue;
        }
        job.set_under_way(0);
        match go_through(store, job, &mut foreground) {
            Ok(is_complete) => {
                failures = 0;
                job.end_batch(Step::default(), |counts| {
                    counts.passes += u64::from(is_complete);
                });
                // A paused scan starts again once it is resumed.
                due = Instant::now()
                    + if is_complete {
                        interval
                    } else {
                        Duration::ZERO
                    };
            }
            Err(error) => {
                failures += 1;
                job.fail(&error);
                thread.sleep(retry_pause(failures));
            }
        }
    }
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
            foreground.rest_after(worked);
            began = Instant::now();
        }
        if job.may_work() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
}
