//! Objects in Ceph RADOS, through librados.
//!
//! May use: no other crate of onefold. Must not: know what the objects mean.
//!
//! librados is opened at run time, so that onefold needs no Ceph on hosts that use none. A [`Client`] is one session
//! with a cluster, a [`Pool`] a namespace of a pool in it. Operations on objects are submitted and end later: librados
//! calls the caller's callback on one of its threads, where it must not wait. Callers that have nothing else to do use
//! a [`Wait`].
//!
//! Invariants:
//! - A callback is called exactly once, whatever happens; a panic in it is caught.
//! - librados copies the names, keys and bytes of an operation before the call that passes them returns. Memory that
//!   librados fills belongs to the operation until the operation has ended.
//! - A client is shut down once no pool, operation or watch needs it.
//! - Operations of one client on one object take effect in the order of their submission.
//!
//! Reading order: `library` (librados' functions), `client` and `connect`, `session` (handles that stay open),
//! `callback` (librados' threads), `operation` (how one is submitted), `write_op`, `read_op`, `pool`, `lock`, `watch`.

mod callback;
mod client;
mod connect;
mod failure;
mod library;
mod lock;
mod memory;
mod operation;
mod pool;
mod read_op;
mod session;
mod watch;
mod write_op;

pub use callback::Wait;
pub use client::{Client, LibraryVersion, Statistics};
pub use connect::{ConnectError, ConnectOptions};
pub use failure::{is_condition_failed, is_fenced};
pub use lock::Locker;
pub use operation::Version;
pub use pool::{Objects, Pool, WhenFull};
pub use read_op::{ReadOp, ReadReply, Rows, Stat};
pub use watch::{Notification, Replies, Reply, Watch, Watcher};
pub use write_op::{Create, WriteOp};
