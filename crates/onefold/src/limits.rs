//! Every bound of the command line and the daemon, each with the reason for its value.

use onefold_nbd::HANDSHAKES_MAX;
use std::time::Duration;

/// The default of `--memory` for one process.
pub(crate) const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;

/// With less memory, the shares cannot hold one request of each kind.
pub(crate) const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// The store gets half of the memory: its caches decide how often a request waits for the disk.
pub(crate) const fn store_memory_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 2
}

/// In-flight requests get a quarter of the memory. Clients cannot use more: beyond this share the server
/// stops reading from sockets, which applies back pressure.
pub(crate) const fn request_memory_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 4
}

// The last quarter is a reserve: transfers over the control socket (bounded below), stacks, and memory that
// the allocator cannot return.

/// Concurrent imports and exports of a daemon. With the bounds of transfers they stay within 32 MiB, which
/// leaves half of the smallest reserve for everything else.
pub(crate) const TRANSFERS_MAX: usize = 4;

/// Concurrent commands of a daemon, each on its own thread; further ones are refused.
pub(crate) const CONTROL_COMMANDS_MAX: usize = 32;

/// Imports and exports that may queue for a permit; further ones are refused.
pub(crate) const TRANSFERS_WAITING_MAX: usize = 16;

/// Connections to the control socket; each costs a few tens of KiB. A dozen more than can work or wait, so
/// that there is always one to close in favour of a new one: see `control/connections.rs`.
pub(crate) const CONTROL_CONNECTIONS_MAX: usize =
    CONTROL_COMMANDS_MAX + TRANSFERS_MAX + TRANSFERS_WAITING_MAX + 12;

/// The time that a peer of the control socket may take to send its request, except for an image.
pub(crate) const CONTROL_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// The share of [`CONTROL_REQUEST_TIME_MAX`] for each peer while only one descriptor is left and others wait
/// for it.
pub(crate) const CONTROL_REQUEST_TIME_MIN: Duration = Duration::from_secs(1);

/// The longest pause in the data of an import before it fails, because other imports may be waiting. It is
/// longer than a program computes before it produces output.
pub(crate) const IMPORT_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// A command that has waited this long for a reply from the daemon prints a note.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The largest body of a request other than an import: a name or two.
pub(crate) const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;

/// Progress events that are buffered for a slow reader of the control socket.
pub(crate) const CONTROL_EVENTS_MAX: usize = 64;

/// The interval of the store's housekeeping.
pub(crate) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which unflushed records are committed, so that the blocks they release can be reused. Each
/// commit makes the host write out all data since the last one, and guests wait for part of that, so commits
/// are as rare as a file system's own journal commits.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which the daemon checks the pool's health and logs changes.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which a daemon scans all maps to compute each volume's exclusive data. The reads cost
/// little at this rate, and a user can also request a scan.
pub(crate) const ACCOUNTING_INTERVAL: Duration = Duration::from_secs(3600);

/// Connections for monitoring; further ones are closed. A scraper uses one at a time.
pub(crate) const METRICS_CONNECTIONS_MAX: usize = 16;

/// Scrapes that are answered concurrently; each may wait for the disk on its own thread.
pub(crate) const METRICS_SCRAPES_MAX: usize = 2;

/// Pause after the system refused a new connection because descriptors or memory ran out.
pub(crate) const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The interval between log lines about refused connections.
pub(crate) const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Descriptors reserved from NBD clients: one for each connection to the control socket and each client in a
/// handshake, and 112 for metrics, the pool's parts, listening sockets, the index that a conversion makes,
/// and the runtime.
pub(crate) const DESCRIPTORS_RESERVED: usize =
    CONTROL_CONNECTIONS_MAX + HANDSHAKES_MAX + 96 + METRICS_CONNECTIONS_MAX;

/// The fewest NBD clients with which a daemon is useful; with fewer it does not start.
pub(crate) const NBD_CONNECTIONS_MIN: usize = 8;

/// Concurrent NBD clients; more than a host of this size has guests. The server allows fewer if its share of
/// the memory is too small.
pub(crate) const NBD_CONNECTIONS_MAX: usize = 256;

/// Threads for NBD requests that wait for the disk: enough to saturate a fast disk.
pub(crate) const NBD_WORKERS: usize = 64;

/// Time that a client has for its last request while it is being disconnected.
pub(crate) const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that a stopping daemon waits for replies in progress. The whole stop must take at most 10 s; the
/// remaining time is for commands in progress and for the last commit and checkpoint.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a stopping daemon then waits for commands in progress to end.
pub(crate) const REQUESTS_END_TIME_MAX: Duration = Duration::from_secs(2);

/// The most groups of a shared pool that a host opens unless it is told otherwise: each has a thread and keeps a log.
pub(crate) const GROUPS_OPEN_MAX: u64 = 64;

/// The ring of a new group's log: as of a pool with one owner.
pub(crate) const GROUP_LOG_BYTES: u64 = 32 << 20;

/// How long a call to a shard may take. The cluster counts such times in whole seconds, and a shard whose host has died is
/// asked for about as long before another host serves it.
pub(crate) const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// The interval at which a daemon looks for shards that did not answer it.
pub(crate) const SHARD_INTERVAL: Duration = Duration::from_millis(200);

/// The longest name of a host, as of a system's host name.
pub(crate) const HOST_NAME_BYTES_MAX: usize = 64;
