//! The thread that has the index count claims, store by store, and ends the holds of counted ones in a shared pool.
//!
//! Counting has its own thread because it must not wait for anything else: once claims reach their
//! limit, every further hit is refused, and the guest pays for a write that sharing would have saved.

use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::handle::{JobHandle, Step};
use crate::limits::{
    COLLECT_INTERVAL, COUNT_BATCH_BLOCKS, COUNT_IN_TURNS_BLOCKS, COUNT_PRESSING_DIVISOR,
    COUNTING_SHARE_FLOOR, HOLDS_INTERVAL, HOLDS_RETRY_INTERVAL,
};
use crate::pacing::Pacer;
use crate::passes::pause_after;
use crate::registry::JobRegistry;
use crate::store_jobs::{StoreJobs, StoreNumber};
use crate::thread::{JobThread, Signal};
use onefold_store::{CountReport, Hurry, Result, Store};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs until it is stopped.
pub(crate) fn run(
    registry: &Arc<JobRegistry>,
    thread: &Arc<JobThread>,
    turns: &FlushTurns,
    latency_budget: Duration,
) {
    let pacer = Pacer::new(latency_budget, COUNTING_SHARE_FLOOR);
    let mut foreground = Foreground::new(registry, thread, pacer);
    let mut states = BTreeMap::new();
    while !thread.is_stopping() {
        sleep(registry, thread, &mut states);
        let mut is_idle = true;
        let new = |jobs: &StoreJobs| Claims::new(jobs, thread.signal());
        registry.take_turns(&mut states, new, |jobs, claims| {
            is_idle &= !claims.turn(jobs, turns, &mut foreground);
        });
        if is_idle {
            foreground.was_idle();
        }
    }
}

/// Sleeps until a store has a batch to count, or claims that have waited long enough, or until a store comes or goes.
/// Stores without claims wake nobody: claims that are made while this sleeps have the time to gather.
fn sleep(registry: &JobRegistry, thread: &JobThread, states: &mut BTreeMap<StoreNumber, Claims>) {
    let changes = registry.changes();
    let mut time = COLLECT_INTERVAL;
    let new = |jobs: &StoreJobs| Claims::new(jobs, thread.signal());
    registry.take_turns(states, new, |jobs, claims| {
        if let Some(due) = claims.look(jobs) {
            time = time.min(due.saturating_duration_since(Instant::now()));
        }
    });
    thread.sleep_unless(time, || {
        registry.changes() != changes || states.values().any(Claims::has_batch)
    });
}

/// The state of one store's counting. It does not hold the store.
struct Claims {
    job: Arc<JobHandle>,
    watch: Arc<Watch>,
    pressing_blocks: u64,
    /// When claims that fill less than a batch have had the time to gather.
    gathered: Instant,
    /// After a failure, no batch begins before this time.
    not_before: Instant,
    /// When holds in the shards of a shared pool are ended next.
    holds_end: Instant,
    failures: u32,
}

/// What the thread shares with the store's alarm.
#[derive(Default)]
struct Watch {
    /// Whether there may be a batch to count. Relaxed: changed under the signal's lock, or by the thread that looks.
    has_batch: AtomicBool,
    pressing: Pressing,
}

fn claimed_blocks(store: &Store) -> u64 {
    store.dedup().claimed_blocks().unwrap_or_default()
}

impl Claims {
    /// Installs the store's alarm. A store has one alarm for as long as it is open: if it was removed and is added again,
    /// its claims are counted after an interval, however many there are.
    fn new(jobs: &StoreJobs, signal: &Arc<Signal>) -> Self {
        let (store, watch) = (jobs.store(), Arc::default());
        let pressing_blocks = store.dedup().claim_fingerprints_max() / COUNT_PRESSING_DIVISOR;
        store.dedup().set_claims_alarm(
            COUNT_BATCH_BLOCKS,
            alarm(store, signal, &watch, pressing_blocks),
        );
        let now = Instant::now();
        Self {
            job: Arc::clone(&jobs.counting),
            watch,
            pressing_blocks,
            gathered: now + COLLECT_INTERVAL,
            not_before: now,
            holds_end: now,
            failures: 0,
        }
    }

    /// Looks at the store's claims before a sleep. Returns when they are due, if there are any and the job may work.
    fn look(&mut self, jobs: &StoreJobs) -> Option<Instant> {
        // In this order, so that no alarm is lost.
        self.watch.has_batch.store(false, Ordering::Relaxed);
        let claimed = claimed_blocks(jobs.store());
        if claimed >= COUNT_BATCH_BLOCKS {
            self.watch.has_batch.store(true, Ordering::Relaxed);
        }
        if claimed < self.pressing_blocks {
            self.watch.pressing.set(None);
        }
        let holds_end = jobs.store().dedup().may_hold().then_some(self.holds_end);
        let due = self.due(claimed).into_iter().chain(holds_end).min();
        due.filter(|_| self.job.may_work())
    }

