//! The thread that has the index count claims.
//!
//! It has a thread of its own because it may not wait for anything else: where claims reach their limit,
//! each further hit is refused, and a guest pays for a write that would have been saved.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{
    COLLECT_INTERVAL, COUNT_BATCH_BLOCKS, COUNT_PRESSING_BLOCKS, COUNTING_SHARE_FLOOR,
    POLL_INTERVAL,
};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use onefold_store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) static COUNTING: JobSpec = JobSpec {
    kind: JobKind::Counting,
    name: "the counting of claims",
    needs_index: true,
    is_always_listed: false,
    backlog_blocks: |stat| stat.claimed_blocks,
};

/// Runs until it is stopped.
pub(crate) fn run(store: &Arc<Store>, job: &JobHandle, latency_budget: Duration) {
    let thread = job.thread();
    let signal = Arc::clone(thread.signal());
    store.set_claims_alarm(COUNT_BATCH_BLOCKS, Box::new(move || signal.notify()));
    let pacer = Pacer::new(latency_budget, COUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, thread, pacer);
    let claimed = || store.claimed_blocks().unwrap_or_default();
    let mut failures = 0;
    while !thread.is_stopping() {
        thread.sleep_unless(COLLECT_INTERVAL, || claimed() >= COUNT_BATCH_BLOCKS);
        let is_pressing = claimed() >= COUNT_PRESSING_BLOCKS;
        if claimed() == 0 {
            foreground.was_idle();
            continue;
        }
        if !job.begin() {
            thread.wait(POLL_INTERVAL);
            continue;
        }
        let began = Instant::now();
        let counted = match is_pressing {
            true => store.count_batch_at_once(),
            false => store.count_batch(),
        };
        match counted {
            Ok(report) => {
                failures = 0;
                let step = Step {
                    bytes: report.items() * u64::from(store.block_size()),
                    ..Step::default()
                };
                job.end_batch(step, |counts| counts.add_counted(&report));
                foreground
                    .rest_after_unless(began.elapsed(), &|| claimed() >= COUNT_PRESSING_BLOCKS);
            }
            // The collector has to count them, too, and what it meets is dealt with there.
            Err(error) => {
                failures += 1;
                job.fail(&error);
                thread.sleep(retry_pause(failures));
            }
        }
    }
}
