//! Starting, stopping, listing and pausing background work.

use crate::background::IdleClass;
use crate::collector::Collector;
use crate::copying::{self, SnapshotReads};
use crate::counting;
use crate::flushes::FlushTurns;
use crate::handle::JobHandle;
use crate::job::{JobSelection, JobStatus, SteerError};
use crate::registry::JobRegistry;
use crate::thread::{JobThread, Signal};
use crate::{accounting, collector, finder, scrub};
use onefold_store::{Result, Store};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Options of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaintenanceOptions {
    /// The latency that 99 of 100 guests' requests should not exceed. Beyond it, work gives way.
    pub latency_budget: Duration,
    /// The interval at which all maps are scanned to find out what each volume holds alone.
    pub accounting_interval: Duration,
}

/// The background work of an open pool; ends when dropped.
pub struct Maintenance {
    pub(crate) store: Arc<Store>,
    pub(crate) signal: Arc<Signal>,
    registry: Arc<JobRegistry>,
    snapshot_reads: Arc<SnapshotReads>,
    pub(crate) latency_budget: Duration,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Starts the background threads.
    ///
    /// # Errors
    ///
    /// If the system cannot create a thread.
    pub fn start(store: Arc<Store>, options: MaintenanceOptions) -> io::Result<Self> {
        store.set_background_executor(Box::<IdleClass>::default());
        let signal = Arc::default();
        let [finder, collector, counter, accountant, scrubber, copier] =
            std::array::from_fn(|_| JobThread::new(&signal));
        let job = |spec, thread| JobHandle::new(spec, thread, None);
        let collecting = job(&collector::COLLECTOR, &collector);
        let counting = job(&counting::COUNTING, &counter);
        let deletion = job(&collector::DELETION, &collector);
        let scrub = job(&scrub::SCRUB, &scrubber);
        let rebuild = job(&collector::REBUILD, &collector);
        let accounting = job(&accounting::ACCOUNTING, &accountant);
        let copying = job(&copying::COPYING, &copier);
        // In the order of the list.
        let jobs = [
            &collecting,
            &counting,
            &deletion,
            &scrub,
            &rebuild,
            &accounting,
            &copying,
        ];
        let registry = JobRegistry::new(&signal, &finder, jobs.map(Arc::clone).to_vec());
        let snapshot_reads = SnapshotReads::new(&store, &copier, &copying, options.latency_budget);
        let maintenance = Self {
            store,
            signal,
            snapshot_reads,
            registry: Arc::new(registry),
            latency_budget: options.latency_budget,
            threads: Mutex::new(Vec::new()),
        };
        // If a thread cannot be started, dropping this ends the threads that were.
        let registry = Arc::clone(&maintenance.registry);
        let (budget, interval) = (options.latency_budget, options.accounting_interval);
        let turns = Arc::<FlushTurns>::default();
        let (finders, counters) = (Arc::clone(&turns), Arc::clone(&turns));
        maintenance.spawn("finder", &finder, move |store, thread| {
            finder::run(store, &registry, thread, &finders, budget);
        })?;
        let (jobs, counted) = ([collecting, deletion, rebuild], counting);
        maintenance.spawn("collector", &collector, move |store, _| {
            Collector::new(store, jobs, turns, budget).run();
        })?;
        maintenance.spawn("counting", &counter, move |store, _| {
            counting::run(store, &counted, &counters, budget);
        })?;
        maintenance.spawn("accountant", &accountant, move |store, _| {
            accounting::run(store, &accounting, budget, interval);
        })?;
        maintenance.spawn("scrub", &scrubber, move |store, _| {
            scrub::run(store, &scrub, budget);
        })?;
        Ok(maintenance)
    }

