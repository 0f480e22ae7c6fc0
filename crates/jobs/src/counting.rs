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
use crate::thread::Signal;
use onefold_store::{Hurry, Store};
use std::sync::{Arc, Mutex, PoisonError};
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
    let pressing = Arc::<Pressing>::default();
    store.set_claims_alarm(COUNT_BATCH_BLOCKS, alarm(store, &signal, &pressing));
    let pacer = Pacer::new(latency_budget, COUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, thread, pacer);
    let claimed = || store.claimed_blocks().unwrap_or_default();
    let mut failures = 0;
    while !thread.is_stopping() {
        if claimed() < COUNT_PRESSING_BLOCKS {
            pressing.set(None);
        }
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

/// There while claims are near their limit: then nothing that keeps them from being counted waits for an
/// idle processor, whichever job it belongs to.
#[derive(Default)]
struct Pressing(Mutex<Option<Hurry>>);

impl Pressing {
    fn set(&self, hurry: Option<Hurry>) {
        let before = {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *held, hurry)
        };
        drop(before);
    }
}

/// Wakes the thread when there is a batch to count, and hurries the batch in progress if that has not
/// helped.
fn alarm(
    store: &Arc<Store>,
    signal: &Arc<Signal>,
    pressing: &Arc<Pressing>,
) -> Box<dyn Fn() + Send + Sync> {
    // The store keeps the alarm.
    let store = Arc::downgrade(store);
    let (signal, pressing) = (Arc::clone(signal), Arc::clone(pressing));
    Box::new(move || {
        if let Some(store) = store.upgrade()
            && store.claimed_blocks().unwrap_or_default() >= COUNT_PRESSING_BLOCKS
        {
            pressing.set(Some(store.hurry_background()));
        }
        signal.notify();
    })
}
