//! Starting and stopping background work, and what can be asked of it meanwhile.

use crate::board::{Board, WorkerKind};
use crate::job::{JobSelection, JobStatus, SteerError};
use crate::{accounting, aside, collector, finder, scrub};
use onefold_store::{Result, Store};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How background work is to behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaintenanceOptions {
    /// What all but one in a hundred of guests' requests may take. Beyond, work gives way.
    pub latency_budget: Duration,
    /// How often it is found out what each volume holds alone, by going through all maps.
    pub accounting_interval: Duration,
}

/// The background work of an open pool; ends when dropped.
pub struct Maintenance {
    store: Arc<Store>,
    board: Arc<Board>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Maintenance {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// Where the system gives no thread.
    pub fn start(store: Arc<Store>, options: MaintenanceOptions) -> io::Result<Self> {
        let maintenance = Self {
            store,
            board: Arc::new(Board::new()),
            threads: Mutex::new(Vec::new()),
        };
        maintenance.store.set_aside(aside::run_aside);
        // Dropped on the way out of a failure, it ends the first threads when another fails.
        let budget = options.latency_budget;
        maintenance.spawn("finder", WorkerKind::Finder, move |store, board| {
            finder::run(store, board, budget);
        })?;
        maintenance.spawn("collector", WorkerKind::Collector, move |store, board| {
            collector::run(store, board, budget);
        })?;
        let interval = options.accounting_interval;
        maintenance.spawn("accountant", WorkerKind::Accountant, move |store, board| {
            accounting::run(store, board, budget, interval);
        })?;
        maintenance.spawn("scrub", WorkerKind::Scrub, move |store, board| {
            scrub::run(store, board, budget);
        })?;
        Ok(maintenance)
    }

    fn spawn(
        &self,
        name: &str,
        worker: WorkerKind,
        run: impl FnOnce(&Arc<Store>, &Arc<Board>) + Send + 'static,
    ) -> io::Result<()> {
        let (store, board) = (Arc::clone(&self.store), Arc::clone(&self.board));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _end = End(&board, worker);
                run(&store, &board);
            })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        Ok(())
    }

    /// All jobs: a finder for each volume whose dedup is offline, in the order of names, the
    /// collector, and the rebuild of the index, the accounting and the scrub if there was one.
    ///
    /// # Errors
    ///
    /// Those of [`Store::stat`].
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        self.board.refresh(&self.store);
        Ok(self.board.jobs(&self.store.stat()?))
    }

    /// Pauses jobs until they are resumed, or to the end of this. Returns when none of them does
    /// anything any more: after the batch under way. Pausing what is paused already is fine.
    ///
    /// # Errors
    ///
    /// Where a volume has no finder.
    pub fn pause(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.board.refresh(&self.store);
        self.board.pause(selection)
    }

    /// Lets paused jobs go on. The finder as a whole goes on for every volume.
    ///
    /// # Errors
    ///
    /// Where a volume has no finder, or where the finder is paused as a whole.
    pub fn resume(&self, selection: &JobSelection) -> std::result::Result<(), SteerError> {
        self.board.refresh(&self.store);
        self.board.resume(selection)
    }

    /// Begins a scrub, or lets one go on: see [`Store::begin_scrub`].
    ///
    /// # Errors
    ///
    /// Those of [`Store::begin_scrub`].
    pub fn begin_scrub(&self, percent: Option<u8>, bytes_per_second: u64) -> Result<()> {
        self.store.begin_scrub(percent, bytes_per_second)?;
        self.board.wake();
        Ok(())
    }

    /// Whether it was stopped, or is about to be.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.board.is_stopping()
    }

    /// Ends the threads and waits for that: for the batch under way, at most one of each job.
    pub fn stop(&self) {
        self.board.stop();
        let threads = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *threads)
        };
        for thread in threads {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Says that a thread has ended, even by a panic.
struct End<'a>(&'a Board, WorkerKind);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.ended(self.1);
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop();
    }
}
