//! Who is connected.
//!
//! A connection is registered from its acceptance until its last request has ended and its export
//! is dropped. The name of the export is entered *before* the daemon is asked to attach it: whoever
//! first bars an export and then asks this registry to disconnect its clients misses nobody.

use crate::export::{AttachError, Attached, ExportSummary, Exports, Peer};
use crate::socket::Socket;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A client that is attached to an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Counts up from 1 over the life of the server; log messages name it.
    pub id: u64,
    /// The export's name.
    pub export: String,
    /// Who it is.
    pub peer: Peer,
    /// When it connected.
    pub since: SystemTime,
    /// What it has done so far.
    pub traffic: Traffic,
}

/// What clients have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Requests received.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes of data sent.
    pub read_bytes: u64,
    /// Bytes of data stored.
    pub written_bytes: u64,
}

impl Traffic {
    fn add(&mut self, more: Traffic) {
        self.requests += more.requests;
        self.errors += more.errors;
        self.read_bytes += more.read_bytes;
        self.written_bytes += more.written_bytes;
    }
}

/// [`Traffic`] in the making.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: usize) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Registry {
    connections_max: usize,
    state: Mutex<RegistryState>,
    gone: Condvar,
}

#[derive(Debug, Default)]
struct RegistryState {
    connections: BTreeMap<u64, Entry>,
    last_id: u64,
    closed: bool,
    /// Of connections that have ended.
    past_traffic: Traffic,
}

#[derive(Debug)]
struct Entry {
    socket: Arc<Socket>,
    since: SystemTime,
    /// Present once the client has chosen.
    export: Option<String>,
    counters: Arc<Counters>,
}

/// Why a connection was not registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRegistered {
    #[error("there are {0} connections already, which is the limit")]
    Full(usize),
    #[error("the server is shutting down")]
    Closed,
}

impl Registry {
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self {
            connections_max,
            state: Mutex::new(RegistryState::default()),
            gone: Condvar::new(),
        })
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        socket: Arc<Socket>,
    ) -> Result<Registration, NotRegistered> {
        let mut state = self.lock();
        if state.closed {
            return Err(NotRegistered::Closed);
        }
        if state.connections.len() >= self.connections_max {
            return Err(NotRegistered::Full(self.connections_max));
        }
        state.last_id += 1;
        let id = state.last_id;
        let counters = Arc::new(Counters::default());
        let entry = Entry {
            socket,
            since: SystemTime::now(),
            export: None,
            counters: Arc::clone(&counters),
        };
        state.connections.insert(id, entry);
        Ok(Registration {
            registry: Arc::clone(self),
            id,
            counters,
        })
    }

    pub(crate) fn clients(&self) -> Vec<Client> {
        let state = self.lock();
        let attached = |(id, entry): (&u64, &Entry)| {
            Some(Client {
                id: *id,
                export: entry.export.clone()?,
                peer: entry.socket.peer(),
                since: entry.since,
                traffic: entry.counters.snapshot(),
            })
        };
        state.connections.iter().filter_map(attached).collect()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let state = self.lock();
        let mut traffic = state.past_traffic;
        for entry in state.connections.values() {
            traffic.add(entry.counters.snapshot());
        }
        traffic
    }

    /// Cuts off the clients of an export. Returns how many there were, and how many of its clients
    /// are left after `time_max`.
    pub(crate) fn disconnect(&self, export: &str, time_max: Duration) -> (usize, usize) {
        let of_export = |entry: &Entry| entry.export.as_deref() == Some(export);
        let mut state = self.lock();
        let mut cut_off = 0;
        for entry in state.connections.values().filter(|entry| of_export(entry)) {
            entry.socket.close();
            cut_off += 1;
        }
        let remaining = |state: &RegistryState| {
            state
                .connections
                .values()
                .filter(|entry| of_export(entry))
                .count()
        };
        state = self.wait_until(state, time_max, |state| remaining(state) == 0);
        (cut_off, remaining(&state))
    }

    /// Registers nobody any more, and lets every client finish what it has sent.
    pub(crate) fn drain(&self) {
        let mut state = self.lock();
        state.closed = true;
        for entry in state.connections.values() {
            entry.socket.drain();
        }
    }

    /// Cuts everybody off; returns how many there were.
    pub(crate) fn close(&self) -> usize {
        let state = self.lock();
        for entry in state.connections.values() {
            entry.socket.close();
        }
        state.connections.len()
    }

    /// Waits until nobody is connected; returns whether that has come to pass in time.
    pub(crate) fn wait_until_empty(&self, time_max: Duration) -> bool {
        let state = self.lock();
        let state = self.wait_until(state, time_max, |state| state.connections.is_empty());
        state.connections.is_empty()
    }

    fn wait_until<'a>(
        &self,
        mut state: MutexGuard<'a, RegistryState>,
        time_max: Duration,
        condition: impl Fn(&RegistryState) -> bool,
    ) -> MutexGuard<'a, RegistryState> {
        let started = Instant::now();
        while !condition(&state) {
            let left = time_max.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            let waited = self.gone.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place in the registry, until dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Arc<Registry>,
    id: u64,
    counters: Arc<Counters>,
}

impl Registration {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    fn enter_export(&self, name: Option<&str>) {
        let mut state = self.registry.lock();
        if let Some(entry) = state.connections.get_mut(&self.id) {
            entry.export = name.map(str::to_owned);
        }
        // Who waits for the clients of an export to go must hear of one that was refused.
        self.registry.gone.notify_all();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        state.connections.remove(&self.id);
        state.past_traffic.add(self.counters.snapshot());
        self.registry.gone.notify_all();
    }
}

/// The daemon's exports as one connection is offered them.
pub(crate) struct RegisteringExports<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) registration: &'a Registration,
}

impl Exports for RegisteringExports<'_> {
    fn names(&self) -> Vec<String> {
        self.exports.names()
    }

    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError> {
        self.exports.describe(name)
    }

    fn snapshots(&self, name: &str) -> Vec<String> {
        self.exports.snapshots(name)
    }

    fn attach(&self, name: &str, since: &[String], peer: &Peer) -> Result<Attached, AttachError> {
        self.registration.enter_export(Some(name));
        let attached = self.exports.attach(name, since, peer);
        if attached.is_err() {
            self.registration.enter_export(None);
        }
        attached
    }
}
