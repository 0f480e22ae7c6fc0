//! The finder's thread: a batch of the next volume in turn, a rest, and so on. The volumes of all stores take turns, so a
//! store that fails, or whose index is not ready, delays only its own.

use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::handle::{JobHandle, Step};
use crate::limits::{FINDER_SHARE_FLOOR, INDEX_FULL_PAUSE, POLL_INTERVAL, ROUND_INTERVAL_BUSY};
use crate::pacing::Pacer;
use crate::passes::Passes;
use crate::registry::JobRegistry;
use crate::store_jobs::{StoreJobs, VolumeKey};
use crate::strain::Strain;
use crate::thread::JobThread;
use onefold_store::{BatchReport, Lba, Pace, Result, StoreErrorKind, Volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Runs until it is stopped.
pub(crate) fn run(
    registry: &Arc<JobRegistry>,
    thread: &Arc<JobThread>,
    turns: &FlushTurns,
    latency_budget: Duration,
) {
    let pacer = Pacer::new(latency_budget, FINDER_SHARE_FLOOR);
    let mut finder = Finder {
        registry,
        thread,
        turns,
        jobs: BTreeMap::new(),
        declined: BTreeMap::new(),
        passes: Passes::new(),
        refreshed: None,
        foreground: Foreground::new(registry, thread, pacer),
        strain: Strain::new(registry),
    };
    while !thread.is_stopping() {
        finder.step();
        finder
            .strain
            .look(finder.foreground.guests_are_over_budget());
    }
}

struct Finder<'a> {
    registry: &'a JobRegistry,
    thread: &'a JobThread,
    turns: &'a FlushTurns,
    jobs: BTreeMap<VolumeKey, FinderJob>,
    /// Per volume, the blocks of the pass in progress that the index had no room for.
    declined: BTreeMap<VolumeKey, u64>,
    passes: Passes<VolumeKey>,
    refreshed: Option<Refreshed>,
    foreground: Foreground,
    strain: Strain,
}

/// When the set of volumes was last read, and of which set of stores.
struct Refreshed {
    at: Instant,
    changes: u64,
}

/// The job of one volume. The thread holds it, and the store, only while it works on the volume.
struct FinderJob {
    store: Weak<StoreJobs>,
    handle: Weak<JobHandle>,
}

/// The job of a volume in its turn. The store is dropped last, because the job holds the volume.
struct Held {
    job: Arc<JobHandle>,
    store: Arc<StoreJobs>,
}

impl FinderJob {
    /// Nothing if the volume or the store is gone.
    fn hold(&self) -> Option<Held> {
        let store = self.store.upgrade()?;
        let job = self.handle.upgrade()?;
        Some(Held { job, store })
    }

    fn may_work(&self) -> bool {
        self.hold().is_some_and(|held| held.job.may_work())
    }
}

/// The job of a batch, and the strain on guests that it sees.
struct Paced<'a> {
    job: &'a JobHandle,
    strain: &'a mut Strain,
}

impl PacedJob for Paced<'_> {
    fn may_work(&self) -> bool {
        self.job.may_work()
    }

    fn rested(&mut self, guests_are_over_budget: bool) {
        self.strain.look(guests_are_over_budget);
    }
}