    fn spawn(
        &self,
        name: &str,
        job_thread: &Arc<JobThread>,
        run: impl FnOnce(&Arc<Store>, &Arc<JobThread>) + Send + 'static,
    ) -> io::Result<()> {
        let (store, job_thread) = (Arc::clone(&self.store), Arc::clone(job_thread));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _end = End(&job_thread);
                run(&store, &job_thread);
            })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        Ok(())
    }

    /// The reads of snapshots for backup clients.
    #[must_use]
    pub fn snapshot_reads(&self) -> Arc<SnapshotReads> {
        Arc::clone(&self.snapshot_reads)
    }

    /// All jobs: a finder for each volume whose dedup is offline, in the order of names, the
    /// collector, and the rebuild of the index, the accounting and the scrub if there was one.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::stat`].
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.registry.refresh(&self.store);
        Ok(self.registry.jobs(&self.store.stat()?))
    }

    /// Pauses jobs until they are resumed or this value is dropped. Returns once all of them are at
    /// rest, after the batch in progress. Pausing a paused job is allowed.
    ///
    /// # Errors
    ///
    /// If a volume has no finder.
    pub fn pause(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.registry.refresh(&self.store);
        self.registry.pause(selection)
    }

    /// Resumes paused jobs. Resuming the finder as a whole resumes it for every volume.
    ///
    /// # Errors
    ///
    /// If a volume has no finder, or if the finder is paused as a whole.
    pub fn resume(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.registry.refresh(&self.store);
        self.registry.resume(selection)
    }

    /// Begins a scrub, or resumes one: see [`Scrub::begin`](onefold_store::Scrub::begin).
    ///
    /// # Errors
    ///
    /// Errors of [`Scrub::begin`](onefold_store::Scrub::begin).
    pub fn begin_scrub(&self, percent: Option<u8>, bytes_per_second: u64) -> Result<()> {
        self.store.scrub().begin(percent, bytes_per_second)?;
        self.signal.notify();
        Ok(())
    }

    /// Whether background work has stopped, or is about to.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.signal.flags().is_stopping
    }

    /// Stops the threads and waits for them: for the batch in progress, at most one of each job. The
    /// batches are hurried, because on a busy host they may wait minutes for an idle processor.
    pub fn stop(&self) {
        self.signal.change(|flags| flags.is_stopping = true);
        let _hurry = self.store.hurry_background();
        let threads = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *threads)
        };
        for thread in threads {
            // The panic's message was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Reports when dropped, even by a panic, that a thread has ended.
struct End<'a>(&'a JobThread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use libc::{SCHED_IDLE, SCHED_OTHER};
    use onefold_engine::Part;
    use onefold_engine::simulated::{Op, When};
    use onefold_store::{Blocking, VolumeOptions, VolumeSettings};

    use super::*;
    use crate::background::{schedule, tests::is_policy};
    use crate::scene::new_store;

    /// Whether this process may take threads out of the idle class, which takes a privilege.
    fn may_leave_the_idle_class() -> bool {
        let tried = || {
            schedule(0, SCHED_IDLE).unwrap();
            schedule(0, SCHED_OTHER).is_ok()
        };
        thread::spawn(tried).join().unwrap()
    }

    #[test]
    fn a_stop_hurries_the_batch_in_progress() {
        if !may_leave_the_idle_class() {
            return;
        }
        let (engine, store) = new_store(64 << 20);
        let once = VolumeOptions::new(1 << 20).with(VolumeSettings {
            cold_passes: 1,
            interval_seconds: 1,
            ..VolumeSettings::default()
        });
        store.create_volume("vm", &once).unwrap();
        let volume = store.volume("vm").unwrap();
        volume.write(0, &[1; 1 << 20], Blocking::Yes).unwrap();
        volume.flush().unwrap();
        let (begun, is_begun) = channel();
        let (ended, is_hurried) = channel();
        let fingerprinting = move || {
            begun.send(is_policy(SCHED_IDLE)).unwrap();
            let hurried = (0..6000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                is_policy(SCHED_OTHER)
            });
            ended.send(hurried).unwrap();
        };
        engine.on_next_io(Part::Data, Op::Read, When::Before, Box::new(fingerprinting));
        let options = MaintenanceOptions {
            latency_budget: Duration::from_millis(100),
            accounting_interval: Duration::from_secs(3600),
        };
        let maintenance = Maintenance::start(store, options).unwrap();
        assert!(is_begun.recv().unwrap());
        maintenance.stop();
        assert!(is_hurried.recv().unwrap());
    }
}
