//! Serves the pool's volumes as NBD exports: their list, clients and addresses.

use super::ServeOptions;
use super::served::ServedStores;
use crate::control::runtime_directories;
use crate::limits::{DISCONNECT_TIME_MAX, NBD_WORKERS, request_memory_bytes};
use nix::unistd::Group;
use onefold_api::{Clients, ExportStatistics, Hold, NbdStatistics, OpDurations, OpStatistics};
use onefold_api::{Error, Result};
use onefold_jobs::SnapshotReads;
use onefold_nbd::{
    AttachError, Attached, Blocking, Changes, Client, CopyExport, DURATION_BUCKETS, Export,
    ExportError, ExportSummary, Exports, Extent, Histogram, ListenAddress, ListenError,
    ListenOptions, Listener, Op, Peer, Server, ServerLimits, Shutdown, VolumeChanges,
};
use onefold_store::{Store, StoreErrorKind, Volume, full_name, split_name};
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// File name of the pool's default socket.
const DEFAULT_SOCKET: &str = "nbd.sock";

/// An NBD server with all volumes of a pool.
pub(super) struct NbdService {
    server: Server,
    exports: Arc<VolumeExports>,
    addresses: Vec<ListenAddress>,
}

/// Listens at the addresses in the options and at the sockets that systemd passed; if there are none, in the
/// pool's directory.
pub(super) fn listen(
    options: &ServeOptions,
    mut listeners: Vec<Listener>,
) -> Result<Vec<Listener>> {
    let listen_options = ListenOptions {
        unix_mode: options.socket_mode,
        unix_group: options.socket_group.as_deref().map(group_id).transpose()?,
        insecure_listen: options.insecure_listen,
    };
    for address in &options.addresses {
        listeners.push(Listener::bind(address, &listen_options).map_err(|e| refused(&e))?);
    }
    if listeners.is_empty() {
        let bound = bind_default(options.pool.directory(), &listen_options);
        listeners.push(bound.map_err(|e| refused(&e))?);
    }
    Ok(listeners)
}

/// Listens in the pool's directory, or elsewhere if that has no room for a socket.
fn bind_default(
    pool: &Path,
    options: &ListenOptions,
) -> std::result::Result<Listener, ListenError> {
    let socket_in = |directory: &Path| ListenAddress::Unix(directory.join(DEFAULT_SOCKET));
    Listener::bind(&socket_in(pool), options).or_else(|error| {
        if !error.lacks_space() {
            return Err(error);
        }
        let mut directories = runtime_directories(pool).into_iter();
        let elsewhere = directories.find_map(|directory| {
            fs::create_dir_all(&directory).ok()?;
            Listener::bind(&socket_in(&directory), options).ok()
        });
        if let Some(listener) = &elsewhere {
            let address = listener.address();
            tracing::warn!(
                "the pool's directory has no room for a socket: clients find the daemon at {address}"
            );
        }
        elsewhere.ok_or(error)
    })
}

impl NbdService {
    /// Starts serving clients at `listeners`, including clients that already wait there.
    pub(super) fn start(
        options: &ServeOptions,
        clients_max: usize,
        listeners: Vec<Listener>,
        stores: &Arc<ServedStores>,
    ) -> Result<Self> {
        let addresses = listeners
            .iter()
            .map(|listener| listener.address().clone())
            .collect();
        let exports = Arc::new(VolumeExports {
            stores: Arc::clone(stores),
            held: Arc::new(Mutex::new(HashMap::new())),
            default_export: options.default_export.clone(),
        });
        let memory_bytes = request_memory_bytes(options.memory_bytes);
        let limits = ServerLimits {
            memory_bytes: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
            connections: clients_max,
            worker_threads: NBD_WORKERS,
        };
        let offered: Arc<dyn Exports> = exports.clone();
        let server = Server::start(listeners, offered, &limits)
            .map_err(|e| Error::io("cannot start the NBD server", &e))?;
        Ok(Self {
            server,
            exports,
            addresses,
        })
    }

