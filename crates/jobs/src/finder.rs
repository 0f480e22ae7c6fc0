//! The finder's thread: a batch of the next volume in turn, a rest, and so on.

use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{FINDER_SHARE_FLOOR, INDEX_FULL_PAUSE, POLL_INTERVAL, ROUND_INTERVAL_BUSY};
use crate::pacing::Pacer;
use crate::passes::Passes;
use crate::registry::{JobRegistry, VolumeKey};
use crate::strain::Strain;
use crate::thread::JobThread;
use onefold_store::{BatchReport, Lba, Pace, Result, Store, StoreErrorKind, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) static FINDER: JobSpec = JobSpec {
    kind: JobKind::Finder,
    name: "the finder",
    needs_index: true,
    is_always_listed: true,
    // Each volume counts its own backlog.
    backlog_blocks: |_| 0,
};

/// Runs until it is stopped.
pub(crate) fn run(
    store: &Arc<Store>,
    registry: &JobRegistry,
    thread: &Arc<JobThread>,
    turns: &FlushTurns,
    latency_budget: Duration,
) {
    let pacer = Pacer::new(latency_budget, FINDER_SHARE_FLOOR);
    let mut finder = Finder {
        store,
        registry,
        thread,
        turns,
        jobs: BTreeMap::new(),
        declined: BTreeMap::new(),
        passes: Passes::new(),
        refreshed: None,
        foreground: Foreground::new(store, thread, pacer),
        strain: Strain::new(store),
    };
    while !thread.is_stopping() {
        finder.step();
        finder
            .strain
            .look(finder.foreground.guests_are_over_budget());
    }
}

struct Finder<'a> {
    store: &'a Store,
    registry: &'a JobRegistry,
    thread: &'a JobThread,
    turns: &'a FlushTurns,
    jobs: BTreeMap<VolumeKey, Arc<JobHandle>>,
    /// Per volume, the blocks of the pass in progress that the index had no room for.
    declined: BTreeMap<VolumeKey, u64>,
    passes: Passes<VolumeKey>,
    /// When the set of volumes was last read.
    refreshed: Option<Instant>,
    foreground: Foreground,
    strain: Strain,
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
        if self
            .refreshed
            .is_none_or(|last| last.elapsed() >= POLL_INTERVAL)
        {
            self.refresh();
        }
        let may_work = |key: &VolumeKey| self.jobs.get(key).is_some_and(|job| job.may_work());
        let now = Instant::now();
        let Some((key, cursor)) = self.passes.next(now, may_work) else {
            let time = self.passes.idle_time(now, POLL_INTERVAL, may_work);
            self.thread.wait(time);
            self.foreground.was_idle();
            return;
        };
        let job = self.jobs.get(&key).filter(|job| job.begin()).cloned();
        let Some((job, volume)) = job.as_ref().and_then(|job| Some((job, job.volume()?))) else {
            return;
        };
        // After a batch that failed half way nothing is dirty any more, but the batch must be
        // settled.
        let is_clean = volume.pending_dedup_blocks() == 0 && !self.passes.has_failed(key);
        if cursor == Lba(0) && is_clean {
            job.end_batch(Step::default(), |_| {});
            self.passes.advance(key, None);
            return;
        }
        job.set_under_way(0);
        let worked = self.find(key, job, volume, cursor);
        self.foreground.rest_after(worked);
    }

    fn refresh(&mut self) {
        self.jobs = self.registry.refresh(self.store);
        self.declined.retain(|key, _| self.jobs.contains_key(key));
        let least = if self.foreground.guests_are_at_rest() {
            Duration::ZERO
        } else {
            ROUND_INTERVAL_BUSY
        };
        let volumes = self.jobs.iter().filter_map(|(key, job)| {
            let seconds = job.volume()?.settings().interval_seconds;
            Some((*key, Duration::from_secs(seconds.into()).max(least)))
        });
        self.passes.set_volumes(volumes);
        self.refreshed = Some(Instant::now());
    }

    /// Finds a batch, and returns the time that it took since its last rest.
    fn find(
        &mut self,
        key: VolumeKey,
        job: &JobHandle,
        volume: &Volume,
        mut cursor: Lba,
    ) -> Duration {
        let dedup = self.store.dedup();
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
                self.passes.fail(key, Instant::now());
                self.refreshed = None;
            }
            Err(error) => {
                job.fail(&error);
                self.passes.fail(key, Instant::now());
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
