//! Every bound of the command line and the daemon, each with the reason for its value.

use onefold_nbd::HANDSHAKES_MAX;
use std::time::Duration;

/// The default of `--memory` for one process.
pub(crate) const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;

/// Below this the shares no longer hold one request of each kind.
pub(crate) const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// The store gets half: its caches decide how often a request has to wait for the disk.
pub(crate) const fn store_memory_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 2
}

/// Requests in flight get a quarter. A client can fill this share and no more; beyond it reading
/// from sockets pauses, which the client feels as back pressure.
pub(crate) const fn request_memory_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 4
}

// The last quarter is the reserve: transfers over the control socket (bounded below), stacks, and
// memory that the allocator cannot return.

/// Imports and exports that a daemon runs at once; with the bounds of transfers they stay within 32
/// MiB, half of the smallest reserve being for the rest.
pub(crate) const TRANSFERS_MAX: usize = 4;

/// Commands that a daemon does at once; more are refused. Each has a thread.
pub(crate) const CONTROL_COMMANDS_MAX: usize = 32;

/// Imports and exports that may wait for others to end; more are refused.
pub(crate) const TRANSFERS_WAITING_MAX: usize = 16;

/// Connections to the control socket; each costs a few tens of KiB. A dozen more than can work or
/// wait, so that one can always be closed in favour of another: see `control/connections.rs`.
pub(crate) const CONTROL_CONNECTIONS_MAX: usize =
    CONTROL_COMMANDS_MAX + TRANSFERS_MAX + TRANSFERS_WAITING_MAX + 12;

/// The time that a peer of the control socket may take to send its request, except for an image.
pub(crate) const CONTROL_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// The part of it that each peer has if there is a descriptor for one only: others wait meanwhile.
pub(crate) const CONTROL_REQUEST_TIME_MIN: Duration = Duration::from_secs(1);

/// The longest pause in the data of an import before it fails, because others may be waiting for
/// it. Longer than a program computes before it sends its output.
pub(crate) const IMPORT_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// After this long without a reply from the daemon a command says that it waits.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The body of a request other than an import is a name or two.
pub(crate) const CONTROL_BODY_BYTES_MAX: usize = 64 << 10;

/// Progress events that may wait for a slow reader of the control socket.
pub(crate) const CONTROL_EVENTS_MAX: usize = 64;

/// How often the store does its housekeeping.
pub(crate) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which unflushed records are committed, so that blocks they release are reused.
/// Each commit makes the host write out all data since the last one, and guests wait for some of
/// that, so it is rare: as often as file systems commit their journals by themselves.
pub(crate) const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which the daemon looks for problems of the pool, to log them.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which a daemon scans all maps, to find out what each volume holds alone: its
/// reads cost little at this rate, and a user can also request it at once.
pub(crate) const ACCOUNTING_INTERVAL: Duration = Duration::from_secs(3600);

/// Connections of monitoring; those beyond are closed. A scraper has one at a time.
pub(crate) const METRICS_CONNECTIONS_MAX: usize = 16;

/// Scrapes that are answered at a time; each may wait for the disk on a thread of its own.
pub(crate) const METRICS_SCRAPES_MAX: usize = 2;

/// Pause after the system refused a new connection for lack of descriptors or memory.
pub(crate) const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The interval of log lines about that.
pub(crate) const ACCEPT_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Descriptors that attached NBD clients do not get: those of the control socket's connections, of
/// clients that have yet to attach, and 112 for metrics, the pool's parts, listening sockets, the index that a
/// conversion makes, and the runtime.
pub(crate) const DESCRIPTORS_RESERVED: usize =
    CONTROL_CONNECTIONS_MAX + HANDSHAKES_MAX + 96 + METRICS_CONNECTIONS_MAX;

/// With fewer NBD clients a daemon is of no use.
pub(crate) const NBD_CONNECTIONS_MIN: usize = 8;

/// NBD clients at a time; more than a host of this size has guests. The server takes fewer where
/// its share of the memory is too small.
pub(crate) const NBD_CONNECTIONS_MAX: usize = 256;

/// Threads for NBD requests that wait for the disk: as many as make a fast disk busy.
pub(crate) const NBD_WORKERS: usize = 64;

/// How long a client that is being disconnected may take to end its last request.
pub(crate) const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a stopping daemon waits for replies in progress. The promise is 10 s for everything,
/// and the rest is for commands in progress and for the last commit and checkpoint.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a stopping daemon then waits for commands in progress to end.
pub(crate) const REQUESTS_END_TIME_MAX: Duration = Duration::from_secs(2);