    /// When this number of claims is counted.
    fn due(&self, claimed: u64) -> Option<Instant> {
        match claimed {
            0 => None,
            COUNT_BATCH_BLOCKS.. => Some(self.not_before),
            _ => Some(self.gathered.max(self.not_before)),
        }
    }

    /// Whether there is a batch to count now.
    fn has_batch(&self) -> bool {
        self.watch.has_batch.load(Ordering::Relaxed)
            && Instant::now() >= self.not_before
            && self.job.may_work()
    }

    /// Counts one batch, if one is due. Returns whether it did, or tried.
    fn turn(&mut self, jobs: &StoreJobs, turns: &FlushTurns, foreground: &mut Foreground) -> bool {
        self.end_holds(jobs);
        let (store, job, now) = (jobs.store(), &jobs.counting, Instant::now());
        let claimed = || claimed_blocks(store);
        let is_due = self.due(claimed()).is_some_and(|due| due <= now);
        if !is_due || !job.begin() {
            return false;
        }
        let mut paced = Paced {
            job,
            claimed: &claimed,
            in_turns_blocks: self.pressing_blocks.min(COUNT_IN_TURNS_BLOCKS),
        };
        if !foreground.wait_for_turn(turns, &mut paced) {
            job.end();
            return true;
        }
        let began = Instant::now();
        let counted = if claimed() >= self.pressing_blocks {
            store.dedup().count_batch_at_once()
        } else {
            store.dedup().count_batch()
        };
        if self.end_batch(store, job, counted) {
            let is_urgent = || job.is_leaving() || claimed() >= self.pressing_blocks;
            foreground.rest_after_unless(began.elapsed(), &is_urgent);
        }
        self.gathered = Instant::now() + COLLECT_INTERVAL;
        true
    }

    /// Ends holds, if they are due.
    fn end_holds(&mut self, jobs: &StoreJobs) {
        let (store, job) = (jobs.store(), &jobs.counting);
        let due = self.holds_end.max(self.not_before);
        if Instant::now() < due || !store.dedup().may_hold() || !job.begin() {
            return;
        }
        let ended = store.dedup().end_holds();
        let pause = match &ended {
            Ok(true) => HOLDS_INTERVAL,
            Ok(false) | Err(_) => HOLDS_RETRY_INTERVAL,
        };
        self.holds_end = Instant::now() + pause;
        match ended {
            Ok(_) => {
                self.failures = 0;
                job.end();
            }
            Err(error) => {
                job.fail(&error);
                self.not_before = Instant::now() + pause_after(&error, &mut self.failures);
            }
        }
    }

    /// Returns whether the batch succeeded.
    fn end_batch(&mut self, store: &Store, job: &JobHandle, counted: Result<CountReport>) -> bool {
        match counted {
            Ok(report) => {
                self.failures = 0;
                let step = Step {
                    bytes: report.items() * u64::from(store.block_size()),
                    ..Step::default()
                };
                job.end_batch(step, |counts| counts.add_counted(&report));
                true
            }
            // The collector counts claims, too, and handles the errors it meets.
            Err(error) => {
                job.fail(&error);
                self.not_before = Instant::now() + pause_after(&error, &mut self.failures);
                false
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
/// `pressing_blocks` blocks are claimed. Does nothing once the thread has forgotten the store.
fn alarm(
    store: &Arc<Store>,
    signal: &Arc<Signal>,
    watch: &Arc<Watch>,
    pressing_blocks: u64,
) -> Box<dyn Fn() + Send + Sync> {
    // The store keeps the alarm, so a strong reference would be a cycle.
    let store = Arc::downgrade(store);
    let (signal, watch) = (Arc::clone(signal), Arc::downgrade(watch));
    Box::new(move || {
        let Some(watch) = watch.upgrade() else {
            return;
        };
        if let Some(store) = store.upgrade()
            && claimed_blocks(&store) >= pressing_blocks
        {
            watch.pressing.set(Some(store.hurry_background()));
        }
        signal.change(|| watch.has_batch.store(true, Ordering::Relaxed));
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
        let watch = Arc::default();
        let sound = alarm(&store, &Arc::default(), &watch, 4);
        for is_near in [false, true] {
            let offset = u64::from(is_near) * 8192;
            found.write(offset, &[7; 8192], Blocking::Yes).unwrap();
            sound();
            assert_eq!(is_hurried(), is_near);
        }
        watch.pressing.set(None);
        assert!(!is_hurried());
    }
}
