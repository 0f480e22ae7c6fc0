//! Starting, stopping, listing and pausing background work; adding and removing stores.

use crate::background::IdleClass;
use crate::collector::Collector;
use crate::copying::{CopyingTurns, SnapshotReads};
use crate::flushes::FlushTurns;
use crate::job::{JobSelection, JobStatus, SteerError};
use crate::registry::JobRegistry;
use crate::thread::{JobThread, Signal};
use crate::{accounting, counting, finder, scrub};
use onefold_store::{Hurry, Result, Store};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Options of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaintenanceOptions {
    /// The latency that 99 of 100 guests' requests should not exceed. Beyond it, work gives way. It holds for the
    /// requests of each store that has many, and for those of the others together.
    pub latency_budget: Duration,
    /// The interval at which all maps are scanned to find out what each volume holds alone.
    pub accounting_interval: Duration,
}

/// The background work of a set of open pools, which may change at any time; ends when dropped.
///
/// The number of threads does not depend on the number of stores. If a thread panics, its jobs end for all stores.
pub struct Maintenance {
    pub(crate) registry: Arc<JobRegistry>,
    pub(crate) signal: Arc<Signal>,
    copying: Arc<CopyingTurns>,
    pub(crate) latency_budget: Duration,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Starts the background threads, without any store.
    ///
    /// # Errors
    ///
    /// If the system cannot create a thread.
    pub fn start(options: MaintenanceOptions) -> io::Result<Self> {
        let signal = Arc::default();
        let registry = Arc::new(JobRegistry::new(&signal));
        let (budget, interval) = (options.latency_budget, options.accounting_interval);
        let maintenance = Self {
            copying: CopyingTurns::new(&registry, budget),
            registry: Arc::clone(&registry),
            signal,
            latency_budget: budget,
            threads: Mutex::new(Vec::new()),
        };
        // If a thread cannot be started, dropping this ends the threads that were.
        let threads = registry.threads();
        let turns = Arc::<FlushTurns>::default();
        let (finders, counters) = (Arc::clone(&turns), Arc::clone(&turns));
        maintenance.spawn("finder", &threads.finder, move |registry, thread| {
            finder::run(registry, thread, &finders, budget);
        })?;
        maintenance.spawn("collector", &threads.collector, move |registry, thread| {
            Collector::new(registry, thread, turns, budget).run();
        })?;
        maintenance.spawn("counting", &threads.counter, move |registry, thread| {
            counting::run(registry, thread, &counters, budget);
        })?;
        maintenance.spawn(
            "accountant",
            &threads.accountant,
            move |registry, thread| {
                accounting::run(registry, thread, budget, interval);
            },
        )?;
        maintenance.spawn("scrub", &threads.scrubber, move |registry, thread| {
            scrub::run(registry, thread, budget);
        })?;
        Ok(maintenance)
    }

    fn spawn(
        &self,
        name: &str,
        job_thread: &Arc<JobThread>,
        run: impl FnOnce(&Arc<JobRegistry>, &Arc<JobThread>) + Send + 'static,
    ) -> io::Result<()> {
        let (registry, job_thread) = (Arc::clone(&self.registry), Arc::clone(job_thread));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _end = End(&job_thread);
                run(&registry, &job_thread);
            })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        Ok(())
    }

    /// Begins background work on a store. Jobs that are paused as a whole are paused for it, too. A store that is there
    /// already stays as it is.
    ///
    /// Returns the turns in which backup clients read the store's snapshots.
    pub fn add(&self, store: Arc<Store>) -> Arc<SnapshotReads> {
        store.set_background_executor(Box::<IdleClass>::default());
        let jobs = self.registry.add(store);
        SnapshotReads::new(&self.copying, &jobs)
    }

    /// Ends background work on a store, and waits until nothing here holds it: for the batch in progress, at most one of
    /// each job, and for the rebuild of its index if there is one. The batches are hurried, as by
    /// [`Maintenance::stop`]. The other stores are served as before.
    ///
    /// Does nothing for a store that was not added.
    pub fn remove(&self, store: &Arc<Store>) {
        let Some(jobs) = self.registry.take(store) else {
            return;
        };
        let _hurry = store.hurry_background();
        let is_gone = jobs.is_gone();
        drop(jobs);
        self.signal.wait_until(|| is_gone.load(Ordering::Relaxed));
        store.set_guests_strained(false);
        scrub::save(store);
    }

    /// All jobs, store by store, in the order in which the stores were added. For each store: a finder for each volume
    /// whose dedup is offline, in the order of names, the collector, and the rebuild of the index, the accounting and
    /// the scrub if there was one.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::stat`], if they leave nothing to list.
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.registry.jobs()
    }

    /// The jobs of one store, as [`Maintenance::jobs`] lists them; none if it was not added.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::stat`].
    pub fn jobs_of(&self, store: &Store) -> Result<Vec<JobStatus>> {
        match self.registry.find(store) {
            Some(jobs) => jobs.jobs(),
            None => Ok(Vec::new()),
        }
    }

    /// Pauses jobs of all stores until they are resumed or this value is dropped. Returns once all of them are at
    /// rest, after the batch in progress. Pausing a paused job is allowed.
    ///
    /// # Errors
    ///
    /// If a volume has no finder.
    pub fn pause(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.registry.pause(selection)
    }

    /// Resumes paused jobs of all stores. Resuming the finder as a whole resumes it for every volume.
    ///
    /// # Errors
    ///
    /// If a volume has no finder, or if the finder is paused as a whole.
    pub fn resume(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.registry.resume(selection)
    }

    /// Begins a scrub of a store, or resumes one: see [`Scrub::begin`](onefold_store::Scrub::begin).
    ///
    /// # Errors
    ///
    /// Errors of [`Scrub::begin`](onefold_store::Scrub::begin).
    pub fn begin_scrub(
        &self,
        store: &Store,
        percent: Option<u8>,
        bytes_per_second: u64,
    ) -> Result<()> {
        store.scrub().begin(percent, bytes_per_second)?;
        self.signal.notify();
        Ok(())
    }

    /// Whether background work has stopped, or is about to.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.signal.is_stopping()
    }

    /// Stops the threads and waits for them: for the batch in progress, at most one of each job. The
    /// batches are hurried, because on a busy host they may wait minutes for an idle processor.
    pub fn stop(&self) {
        self.signal.stop();
        let stores = self.registry.all().into_iter();
        let _hurry: Vec<Hurry> = stores.map(|jobs| jobs.store().hurry_background()).collect();
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
        let maintenance = Maintenance::start(options).unwrap();
        maintenance.add(store);
        assert!(is_begun.recv().unwrap());
        maintenance.stop();
        assert!(is_hurried.recv().unwrap());
    }
}
