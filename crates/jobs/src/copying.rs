//! Reads of snapshots for backups. Clients ask, and this module decides when each read begins: like any job, it
//! yields to guests, is listed, and can be paused.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, Step};
use crate::limits::{COPYING_BYTES_PER_SECOND, COPYING_SHARE_FLOOR, POLL_INTERVAL};
use crate::pacing::Pacer;
use crate::registry::JobRegistry;
use crate::store_jobs::StoreJobs;
use crate::thread::JobThread;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The turns in which snapshots are read: one read at a time, whichever store it is of, because what reads cost guests
/// they cost them in processors and caches of the host.
pub(crate) struct CopyingTurns {
    thread: Arc<JobThread>,
    foreground: Mutex<Foreground>,
    /// The most that is read per second while guests are busy.
    bytes_per_second: u64,
}

impl CopyingTurns {
    pub(crate) fn new(registry: &Arc<JobRegistry>, latency_budget: Duration) -> Arc<Self> {
        let pacer = Pacer::new(latency_budget, COPYING_SHARE_FLOOR);
        let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let thread = &registry.threads().copier;
        Arc::new(Self {
            foreground: Mutex::new(Foreground::new(registry, thread, pacer)),
            thread: Arc::clone(thread),
            bytes_per_second: COPYING_BYTES_PER_SECOND * processors,
        })
    }
}

/// Serializes the reads of a store's snapshots with those of all other stores.
pub struct SnapshotReads {
    turns: Arc<CopyingTurns>,
    job: Arc<JobHandle>,
    store: Weak<StoreJobs>,
}

impl SnapshotReads {
    pub(crate) fn new(turns: &Arc<CopyingTurns>, store: &Arc<StoreJobs>) -> Arc<Self> {
        Arc::new(Self {
            turns: Arc::clone(turns),
            job: Arc::clone(&store.copying),
            store: Arc::downgrade(store),
        })
    }

    /// Runs `read`, a read of `bytes` bytes, on the calling thread when its turn comes; at once if the jobs
    /// are being stopped or the store is being removed.
    pub fn read<T>(&self, bytes: u64, read: impl FnOnce() -> T) -> T {
        let (thread, turns) = (&self.turns.thread, &self.turns);
        let foreground = turns.foreground.lock();
        let mut foreground = foreground.unwrap_or_else(PoisonError::into_inner);
        self.job.set_under_way(0);
        // Whoever removes the store waits for the read.
        let held = self.store.upgrade();
        while !self.job.begin() {
            if thread.is_stopping() || self.job.is_leaving() {
                return read();
            }
            thread.wait(POLL_INTERVAL);
        }
        let began = Instant::now();
        let batch = Batch {
            job: &self.job,
            bytes,
        };
        let done = read();
        drop(batch);
        drop(held);
        let rest_min = Duration::from_secs_f64(bytes as f64 / turns.bytes_per_second as f64);
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
