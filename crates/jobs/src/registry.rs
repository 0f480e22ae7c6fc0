//! Where the threads and their callers meet: requests one way, results the other.
//!
//! Invariant: a job works on a batch only between `begin_…` and the call that ends it, and a paused
//! job does not begin. So a caller that pauses can wait for the end of the batch in progress, and
//! then knows that the job is at rest.

use crate::job::{JobCounts, JobKind, JobSelection, JobState, JobStatus, SteerError};
use crate::rate::Rate;
use onefold_store::{
    BatchReport, CollectReport, DeletionStat, PoolStat, ScrubReport, ScrubStatus, Store,
    StoreError, Volume,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared by everything that has to do with jobs.
pub(crate) struct JobRegistry {
    state: Mutex<State>,
    /// Anything in it has changed.
    changed: Condvar,
}

struct State {
    is_stopping: bool,
    /// The index matches the volumes' maps; before, nothing can be shared.
    is_index_ready: bool,
    finder: Worker,
    collector: Worker,
    scrub: Worker,
    collecting: Job,
    deleting: Job,
    is_deletion_paused: bool,
    /// A run since the start.
    scrubbing: Option<Scrubbing>,
    rebuild: Option<Rebuild>,
    accountant: Worker,
    /// None before the first.
    accounting: Option<Job>,
    volumes: BTreeMap<VolumeKey, VolumeJob>,
}

/// One of the threads.
#[derive(Default, Clone, Copy)]
struct Worker {
    is_paused: bool,
    /// It lets guests go first.
    is_resting: bool,
    is_in_batch: bool,
    /// It panicked.
    is_gone: bool,
}

/// The message of the jobs of a thread that panicked.
const GONE: &str =
    "it panicked, which is a defect of onefold; see the daemon's log, and restart the daemon";

/// The finder's work on one volume.
struct VolumeJob {
    volume: Arc<Volume>,
    interval: Duration,
    is_paused: bool,
    job: Job,
    /// Blocks that the index had no room for, in the pass in progress.
    declined: u64,
    /// The same in the last whole pass; then this job counts as failed.
    left_out: u64,
}

/// The state of a job so far.
struct Job {
    /// There is more to be done at once.
    is_under_way: bool,
    is_in_batch: bool,
    counts: JobCounts,
    rate: Rate,
    failure: Option<String>,
}

struct Scrubbing {
    job: Job,
    left_blocks: u64,
}

struct Rebuild {
    job: Job,
    done_blocks: u64,
    all_blocks: u64,
}

/// Identifies a volume whatever its name: by its address in memory, while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey(usize);

impl VolumeKey {
    fn of(volume: &Arc<Volume>) -> Self {
        Self(Arc::as_ptr(volume).addr())
    }
}

impl Job {
    fn new() -> Self {
        Self {
            is_under_way: false,
            is_in_batch: false,
            counts: JobCounts::default(),
            rate: Rate::new(Instant::now()),
            failure: None,
        }
    }

    fn state(&self, worker: &Worker, is_paused: bool) -> JobState {
        if worker.is_gone {
            return JobState::Failed(GONE.to_owned());
        }
        if (is_paused || worker.is_paused) && !self.is_in_batch {
            return JobState::Paused;
        }
        match &self.failure {
            Some(message) => JobState::Failed(message.clone()),
            None if self.is_under_way && worker.is_resting => JobState::WaitingForBudget,
            None if self.is_under_way => JobState::Running,
            None => JobState::Idle,
        }
    }

    /// It failed. The log hears of the first failure in a row only.
    fn fail(&mut self, what: &str, message: String) {
        if self.failure.is_none() {
            tracing::warn!("{what} failed and will be retried: {message}");
        }
        self.failure = Some(message);
    }

    fn recover(&mut self, what: &str) {
        if self.failure.take().is_some() {
            tracing::info!("{what} works again");
        }
    }

    fn status(
        &mut self,
        kind: JobKind,
        volume: Option<String>,
        state: JobState,
        backlog_blocks: u64,
    ) -> JobStatus {
        JobStatus {
            kind,
            volume,
            state,
            counts: self.counts,
            backlog_blocks,
            bytes_per_second: self.rate.bytes_per_second(Instant::now()),
        }
    }
}

/// The threads, for state that all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerKind {
    Finder,
    Collector,
    Accountant,
    Scrub,
}

