//! The thread that scans all maps periodically, to find out what each volume holds alone.

use crate::foreground::Foreground;
use crate::limits::{ACCOUNTING_SHARE_FLOOR, ACCOUNTING_SLICE, FIRST_ACCOUNTING, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::registry::{JobRegistry, WorkerKind};
use onefold_store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs until the job registry stops it.
pub(crate) fn run(
    store: &Arc<Store>,
    registry: &Arc<JobRegistry>,
    latency_budget: Duration,
    interval: Duration,
) {
    let pacer = Pacer::new(latency_budget, ACCOUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, registry, WorkerKind::Accountant, pacer);
    let mut due = Instant::now() + FIRST_ACCOUNTING.min(interval);
    let mut failures = 0;
    while !registry.is_stopping() {
        foreground.was_idle();
        if Instant::now() < due || !registry.begin_accounting() {
            registry.sleep(POLL_INTERVAL.min(interval));
            continue;
        }
        match go_through(store, registry, &mut foreground) {
            Ok(is_complete) => {
                failures = 0;
                registry.accounted(is_complete);
                // One that was paused begins again when it may.
                due = Instant::now()
                    + if is_complete {
                        interval
                    } else {
                        Duration::ZERO
                    };
            }
            Err(error) => {
                failures += 1;
                registry.accounting_failed(&error);
                registry.sleep(retry_pause(failures));
            }
        }
    }
}

fn go_through(
    store: &Store,
    registry: &JobRegistry,
    foreground: &mut Foreground,
) -> onefold_store::Result<bool> {
    let mut began = Instant::now();
    store.account(&mut |_, _| {
        let worked = began.elapsed();
        if worked >= ACCOUNTING_SLICE {
            foreground.rest_after(worked);
            began = Instant::now();
        }
        match registry.may_account() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })
}
