//! One session with a cluster, through which pools are opened. Other clients can fence it.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::callback;
use crate::connect::{ConnectError, ConnectOptions, Connecting};
use crate::failure::{c_string, check};
use crate::library::{self, ClusterStat, Library};
use crate::pool::Pool;
use crate::session::Session;

/// A connected client. Clones are the same client, which is shut down when all of its clones, pools and operations are
/// gone.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
}

/// The version of librados' interface, which differs from Ceph's release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LibraryVersion {
    /// Raised by changes that callers must know.
    pub major: c_int,
    /// Raised by additions.
    pub minor: c_int,
    /// Raised by other changes.
    pub extra: c_int,
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.extra)
    }
}

/// The space of the whole cluster, with all copies. All zero while no manager runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that are free.
    pub available_bytes: u64,
    /// The number of objects in all pools.
    pub objects: u64,
}

impl Client {
    /// Connects; waits until the monitors have answered, or for the timeout.
    pub fn connect(options: &ConnectOptions) -> Result<Client, ConnectError> {
        callback::may_wait().map_err(ConnectError::Other)?;
        let library = Library::get()?;
        let cluster = Connecting::new(library, options)?.connect()?;
        let session = Arc::new(Session { library, cluster });
        Ok(Client { session })
    }

    /// Opens a namespace of a pool; the name "" is the default namespace.
    ///
    /// # Errors
    /// `NotFound` if there is no such pool.
    pub fn pool(&self, name: &str, namespace: &str) -> io::Result<Pool> {
        Pool::open(Arc::clone(&self.session), name, namespace)
    }

    /// The version of librados' interface.
    pub fn version(&self) -> LibraryVersion {
        let (major, minor, extra) = library::version(self.session.library);
        LibraryVersion {
            major,
            minor,
            extra,
        }
    }

    /// The addresses of this client, which another one passes to [`Client::blocklist_add`].
    pub fn addresses(&self) -> io::Result<String> {
        let Session { library, cluster } = *self.session;
        let mut text = std::ptr::null_mut();
        // SAFETY: the client is connected. It writes the address of a text, which is copied and then freed by
        // librados.
        unsafe {
            check((library.rados_getaddrs)(cluster, &mut text))?;
            if text.is_null() {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
            let addresses = CStr::from_ptr(text).to_string_lossy().into_owned();
            (library.rados_buffer_free)(text);
            Ok(addresses)
        }
    }

    /// The number of this session: other clients see it in the name of a lock's owner and in notifications.
    pub fn instance_id(&self) -> u64 {
        // SAFETY: the client is connected.
        unsafe { (self.session.library.rados_get_instance_id)(self.session.cluster) }
    }

    /// Fences the client with this address for this number of seconds; 0 is the cluster's default. Its operations end
    /// with an error that [`is_fenced`](crate::is_fenced) recognizes. An OSD accepts its writes until it has the new
    /// map: at the latest when it receives an operation of a client that [has the map](Client::wait_for_latest_osdmap).
    pub fn blocklist_add(&self, address: &str, seconds: u32) -> io::Result<()> {
        callback::may_wait()?;
        let Session { library, cluster } = *self.session;
        // librados takes an address that may be written to.
        let mut address = c_string(address)?.into_bytes_with_nul();
        // SAFETY: the client is connected, and the address ends with a zero byte.
        check(unsafe {
            (library.rados_blocklist_add)(cluster, address.as_mut_ptr().cast(), seconds)
        })
    }

    /// Waits until this client has the latest map of the cluster, so that it sends nothing that contradicts the map.
    pub fn wait_for_latest_osdmap(&self) -> io::Result<()> {
        callback::may_wait()?;
        let Session { library, cluster } = *self.session;
        // SAFETY: the client is connected.
        check(unsafe { (library.rados_wait_for_latest_osdmap)(cluster) })
    }

    /// The space of the cluster.
    pub fn statistics(&self) -> io::Result<Statistics> {
        callback::may_wait()?;
        let Session { library, cluster } = *self.session;
        let mut stat = ClusterStat::default();
        // SAFETY: the client is connected; it fills the struct.
        check(unsafe { (library.rados_cluster_stat)(cluster, &mut stat) })?;
        let bytes = |kib: u64| kib.saturating_mul(1024);
        Ok(Statistics {
            total_bytes: bytes(stat.kib),
            used_bytes: bytes(stat.kib_used),
            available_bytes: bytes(stat.kib_available),
            objects: stat.objects,
        })
    }
}
