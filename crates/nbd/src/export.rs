//! The interface between a block protocol and a block device, and between it and the owner of the
//! devices.
//!
//! [`Export`] is a device as one client sees it; [`Exports`] is the daemon's side: it has the names
//! and decides which clients may attach. The protocol code uses nothing else of the store.

use crate::volume::PreparedWrite;
use onefold_store::{Blocking, Hurry, PreparedRead};
pub use onefold_store::{Change, ChangedExtent, Extent};
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// A block device that a front end serves.
///
/// The server checks bounds, read-only exports and protocol flags before it calls, so `offset` and
/// `len` are always within the size that [`Export::size_bytes`] returned when the client attached.
/// Any byte range is allowed. Calls come from many threads at once.
///
/// Every call with [`Blocking::No`] is made on the thread that reads the client's socket: it answers
/// from memory, or returns [`ExportError::WouldBlock`] having changed nothing, and is then repeated
/// with [`Blocking::Yes`] on a thread that may wait. Where [`Export::is_background`], every call may wait.
pub trait Export: Send + Sync {
    /// Size in bytes. It may grow while clients are attached: each client keeps the size that it
    /// received when it attached. It shrinks only while no client is attached.
    fn size_bytes(&self) -> u64;

    /// The smallest request size at which requests are efficient, in bytes: a power of two from 512
    /// to 32 MiB.
    fn preferred_block_bytes(&self) -> u32;

    /// Whether every change must be refused. The server then calls no method that changes data.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether the export is running background work that only gets idle processors. The server
    /// then does not keep a processor busy polling for requests.
    fn uses_idle_processors(&self) -> bool {
        false
    }

    /// Called when a request has to wait for space. Until the result is dropped, work that makes room does
    /// not wait for an idle processor.
    fn hurry(&self) -> Option<Hurry> {
        None
    }

    /// Whether the export's requests are background work, which must not get in the way of other exports' clients.
    /// The server then executes them one after the other on the thread that reads the client's socket, and pins that
    /// thread to one processor: if it could wake up on any, other requests would take longer.
    fn is_background(&self) -> bool {
        false
    }

    /// Fills all of `buf`, which begins on a 4096-byte boundary of memory. Buffers are reused
    /// between clients, so success must mean that every byte was overwritten.
    fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<(), ExportError>;

    /// Writes all of `data`. With [`Blocking::Yes`] it begins at a memory address that is a multiple
    /// of 4096; with [`Blocking::No`] it may begin anywhere. A read-only device refuses it.
    fn write(&self, _offset: u64, _data: &[u8], _: Blocking) -> Result<(), ExportError> {
        Err(ExportError::read_only())
    }

    /// The longest write that [`Export::write_or_prepare`] may prepare, in bytes; 0 if there are none.
    fn prepared_bytes_max(&self) -> usize {
        0
    }

    /// Like [`Export::write`] with [`Blocking::No`]. But if the write would wait only for the device, it may
    /// be returned prepared instead: the caller starts it, and it completes without a thread.
    fn write_or_prepare(
        self: Arc<Self>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<PreparedWrite>, ExportError> {
        self.write(offset, data, Blocking::No).map(|()| None)
    }

    /// The longest read that [`Export::prepare_read`] may prepare, in bytes; 0 if there are none.
    fn prepared_read_bytes_max(&self) -> usize {
        0
    }

    /// Prepares a read that waits only for the device: the caller starts it, and it completes without a thread.
    /// `None` if there is more to it; then it is read with [`Blocking::Yes`].
    fn prepare_read(self: Arc<Self>, _offset: u64, _len: usize) -> Option<PreparedRead> {
        None
    }

    /// Submits the prepared requests that were started, which may wait for this.
    fn submit(&self) {}

    /// Returns when every write that was answered before the call, on any connection, is durable.
    /// Always called where waiting is allowed. A read-only device has nothing to do.
    fn flush(&self) -> Result<(), ExportError> {
        if self.read_only() {
            Ok(())
        } else {
            Err(ExportError::read_only())
        }
    }

    /// Releases the range's content, which is no longer needed. A read-only device refuses it.
    fn trim(&self, _range: Range<u64>, _: Blocking) -> Result<(), ExportError> {
        Err(ExportError::read_only())
    }

    /// Makes the range read as zeros. A read-only device refuses it.
    fn write_zeroes(
        &self,
        _range: Range<u64>,
        _options: ZeroOptions,
        _: Blocking,
    ) -> Result<(), ExportError> {
        Err(ExportError::read_only())
    }

    /// The states of the range from its start, at most `extents_max` of them (so perhaps not the
    /// whole range). At least one, and none of them empty.
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>, ExportError>;

    /// Brings the range into memory: a hint. Always called where blocking is allowed. `scratch`
    /// receives data that has to be read somewhere; it is at least 4096 bytes and begins on a
    /// 4096-byte boundary of memory, so that a request takes no more memory than it was given.
    fn prefetch(&self, range: Range<u64>, scratch: &mut [u8]) -> Result<(), ExportError>;
}

/// The differences between an export and one of its snapshots.
pub trait Changes: Send + Sync {
    /// The states of the range, from its start, as [`Export::extents`] returns them. Parts reported
    /// as equal are equal; the others may be.
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<ChangedExtent>, ExportError>;
}

/// A client's options for a write of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroOptions {
    /// Fail with [`Failure::Unsupported`] rather than write the zeros out.
    pub fast_only: bool,
    /// The client wants space for later writes to the range. A device that cannot note that for each block
    /// reserves nothing: see `docs/decisions/0054-zeroing-reserves-nothing.md`.
    pub keep_allocated: bool,
}

