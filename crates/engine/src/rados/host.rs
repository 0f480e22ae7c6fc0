//! This process as a client of one pool: what all that it owns there shares, and the thread that watches over it.

use super::bounded::Bounded;
use super::calls::Calls;
use super::fences::Kept;
use super::flights::{Flights, News};
use super::held::{FENCED, Held};
use super::names::{self, Estate};
use super::ownership::Ownership;
use super::serving::{Queue, Serving};
use super::taking::Taker;
use crate::cluster::{OnEvent, TakeError, TakeOptions};
use onefold_rados::{Client, Pool};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often an owner checks its operations, its heads and its watches.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Heads that are looked for at a time. So a host that owns many asks the cluster little, and misses a head that is gone
/// after some seconds.
const LOOKS_MAX: usize = 16;

/// State that all estates of this process in a pool share.
pub(super) struct Host {
    pub(super) taker: Taker,
    /// The pool's run directory on this host.
    pub(super) run: PathBuf,
    pub(super) flights: Flights,
    pub(super) calls: Calls,
    pub(super) bounded: Bounded,
    /// The object that is created to test whether the cluster has room.
    pub(super) room: String,
    /// Bytes by which parts have grown since the cluster was asked for room. Its lock is held while that is asked.
    pub(super) unasked_bytes: Mutex<u64>,
    /// The estates that this process owns. Its lock is not held while the cluster is waited for, or any other lock.
    state: Mutex<State>,
    changed: Condvar,
    /// The threads that answer calls, once there is a shard. No other lock is taken while this one is held.
    serving: Mutex<Option<Serving>>,
    /// Set once it is noticed that this client was fenced. Guards nothing else.
    is_fenced: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    held: Vec<Arc<Held>>,
    /// Estates that a thread of this process is taking.
    taking: BTreeSet<Estate>,
    /// Makes the callback for events of an estate.
    on_event: Option<Arc<MakeOnEvent>>,
    /// For tests: others get no answer.
    is_silent: bool,
    is_ending: bool,
}

type MakeOnEvent = Box<dyn Fn(Estate) -> OnEvent + Send + Sync>;

impl Host {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The estates that this process owns.
    fn held(&self) -> Vec<Arc<Held>> {
        self.state().held.clone()
    }

    /// Becomes the owner of an estate, whose head the caller has found.
    pub(super) fn take(
        self: &Arc<Self>,
        estate: Estate,
        options: &TakeOptions,
    ) -> Result<Arc<Held>, TakeError> {
        let _turn = self.wait_for_turn(estate);
        if self.is_fenced.load(Ordering::SeqCst) {
            let message = format!("{FENCED}: start it again");
            return Err(io::Error::other(message).into());
        }
        let is_ours = |session: &str| {
            let held = self.held();
            held.iter()
                .any(|held| held.ownership.session().id == session)
        };
        let ownership = self.taker.take(estate, &self.run, is_ours, options)?;
        let is_fenced = Arc::clone(&self.is_fenced);
        let held = Held::begin(&self.taker.pool, Arc::clone(&ownership), is_fenced);
        let held = held.inspect_err(|_| self.taker.release(&ownership))?;
        let mut state = self.state();
        if state.is_silent {
            held.fall_silent();
        }
        let on_event = state.on_event.clone();
        state.held.push(Arc::clone(&held));
        drop(state);
        if let Some(on_event) = on_event {
            ownership.set_on_event(on_event(estate));
        }
        Ok(held)
    }

    /// Waits until no other thread of this process is taking the estate: the two would find each other's locks.
    fn wait_for_turn(&self, estate: Estate) -> Turn<'_> {
        let mut state = self.state();
        while !state.taking.insert(estate) {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        Turn { host: self, estate }
    }

    /// Gives up an estate, once its operations have ended.
    pub(super) fn give_up(&self, held: &Arc<Held>) {
        held.give_up();
        self.state().held.retain(|other| !Arc::ptr_eq(other, held));
    }

    /// The session with which this process owns the estate, if it has this number.
    pub(super) fn find(&self, estate: Estate, number: u64) -> Option<Arc<Held>> {
        let mut held = self.held().into_iter();
        held.find(|held| {
            let ownership = &held.ownership;
            ownership.estate() == estate && ownership.session().number == number
        })
    }

    /// The right to change this estate, if this process owns it.
    pub(super) fn ownership_of(&self, estate: Estate) -> Option<Arc<Ownership>> {
        let mut held = self.held().into_iter();
        let found = held.find(|held| held.ownership.estate() == estate)?;
        Some(Arc::clone(&found.ownership))
    }

