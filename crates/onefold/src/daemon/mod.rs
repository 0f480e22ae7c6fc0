//! The process behind `onefold serve`: one pool, its volumes over NBD, and its control socket. Of a pool that hosts
//! share it serves the groups of this host (`shared.rs`).
//!
//! Invariant: the pool's lock is taken first and released last, so everything else here, including stale
//! sockets, may be replaced without further checks.
//!
//! Crash behaviour: nothing here has to be undone. The kernel releases the lock, and the next start replaces
//! the sockets and replays the log.

mod exports;
mod housekeeping;
mod kept_data;
mod metrics;
mod served;
mod shared;

use crate::control::server::ControlSocket;
use crate::descriptors;
use crate::limits::{
    ACCOUNTING_INTERVAL, CONTROL_COMMANDS_MAX, DRAIN_TIME_MAX, REQUESTS_END_TIME_MAX, TRANSFERS_MAX,
};
use crate::logging::log_to_stderr;
use crate::pool::place::PoolPlace;
use crate::pool::{self, Claim, Opening};
use crate::session::recovery_line;
use exports::{NbdService, listen};
use housekeeping::Housekeeping;
use metrics::MetricsServer;
use onefold_api::{Error, Result};
use onefold_api::{Service, Stores};
use onefold_engine::embedded::CacheMode;
use onefold_engine::rados::OwnerEvent;
use onefold_jobs::{Maintenance, MaintenanceOptions};
use onefold_nbd::{ListenAddress, Listener};
use onefold_store::Store;
use served::ServedStores;
use shared::SharedHost;
use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The options of `onefold serve`.
#[derive(Debug)]
pub(crate) struct ServeOptions {
    pub(crate) pool: PoolPlace,
    /// Ask the host that owns the pool to give it up.
    pub(crate) take: bool,
    /// Addresses to listen at; if empty, the sockets that systemd passed, or the default.
    pub(crate) addresses: Vec<ListenAddress>,
    pub(crate) cache: CacheMode,
    pub(crate) memory_bytes: u64,
    /// What only a pool that hosts share needs.
    pub(crate) sharing: Sharing,
    /// The latency of guests' requests that background work must not exceed.
    pub(crate) latency_budget: Duration,
    /// Address for monitoring, if it is enabled.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) socket_mode: u32,
    pub(crate) socket_group: Option<String>,
    pub(crate) insecure_listen: bool,
    /// The volume for clients that name no export.
    pub(crate) default_export: Option<String>,
}

/// How this host takes part in a shared pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sharing {
    /// The host's name in the pool, if it is not the system's.
    pub(crate) host_name: Option<String>,
    /// The most groups that are open at a time, if that is not what the memory allows.
    pub(crate) groups_max: Option<u64>,
}

impl Sharing {
    /// Refuses the options for a pool with one owner.
    fn check_unused(&self) -> Result<()> {
        let used = [
            ("--host-name", self.host_name.is_some()),
            ("--groups-max", self.groups_max.is_some()),
        ];
        match used.iter().find(|(_, is_used)| *is_used) {
            Some((option, _)) => Err(Error::usage(format!(
                "{option} is for pools that hosts share, and this pool has one owner"
            ))),
            None => Ok(()),
        }
    }
}

/// The pool that this process has opened.
enum OpenPool {
    /// A pool with one owner.
    One(Arc<Store>),
    /// A pool that hosts share.
    Shared(Arc<SharedHost>),
}

impl OpenPool {
    fn stores(&self) -> Stores {
        match self {
            Self::One(store) => Stores::One(Arc::clone(store)),
            Self::Shared(host) => Stores::Shared(host.clone()),
        }
    }

    fn close(&self) -> Result<()> {
        match self {
            Self::One(store) => Ok(store.close()?),
            Self::Shared(host) => host.close(),
        }
    }
}

