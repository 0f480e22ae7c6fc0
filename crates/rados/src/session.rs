//! Handles that pools, operations and watches share and keep open: the connected client and the I/O contexts in it.

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::callback;
use crate::failure::{c_string, check};
use crate::library::{Cluster, IoContext, Library};

/// A connected client, which is shut down when nothing refers to it any more.
pub(crate) struct Session {
    pub(crate) library: &'static Library,
    pub(crate) cluster: Cluster,
}

// SAFETY: librados allows its client to be used by any number of threads at once.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        let handle = Handle(self.cluster);
        let shutdown = self.library.rados_shutdown;
        // Shutting down waits for librados' threads, and this may be one of them, if the last operation has ended.
        callback::wait_elsewhere(move || {
            let handle = handle;
            // SAFETY: the client is connected, and nothing uses it any more.
            unsafe { shutdown(handle.0) };
        });
    }
}

/// The client's handle, for the thread that shuts the client down.
struct Handle(Cluster);

// SAFETY: see `Session`.
unsafe impl Send for Handle {}

/// An I/O context, which is closed when nothing refers to it any more.
pub(crate) struct Namespace {
    pub(crate) session: Arc<Session>,
    io: IoContext,
}

// SAFETY: librados allows any number of threads to use an I/O context at once, as long as its settings do not change,
// and they are made before it is shared.
unsafe impl Send for Namespace {}
// SAFETY: as above.
unsafe impl Sync for Namespace {}

impl Namespace {
    pub(crate) fn open(session: Arc<Session>, pool: &str, name: &str) -> io::Result<Namespace> {
        let (pool, name) = (c_string(pool)?, c_string(name)?);
        let library = session.library;
        let mut io = null_mut();
        // SAFETY: the client is connected. It writes the handle.
        check(unsafe { (library.rados_ioctx_create)(session.cluster, pool.as_ptr(), &mut io) })?;
        // SAFETY: the handle is valid and not shared yet. The name is copied.
        unsafe { (library.rados_ioctx_set_namespace)(io, name.as_ptr()) };
        // SAFETY: the handle is valid and not shared yet. Without this, locks, watches and changes wait while the
        // cluster is full, whether they need room or not.
        unsafe { (library.rados_set_pool_full_try)(io) };
        Ok(Namespace { session, io })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.session.library
    }

    pub(crate) fn io(&self) -> IoContext {
        self.io
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more. The client is still there.
        unsafe { (self.library().rados_ioctx_destroy)(self.io) };
    }
}
