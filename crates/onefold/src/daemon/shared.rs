//! A pool that hosts share, as this host serves it: its groups, and its shards of the index.
//!
//! Threads: one executes the calls to this host's shards; one counts the blocks of this host's groups, when a host checks
//! the pool; another closes groups that other hosts ask for, and serves the shards that did not answer this host.
//!
//! Crash behaviour: the directory of the pool keeps which host opens which group. The next start opens the groups of this
//! host again, unless another host has taken them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use onefold_api::{Clients, Error, Groups, Result};
use onefold_engine::cluster::Owned;
use onefold_engine::rados::{OwnerEvent, RadosHost};
use onefold_format::{GroupId, Shard};
use onefold_store::{
    HostOptions, RecoveryReport, SharedPool, Store, StoreErrorKind, Wake, WhenFull, groups_max,
};
use tokio::sync::mpsc::UnboundedSender;

use super::ServeOptions;
use super::served::ServedStores;
use crate::limits::{
    CALL_TIME_MAX, GROUP_LOG_BYTES, GROUPS_OPEN_MAX, SHARD_INTERVAL, store_memory_bytes,
};
use crate::pool::place::PoolPlace;
use crate::pool::shared::{host_name, shared_description, take_options};
use crate::session::recovery_line;

/// A shared pool, and what this host owns of it.
pub(super) struct SharedHost {
    pool: SharedPool,
    calls: Arc<Bell>,
    census: Arc<Bell>,
    /// Ends and joins the threads. Held briefly, and with no other lock.
    threads: Mutex<Threads>,
    is_ending: AtomicBool,
    /// Receives the loss of the whole host.
    lost: UnboundedSender<OwnerEvent>,
    /// The events of groups and shards, until a thread handles them.
    events: Mutex<Option<Receiver<(Owned, OwnerEvent)>>>,
    /// The server of the groups' volumes, once it has started.
    serving: OnceLock<Serving>,
    /// The turn to create a volume in a group of its own. Before all other locks.
    placing: Mutex<()>,
    /// The turn to open or close groups. Before all locks but `placing`.
    changing: Mutex<()>,
}

/// The server of the groups' volumes.
struct Serving {
    stores: Arc<ServedStores>,
    clients: Arc<dyn Clients>,
}

#[derive(Default)]
struct Threads {
    answering: Option<JoinHandle<()>>,
    counting: Option<JoinHandle<()>>,
    watching: Option<JoinHandle<()>>,
}

/// Wakes a thread that has work from time to time.
#[derive(Default)]
struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    has_work: bool,
    is_ending: bool,
}

impl Bell {
    fn wake(self: &Arc<Self>) -> Arc<dyn Fn() + Send + Sync> {
        let bell = Arc::clone(self);
        Arc::new(move || bell.change(|state| state.has_work = true))
    }

