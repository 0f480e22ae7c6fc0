//! One job: the state that its thread shares with the callers that steer it.
//!
//! Invariant: a job works on a batch only between [`JobHandle::begin`] and the call that ends it,
//! and a paused job does not begin.

use crate::job::{JobCounts, JobKind, JobState, JobStatus};
use crate::rate::Rate;
use crate::thread::{JobThread, StoreFlags};
use onefold_store::{PoolStat, StoreError, StoreErrorKind, Volume};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The failure message of a job whose thread panicked.
pub(crate) const PANICKED: &str =
    "it panicked, which is a defect of onefold; see the daemon's log, and restart the daemon";

/// The constants of one kind of job.
pub(crate) struct JobSpec {
    pub(crate) kind: JobKind,
    /// The name in messages: `the collector`.
    pub(crate) name: &'static str,
    /// Whether the job waits until the index matches the volumes' maps.
    pub(crate) needs_index: bool,
    /// Whether the job is listed before it has begun.
    pub(crate) is_always_listed: bool,
    /// The part of the job's backlog that the pool counts.
    pub(crate) backlog_blocks: fn(&PoolStat) -> u64,
}

/// A job, shared by its thread and the registry.
pub(crate) struct JobHandle {
    spec: &'static JobSpec,
    /// The volume of a finder's job.
    volume: Option<Arc<Volume>>,
    thread: Arc<JobThread>,
    /// The flags of the store that the job works on.
    flags: Arc<StoreFlags>,
    /// Lock order: after the registry's and the signal's, before the volume's.
    job: Mutex<Job>,
}

/// The mutable state of a job.
struct Job {
    is_paused: bool,
    is_in_batch: bool,
    /// A run of batches is in progress: the next batch can begin at once.
    is_under_way: bool,
    /// Set by the job's first work; the job is listed afterwards.
    has_begun: bool,
    counts: JobCounts,
    /// Blocks left in the run in progress, if its thread counts them.
    left_blocks: u64,
    rate: Rate,
    failure: Option<String>,
    /// Why the last pass left blocks out; while idle, the job counts as failed.
    shortage: Option<String>,
}

/// The result of one batch of any job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    pub(crate) bytes: u64,
    /// Blocks left in the run in progress, if the thread counts them.
    pub(crate) left_blocks: u64,
    /// Whether the next batch can begin at once.
    pub(crate) has_more: bool,
}

