//! Where requests wait for space.
//!
//! A full device may want its writes to wait until there is room. That can take days, so a waiting
//! request holds no thread and nothing of the device: it is parked here with its payload, and every
//! [`PARKED_RETRY_INTERVAL`] all of them are handed to the workers again. No notification is needed
//! when space becomes available, from any source; and the workers stay free for reads, trims and
//! flushes.
//!
//! The limits on the workers' queue also bound parked requests: requests handed over for each
//! connection, and the memory of their payloads. A connection that has no share left blocks itself,
//! and reads nothing more in that time.
//!
//! The thread for this exists while there are parked requests. Its start and end are logged.

use crate::limits::{PARKED_QUIET_TIME, PARKED_RETRY_INTERVAL};
use crate::workers::{Lane, Task, WorkerPool, submit_with_threads};
use onefold_store::Hurry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

pub(crate) struct Parking<T> {
    state: Mutex<ParkingState<T>>,
}

struct ParkingState<T> {
    parked: Vec<(Lane, T)>,
    /// Requests that have had to wait and are not answered yet, whether parked or being tried.
    waiting: usize,
    /// When the last of them was answered.
    quiet_since: Instant,
    has_thread: bool,
}

/// A request that has had to wait, until dropped.
pub(crate) struct Waiting<T> {
    parking: Arc<Parking<T>>,
    /// Hurries the work that makes room, for as long.
    _hurry: Option<Hurry>,
}

impl<T: Task> Parking<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ParkingState {
                parked: Vec::new(),
                waiting: 0,
                quiet_since: Instant::now(),
                has_thread: false,
            }),
        })
    }

    /// The number of requests that wait for space.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Counts a request that has to wait for the first time.
    pub(crate) fn enter(
        self: &Arc<Self>,
        workers: &Arc<WorkerPool<T>>,
        hurry: Option<Hurry>,
    ) -> Waiting<T> {
        let mut state = self.lock();
        state.waiting += 1;
        if !state.has_thread {
            tracing::warn!("there is no space yet, and writes wait for it");
            let (parking, workers) = (Arc::clone(self), Arc::clone(workers));
            let started = thread::Builder::new()
                .name("nbd-parking".to_owned())
                .spawn(move || parking.run(&workers));
            match started {
                Ok(_) => state.has_thread = true,
                Err(error) => tracing::warn!(%error, "cannot start a thread for them"),
            }
        }
        drop(state);
        Waiting {
            parking: Arc::clone(self),
            _hurry: hurry,
        }
    }

    /// Parks a request. Returns it if there is no thread to retry it.
    pub(crate) fn park(&self, lane: Lane, task: T) -> Result<(), T> {
        let mut state = self.lock();
        if !state.has_thread {
            return Err(task);
        }
        state.parked.push((lane, task));
        Ok(())
    }

    fn run(&self, workers: &Arc<WorkerPool<T>>) {
        loop {
            thread::sleep(PARKED_RETRY_INTERVAL);
            let mut state = self.lock();
            if state.waiting == 0 && state.quiet_since.elapsed() >= PARKED_QUIET_TIME {
                state.has_thread = false;
                tracing::info!("no write waits for space any more");
                return;
            }
            let parked = std::mem::take(&mut state.parked);
            drop(state);
            for (lane, task) in parked {
                submit_with_threads(workers, lane, task);
            }
        }
    }
}

impl<T> Parking<T> {
    fn lock(&self) -> MutexGuard<'_, ParkingState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        let mut state = self.parking.lock();
        state.waiting -= 1;
        state.quiet_since = Instant::now();
    }
}