impl JobRegistry {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                is_stopping: false,
                is_index_ready: false,
                finder: Worker::default(),
                collector: Worker::default(),
                scrub: Worker::default(),
                scrubbing: None,
                collecting: Job::new(),
                deleting: Job::new(),
                is_deletion_paused: false,
                rebuild: None,
                accountant: Worker::default(),
                accounting: None,
                volumes: BTreeMap::new(),
            }),
            changed: Condvar::new(),
        }
    }

    /// A panic elsewhere leaves nothing here half done, as each change is complete in itself.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_all();
        result
    }

    pub(crate) fn stop(&self) {
        self.change(|state| state.is_stopping = true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Waits for news, at most this long.
    pub(crate) fn wait(&self, time: Duration) {
        let state = self.state();
        if !state.is_stopping {
            drop(self.changed.wait_timeout(state, time));
        }
    }

    /// Waits for so long; only the end of everything cuts it short.
    pub(crate) fn sleep(&self, time: Duration) {
        let state = self.state();
        let stays = |state: &mut State| !state.is_stopping;
        drop(self.changed.wait_timeout_while(state, time, stays));
    }

    pub(crate) fn set_resting(&self, worker: WorkerKind, is_resting: bool) {
        self.change(|state| state.worker(worker).is_resting = is_resting);
    }

    /// The thread has ended. Unless it was told to, that is a failure of its jobs.
    pub(crate) fn ended(&self, worker: WorkerKind) {
        self.change(|state| {
            let is_gone = !state.is_stopping;
            state.deleting.is_in_batch &= worker != WorkerKind::Collector;
            let worker = state.worker(worker);
            worker.is_gone = is_gone;
            worker.is_in_batch = false;
        });
    }

    /// Reads the set of volumes again. New ones get a job; those that are gone, or whose dedup was
    /// switched off, lose theirs.
    pub(crate) fn refresh(&self, store: &Store) {
        self.change(|state| state.refresh(store));
    }

    /// The volumes that have a job, with the intervals between their passes.
    pub(crate) fn volumes(&self) -> Vec<(VolumeKey, Duration)> {
        let state = self.state();
        let volumes = state.volumes.iter();
        volumes.map(|(key, job)| (*key, job.interval)).collect()
    }

    pub(crate) fn may_find(&self, key: VolumeKey) -> bool {
        self.state().may_find(key)
    }

    /// The finder begins a batch of this volume, unless it may not.
    pub(crate) fn begin_find(&self, key: VolumeKey) -> Option<Arc<Volume>> {
        let mut state = self.state();
        if !state.may_find(key) {
            return None;
        }
        let found = state.volumes.get_mut(&key)?;
        found.job.is_in_batch = true;
        found.job.is_under_way = true;
        let volume = Arc::clone(&found.volume);
        state.finder.is_in_batch = true;
        Some(volume)
    }

    /// The finder passes over a volume in which nothing is dirty.
    pub(crate) fn pass_over(&self, key: VolumeKey) {
        self.end_find(key, |job| job.job.is_under_way = false);
    }

    /// The finder has done a batch. Returns whether that ended a pass in which the index had no
    /// room for everything.
    pub(crate) fn found(&self, key: VolumeKey, report: &BatchReport) -> bool {
        self.end_find(key, |job| job.found(report)).unwrap_or(false)
    }

    /// The finder failed at a batch.
    pub(crate) fn find_failed(&self, key: VolumeKey, error: &StoreError) {
        self.end_find(key, |job| {
            let what = job.what();
            job.job.fail(&what, error.to_string());
        });
    }

    fn end_find<T>(&self, key: VolumeKey, end: impl FnOnce(&mut VolumeJob) -> T) -> Option<T> {
        self.change(|state| {
            state.finder.is_in_batch = false;
            let found = state.volumes.get_mut(&key)?;
            found.job.is_in_batch = false;
            Some(end(found))
        })
    }

    /// The collector begins a batch, unless it may not.
    pub(crate) fn begin_collect(&self) -> bool {
        let mut state = self.state();
        let may = !state.is_stopping && !state.collector.is_paused;
        state.set_collecting(may);
        may
    }

    /// The collector has given space back to the host.
    pub(crate) fn gave_back(&self) {
        self.change(|state| state.set_collecting(false));
    }

    /// The collector has done a batch of blocks of this size.
    pub(crate) fn collected(&self, report: &CollectReport, block_size: u32) {
        self.change(|state| {
            state.set_collecting(false);
            let job = &mut state.collecting;
            job.is_under_way = report.released > 0;
            job.counts.add_collected(report);
            let bytes = report.released * u64::from(block_size);
            job.rate.add(Instant::now(), bytes);
            job.recover("the collector");
        });
    }

    /// The collector failed at a batch.
    pub(crate) fn collect_failed(&self, error: &StoreError) {
        self.change(|state| {
            state.set_collecting(false);
            state.collecting.fail("the collector", error.to_string());
        });
    }

    /// The collector's thread begins a step of a deletion, unless it may not.
    pub(crate) fn begin_delete(&self) -> bool {
        let mut state = self.state();
        let may = state.may_delete();
        state.deleting.is_in_batch = may;
        may
    }

    /// Whether it would find something to do.
    pub(crate) fn may_delete_now(&self, store: &Store) -> bool {
        let state = self.state();
        state.may_delete() && store.next_deletion_failures() == Some(0)
    }

    /// It has done a step, on blocks of this size.
    pub(crate) fn deleted(&self, done: &Result<Option<u64>, StoreError>, block_size: u32) {
        self.change(|state| {
            let job = &mut state.deleting;
            job.is_in_batch = false;
            job.is_under_way = matches!(done, Ok(Some(_)));
            // The store keeps the failure of each deletion.
            let blocks = done.as_ref().ok().copied().flatten().unwrap_or(0);
            job.counts.deleted += blocks;
            job.rate.add(Instant::now(), blocks * u64::from(block_size));
        });
    }

    /// There is something new to do.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The scrub begins a step of the run in progress, unless it may not.
    pub(crate) fn begin_scrub(&self, status: &ScrubStatus) -> bool {
        let mut state = self.state();
        let may = !state.is_stopping && state.is_index_ready && !state.scrub.is_paused;
        state.scrub.is_in_batch = may;
        let scrubbing = state.scrubbing.get_or_insert_with(|| Scrubbing {
            job: Job::new(),
            left_blocks: 0,
        });
        scrubbing.left_blocks = status.left_blocks;
        scrubbing.job.is_in_batch = may;
        scrubbing.job.is_under_way = true;
        may
    }

    /// The scrub has done a step.
    pub(crate) fn scrubbed(&self, report: &ScrubReport, left_blocks: u64) {
        self.end_scrub(|scrubbing| {
            scrubbing.left_blocks = left_blocks;
            scrubbing.job.is_under_way = !report.is_over;
            scrubbing.job.counts.add_scrubbed(report);
            scrubbing.job.rate.add(Instant::now(), report.bytes);
            scrubbing.job.recover("the scrub");
        });
    }

    /// The scrub failed at a step.
    pub(crate) fn scrub_failed(&self, error: &StoreError) {
        self.end_scrub(|scrubbing| scrubbing.job.fail("the scrub", error.to_string()));
    }

    fn end_scrub(&self, end: impl FnOnce(&mut Scrubbing)) {
        self.change(|state| {
            state.scrub.is_in_batch = false;
            if let Some(scrubbing) = &mut state.scrubbing {
                scrubbing.job.is_in_batch = false;
                end(scrubbing);
            }
        });
    }

    /// The progress of the index's rebuild.
    pub(crate) fn rebuilding(&self, done_blocks: u64, all_blocks: u64, block_size: u32) {
        self.change(|state| {
            let rebuild = state.rebuild();
            let more = done_blocks.saturating_sub(rebuild.done_blocks);
            rebuild.job.is_under_way = true;
            rebuild.done_blocks = done_blocks;
            rebuild.all_blocks = all_blocks;
            rebuild.job.counts.scanned = done_blocks;
            let bytes = more * u64::from(block_size);
            rebuild.job.rate.add(Instant::now(), bytes);
        });
    }

    pub(crate) fn rebuild_failed(&self, error: &StoreError) {
        self.change(|state| {
            let job = &mut state.rebuild().job;
            job.is_under_way = false;
            job.fail("the rebuild of the index", error.to_string());
        });
    }

    /// The index is as it should be, after a rebuild or from the start.
    pub(crate) fn set_index_ready(&self) {
        self.change(|state| {
            state.is_index_ready = true;
            if let Some(rebuild) = &mut state.rebuild {
                rebuild.job.is_under_way = false;
                rebuild.job.counts.passes += 1;
                rebuild.done_blocks = rebuild.all_blocks;
                rebuild.job.recover("the rebuild of the index");
            }
        });
    }

    /// The accounting begins, unless it may not.
    pub(crate) fn begin_accounting(&self) -> bool {
        self.change(|state| {
            let may = state.may_account();
            if may {
                state.accountant.is_in_batch = true;
                let job = state.accounting.get_or_insert_with(Job::new);
                job.is_under_way = true;
                job.is_in_batch = true;
            }
            may
        })
    }

    /// Whether the accounting may continue.
    pub(crate) fn may_account(&self) -> bool {
        self.state().may_account()
    }

    /// The accounting has ended, of all maps or because it was to.
    pub(crate) fn accounted(&self, is_complete: bool) {
        self.change(|state| {
            state.end_accounting(|job| {
                job.counts.passes += u64::from(is_complete);
                job.recover("the accounting");
            });
        });
    }

    pub(crate) fn accounting_failed(&self, error: &StoreError) {
        self.change(|state| {
            state.end_accounting(|job| job.fail("the accounting", error.to_string()));
        });
    }

    /// Pauses jobs, and waits for the end of their present batches.
    pub(crate) fn pause(&self, selection: &JobSelection) -> Result<(), SteerError> {
        self.change(|state| state.set_paused(selection, true))?;
        let mut state = self.state();
        while state.is_at_work(selection) {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    pub(crate) fn resume(&self, selection: &JobSelection) -> Result<(), SteerError> {
        self.change(|state| match selection {
            JobSelection::FinderOf(_) if state.finder.is_paused => Err(SteerError::FinderPaused),
            _ => state.set_paused(selection, false),
        })
    }

    /// All jobs as they are now, in a pool with these counts.
    pub(crate) fn jobs(&self, stat: &PoolStat) -> Vec<JobStatus> {
        let mut state = self.state();
        let state = &mut *state;
        let mut jobs = Vec::new();
        for volume in state.volumes.values_mut() {
            jobs.push(volume.status(&state.finder));
        }
        jobs.sort_by(|a, b| a.volume.cmp(&b.volume));
        let job_state = state.collecting.state(&state.collector, false);
        let queued = stat.queued_blocks;
        let collector = &mut state.collecting;
        jobs.push(collector.status(JobKind::Collector, None, job_state, queued));
        jobs.extend(state.deletions(&stat.deletions));
        if let Some(scrubbing) = &mut state.scrubbing {
            let job_state = scrubbing.job.state(&state.scrub, false);
            let left = scrubbing.left_blocks;
            jobs.push(scrubbing.job.status(JobKind::Scrub, None, job_state, left));
        }
        if let Some(rebuild) = &mut state.rebuild {
            let worker = Worker {
                is_paused: false,
                ..state.collector
            };
            let job_state = rebuild.job.state(&worker, false);
            let left = rebuild.all_blocks.saturating_sub(rebuild.done_blocks);
            jobs.push(rebuild.job.status(JobKind::Rebuild, None, job_state, left));
        }
        if let Some(accounting) = &mut state.accounting {
            let job_state = accounting.state(&state.accountant, false);
            jobs.push(accounting.status(JobKind::Accounting, None, job_state, 0));
        }
        jobs
    }
}

impl State {
    fn worker(&mut self, worker: WorkerKind) -> &mut Worker {
        match worker {
            WorkerKind::Finder => &mut self.finder,
            WorkerKind::Collector => &mut self.collector,
            WorkerKind::Accountant => &mut self.accountant,
            WorkerKind::Scrub => &mut self.scrub,
        }
    }

    fn set_collecting(&mut self, is_in_batch: bool) {
        self.collector.is_in_batch = is_in_batch;
        self.collecting.is_in_batch = is_in_batch;
    }

    /// The deletions: one line for all that are in progress, and one for each that failed.
    fn deletions(&mut self, stats: &[DeletionStat]) -> Vec<JobStatus> {
        let mut jobs = Vec::new();
        let (failed, others): (Vec<_>, Vec<_>) = stats.iter().partition(|it| it.failure.is_some());
        let left = others.iter().filter(|it| it.needed_by.is_empty());
        let left = left.map(|it| it.own_blocks).sum();
        let worker = Worker {
            is_paused: self.is_deletion_paused,
            ..self.collector
        };
        if left > 0 || self.deleting.counts.deleted > 0 {
            let state = self.deleting.state(&worker, false);
            jobs.push(self.deleting.status(JobKind::Deletion, None, state, left));
        }
        for deletion in failed {
            let message = deletion.failure.clone().unwrap_or_default();
            jobs.push(JobStatus {
                kind: JobKind::Deletion,
                volume: Some(deletion.name.clone()),
                state: JobState::Failed(message),
                counts: JobCounts::default(),
                backlog_blocks: deletion.own_blocks,
                bytes_per_second: 0,
            });
        }
        jobs
    }

    fn may_account(&self) -> bool {
        !self.is_stopping && !self.accountant.is_paused
    }

    fn end_accounting(&mut self, end: impl FnOnce(&mut Job)) {
        self.accountant.is_in_batch = false;
        if let Some(job) = &mut self.accounting {
            job.is_in_batch = false;
            job.is_under_way = false;
            end(job);
        }
    }

    fn refresh(&mut self, store: &Store) {
        let mut before = std::mem::take(&mut self.volumes);
        for volume in store.volumes_to_share() {
            let options = volume.options();
            if !options.dedup.is_on() {
                continue;
            }
            let key = VolumeKey::of(&volume);
            let mut job = before
                .remove(&key)
                .unwrap_or_else(|| VolumeJob::new(volume));
            job.interval = Duration::from_secs(options.interval_seconds.into());
            self.volumes.insert(key, job);
        }
    }

    fn may_find(&self, key: VolumeKey) -> bool {
        let volume = self.volumes.get(&key);
        !self.is_stopping
            && self.is_index_ready
            && !self.finder.is_paused
            && volume.is_some_and(|volume| !volume.is_paused)
    }

    fn may_delete(&self) -> bool {
        !self.is_stopping && !self.is_deletion_paused
    }

    fn volume_mut(&mut self, name: &str) -> Result<&mut VolumeJob, SteerError> {
        let mut volumes = self.volumes.values_mut();
        let found = volumes.find(|job| job.volume.name() == name);
        found.ok_or_else(|| SteerError::NoFinder(name.to_owned()))
    }

    fn set_paused(&mut self, selection: &JobSelection, is_paused: bool) -> Result<(), SteerError> {
        if let JobSelection::FinderOf(name) = selection {
            self.volume_mut(name)?.is_paused = is_paused;
            return Ok(());
        }
        if matches!(selection, JobSelection::All | JobSelection::Finder) {
            self.finder.is_paused = is_paused;
            // Resuming the whole resumes each volume.
            let volumes = self.volumes.values_mut();
            volumes.for_each(|volume| volume.is_paused &= is_paused);
        }
        if matches!(selection, JobSelection::All | JobSelection::Collector) {
            self.collector.is_paused = is_paused;
        }
        if matches!(selection, JobSelection::All | JobSelection::Deletion) {
            self.is_deletion_paused = is_paused;
        }
        if matches!(selection, JobSelection::All | JobSelection::Accounting) {
            self.accountant.is_paused = is_paused;
        }
        if matches!(selection, JobSelection::All | JobSelection::Scrub) {
            self.scrub.is_paused = is_paused;
        }
        Ok(())
    }

    fn is_at_work(&self, selection: &JobSelection) -> bool {
        match selection {
            JobSelection::All => {
                let workers = [&self.finder, &self.collector, &self.accountant, &self.scrub];
                workers.iter().any(|worker| worker.is_in_batch) || self.deleting.is_in_batch
            }
            JobSelection::Scrub => self.scrub.is_in_batch,
            JobSelection::Finder => self.finder.is_in_batch,
            JobSelection::Collector => self.collector.is_in_batch,
            JobSelection::Deletion => self.deleting.is_in_batch,
            JobSelection::Accounting => self.accountant.is_in_batch,
            JobSelection::FinderOf(name) => {
                let mut volumes = self.volumes.values();
                let is_at = |job: &VolumeJob| job.job.is_in_batch && job.volume.name() == *name;
                self.finder.is_in_batch && volumes.any(is_at)
            }
        }
    }

    fn rebuild(&mut self) -> &mut Rebuild {
        self.rebuild.get_or_insert_with(|| Rebuild {
            job: Job::new(),
            done_blocks: 0,
            all_blocks: 0,
        })
    }
}

impl VolumeJob {
    fn new(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            interval: Duration::ZERO,
            is_paused: false,
            job: Job::new(),
            declined: 0,
            left_out: 0,
        }
    }

    fn what(&self) -> String {
        format!("the finder of volume '{}'", self.volume.name())
    }

    fn found(&mut self, report: &BatchReport) -> bool {
        let what = self.what();
        let job = &mut self.job;
        job.recover(&what);
        job.counts.add_batch(report);
        job.counts.passes += u64::from(report.at_end);
        job.is_under_way = !report.at_end;
        job.rate.add(Instant::now(), report.bytes);
        self.declined += report.declined;
        if report.at_end {
            let declined = std::mem::take(&mut self.declined);
            if declined > 0 && self.left_out == 0 {
                tracing::warn!("{what} skipped {declined} blocks: the index has no room");
            }
            self.left_out = declined;
        }
        report.at_end && self.left_out > 0
    }

    fn status(&mut self, finder: &Worker) -> JobStatus {
        let mut state = self.job.state(finder, self.is_paused);
        if self.left_out > 0 && state == JobState::Idle {
            state = JobState::Failed(format!(
                "the index has no room for {} blocks, which stay as they are; give the daemon \
                 more memory, or delete what is not needed",
                self.left_out
            ));
        }
        let dirty = self.volume.dirty_blocks();
        self.job
            .status(JobKind::Finder, Some(self.volume.name()), state, dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_store::{IndexKind, PoolStat, SpaceLevel, WhenFull};
    use std::thread;

    /// The counts of an empty pool.
    fn nothing() -> PoolStat {
        PoolStat {
            block_size: 4096,
            pool_blocks: 0,
            shrinking_to_blocks: None,
            logical_blocks: 0,
            physical_blocks: 0,
            private_blocks: 0,
            unsettled_blocks: 0,
            unique_blocks: 0,
            shared_blocks: 0,
            dirty_blocks: 0,
            free_blocks: 0,
            available_blocks: 0,
            host_free_bytes: None,
            space: SpaceLevel::Full,
            reserve_blocks: 0,
            reserved_unused_blocks: 0,
            when_full: WhenFull::Pause,
            reclaim_blocks: 0,
            queued_blocks: 0,
            claimed_blocks: 0,
            index: IndexKind::Btree,
            index_rebuilding: false,
            index_bytes_on_disk: 0,
            pool_bytes_on_disk: 0,
            free_bytes_on_disk: 0,
            metadata_bytes_on_disk: 0,
            snapshots: Vec::new(),
            deletions: Vec::new(),
            volumes: Vec::new(),
        }
    }

    fn collector_state(registry: &JobRegistry) -> JobState {
        registry.jobs(&nothing())[0].state.clone()
    }

    #[test]
    fn pausing_waits_for_the_end_of_the_batch_under_way() {
        let registry = JobRegistry::new();
        assert!(registry.begin_collect());
        thread::scope(|scope| {
            let pausing = scope.spawn(|| registry.pause(&JobSelection::Collector));
            while !registry.state().collector.is_paused {
                thread::yield_now();
            }
            assert_ne!(collector_state(&registry), JobState::Paused);
            assert!(!pausing.is_finished());
            registry.collected(&CollectReport::default(), 4096);
            assert_eq!(pausing.join().unwrap(), Ok(()));
        });
        assert_eq!(collector_state(&registry), JobState::Paused);
        assert!(!registry.begin_collect());
        registry.resume(&JobSelection::Collector).unwrap();
        assert!(registry.begin_collect());
    }

    #[test]
    fn a_thread_that_panics_is_a_failure_and_nobody_waits_for_it() {
        let registry = JobRegistry::new();
        assert!(registry.begin_collect());
        registry.ended(WorkerKind::Collector);
        registry.pause(&JobSelection::All).unwrap();
        assert_eq!(
            collector_state(&registry),
            JobState::Failed(GONE.to_owned())
        );
    }

    #[test]
    fn a_thread_that_was_told_to_end_is_no_failure() {
        let registry = JobRegistry::new();
        registry.stop();
        registry.ended(WorkerKind::Collector);
        assert_eq!(collector_state(&registry), JobState::Idle);
        assert!(!registry.begin_collect());
    }

    #[test]
    fn a_rebuild_is_listed_once_there_was_one() {
        let registry = JobRegistry::new();
        assert_eq!(registry.jobs(&nothing()).len(), 1);
        registry.rebuilding(10, 30, 4096);
        let rebuild = registry.jobs(&nothing()).remove(1);
        assert_eq!(rebuild.kind, JobKind::Rebuild);
        assert_eq!(
            (rebuild.state, rebuild.backlog_blocks),
            (JobState::Running, 20)
        );
        registry.set_index_ready();
        let rebuild = registry.jobs(&nothing()).remove(1);
        assert_eq!((rebuild.state, rebuild.backlog_blocks), (JobState::Idle, 0));
    }
}
