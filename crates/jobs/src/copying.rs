//! Reads of snapshots for backups. Clients ask, and this module decides when each read begins: like any job, it
//! yields to guests, is listed, and can be paused.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{COPYING_BYTES_PER_SECOND, COPYING_SHARE_FLOOR, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::thread::JobThread;
use onefold_store::Store;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) static COPYING: JobSpec = JobSpec {
    kind: JobKind::Copying,
    name: "the copying of snapshots",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// Serializes the snapshot reads of a pool.
pub struct SnapshotReads {
    job: Arc<JobHandle>,
    thread: Arc<JobThread>,
    foreground: Mutex<Foreground>,
    /// The most that is read per second while guests are busy.
    bytes_per_second: u64,
}

impl SnapshotReads {
    pub(crate) fn new(
        store: &Arc<Store>,
        thread: &Arc<JobThread>,
        job: &Arc<JobHandle>,
        latency_budget: Duration,
    ) -> Arc<Self> {
        let pacer = Pacer::new(latency_budget, COPYING_SHARE_FLOOR);
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Arc::new(Self {
            job: Arc::clone(job),
            thread: Arc::clone(thread),
            foreground: Mutex::new(Foreground::new(store, thread, pacer)),
            bytes_per_second: COPYING_BYTES_PER_SECOND * processors,
        })
    }

    /// Runs `read`, a read of `bytes` bytes, on the calling thread when its turn comes; at once if the jobs
    /// are being stopped.
    pub fn read<T>(&self, bytes: u64, read: impl FnOnce() -> T) -> T {
        let foreground = self.foreground.lock();
        let mut foreground = foreground.unwrap_or_else(PoisonError::into_inner);
        self.job.set_under_way(0);
        while !self.job.begin() {
            if self.thread.is_stopping() {
                return read();
            }
            self.thread.wait(POLL_INTERVAL);
        }
        let began = Instant::now();
        let batch = Batch {
            job: &self.job,
            bytes,
        };
        let done = read();
        drop(batch);
        let rest_min = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        foreground.rest_if_needed_after(began.elapsed(), rest_min);
        self.job.advance(Step::default(), |_| {});
        done
    }
}

/// A read in progress. Dropping it, even in a panic, ends the batch; the rest after it is still to
/// come.
struct Batch<'a> {
    job: &'a JobHandle,
    bytes: u64,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let step = Step {
            bytes: self.bytes,
            has_more: true,
            ..Step::default()
        };
        self.job
            .end_small_batch(step, |counts| counts.bytes += self.bytes);
    }
}