/// Serves until a signal arrives, then closes the pool so that the next open has nothing to replay.
pub(crate) fn serve(options: &ServeOptions) -> Result<()> {
    // Before any thread is started, because this changes the environment.
    let mut inherited = Listener::inherited().map_err(|e| {
        Error::io(
            "cannot use the sockets that this process was started with",
            &e,
        )
    })?;
    log_to_stderr();
    let clients_max = descriptors::divide()?;
    let _lock = match pool::claim(&options.pool)? {
        Claim::Ours(lock) => lock,
        Claim::Held { holder } => {
            return Err(Error::failed(format!(
                "the pool {} is in use by {holder}",
                options.pool
            )));
        }
    };
    let runtime = control_runtime()?;
    // From here on, signals are queued until there is something to stop.
    let (events, owner_events) = unbounded_channel();
    let mut signals = runtime.block_on(async { Signals::new(owner_events) })?;
    // Bind before opening the pool: a wrong address is refused before anything changes, and commands and
    // clients that reconnect after a crash wait for the recovery instead of failing. The control socket is
    // first, because a process that sees that NBD clients can connect may rely on it.
    let control = {
        // Sockets are registered with the runtime that will poll them.
        let _entered = runtime.enter();
        ControlSocket::bind(options.pool.directory())?
    };
    let kept_data = kept_data::inherited(&mut inherited);
    let is_kept = kept_data.is_some();
    let sockets = Sockets {
        control,
        listeners: listen(options, inherited.listeners)?,
        clients_max,
    };
    let metrics = options.metrics;
    let metrics = metrics.map(|address| MetricsServer::start(address, options.insecure_listen));
    let metrics = metrics.transpose()?;
    let pool = open(options, kept_data, events)?;
    check_default_export(options, &pool);
    if !is_kept {
        kept_data::keep(&options.pool);
    }
    if let OpenPool::One(store) = &pool {
        heed_host_errors(store);
    }
    let served = serve_pool(
        options,
        sockets,
        metrics.as_ref(),
        &pool,
        &runtime,
        &mut signals,
    );
    // Ends imports in progress, which then remove the data they stored.
    runtime.shutdown_timeout(REQUESTS_END_TIME_MAX);
    let closed = pool.close();
    if closed.is_ok() {
        tracing::info!("pool closed");
    }
    served.and(closed)
}

/// Warns of a default export that is no volume.
fn check_default_export(options: &ServeOptions, pool: &OpenPool) {
    let stores = pool.stores().all();
    let is_there = |volume: &String| stores.iter().any(|store| store.volumes().has(volume));
    if let Some(volume) = options
        .default_export
        .as_ref()
        .filter(|volume| !is_there(volume))
    {
        tracing::warn!("the default export '{volume}' is not a volume yet");
    }
}

/// Opens the pool. `events` receives changes of its ownership.
fn open(
    options: &ServeOptions,
    kept_data: Option<File>,
    events: UnboundedSender<OwnerEvent>,
) -> Result<OpenPool> {
    if let Some(host) = pool::shared::open_host(&options.pool)? {
        return Ok(OpenPool::Shared(SharedHost::open(options, host, events)?));
    }
    options.sharing.check_unused()?;
    let opening = Opening {
        cache: options.cache,
        memory_bytes: options.memory_bytes,
        repair: false,
        asks_owner: options.take,
        kept_data,
        // If the receiver is gone, the daemon is ending anyway.
        on_owner_event: Some(Arc::new(move |event| _ = events.send(event))),
    };
    let (store, recovery) = pool::open(&options.pool, opening)?;
    tracing::info!("{}", recovery_line(&recovery));
    for warning in recovery.warnings() {
        tracing::warn!("{warning}");
    }
    if options.cache == CacheMode::Direct && !store.prepares_writes() {
        tracing::warn!(
            "the host does not let this process use io_uring: with --cache direct each write takes a thread"
        );
    }
    Ok(OpenPool::One(store))
}

/// Collects, in the background, the write errors that the host has had so far, including errors of other
/// files, so that the next process does not take an old error for a new one. This can take as long as writing
/// out the whole file system.
fn heed_host_errors(store: &Arc<Store>) {
    let store = Arc::clone(store);
    let heed = move || {
        if let Err(error) = store.heed_host_errors() {
            tracing::warn!("{error}");
        }
    };
    // Without this thread, an old report counts as a new one after a kill.
    if let Err(error) = std::thread::Builder::new()
        .name("host-errors".into())
        .spawn(heed)
    {
        tracing::warn!(
            "the host's older write errors cannot be distinguished from later ones: {error}"
        );
    }
}

/// The sockets for commands and clients.
struct Sockets {
    control: ControlSocket,
    listeners: Vec<Listener>,
    clients_max: usize,
}

