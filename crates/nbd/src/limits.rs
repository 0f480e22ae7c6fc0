//! Every bound of the front end, with the reason for its value.

use std::time::Duration;

/// The largest payload of one request, in bytes: the default of the NBD specification, and the
/// limit of QEMU's own server.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Reads and writes up to this many bytes are served from memory that belongs to the connection, so
/// that clients with such requests never depend on the shared pool.
pub const SMALL_PAYLOAD_BYTES: usize = 128 << 10;

/// Memory for requests as they arrive: the largest small write with its header, rounded up to
/// pages. It also takes in the 32 writes of 4 KiB of a deep queue at once.
pub(crate) const INPUT_BYTES: usize = SMALL_PAYLOAD_BYTES + 4096;

/// Memory of one connection, in bytes, for its whole life: input, replies, and the touched part of
/// a stack.
pub(crate) const CONNECTION_BYTES: usize = INPUT_BYTES + SMALL_PAYLOAD_BYTES + (32 << 10);

/// Replies that are sent with one system call. More gains little, and the first one would wait for
/// the execution of all others.
pub(crate) const BATCH_REPLIES_MAX: usize = 32;

/// Requests of one connection that wait for the disk at a time. Beyond this, the connection's own
/// thread waits and stops reading. As deep as block devices usually queue.
pub(crate) const HANDED_OVER_MAX: usize = 128;

/// A connection holds at most this fraction of the shared pool, so that a client that stops reading
/// leaves most of it to the others.
pub(crate) const POOL_FRACTION_PER_CONNECTION: usize = 4;

/// The interval at which parked requests are retried: short enough to go unnoticed when space comes
/// back, and long enough to cost nothing while it does not.
pub(crate) const PARKED_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The end of waiting is logged once no request has had to wait for space for this long.
pub(crate) const PARKED_QUIET_TIME: Duration = Duration::from_secs(1);

/// Descriptors in one answer to BLOCK_STATUS, for all metadata contexts together: an answer of 16
/// KiB, after which clients continue.
pub(crate) const EXTENTS_MAX: usize = 2048;

/// Snapshots that one client may have its export compared with. Backup tools select one, or the few
/// of a chain; each has a part of every answer to BLOCK_STATUS.
pub(crate) const BITMAPS_MAX: usize = 31;

/// Names that are looked up and sent at a time for a list: a few pages of memory.
pub(crate) const LIST_PAGE_NAMES: usize = 256;

/// Most names in a list, because sending them occupies the connection's thread: more volumes than a
/// pool has, and snapshots after them. Names that are left out can still be attached.
pub(crate) const LIST_NAMES_MAX: usize = 16_384;

/// Most snapshots of one export in a list of metadata contexts: some 100 KiB, which are outside the
/// memory for requests. Any can be selected by its name.
pub(crate) const CONTEXTS_LISTED_MAX: usize = 1024;

/// Longest data of a handshake option that is parsed: the longest name with dozens of queries.
pub(crate) const OPTION_BYTES_MAX: usize = 64 << 10;

/// Longest data of a handshake option that is skipped; a client that announces more is cut off.
pub(crate) const OPTION_BYTES_SKIPPED_MAX: u64 = 1 << 20;

/// Longest export name, from the NBD specification.
pub(crate) const NAME_BYTES_MAX: usize = 4096;

/// A client that has not chosen an export within this time is cut off, because it takes up a
/// connection.
pub(crate) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(30);

/// Connections at a time that have not chosen an export. They do not count against the limit on
/// attached ones, so silent sockets take no place from guests. The limit is more than a host's
/// guests need to reconnect all at once, as a handshake takes a few round trips.
pub const HANDSHAKES_MAX: usize = 64;

/// A connection that has not chosen an export, or has chosen one and sent no request, keeps its
/// place for at least this long. Afterwards it is cut off if another needs the place.
pub(crate) const SILENCE_TIME_MIN: Duration = Duration::from_secs(2);

/// How often to check whether a place has become free.
pub(crate) const PLACE_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// How long a connection may take to make room for another one.
pub(crate) const PLACE_TIME_MAX: Duration = Duration::from_secs(5);

/// Failed requests that are logged one by one before the limit of one line a second applies: enough
/// to see where a disk is bad.
pub(crate) const FAILURE_LINES_MAX: u32 = 20;

/// Lines about clients that attach or detach, at once; afterwards one a second. A host's guests may all
/// start together.
pub(crate) const ATTACHMENT_LINES_MAX: u32 = 256;

/// Pause after the system refused a new connection for lack of descriptors or memory.
pub(crate) const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection's thread polls for the next request before it sleeps. Waking it takes
/// longer than this if processors sleep deeply, as in virtual machines; a client that sends one
/// request at a time usually sends the next one sooner.
pub(crate) const INPUT_POLL_TIME: Duration = Duration::from_micros(30);

/// After this number of failed polls in a row a connection's thread polls only once in 2 to the
/// power of this number of waits, so that clients with long pauses cost next to no processor time.
pub(crate) const INPUT_POLL_FAILURES_MAX: u32 = 8;