    fn change(&self, change: impl FnOnce(&mut Rung)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// Waits for work. Returns whether there is any; otherwise the thread ends.
    fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        loop {
            if std::mem::take(&mut state.has_work) {
                return true;
            }
            if state.is_ending {
                return false;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl SharedHost {
    /// Opens the groups of this host, and serves the shards that it prefers. `lost` receives the loss of the whole host.
    pub(super) fn open(
        options: &ServeOptions,
        host: RadosHost,
        lost: UnboundedSender<OwnerEvent>,
    ) -> Result<Arc<Self>> {
        let host_options = host_options(options)?;
        let (events, received) = channel();
        let losing = lost.clone();
        host.on_event(move |owned, event| match event {
            // A fence ends the whole client, so it ends the daemon.
            OwnerEvent::Lost { .. } => _ = lost.send(event),
            // If the receiver is gone, the daemon is ending anyway.
            OwnerEvent::ReleaseWanted | OwnerEvent::Gone => _ = events.send((owned, event)),
        });
        let description = shared_description(&host);
        let (calls, census) = (Arc::<Bell>::default(), Arc::<Bell>::default());
        let wake = Wake {
            calls: calls.wake(),
            census: census.wake(),
        };
        let pool = SharedPool::open(Arc::new(host), description, host_options, Some(wake))?;
        let shared = Arc::new(Self {
            pool,
            calls,
            census,
            threads: Mutex::default(),
            is_ending: AtomicBool::new(false),
            lost: losing,
            events: Mutex::new(Some(received)),
            serving: OnceLock::new(),
            placing: Mutex::default(),
            changing: Mutex::default(),
        });
        let answering = shared.work("shards", &shared.calls, SharedPool::answer_calls)?;
        lock(&shared.threads).answering = Some(answering);
        let counting = shared.work("census", &shared.census, SharedPool::count_groups)?;
        lock(&shared.threads).counting = Some(counting);
        let opened = shared.open_all(options.take);
        if opened.is_err() {
            // Report the original error, whether or not this succeeds.
            let _ = shared.close();
        }
        opened.map(|()| shared)
    }

    /// Starts a thread that works when it is woken.
    fn work(
        self: &Arc<Self>,
        name: &'static str,
        bell: &Arc<Bell>,
        work: fn(&SharedPool),
    ) -> Result<JoinHandle<()>> {
        let (host, bell) = (Arc::clone(self), Arc::clone(bell));
        spawn(name, &self.lost, move || {
            while bell.wait() {
                work(&host.pool);
            }
        })
    }

    /// A damaged group or shard stays closed, and does not keep the guests of other groups from their volumes.
    fn open_all(&self, asks: bool) -> Result<()> {
        if let Err(error) = self.pool.serve_preferred() {
            tracing::error!("cannot answer for all shards that this host should: {error}");
        }
        log_shards(&self.pool.shards(), self.pool.description().shards);
        for group in self.pool.own_groups()? {
            match self.pool.open_group(group, asks) {
                Ok((store, report)) => log_opened(group, &store, &report),
                Err(error) if error.kind() == StoreErrorKind::Busy => {
                    tracing::warn!("group {group} stays closed here: {error}");
                }
                Err(error) => tracing::error!("cannot open group {group}: {error}"),
            }
        }
        Ok(())
    }

    /// Begins to heed what other hosts ask for, once the volumes are served.
    pub(super) fn begin(
        self: &Arc<Self>,
        stores: &Arc<ServedStores>,
        clients: &Arc<impl Clients + 'static>,
    ) -> Result<()> {
        let clients: Arc<dyn Clients> = clients.clone();
        let stores = Arc::clone(stores);
        // It is set once.
        let _ = self.serving.set(Serving { stores, clients });
        let Some(events) = lock(&self.events).take() else {
            return Ok(());
        };
        let host = Arc::clone(self);
        let watching = spawn("groups", &self.lost, move || host.watch(&events))?;
        lock(&self.threads).watching = Some(watching);
        Ok(())
    }

    fn watch(&self, events: &Receiver<(Owned, OwnerEvent)>) {
        let mut complaint = String::new();
        while !self.is_ending.load(Ordering::Acquire) {
            match events.recv_timeout(SHARD_INTERVAL) {
                Ok((owned, event)) => self.heed(owned, &event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(SHARD_INTERVAL),
            }
            let (served, ended) = self.pool.serve_missed();
            if !served.is_empty() {
                log_shards(&self.pool.shards(), self.pool.description().shards);
            }
            match ended {
                Err(error) if error.to_string() != complaint => {
                    complaint = error.to_string();
                    tracing::warn!("cannot answer for shards that no host serves: {complaint}");
                }
                _ => {}
            }
        }
    }

    fn heed(&self, owned: Owned, event: &OwnerEvent) {
        let why = match event {
            OwnerEvent::Gone => "the cluster has it no more",
            OwnerEvent::ReleaseWanted | OwnerEvent::Lost { .. } => "another host wants it",
        };
        let closed = match owned {
            // Hosts that want it ask several times.
            Owned::Group(group) if self.pool.store(group).is_none() => return,
            Owned::Group(group) => self.close_group(group),
            Owned::Shard(shard) => self.pool.close_shard(shard).map_err(Error::from),
        };
        match closed {
            Ok(()) => tracing::info!("{owned} closed: {why}"),
            Err(error) => tracing::warn!("{owned} closed ({why}), but not cleanly: {error}"),
        }
    }

    /// Closes a group: its guests are disconnected after the requests in flight.
    fn close_group(&self, group: GroupId) -> Result<()> {
        let _turn = lock(&self.changing);
        let (Some(store), Some(serving)) = (self.pool.store(group), self.serving.get()) else {
            return Ok(());
        };
        let names = exports_of(&store);
        let _holds: Vec<_> = names
            .iter()
            .map(|name| serving.clients.hold(name))
            .collect();
        for name in &names {
            // A request may wait for the cluster, and the next owner relies on its end (P7).
            while let Err(error) = serving.clients.disconnect(name) {
                if self.is_ending.load(Ordering::Acquire) {
                    return Err(error);
                }
                tracing::warn!("group {group} stays open here until then: {error}");
            }
        }
        serving.stores.remove(&store);
        Ok(self.pool.close_group(group)?)
    }

    fn serve(&self, group: GroupId, store: &Arc<Store>) {
        if let Some(serving) = self.serving.get() {
            serving.stores.add(Arc::clone(store));
        }
        tracing::info!("group {group} is new, and open here");
    }

    /// Ends what other hosts could ask for.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        let watching = lock(&self.threads).watching.take();
        if let Some(watching) = watching {
            // The panic was printed when it happened.
            let _ = watching.join();
        }
    }

    /// Closes all groups and shards. Calls are answered until then, because closing a group may need its own shards.
    pub(super) fn close(&self) -> Result<()> {
        let closed = self.pool.close();
        for bell in [&self.calls, &self.census] {
            bell.change(|state| state.is_ending = true);
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in [threads.answering, threads.counting].into_iter().flatten() {
            // The panic was printed when it happened.
            let _ = thread.join();
        }
        Ok(closed?)
    }
}

impl Groups for SharedHost {
    fn pool(&self) -> &SharedPool {
        &self.pool
    }

    fn create(&self) -> Result<(GroupId, Arc<Store>)> {
        let _turn = lock(&self.changing);
        let (group, store) = self.pool.create_group()?;
        self.serve(group, &store);
        Ok((group, store))
    }

    fn create_in_own_group(&self, create: &mut dyn FnMut(&Arc<Store>) -> Result<()>) -> Result<()> {
        let _turn = lock(&self.placing);
        match self.pool.empty_group() {
            Some(empty) => create(&empty),
            None => create(&self.create()?.1),
        }
    }

    fn take(&self, group: GroupId, asks: bool) -> Result<Arc<Store>> {
        let _turn = lock(&self.changing);
        if let Some(store) = self.pool.store(group) {
            return Ok(store);
        }
        let (store, report) = self.pool.open_group(group, asks).map_err(|error| {
            let is_held = error.kind() == StoreErrorKind::Busy && !asks;
            let mut error = Error::from(error);
            if is_held && error.message.contains("is in use by") {
                error.message += "; --take asks it to give the group up";
            }
            error
        })?;
        log_opened(group, &store, &report);
        if let Some(serving) = self.serving.get() {
            serving.stores.add(Arc::clone(&store));
        }
        Ok(store)
    }
}

/// All exports of a store.
fn exports_of(store: &Store) -> Vec<String> {
    let volumes = store.volumes();
    let mut names = volumes.names();
    names.extend(volumes.snapshot_names_after("", usize::MAX));
    names
}

fn host_options(options: &ServeOptions) -> Result<HostOptions> {
    let PoolPlace::Ceph(ceph) = &options.pool else {
        return Err(Error::failed("only a pool in Ceph can be shared"));
    };
    let memory_bytes = store_memory_bytes(options.memory_bytes);
    let most = groups_max(memory_bytes).min(GROUPS_OPEN_MAX);
    let host = host_name(options.sharing.host_name.clone())?;
    Ok(HostOptions {
        host,
        memory_bytes,
        groups_max: options.sharing.groups_max.unwrap_or(most),
        log_bytes: GROUP_LOG_BYTES,
        when_full: WhenFull::Pause,
        take: take_options(ceph),
        call_timeout: CALL_TIME_MAX,
    })
}

fn log_opened(group: GroupId, store: &Store, report: &RecoveryReport) {
    let names = store.volumes().names();
    let names = match &names[..] {
        [] => "no volumes".to_owned(),
        names => names.join(", "),
    };
    tracing::info!("group {group} ({names}): {}", recovery_line(report));
    for warning in report.warnings() {
        tracing::warn!("group {group}: {warning}");
    }
}

fn log_shards(shards: &[Shard], count: u16) {
    tracing::info!(
        "this host answers for {} of {count} shards of the index",
        shards.len()
    );
}

/// Starts a thread. If it panics, the daemon ends, because it would serve nothing that needs the thread.
fn spawn(
    name: &'static str,
    lost: &UnboundedSender<OwnerEvent>,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let lost = lost.clone();
    let work = move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let reason = format!("the thread '{name}' panicked");
            // If the receiver is gone, the daemon is ending anyway.
            let _ = lost.send(OwnerEvent::Lost { reason });
        }
    };
    let builder = thread::Builder::new().name(name.to_owned());
    builder
        .spawn(work)
        .map_err(|e| Error::io("cannot start a thread for the shared pool", &e))
}

/// Locks a value. A panic elsewhere leaves it consistent, because each change is complete in itself.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