/// Why an [`Export`] did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Only with [`Blocking::No`]: nothing was changed; repeat the call with [`Blocking::Yes`].
    #[error("the request has to wait for the disk")]
    WouldBlock,
    /// There is no room for the request, and the device is set to let it wait: repeat it until there
    /// is. Part of it may have been done. Only from calls that change data, with [`Blocking::Yes`].
    #[error("{0}")]
    WaitForSpace(Box<dyn Error + Send + Sync>),
    /// The request failed; the source gives the place and a remedy.
    #[error("{source}")]
    Failed {
        /// The kind of failure, which determines the client's errno.
        failure: Failure,
        /// The message for the log.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ExportError {
    fn read_only() -> Self {
        Self::Failed {
            failure: Failure::ReadOnly,
            source: "it is read-only".into(),
        }
    }
}

/// The kind of failure that is reported to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The device or its metadata failed.
    Io,
    /// The device or its metadata failed, and the export has logged it.
    LoggedIo,
    /// No space is left.
    NoSpace,
    /// The device takes no writes.
    ReadOnly,
    /// The request makes no sense for this device.
    Invalid,
    /// The device cannot do this.
    Unsupported,
    /// The device is going away.
    Gone,
}

/// The daemon's side of a server: the exports, and who may attach.
pub trait Exports: Send + Sync {
    /// Names in the order of a client's list: those that follow `after`, or the first ones, and at
    /// most `names_max` of them. A deleted `after` still has its place in the order.
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String>;

    /// The properties of an export that a client may know before it attaches.
    fn describe(&self, name: &str) -> Result<ExportSummary, AttachError>;

    /// The export for a client that names none; by default the only one, if there is only one.
    fn default_export(&self) -> Option<String> {
        let mut names = self.names(None, 2);
        match names.len() {
            1 => names.pop(),
            _ => None,
        }
    }

    /// The number of exports that each have a place kept for their first client.
    fn devices(&self) -> usize {
        0
    }

    /// The snapshots of an existing export with which [`Exports::attach`] can compare it, in order;
    /// the first `snapshots_max` of them.
    fn snapshots(&self, _name: &str, _snapshots_max: usize) -> Vec<String> {
        Vec::new()
    }

    /// Whether an export has this snapshot.
    fn has_snapshot(&self, name: &str, snapshot: &str) -> bool {
        let snapshots = self.snapshots(name, usize::MAX);
        snapshots.iter().any(|other| other == snapshot)
    }

    /// Attaches `peer` to an export, to be compared with the snapshots `since`, or refuses.
    ///
    /// The server drops the returned values when the client has gone and its last request has
    /// ended, so a wrapper whose `Drop` counts down counts attached clients exactly. The client is
    /// already in [`crate::Server::clients`] under this name when this is called: a caller that
    /// first makes this refuse and then calls [`crate::Server::disconnect`] misses no client.
    fn attach(&self, name: &str, since: &[String], peer: &Peer) -> Result<Attached, AttachError>;
}

/// The export that a client is attached to.
pub struct Attached {
    /// The export.
    pub export: Arc<dyn Export>,
    /// The differences from each of the named snapshots, in their order.
    pub changes: Vec<Arc<dyn Changes>>,
}

impl Attached {
    /// An attached export that is compared with no snapshots.
    pub fn to(export: Arc<dyn Export>) -> Self {
        Self {
            export,
            changes: Vec::new(),
        }
    }
}

/// The properties of an export that a client may know before it attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportSummary {
    /// See [`Export::size_bytes`].
    pub size_bytes: u64,
    /// See [`Export::preferred_block_bytes`].
    pub preferred_block_bytes: u32,
    /// See [`Export::read_only`].
    pub read_only: bool,
}

impl ExportSummary {
    /// The summary of an existing export.
    pub fn of(export: &dyn Export) -> Self {
        Self {
            size_bytes: export.size_bytes(),
            preferred_block_bytes: export.preferred_block_bytes(),
            read_only: export.read_only(),
        }
    }
}

/// Why a client was not attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// There is no export of this name.
    #[error("there is no export of this name")]
    Unknown,
    /// The client named no export, and there is no default.
    #[error("no export was named, and there is no default export: name one of the list")]
    NoDefault,
    /// The export exists, but not for this client or not now; the text is shown to the client.
    #[error("{0}")]
    Refused(String),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process on this machine, as the kernel recorded it when it connected.
    Unix {
        /// Process id; 0 if the process is not visible in our process name space.
        pid: i32,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// A TCP client.
    Tcp(SocketAddr),
    /// The kernel did not report the peer.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix { pid, uid, .. } => write!(f, "process {pid} of user {uid}"),
            Peer::Tcp(address) => write!(f, "{address}"),
            Peer::Unknown => f.write_str("unknown peer"),
        }
    }
}