    /// The server's addresses, for a message to the user.
    pub(super) fn addresses_line(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        addresses.join(", ")
    }

    /// Stops the server after clients have finished the requests they have sent.
    pub(super) fn shut_down(&self, time_max: Duration) {
        let Shutdown { cut_off, quiet } = self.server.shutdown(time_max);
        if cut_off > 0 {
            tracing::warn!("{cut_off} clients did not finish in time and were cut off");
        }
        if !quiet {
            tracing::error!("requests still wait for the disk");
        }
    }
}

fn refused(error: &ListenError) -> Error {
    match error {
        ListenError::NotLoopback { .. } => Error::usage(error.to_string()),
        _ => Error::failed(error.to_string()),
    }
}

/// Resolves a group given by name or number to its id.
fn group_id(group: &str) -> Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    match Group::from_name(group) {
        Ok(Some(found)) => Ok(found.gid.as_raw()),
        Ok(None) => Err(Error::failed(format!("there is no group '{group}'"))),
        Err(e) => Err(Error::io(
            format_args!("cannot look up the group '{group}'"),
            &e.into(),
        )),
    }
}

impl Clients for NbdService {
    fn clients(&self, volume: &str) -> Vec<String> {
        let here = |client: &Client| {
            let copied = client.export.parse::<CopyExport>();
            client.export == volume || copied.is_ok_and(|copy| copy.snapshot() == volume)
        };
        let clients = self.server.clients().into_iter().filter(here);
        clients.map(|client| client.peer.to_string()).collect()
    }

    fn hold(&self, volume: &str) -> Hold {
        Box::new(HeldVolume::new(&self.exports.held, volume))
    }

    fn disconnect(&self, volume: &str) -> Result<()> {
        let copy = CopyExport::of(volume).map(|copy| copy.to_string());
        for export in [Some(volume), copy.as_deref()].into_iter().flatten() {
            self.server
                .disconnect(export, DISCONNECT_TIME_MAX)
                .map_err(|remaining| {
                    Error::failed(format!(
                        "{remaining} clients of volume '{volume}' were disconnected, but requests of \
                         theirs still wait for the disk; try again later"
                    ))
                })?;
        }
        Ok(())
    }

    fn waiting_for_space(&self) -> u64 {
        self.server.requests_waiting_for_space() as u64
    }

    fn statistics(&self) -> NbdStatistics {
        let statistics = self.server.statistics();
        let mut exports = Vec::new();
        for (name, export) in statistics.exports {
            // Names of deleted volumes must not fill memory or the metrics.
            if self.exports.stores.of(&exported(&name)).is_none() && export.clients == 0 {
                self.server.forget_statistics(&name);
                continue;
            }
            let ops = Op::ALL.map(|op| OpStatistics {
                op: op.name(),
                ok: export.totals.requests[op].ok,
                error: export.totals.requests[op].error,
                bytes: export.totals.bytes[op],
            });
            exports.push(ExportStatistics {
                name,
                clients: export.clients as u64,
                waited_for_worker: export.totals.waited_for_worker,
                ops: ops.to_vec(),
            });
        }
        let durations = Op::ALL.map(|op| durations_of(op, &statistics.durations[op]));
        NbdStatistics {
            exports,
            durations: durations.to_vec(),
            waiting_requests: self.waiting_for_space(),
            buffer_bytes: self.server.shared_memory_bytes() as u64,
        }
    }

    fn nbd_uri(&self, volume: &str) -> Option<String> {
        self.addresses.first().map(|address| uri(address, volume))
    }
}

fn durations_of(op: Op, durations: &Histogram) -> OpDurations {
    let bounds = DURATION_BUCKETS.iter().map(Duration::as_secs_f64);
    let bounds = bounds.chain([f64::INFINITY]);
    OpDurations {
        op: op.name(),
        buckets: bounds.zip(durations.buckets).collect(),
        sum_seconds: durations.sum.as_secs_f64(),
        count: durations.count(),
    }
}

