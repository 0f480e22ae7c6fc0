//! Connected clients.
//!
//! A connection is registered from its acceptance until its last request has ended and its export
//! is dropped. The name of the export is entered *before* the daemon is asked to attach it: a
//! caller that first bars an export and then asks this registry to disconnect its clients misses no
//! client.
//!
//! Places are limited, and inactive connections lose theirs first:
//! - Connections that have not chosen an export have [`HANDSHAKES_MAX`] separate places. If all are
//!   taken, the oldest is cut off.
//! - Attached ones have the server's limit. For each device without a client a place is kept, up to
//!   half of all, from further clients of other devices. So every guest gets in again after a
//!   restart, even if others came before it. If there is no place, the oldest client that has never
//!   sent a request is cut off; if there is none, the newcomer is refused.
//! - No connection is cut off within [`SILENCE_TIME_MIN`].

use crate::export::{AttachError, Attached, ExportSummary, Exports, Peer};
use crate::limits::{HANDSHAKES_MAX, PLACE_RETRY_PAUSE, PLACE_TIME_MAX, SILENCE_TIME_MIN};
use crate::log_limit::LogLimit;
use crate::socket::Socket;
use crate::statistics::{Counters, ServerStatistics, Totals};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A client that is attached to an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The client's number, counted from 1 over the life of the server; also in log messages.
    pub id: u64,
    /// The export's name.
    pub export: String,
    /// The client.
    pub peer: Peer,
    /// When the client connected.
    pub since: SystemTime,
    /// The client's requests so far.
    pub totals: Totals,
}

#[derive(Debug)]
pub(crate) struct Registry {
    connections_max: usize,
    /// Whether the limit on connections is due to memory.
    is_memory_short: bool,
    state: Mutex<RegistryState>,
    gone: Condvar,
}

#[derive(Debug, Default)]
struct RegistryState {
    connections: BTreeMap<u64, Entry>,
    last_id: u64,
    closed: bool,
    /// The totals of connections that have ended.
    past: ServerStatistics,
}

#[derive(Debug)]
struct Entry {
    socket: Arc<Socket>,
    since: SystemTime,
    /// When the client connected, or chose its export.
    stage_since: Instant,
    /// Set when the client has been cut off to make room.
    dropped: bool,
    /// The export, once the client has chosen it.
    export: Option<String>,
    counters: Arc<Counters>,
}

impl Entry {
    fn is_silent(&self) -> bool {
        !self.dropped && !self.counters.has_asked()
    }
}

/// The error that the server is shutting down.
#[derive(Debug)]
pub(crate) struct Closed;

impl RegistryState {
    fn attached(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.connections.values();
        entries.filter(|entry| entry.export.is_some())
    }

    fn handshakes(&self) -> usize {
        self.connections.len() - self.attached().count()
    }

    /// Cuts off the oldest silent connection that is attached, or is not, after at least
    /// `silence_min`. Otherwise returns how long the oldest one still has, if there is any.
    fn drop_silent(
        &mut self,
        attached: bool,
        silence_min: Duration,
    ) -> Result<(), Option<Duration>> {
        let entries = self.connections.values_mut();
        let of_kind =
            entries.filter(|entry| entry.export.is_some() == attached && entry.is_silent());
        let oldest = of_kind.min_by_key(|entry| entry.stage_since).ok_or(None)?;
        match silence_min.checked_sub(oldest.stage_since.elapsed()) {
            Some(left) if !left.is_zero() => Err(Some(left)),
            _ => {
                oldest.dropped = true;
                oldest.socket.close();
                Ok(())
            }
        }
    }
}

impl Registry {
    pub(crate) fn new(connections_max: usize, is_memory_short: bool) -> Arc<Self> {
        Arc::new(Self {
            connections_max,
            is_memory_short,
            state: Mutex::new(RegistryState::default()),
            gone: Condvar::new(),
        })
    }

