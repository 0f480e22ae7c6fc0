//! The thread that has the index count claims.
//!
//! Counting has its own thread because it must not wait for anything else: once claims reach their
//! limit, every further hit is refused, and the guest pays for a write that sharing would have saved.

use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{
    COLLECT_INTERVAL, COUNT_BATCH_BLOCKS, COUNT_IN_TURNS_BLOCKS, COUNT_PRESSING_DIVISOR,
    COUNTING_SHARE_FLOOR, POLL_INTERVAL,
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
pub(crate) fn run(
    store: &Arc<Store>,
    job: &JobHandle,
    turns: &FlushTurns,
    latency_budget: Duration,
) {
    let thread = job.thread();
    let signal = Arc::clone(thread.signal());
    let pressing = Arc::<Pressing>::default();
    let pressing_blocks = store.dedup().claim_fingerprints_max() / COUNT_PRESSING_DIVISOR;
    store.dedup().set_claims_alarm(
        COUNT_BATCH_BLOCKS,
        alarm(store, &signal, &pressing, pressing_blocks),
    );
    let pacer = Pacer::new(latency_budget, COUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, thread, pacer);
    let claimed = || store.dedup().claimed_blocks().unwrap_or_default();
    let mut paced = Paced {
        job,
        claimed: &claimed,
        in_turns_blocks: pressing_blocks.min(COUNT_IN_TURNS_BLOCKS),
    };
    let mut failures = 0;
    while !thread.is_stopping() {
        if claimed() < pressing_blocks {
            pressing.set(None);
        }
        thread.sleep_unless(COLLECT_INTERVAL, || claimed() >= COUNT_BATCH_BLOCKS);
        if claimed() == 0 {
            foreground.was_idle();
            continue;
        }
        if !job.begin() {
            thread.wait(POLL_INTERVAL);
            continue;
        }
        if !foreground.wait_for_turn(turns, &mut paced) {
            job.end();
            continue;
        }
        let is_pressing = claimed() >= pressing_blocks;
        let began = Instant::now();
        let counted = if is_pressing {
            store.dedup().count_batch_at_once()
        } else {
            store.dedup().count_batch()
        };
        match counted {
            Ok(report) => {
                failures = 0;
                let step = Step {
                    bytes: report.items() * u64::from(store.block_size()),
                    ..Step::default()
                };
                job.end_batch(step, |counts| counts.add_counted(&report));
                foreground.rest_after_unless(began.elapsed(), &|| claimed() >= pressing_blocks);
            }
            // The collector counts claims, too, and handles the errors it meets.
            Err(error) => {
                failures += 1;
                job.fail(&error);
                thread.sleep(retry_pause(failures));
            }
        }
    }
}

/// The job of a batch. Many claims wait for no turn.
struct Paced<'a> {
    job: &'a JobHandle,
    claimed: &'a dyn Fn() -> u64,
    in_turns_blocks: u64,
}

impl PacedJob for Paced<'_> {
    fn may_work(&self) -> bool {
        self.job.may_work()
    }

    fn is_urgent(&self) -> bool {
        (self.claimed)() >= self.in_turns_blocks
    }
}

/// Holds a `Hurry` while claims are near their limit, so that nothing that delays counting waits for an
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

/// Wakes the thread when there is a batch to count, and hurries the batch in progress once
/// `pressing_blocks` blocks are claimed.
fn alarm(
    store: &Arc<Store>,
    signal: &Arc<Signal>,
    pressing: &Arc<Pressing>,
    pressing_blocks: u64,
) -> Box<dyn Fn() + Send + Sync> {
    // The store keeps the alarm, so a strong reference would be a cycle.
    let store = Arc::downgrade(store);
    let (signal, pressing) = (Arc::clone(signal), Arc::clone(pressing));
    Box::new(move || {
        if let Some(store) = store.upgrade()
            && store.dedup().claimed_blocks().unwrap_or_default() >= pressing_blocks
        {
            pressing.set(Some(store.hurry_background()));
        }
        signal.notify();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::new_store;
    use onefold_store::{
        BackgroundExecutor, Blocking, DedupMode, Lba, Ready, VolumeOptions, VolumeSettings,
    };
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Noting(Arc<AtomicBool>);

    impl BackgroundExecutor for Noting {
        fn run(&self, work: &mut (dyn FnMut() + Send)) {
            work();
        }

        fn set_hurried(&self, is_hurried: bool) {
            self.0.store(is_hurried, Ordering::SeqCst);
        }
    }

    #[test]
    fn claims_near_their_limit_hurry_the_batch_in_progress() {
        let (_, store) = new_store(64 << 20);
        let inline = VolumeOptions::new(1 << 20).with(VolumeSettings {
            dedup: DedupMode::Inline,
            ..VolumeSettings::default()
        });
        for (name, options) in [("a", &VolumeOptions::new(1 << 20)), ("b", &inline)] {
            store.create_volume(name, options).unwrap();
        }
        let (published, found) = (store.volume("a").unwrap(), store.volume("b").unwrap());
        published.write(0, &[7; 4096], Blocking::Yes).unwrap();
        let batch = store
            .dedup()
            .find_batch(&published, &mut Lba(0), Ready::All);
        assert_eq!(batch.unwrap().unique, 1);
        let hurried = Arc::<AtomicBool>::default();
        store.set_background_executor(Box::new(Noting(Arc::clone(&hurried))));
        let is_hurried = || hurried.load(Ordering::SeqCst);
        let pressing = Arc::default();
        let sound = alarm(&store, &Arc::default(), &pressing, 4);
        for is_near in [false, true] {
            let offset = u64::from(is_near) * 8192;
            found.write(offset, &[7; 8192], Blocking::Yes).unwrap();
            sound();
            assert_eq!(is_hurried(), is_near);
        }
        pressing.set(None);
        assert!(!is_hurried());
    }
}