impl Finder<'_> {
    fn step(&mut self) {
        let changes = self.registry.changes();
        let is_recent =
            |last: &Refreshed| last.changes == changes && last.at.elapsed() < POLL_INTERVAL;
        if !self.refreshed.as_ref().is_some_and(is_recent) {
            self.refresh(changes);
        }
        let may_work = |key: &VolumeKey| self.jobs.get(key).is_some_and(FinderJob::may_work);
        let now = Instant::now();
        let Some((key, cursor)) = self.passes.next(now, may_work) else {
            let time = self.passes.idle_time(now, POLL_INTERVAL, may_work);
            self.thread
                .wait_unless(time, || self.registry.changes() != changes);
            self.foreground.was_idle();
            return;
        };
        let held = self.jobs.get(&key).and_then(FinderJob::hold);
        let Some(held) = held.filter(|held| held.job.begin()) else {
            return;
        };
        if let Some(worked) = self.turn(key, &held, cursor) {
            drop(held);
            self.foreground.rest_after(worked);
        }
    }

    /// Does the next batch of a volume, if there is anything to do. Returns the time that it took since its last rest.
    fn turn(&mut self, key: VolumeKey, held: &Held, cursor: Lba) -> Option<Duration> {
        let (job, volume) = (&held.job, held.job.volume()?);
        // After a batch that failed half way nothing is dirty any more, but the batch must be
        // settled.
        let is_clean = volume.pending_dedup_blocks() == 0 && !self.passes.has_failed(key);
        if cursor == Lba(0) && is_clean {
            job.end_batch(Step::default(), |_| {});
            self.passes.advance(key, None);
            return None;
        }
        job.set_under_way(0);
        Some(self.find(key, held, volume, cursor))
    }

    /// Reads the set of volumes of all stores.
    fn refresh(&mut self, changes: u64) {
        let least = if self.foreground.guests_are_at_rest() {
            Duration::ZERO
        } else {
            ROUND_INTERVAL_BUSY
        };
        let mut intervals = Vec::new();
        self.jobs.clear();
        for store in self.registry.all() {
            for (key, handle) in store.refresh() {
                let Some(volume) = handle.volume() else {
                    continue;
                };
                let seconds = volume.settings().interval_seconds;
                intervals.push((key, Duration::from_secs(seconds.into()).max(least)));
                let job = FinderJob {
                    store: Arc::downgrade(&store),
                    handle: Arc::downgrade(&handle),
                };
                self.jobs.insert(key, job);
            }
        }
        self.declined.retain(|key, _| self.jobs.contains_key(key));
        self.passes.set_volumes(intervals);
        let at = Instant::now();
        self.refreshed = Some(Refreshed { at, changes });
    }

    /// Finds a batch, and returns the time that it took since its last rest.
    fn find(&mut self, key: VolumeKey, held: &Held, volume: &Volume, mut cursor: Lba) -> Duration {
        let (job, dedup) = (&held.job, held.store.store().dedup());
        let find = |pace: Pace<'_>| dedup.find_cold_batch(volume, &mut cursor, pace);
        let strain = &mut self.strain;
        let mut paced = Paced { job, strain };
        let (found, worked) = self.foreground.in_pieces(self.turns, &mut paced, find);
        self.end_batch(key, job, cursor, found);
        worked
    }

    fn end_batch(
        &mut self,
        key: VolumeKey,
        job: &JobHandle,
        cursor: Lba,
        found: Result<Option<BatchReport>>,
    ) {
        match found {
            Ok(Some(report)) => {
                self.passes.advance(key, (!report.at_end).then_some(cursor));
                self.found(key, job, &report);
            }
            // Paused or stopped: the pass continues where it was.
            Ok(None) => job.end(),
            // The volume was deleted during the batch: not a failure.
            Err(error) if error.kind() == StoreErrorKind::Gone => {
                job.end_batch(Step::default(), |_| {});
                self.passes.fail(key, Instant::now(), &error);
                self.refreshed = None;
            }
            Err(error) => {
                job.fail(&error);
                self.passes.fail(key, Instant::now(), &error);
            }
        }
    }

    fn found(&mut self, key: VolumeKey, job: &JobHandle, report: &BatchReport) {
        let declined = self.declined.entry(key).or_default();
        *declined += report.declined;
        if report.at_end {
            let declined = std::mem::take(declined);
            job.set_shortage((declined > 0).then(|| {
                format!(
                    "the index has no room for {declined} blocks, which stay as they are; give \
                     the daemon more memory, or delete unused data"
                )
            }));
            if declined > 0 {
                self.passes.put_off(key, Instant::now(), INDEX_FULL_PAUSE);
            }
        }
        let step = Step {
            bytes: report.bytes,
            has_more: !report.at_end,
            left_blocks: 0,
        };
        job.end_batch(step, |counts| {
            counts.add_batch(report);
            counts.passes += u64::from(report.at_end);
        });
    }
}
