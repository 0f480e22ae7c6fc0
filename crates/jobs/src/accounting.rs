//! The thread that goes through all maps now and then, to say what each volume holds alone.

use crate::board::{Board, WorkerKind};
use crate::foreground::Foreground;
use crate::limits::{ACCOUNTING_SHARE_FLOOR, ACCOUNTING_SLICE, FIRST_ACCOUNTING, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::rounds::retry_pause;
use onefold_store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs until the board says stop.
pub(crate) fn run(
    store: &Arc<Store>,
    board: &Arc<Board>,
    latency_budget: Duration,
    interval: Duration,
) {
    let pacer = Pacer::new(latency_budget, ACCOUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, board, WorkerKind::Accountant, pacer);
    let mut due = Instant::now() + FIRST_ACCOUNTING.min(interval);
    let mut failures = 0;
    while !board.is_stopping() {
        foreground.was_idle();
        if Instant::now() < due || !board.begin_accounting() {
            board.sleep(POLL_INTERVAL.min(interval));
            continue;
        }
        match go_through(store, board, &mut foreground) {
            Ok(is_complete) => {
                failures = 0;
                board.accounted(is_complete);
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
                board.accounting_failed(&error);
                board.sleep(retry_pause(failures));
            }
        }
    }
}

fn go_through(
    store: &Store,
    board: &Board,
    foreground: &mut Foreground,
) -> onefold_store::Result<bool> {
    let mut began = Instant::now();
    store.account(&mut |_, _| {
        let worked = began.elapsed();
        if worked >= ACCOUNTING_SLICE {
            foreground.rest_after(worked);
            began = Instant::now();
        }
        match board.may_account() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })
}