/// The NBD server's view of the pool.
struct VolumeExports {
    stores: Arc<ServedStores>,
    held: Arc<Mutex<Held>>,
    /// The volume for clients that name no export; if not set, the only volume.
    default_export: Option<String>,
}

/// The number of commands that hold each volume, by name.
type Held = HashMap<String, usize>;

impl Exports for VolumeExports {
    /// Lists volumes first, so that they never fall off the end of a truncated list.
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        let (volumes_after, snapshots_after) = match after {
            Some(after) if split_name(after).1.is_some() => (None, after),
            after => (Some(after.unwrap_or_default()), ""),
        };
        let mut names = volumes_after
            .map(|after| self.volume_names_after(after, names_max))
            .unwrap_or_default();
        let left = names_max - names.len();
        let of_store = |store: &Store| store.volumes().snapshot_names_after(snapshots_after, left);
        names.extend(self.stores.first_names(left, of_store));
        names
    }

    fn describe(&self, name: &str) -> std::result::Result<ExportSummary, AttachError> {
        self.volume(&exported(name))
            .map(|volume| ExportSummary::of(volume.as_ref()))
    }

    fn default_export(&self) -> Option<String> {
        self.default_export.clone().or_else(|| {
            let mut volumes = self.volume_names_after("", 2);
            match volumes.len() {
                1 => volumes.pop(),
                _ => None,
            }
        })
    }

    fn devices(&self) -> usize {
        let stores = self.stores.all();
        stores
            .iter()
            .map(|served| served.store.volumes().count())
            .sum()
    }

    fn snapshots(&self, name: &str, snapshots_max: usize) -> Vec<String> {
        let of_volume = full_name(split_name(name).0, "");
        // Ask for one more, because the snapshot itself may be among the results.
        let store = self.stores.of(split_name(name).0);
        let found = store.map(|served| {
            let volumes = served.store.volumes();
            volumes.snapshot_names_after(&of_volume, snapshots_max + 1)
        });
        let found = found.unwrap_or_default();
        let others = found.iter().filter(|other| *other != name);
        others
            .map_while(|other| other.strip_prefix(&of_volume).map(str::to_owned))
            .take(snapshots_max)
            .collect()
    }

    fn has_snapshot(&self, name: &str, snapshot: &str) -> bool {
        let full = full_name(split_name(name).0, snapshot);
        full != name && self.stores.of(&full).is_some()
    }

    fn attach(
        &self,
        name: &str,
        since: &[String],
        _peer: &Peer,
    ) -> std::result::Result<Attached, AttachError> {
        let copy = name.parse::<CopyExport>().ok();
        let name = copy.as_ref().map_or(name, CopyExport::snapshot);
        if lock(&self.held).contains_key(name) {
            return Err(AttachError::Refused(format!(
                "volume '{name}' is being changed"
            )));
        }
        let volume = self.volume(name)?;
        let changes = since.iter().map(|snapshot| {
            let changes: Arc<dyn Changes> = Arc::new(VolumeChanges {
                volume: Arc::clone(&volume),
                since: self.volume(&full_name(split_name(name).0, snapshot))?,
            });
            Ok(changes)
        });
        Ok(Attached {
            changes: changes.collect::<std::result::Result<_, _>>()?,
            export: match copy {
                None => volume,
                Some(_) => Arc::new(CopiedSnapshot {
                    snapshot: volume,
                    reads: self
                        .stores
                        .of(name)
                        .ok_or(AttachError::Unknown)?
                        .snapshot_reads(),
                }),
            },
        })
    }
}

/// The volume or snapshot that an export name refers to.
fn exported(export: &str) -> String {
    let copy = export.parse::<CopyExport>();
    copy.map_or_else(|_| export.to_owned(), |copy| copy.snapshot().to_owned())
}

/// A snapshot as a backup reads it: requests of guests take priority.
struct CopiedSnapshot {
    snapshot: Arc<Volume>,
    reads: Arc<SnapshotReads>,
}

impl Export for CopiedSnapshot {
    fn size_bytes(&self) -> u64 {
        Export::size_bytes(&*self.snapshot)
    }