    /// Enters a connection that has not chosen an export yet; see [`Registry::make_room`].
    pub(crate) fn register(self: &Arc<Self>, socket: Arc<Socket>) -> Result<Registration, Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        state.last_id += 1;
        let id = state.last_id;
        let counters = Arc::new(Counters::default());
        let entry = Entry {
            socket,
            since: SystemTime::now(),
            stage_since: Instant::now(),
            dropped: false,
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

    /// Whether another connection may be accepted. If not, cuts off the oldest one that has not
    /// chosen an export in time.
    pub(crate) fn make_room(&self) -> bool {
        let mut state = self.lock();
        let has_room = state.handshakes() < HANDSHAKES_MAX;
        if !has_room {
            let _ = state.drop_silent(false, SILENCE_TIME_MIN);
        }
        has_room
    }

    /// Cuts off the oldest connection that has not chosen an export, because the system's resources
    /// are exhausted.
    pub(crate) fn give_up_one(&self) {
        let _ = self.lock().drop_silent(false, Duration::ZERO);
    }

    pub(crate) fn clients(&self) -> Vec<Client> {
        let state = self.lock();
        let attached = |(id, entry): (&u64, &Entry)| {
            Some(Client {
                id: *id,
                export: entry.export.clone()?,
                peer: entry.socket.peer(),
                since: entry.since,
                totals: entry.counters.totals(),
            })
        };
        state.connections.iter().filter_map(attached).collect()
    }

    pub(crate) fn statistics(&self) -> ServerStatistics {
        let state = self.lock();
        let mut statistics = state.past.clone();
        for entry in state.connections.values() {
            if let Some(export) = &entry.export {
                statistics.add(export, &entry.counters).clients += 1;
            }
        }
        statistics
    }

    /// Drops the counts of ended connections to an export.
    pub(crate) fn forget_statistics(&self, export: &str) {
        self.lock().past.exports.remove(export);
    }

    /// Cuts off the clients of an export. Returns their number, and how many of them are left after
    /// `time_max`.
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

    /// Stops registering clients, and lets every client finish the requests it has sent.
    pub(crate) fn drain(&self) {
        let mut state = self.lock();
        state.closed = true;
        for entry in state.connections.values() {
            entry.socket.drain();
        }
    }

    /// Cuts off all clients; returns their number.
    pub(crate) fn close(&self) -> usize {
        let state = self.lock();
        for entry in state.connections.values() {
            entry.socket.close();
        }
        state.connections.len()
    }

    /// Waits until no client is connected; returns whether that happened in time.
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

    /// Enters the export that the client has chosen, once there is a place for it.
    fn enter_export(&self, name: &str, exports: &dyn Exports) -> Result<(), AttachError> {
        let registry = &self.registry;
        let limit = registry.connections_max;
        let deadline = Instant::now() + PLACE_TIME_MAX;
        // Queried without the lock, and only if it may matter.
        let is_crowded = registry.lock().attached().count() >= limit / 2;
        let devices = if is_crowded { exports.devices() } else { 0 };
        let mut state = registry.lock();
        while !has_place(&state, limit, name, devices) {
            // A connection that was cut off before may still be ending, or may not be silent for long
            // enough.
            let leaving = state.attached().any(|entry| entry.dropped);
            let leaves = leaving || state.drop_silent(true, SILENCE_TIME_MIN) != Err(None);
            if !leaves || Instant::now() >= deadline {
                let limit_is = if registry.is_memory_short {
                    "the memory for clients has room for no more than that"
                } else {
                    "that is the limit"
                };
                return Err(AttachError::Refused(format!(
                    "there are {} of {limit} clients, and {limit_is}; places are kept for volumes without a client",
                    state.attached().count()
                )));
            }
            let waited = registry.gone.wait_timeout(state, PLACE_RETRY_PAUSE);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(entry) = state.connections.get_mut(&self.id) {
            entry.export = Some(name.to_owned());
            entry.stage_since = Instant::now();
        }
        Ok(())
    }

    fn leave_export(&self) {
        let mut state = self.registry.lock();
        if let Some(entry) = state.connections.get_mut(&self.id) {
            entry.export = None;
        }
        // Wakes callers that wait for the clients of an export to go: this one was refused.
        self.registry.gone.notify_all();
    }
}

/// Whether another client may attach to an export.
fn has_place(state: &RegistryState, limit: usize, name: &str, devices: usize) -> bool {
    let names: BTreeSet<&str> = state
        .attached()
        .filter_map(|entry| entry.export.as_deref())
        .collect();
    let kept = if names.contains(name) {
        devices.saturating_sub(names.len()).min(limit / 2)
    } else {
        0
    };
    state.attached().count() + kept < limit
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let entry = state.connections.remove(&self.id);
        if let Some(export) = entry.and_then(|entry| entry.export) {
            state.past.add(&export, &self.counters);
        }
        self.registry.gone.notify_all();
    }
}

/// The daemon's exports, as offered to one connection.
pub(crate) struct RegisteringExports<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) registration: &'a Registration,
    pub(crate) refusals: &'a LogLimit,
}