/// Serves clients and commands until the daemon is to stop.
fn serve_pool(
    options: &ServeOptions,
    sockets: Sockets,
    metrics: Option<&MetricsServer>,
    pool: &OpenPool,
    runtime: &Runtime,
    signals: &mut Signals,
) -> Result<()> {
    let maintenance_options = MaintenanceOptions {
        latency_budget: options.latency_budget,
        accounting_interval: ACCOUNTING_INTERVAL,
    };
    let maintenance = Maintenance::start(maintenance_options)
        .map_err(|e| Error::io("cannot start the background jobs", &e))?;
    let maintenance = Arc::new(maintenance);
    let stores = pool.stores();
    let served = Arc::new(ServedStores::new(&maintenance));
    stores.all().into_iter().for_each(|store| served.add(store));
    let nbd = Arc::new(NbdService::start(
        options,
        sockets.clients_max,
        sockets.listeners,
        &served,
    )?);
    let service = Service {
        stores,
        clients: Some(nbd.clone()),
        maintenance: Some(Arc::clone(&maintenance)),
        is_abandoned: None,
    };
    let _logging = Housekeeping::log_health(service.clone());
    if let OpenPool::Shared(host) = pool {
        host.begin(&served, &nbd)?;
    }
    if let Some(metrics) = metrics {
        metrics.set(service.clone(), options.pool.to_string());
    }
    tracing::info!("serving {} on {}", options.pool, nbd.addresses_line());
    let end = runtime.block_on(async {
        tokio::select! {
            end = signals.next() => end,
            never = sockets.control.serve(service) => match never {},
        }
    });
    end.log(&options.pool);
    // Stop jobs first, so that guests have the disk to themselves for their last requests.
    if let OpenPool::Shared(host) = pool {
        host.end();
    }
    maintenance.stop();
    nbd.shut_down(DRAIN_TIME_MAX);
    match pool {
        OpenPool::One(_) => served.end(),
        // A group is given up once nothing holds its store: then the next owner need not fence this process.
        OpenPool::Shared(_) => served.remove_all(),
    }
    end.into_result(&options.pool)
}

/// Creates a runtime with one thread for the control socket and signals, and a bounded number for requests.
fn control_runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        // An export needs a second thread while it starts.
        .max_blocking_threads(CONTROL_COMMANDS_MAX + 2 * TRANSFERS_MAX)
        .build()
        .map_err(|e| Error::io("cannot start the control thread", &e))
}

/// The reason why a daemon ends.
enum End {
    /// A signal arrived.
    Signal(&'static str),
    /// The pool was requested by another host.
    Wanted,
    /// The pool was taken over by another host.
    Lost(String),
    /// The pool no longer exists in the cluster.
    Gone,
}

impl End {
    fn log(&self, pool: &PoolPlace) {
        match self {
            Self::Signal(signal) => tracing::info!("{signal}: finishing the requests in flight"),
            Self::Wanted => {
                tracing::info!("another host wants the pool: finishing the requests in flight")
            }
            Self::Lost(reason) => tracing::error!(
                "another host has taken the pool ({reason}): guests get errors from now on"
            ),
            Self::Gone => tracing::error!(
                "the cluster has the pool {} no more: guests get errors from now on",
                pool
            ),
        }
    }

    /// The result of a daemon that ended for this reason.
    fn into_result(self, pool: &PoolPlace) -> Result<()> {
        match self {
            Self::Signal(_) | Self::Wanted => Ok(()),
            Self::Lost(_) => Err(Error::failed(format!(
                "another host has taken the pool {}",
                pool
            ))),
            Self::Gone => Err(Error::failed(format!(
                "the cluster has the pool {} no more: its head is gone, and perhaps the whole Ceph pool; \
                 restore its volumes from a backup",
                pool
            ))),
        }
    }
}

/// Events that end a daemon: signals, and changes of the pool's ownership.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    owner_events: UnboundedReceiver<OwnerEvent>,
}

impl Signals {
    fn new(owner_events: UnboundedReceiver<OwnerEvent>) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io("cannot listen for signals", &e);
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self {
            terminate,
            interrupt,
            owner_events,
        })
    }

    async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.terminate.recv() => End::Signal("SIGTERM"),
            _ = self.interrupt.recv() => End::Signal("SIGINT"),
            // A pool in a directory sends no such events.
            Some(event) = self.owner_events.recv() => match event {
                OwnerEvent::ReleaseWanted => End::Wanted,
                OwnerEvent::Lost { reason } => End::Lost(reason),
                OwnerEvent::Gone => End::Gone,
            },
        }
    }
}