    fn preferred_block_bytes(&self) -> u32 {
        self.snapshot.preferred_block_bytes()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn is_background(&self) -> bool {
        true
    }

    fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> std::result::Result<(), ExportError> {
        let bytes = buf.len() as u64;
        let read = || self.snapshot.read_to_copy(offset, buf, blocking);
        Ok(self.reads.read(bytes, read)?)
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> std::result::Result<Vec<Extent>, ExportError> {
        Export::extents(&*self.snapshot, range, extents_max, blocking)
    }

    fn prefetch(
        &self,
        range: Range<u64>,
        scratch: &mut [u8],
    ) -> std::result::Result<(), ExportError> {
        let bytes = range.end - range.start;
        let prefetch = || Export::prefetch(&*self.snapshot, range, scratch);
        self.reads.read(bytes, prefetch)
    }
}

impl VolumeExports {
    fn volume_names_after(&self, after: &str, names_max: usize) -> Vec<String> {
        let of_store = |store: &Store| store.volumes().names_after(after, names_max);
        self.stores.first_names(names_max, of_store)
    }

    fn volume(&self, name: &str) -> std::result::Result<Arc<Volume>, AttachError> {
        // Avoid reading the catalogue just for the reason, which takes time and the lock of the uncommitted
        // state.
        let Some(served) = self.stores.of(name) else {
            return Err(AttachError::Unknown);
        };
        match served.store.volume(name) {
            Ok(volume) => Ok(volume),
            Err(error) if error.kind() == StoreErrorKind::NotFound => Err(AttachError::Unknown),
            Err(error) => Err(AttachError::Refused(error.to_string())),
        }
    }
}

/// Guard that keeps clients from attaching to a volume.
struct HeldVolume {
    held: Arc<Mutex<Held>>,
    volume: String,
}

impl HeldVolume {
    fn new(held: &Arc<Mutex<Held>>, volume: &str) -> Self {
        *lock(held).entry(volume.to_owned()).or_default() += 1;
        Self {
            held: Arc::clone(held),
            volume: volume.to_owned(),
        }
    }
}

impl Drop for HeldVolume {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(count) = held.get_mut(&self.volume) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.volume);
            }
        }
    }
}

/// Locks the counts. A panic elsewhere leaves them consistent, because each change is complete in itself.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The NBD URI of a volume, in the NBD project's syntax, which clients such as `nbdinfo` and `qemu-img`
/// accept.
fn uri(address: &ListenAddress, volume: &str) -> String {
    match address {
        ListenAddress::Unix(path) => {
            // The client may run in another directory.
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("nbd+unix:///{volume}?socket={}", escaped(&absolute))
        }
        ListenAddress::Tcp(address) => format!("nbd://{address}/{volume}"),
    }
}

/// Escapes a path for the query of a URI.
fn escaped(path: &Path) -> String {
    let mut uri = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                uri.push(char::from(*byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_the_volume_and_the_socket() {
        let unix = ListenAddress::Unix("/srv/my pool/nbd.sock".into());
        assert_eq!(
            uri(&unix, "vm1"),
            "nbd+unix:///vm1?socket=/srv/my%20pool/nbd.sock"
        );
        let tcp = ListenAddress::Tcp("[::1]:10809".into());
        assert_eq!(uri(&tcp, "vm1"), "nbd://[::1]:10809/vm1");
    }

    #[test]
    fn a_volume_is_held_until_the_last_holder_lets_go() {
        let held = Arc::new(Mutex::new(Held::new()));
        let first = HeldVolume::new(&held, "vm");
        let second = HeldVolume::new(&held, "vm");
        drop(first);
        assert!(lock(&held).contains_key("vm"));
        drop(second);
        assert!(lock(&held).is_empty());
    }

    #[test]
    fn groups_go_by_number_too() {
        assert_eq!(group_id("0"), Ok(0));
        assert_eq!(group_id("root"), Ok(0));
        assert!(group_id("no-such-group").is_err());
    }
}