impl Exports for RegisteringExports<'_> {
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        self.exports.names(after, names_max)
    }

    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError> {
        self.exports.describe(name)
    }

    fn default_export(&self) -> Option<String> {
        self.exports.default_export()
    }

    fn devices(&self) -> usize {
        self.exports.devices()
    }

    fn snapshots(&self, name: &str, snapshots_max: usize) -> Vec<String> {
        self.exports.snapshots(name, snapshots_max)
    }

    fn has_snapshot(&self, name: &str, snapshot: &str) -> bool {
        self.exports.has_snapshot(name, snapshot)
    }

    fn attach(&self, name: &str, since: &[String], peer: &Peer) -> Result<Attached, AttachError> {
        self.registration
            .enter_export(name, self.exports)
            .inspect_err(|error| {
                self.refusals.line(|left_out| {
                    tracing::warn!(left_out, "{peer} may not attach to {name:?}: {error}");
                });
            })?;
        let attached = self.exports.attach(name, since, peer);
        if attached.is_err() {
            self.registration.leave_export();
        }
        attached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Exports with this number of devices.
    struct Devices(usize);

    impl Exports for Devices {
        fn names(&self, _: Option<&str>, _: usize) -> Vec<String> {
            Vec::new()
        }
        fn devices(&self) -> usize {
            self.0
        }
        fn describe(&self, _: &str) -> Result<ExportSummary, AttachError> {
            Err(AttachError::Unknown)
        }
        fn attach(&self, _: &str, _: &[String], _: &Peer) -> Result<Attached, AttachError> {
            Err(AttachError::Unknown)
        }
    }

    fn connection(registry: &Arc<Registry>) -> Registration {
        let (socket, _) = UnixStream::pair().unwrap();
        let socket = Arc::new(Socket::from_unix(socket).unwrap());
        registry.register(socket).unwrap()
    }

    /// A client that attaches and sends a request.
    fn client(registry: &Arc<Registry>, export: &str) -> Option<Registration> {
        client_of(registry, export, 3)
    }

    fn client_of(registry: &Arc<Registry>, export: &str, devices: usize) -> Option<Registration> {
        let registration = connection(registry);
        registration.enter_export(export, &Devices(devices)).ok()?;
        registration.counters().note_request();
        Some(registration)
    }

    #[test]
    fn a_place_is_kept_for_every_devices_first_client() {
        let registry = Registry::new(4, false);
        let mut of_a: Vec<_> = (0..5).filter_map(|_| client(&registry, "a")).collect();
        assert_eq!(of_a.len(), 2, "two places are kept for two other devices");
        let (b, c) = (client(&registry, "b"), client(&registry, "c"));
        assert!(b.is_some() && c.is_some());
        assert!(client(&registry, "b").is_none());
        assert!(client(&registry, "d").is_none(), "the limit is the limit");
        // When each device has a client, any client can have the other places.
        of_a.pop();
        assert!(client(&registry, "b").is_some());
        drop((b, c));
        assert!(client(&registry, "a").is_some());
    }

    #[test]
    fn the_oldest_that_is_silent_goes_and_none_that_asks() {
        let registry = Registry::new(2, false);
        let silent = connection(&registry);
        silent.enter_export("a", &Devices(0)).unwrap();
        let asks = client_of(&registry, "a", 0).unwrap();
        let is_dropped = |id: u64| registry.lock().connections[&id].dropped;
        assert!(registry.lock().drop_silent(true, Duration::MAX).is_err());
        assert!(!is_dropped(silent.id()));
        assert_eq!(registry.lock().drop_silent(true, Duration::ZERO), Ok(()));
        assert!(is_dropped(silent.id()) && !is_dropped(asks.id()));
        assert_eq!(registry.lock().drop_silent(true, Duration::ZERO), Err(None));
        drop(silent);
        assert!(client_of(&registry, "a", 0).is_some());
    }

    #[test]
    fn a_client_that_is_refused_for_want_of_memory_learns_that() {
        for (is_memory_short, words) in [(true, "memory for clients"), (false, "is the limit")] {
            let registry = Registry::new(1, is_memory_short);
            let _first = client_of(&registry, "a", 0).unwrap();
            let second = connection(&registry).enter_export("a", &Devices(0));
            let refused = second.unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn connections_without_an_export_have_places_of_their_own() {
        let registry = Registry::new(1, false);
        let _client = client(&registry, "a").unwrap();
        let mut waiting = Vec::new();
        while registry.make_room() {
            waiting.push(connection(&registry));
        }
        assert_eq!(waiting.len(), HANDSHAKES_MAX);
        registry.give_up_one();
        assert!(registry.lock().connections[&waiting[0].id()].dropped);
        waiting.remove(0);
        assert!(registry.make_room());
    }
}