impl JobHandle {
    /// A job of this kind, of the store with these flags; of one of its volumes, if `volume` is given.
    pub(crate) fn new(
        spec: &'static JobSpec,
        thread: &Arc<JobThread>,
        flags: &Arc<StoreFlags>,
        volume: Option<Arc<Volume>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            spec,
            volume,
            thread: Arc::clone(thread),
            flags: Arc::clone(flags),
            job: Mutex::new(Job {
                is_paused: false,
                is_in_batch: false,
                is_under_way: false,
                has_begun: spec.is_always_listed,
                counts: JobCounts::default(),
                left_blocks: 0,
                rate: Rate::new(Instant::now()),
                failure: None,
                shortage: None,
            }),
        })
    }

    pub(crate) fn kind(&self) -> JobKind {
        self.spec.kind
    }

    pub(crate) fn volume(&self) -> Option<&Arc<Volume>> {
        self.volume.as_ref()
    }

    /// Ignores poisoning: each change is complete in itself, so a panic leaves nothing half done.
    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and notifies all waiting threads.
    fn change(&self, change: impl FnOnce(&mut Job)) {
        change(&mut self.job());
        self.thread.signal().notify();
    }

    /// Whether a batch may begin, or a long one continue. Takes no lock but the job's.
    pub(crate) fn may_work(&self) -> bool {
        self.may_begin() && !self.job().is_paused
    }

    fn may_begin(&self) -> bool {
        !self.thread.is_stopping()
            && !self.is_leaving()
            && (self.flags.is_index_ready() || !self.spec.needs_index)
    }

    /// Whether the job's store is being removed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.flags.is_leaving()
    }

    /// Begins a batch if the job may work now; returns whether it has.
    pub(crate) fn begin(&self) -> bool {
        let may_begin = self.may_begin();
        let mut job = self.job();
        job.is_in_batch = may_begin && !job.is_paused;
        job.is_in_batch
    }

    /// Marks a run of batches as in progress, whether or not the job may work now.
    pub(crate) fn set_under_way(&self, left_blocks: u64) {
        let mut job = self.job();
        job.has_begun = true;
        job.is_under_way = true;
        job.left_blocks = left_blocks;
    }

    /// Ends a batch that counts as no work.
    pub(crate) fn end(&self) {
        self.change(|job| job.is_in_batch = false);
    }

    /// Ends a batch that succeeded. Logs the recovery if the one before had failed.
    pub(crate) fn end_batch(&self, step: Step, count: impl FnOnce(&mut JobCounts)) {
        self.change(|job| {
            job.is_in_batch = false;
            job.advance(step, count);
            if job.failure.take().is_some() {
                tracing::info!("{} works again", self.name());
            }
        });
    }

    /// Like [`JobHandle::end_batch`], but notifies only a waiting pause; cheap enough for thousands of batches a
    /// second.
    pub(crate) fn end_small_batch(&self, step: Step, count: impl FnOnce(&mut JobCounts)) {
        let mut job = self.job();
        job.is_in_batch = false;
        job.advance(step, count);
        let is_paused = job.is_paused;
        drop(job);
        if is_paused {
            self.thread.signal().notify();
        }
    }

    /// Records progress within a batch.
    pub(crate) fn advance(&self, step: Step, count: impl FnOnce(&mut JobCounts)) {
        self.job().advance(step, count);
    }

    /// Ends a batch that failed. Logs only the first failure in a row.
    pub(crate) fn fail(&self, error: &StoreError) {
        self.change(|job| {
            job.is_in_batch = false;
            job.is_under_way = false;
            job.has_begun = true;
            if error.kind() == StoreErrorKind::Paused {
                return;
            }
            if job.failure.is_none() {
                tracing::warn!("{} failed and will be retried: {error}", self.name());
            }
            job.failure = Some(error.to_string());
        });
    }

    /// Records why the last pass left blocks out, if it did. Logs only the first shortage in a row.
    pub(crate) fn set_shortage(&self, shortage: Option<String>) {
        let mut job = self.job();
        if let (Some(shortage), None) = (&shortage, &job.shortage) {
            tracing::warn!("{} skipped blocks: {shortage}", self.name());
        }
        job.shortage = shortage;
    }

    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.change(|job| job.is_paused = is_paused);
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.job().is_in_batch && !self.thread.has_ended()
    }

    /// The job's line in the list, in a pool with these counts; `None` before the job has begun, unless
    /// it is paused.
    pub(crate) fn status(&self, stat: &PoolStat) -> Option<JobStatus> {
        let volume = self.volume.as_ref();
        let pending_dedup_blocks = volume.map_or(0, |volume| volume.pending_dedup_blocks());
        let mut job = self.job();
        let backlog_blocks =
            pending_dedup_blocks + job.left_blocks + (self.spec.backlog_blocks)(stat);
        let bytes_per_second = job.rate.bytes_per_second(Instant::now());
        let (state, message) = job.state(&self.thread);
        (job.has_begun || job.is_paused || backlog_blocks > 0).then(|| JobStatus {
            kind: self.spec.kind,
            volume: volume.map(|volume| volume.name()),
            state,
            message: message.map(str::to_owned),
            counts: job.counts,
            backlog_blocks,
            bytes_per_second,
        })
    }

    fn name(&self) -> String {
        match &self.volume {
            Some(volume) => format!("{} of volume '{}'", self.spec.name, volume.name()),
            None => self.spec.name.to_owned(),
        }
    }
}

impl Job {
    fn advance(&mut self, step: Step, count: impl FnOnce(&mut JobCounts)) {
        self.has_begun |= step.bytes > 0;
        self.is_under_way = step.has_more;
        self.left_blocks = step.left_blocks;
        self.rate.add(Instant::now(), step.bytes);
        count(&mut self.counts);
    }

    /// The job's state, with the reason of a failure.
    fn state(&self, thread: &JobThread) -> (JobState, Option<&str>) {
        if thread.has_panicked() {
            return (JobState::Failed, Some(PANICKED));
        }
        if self.is_paused && !self.is_in_batch {
            return (JobState::Paused, None);
        }
        match (&self.failure, &self.shortage) {
            (Some(message), _) => (JobState::Failed, Some(message)),
            (None, _) if self.is_under_way && thread.is_resting() => (JobState::Waiting, None),
            (None, _) if self.is_under_way => (JobState::Running, None),
            (None, Some(message)) => (JobState::Failed, Some(message)),
            (None, None) => (JobState::Idle, None),
        }
    }
}