    /// Sets what makes the callback for events of an estate.
    pub(super) fn on_event(&self, make: MakeOnEvent) {
        let make = Arc::new(make);
        let mut state = self.state();
        state.on_event = Some(Arc::clone(&make));
        let held = state.held.clone();
        drop(state);
        for held in held {
            let ownership = &held.ownership;
            ownership.set_on_event(make(ownership.estate()));
        }
    }

    /// Ends all that this client owns, because it was fenced.
    pub(super) fn lose_all(&self) {
        self.is_fenced.store(true, Ordering::SeqCst);
        for held in self.held() {
            held.ownership.lose(FENCED);
        }
    }

    /// Stops answering other hosts, like a process that is frozen.
    #[cfg(feature = "simulated")]
    pub(super) fn fall_silent(&self) {
        let mut state = self.state();
        state.is_silent = true;
        state.held.iter().for_each(|held| held.fall_silent());
    }

    /// Where calls to this host queue.
    pub(super) fn queue(&self) -> io::Result<Queue> {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if serving.is_none() {
            *serving = Some(Serving::start()?);
        }
        let queue = serving.as_ref().and_then(Serving::queue);
        queue.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits for this time, or until the host ends. Returns whether it continues.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_ending || left.is_zero() {
                return !state.is_ending;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Watches over what this process owns, until the host ends.
    fn watch_over(self: &Arc<Self>, fence_interval: Duration) {
        let (mut fenced_at, mut fencing) = (Instant::now(), None::<JoinHandle<()>>);
        let mut first = 0;
        while self.pause(LOOK_INTERVAL) {
            report(self.flights.news());
            self.calls.end_overdue();
            let is_fencing = fencing.as_ref().is_some_and(|thread| !thread.is_finished());
            let may_fence = !is_fencing && !self.is_fenced.load(Ordering::SeqCst);
            if fenced_at.elapsed() >= fence_interval && may_fence {
                fenced_at = Instant::now();
                // On a thread of its own, because it waits for the monitors, and an owner can do without them.
                let host = Arc::clone(self);
                let thread = thread::Builder::new().name("rados-fences".to_owned());
                fencing = thread.spawn(move || host.restore_fences()).ok();
            }
            let held = self.held();
            held.iter().for_each(Held::confirm);
            if self.is_fenced.load(Ordering::SeqCst) {
                self.lose_all();
            }
            let looks = held
                .iter()
                .cycle()
                .skip(first)
                .take(held.len().min(LOOKS_MAX));
            looks.for_each(Held::look_for_head);
            first = (first + LOOKS_MAX).checked_rem(held.len()).unwrap_or(0);
        }
    }

    fn restore_fences(&self) {
        if let Err(error) = self.taker.restore_fences() {
            tracing::warn!(
                "cannot make sure that the cluster keeps former owners of the pool out: {error}"
            );
        }
    }
}

/// The turn of a thread that takes an estate.
struct Turn<'a> {
    host: &'a Host,
    estate: Estate,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.host.state().taking.remove(&self.estate);
        self.host.changed.notify_all();
    }
}

/// A host with its thread, which ends when this is dropped.
pub(super) struct Watched {
    pub(super) host: Arc<Host>,
    watchman: Option<JoinHandle<()>>,
}

impl Watched {
    pub(super) fn start(
        client: &Client,
        pool: Pool,
        kept: Kept,
        run: PathBuf,
        fence_interval: Duration,
    ) -> io::Result<Arc<Watched>> {
        let host = Arc::new(Host {
            room: names::room(kept == Kept::InDirectory, client.instance_id()),
            taker: Taker::new(client.clone(), pool, kept),
            run,
            flights: Flights::default(),
            calls: Calls::default(),
            bounded: Bounded::default(),
            unasked_bytes: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            serving: Mutex::default(),
            is_fenced: Arc::default(),
        });
        let watches = Arc::clone(&host);
        let watchman = thread::Builder::new()
            .name("rados-owner".to_owned())
            .spawn(move || watches.watch_over(fence_interval))?;
        Ok(Arc::new(Watched {
            host,
            watchman: Some(watchman),
        }))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.host.state().is_ending = true;
        self.host.changed.notify_all();
        if let Some(watchman) = self.watchman.take()
            && watchman.thread().id() != thread::current().id()
        {
            // The thread has reported its own panic.
            let _ = watchman.join();
        }
        self.host.calls.end_all();
        let serving = &self.host.serving;
        let serving = serving
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(serving);
    }
}

/// Logs a report on operations that take long.
fn report(news: Option<News>) {
    match news {
        Some(News::Waits {
            operations,
            oldest,
            waited,
        }) => tracing::warn!(
            "the cluster has not answered for {:.0} s: {operations} operations wait, the oldest is {oldest}",
            waited.as_secs_f64()
        ),
        Some(News::GoesOn) => tracing::info!("the cluster answers again"),
        None => {}
    }
}
