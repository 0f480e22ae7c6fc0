//! Block protocols for volumes: an NBD server, and the interface of the block devices that it
//! serves.
//!
//! May use: volumes of the store. Must not: open pools, or use other parts of the store.
//!
//! A daemon implements [`Exports`], binds [`Listener`]s and starts a [`Server`]; volumes of the
//! store are [`Export`]s already. Threads, no async: a request that can be answered from memory is
//! answered on the thread that reads it from the socket.
//!
//! | module | purpose, in reading order |
//! | --- | --- |
//! | `export` | the traits: a block device, and the daemon that owns them |
//! | `volume` | a volume of the store as an export |
//! | `server` | accepting connections, shutdown |
//! | `listener` | unix sockets, TCP, socket activation |
//! | `unix_socket` | a socket's name and permissions, also on a full file system |
//! | `registry` | connected clients; cutting clients off |
//! | `statistics` | counts of clients' requests |
//! | `socket` | system calls on a connected socket |
//! | [`wire`] | the protocol as bytes |
//! | [`handshake`] | from the greeting to an attached export |
//! | [`request`] | which requests are acceptable |
//! | `connection` | the thread of a connection: reads requests and tries them at once |
//! | `execution` | doing a request, here or on a worker |
//! | `ending` | how connections end |
//! | `block_status` | the reply to BLOCK_STATUS |
//! | `input`, `reply` | bytes on their way in and out |
//! | `send_queue` | turns of the threads that send on a socket |
//! | [`client`] | the client side, for loads and tests |
//! | `buffer`, `workers` | shared by connections: memory and threads that may block |
//! | `copy_export` | the names of exports for backups |
//! | `parking` | where requests wait for space, without a thread |
//! | `log_limit` | a limit on log lines that clients can cause |
//! | `limits` | every bound, with its reason |

mod block_status;
mod buffer;
pub mod client;
mod connection;
mod copy_export;
mod ending;
mod execution;
mod export;
pub mod handshake;
mod input;
mod limits;
mod listener;
mod log_limit;
mod parking;
mod pieces;
mod registry;
mod reply;
pub mod request;
mod send_queue;
mod server;
mod socket;
mod statistics;
mod sync;
mod unix_socket;
mod volume;
pub mod wire;
mod workers;

pub use copy_export::{CopyExport, NoCopyExport};
pub use export::{
    AttachError, Attached, Change, ChangedExtent, Changes, Export, ExportError, ExportSummary,
    Exports, Extent, Failure, Peer, ZeroOptions,
};
pub use limits::{HANDSHAKES_MAX, PAYLOAD_BYTES_MAX, SMALL_PAYLOAD_BYTES};
pub use listener::{Inherited, ListenAddress, ListenError, ListenOptions, Listener};
pub use onefold_store::Blocking;
pub use registry::Client;
pub use server::{Server, ServerLimits, Shutdown};
pub use statistics::{
    DURATION_BUCKETS, ExportStatistics, Histogram, Op, Outcomes, PerOp, ServerStatistics, Totals,
};
pub use unix_socket::{SOCKET_PATH_BYTES_MAX, SocketName, lacks_space, listen_unix};
pub use volume::{PreparedWrite, VolumeChanges};
