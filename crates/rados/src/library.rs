//! librados, opened at run time.
//!
//! Each function is declared once, as in the header `rados/librados.h` of release 16. Every release since 15 has all of
//! them; renamed functions are listed with the old name.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::connect::ConnectError;

/// The library's name for the loader; it has not changed since Ceph's first release.
const FILE: &CStr = c"librados.so.2";

/// A client: the header's rados_t.
pub(crate) type Cluster = *mut c_void;
/// A pool and a namespace: rados_ioctx_t.
pub(crate) type IoContext = *mut c_void;
/// An operation in flight: rados_completion_t.
pub(crate) type Completion = *mut c_void;
/// A write operation: rados_write_op_t.
pub(crate) type WriteHandle = *mut c_void;
/// A read operation: rados_read_op_t.
pub(crate) type ReadHandle = *mut c_void;
/// Rows that were read: rados_omap_iter_t.
pub(crate) type RowIterator = *mut c_void;
/// Attributes that were read: rados_xattrs_iter_t.
pub(crate) type XattrIterator = *mut c_void;
/// A list of objects: rados_list_ctx_t.
pub(crate) type ObjectList = *mut c_void;

/// Called when an operation ends: rados_callback_t.
pub(crate) type OnComplete = unsafe extern "C" fn(completion: Completion, argument: *mut c_void);
/// Called for a notification: rados_watchcb2_t.
pub(crate) type OnNotify = unsafe extern "C" fn(
    argument: *mut c_void,
    notify_id: u64,
    cookie: u64,
    notifier: u64,
    data: *mut c_void,
    len: usize,
);
/// Called when a watch was lost: rados_watcherrcb_t.
pub(crate) type OnWatchError =
    unsafe extern "C" fn(argument: *mut c_void, cookie: u64, error: c_int);

/// The header's struct rados_cluster_stat_t.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ClusterStat {
    pub(crate) kib: u64,
    pub(crate) kib_used: u64,
    pub(crate) kib_available: u64,
    pub(crate) objects: u64,
}

/// The comparison "equal" of `rados_write_op_cmpxattr` and `rados_write_op_omap_cmp2`.
pub(crate) const COMPARE_EQUAL: u8 = 1;

/// Why librados cannot be opened.
#[derive(Debug)]
pub(crate) enum LoadError {
    Missing(String),
    Function(&'static str),
}

/// Declares a struct with a function pointer for each line, and the code that fills it. `or` gives the function's name
/// in older releases.
macro_rules! functions {
    ($(fn $name:ident $(or $older:ident)? ($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// librados' functions.
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,)*
        }

        impl Library {
            fn of(handle: Handle) -> Result<Library, LoadError> {
                Ok(Library {
                    $($name: {
                        let names = [stringify!($name) $(, stringify!($older))?];
                        let found = names.iter().find_map(|name| handle.function(name));
                        let function = found.ok_or(LoadError::Function(stringify!($name)))?;
                        // SAFETY: the library has a function of this name, and the header declares it so.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument: $kind),*) $(-> $result)?,
                            >(function)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    fn rados_version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int);
    fn rados_create(cluster: *mut Cluster, user: *const c_char) -> c_int;
    fn rados_conf_read_file(cluster: Cluster, path: *const c_char) -> c_int;
    fn rados_conf_set(cluster: Cluster, option: *const c_char, value: *const c_char) -> c_int;
    fn rados_conf_get(cluster: Cluster, option: *const c_char, buf: *mut c_char, len: usize) -> c_int;
    fn rados_connect(cluster: Cluster) -> c_int;
    fn rados_shutdown(cluster: Cluster);
    fn rados_cluster_stat(cluster: Cluster, result: *mut ClusterStat) -> c_int;
    fn rados_wait_for_latest_osdmap(cluster: Cluster) -> c_int;
    fn rados_get_instance_id(cluster: Cluster) -> u64;
    fn rados_getaddrs(cluster: Cluster, addresses: *mut *mut c_char) -> c_int;
    fn rados_blocklist_add or rados_blacklist_add (
        cluster: Cluster, address: *mut c_char, expire_seconds: u32,
    ) -> c_int;
    fn rados_buffer_free(buf: *mut c_char);

    fn rados_ioctx_create(cluster: Cluster, pool: *const c_char, io: *mut IoContext) -> c_int;
    fn rados_ioctx_destroy(io: IoContext);
    fn rados_set_pool_full_try or rados_set_osdmap_full_try(io: IoContext);
    fn rados_ioctx_set_namespace(io: IoContext, namespace: *const c_char);
    fn rados_ioctx_pool_requires_alignment2(io: IoContext, requires: *mut c_int) -> c_int;
    fn rados_nobjects_list_open(io: IoContext, list: *mut ObjectList) -> c_int;
    fn rados_nobjects_list_next2(
        list: ObjectList,
        entry: *mut *const c_char, key: *mut *const c_char, namespace: *mut *const c_char,
        entry_len: *mut usize, key_len: *mut usize, namespace_len: *mut usize,
    ) -> c_int;
    fn rados_nobjects_list_close(list: ObjectList);

    fn rados_aio_create_completion2(
        argument: *mut c_void, on_complete: OnComplete, completion: *mut Completion,
    ) -> c_int;
    fn rados_aio_get_return_value(completion: Completion) -> c_int;
    fn rados_aio_get_version(completion: Completion) -> u64;
    fn rados_aio_release(completion: Completion);

    fn rados_create_write_op() -> WriteHandle;
    fn rados_release_write_op(op: WriteHandle);
    fn rados_write_op_create(op: WriteHandle, exclusive: c_int, category: *const c_char);
    fn rados_write_op_assert_exists(op: WriteHandle);
    fn rados_write_op_assert_version(op: WriteHandle, version: u64);
    fn rados_write_op_cmpxattr(
        op: WriteHandle, name: *const c_char, comparison: u8, value: *const c_char, value_len: usize,
    );
    fn rados_write_op_omap_cmp2(
        op: WriteHandle, key: *const c_char, comparison: u8, value: *const c_char,
        key_len: usize, value_len: usize, result: *mut c_int,
    );
    fn rados_write_op_write(op: WriteHandle, bytes: *const c_char, len: usize, offset: u64);
    fn rados_write_op_write_full(op: WriteHandle, bytes: *const c_char, len: usize);
    fn rados_write_op_zero(op: WriteHandle, offset: u64, len: u64);
    fn rados_write_op_truncate(op: WriteHandle, len: u64);
    fn rados_write_op_remove(op: WriteHandle);
    fn rados_write_op_setxattr(
        op: WriteHandle, name: *const c_char, value: *const c_char, value_len: usize,
    );
    fn rados_write_op_omap_set2(
        op: WriteHandle, keys: *const *const c_char, values: *const *const c_char,
        key_lens: *const usize, value_lens: *const usize, count: usize,
    );
    fn rados_write_op_omap_rm_keys2(
        op: WriteHandle, keys: *const *const c_char, key_lens: *const usize, count: usize,
    );
    fn rados_write_op_exec(
        op: WriteHandle, class: *const c_char, method: *const c_char,
        input: *const c_char, input_len: usize, result: *mut c_int,
    );
    fn rados_aio_write_op_operate(
        op: WriteHandle, io: IoContext, completion: Completion, object: *const c_char,
        mtime: *mut libc::time_t, flags: c_int,
    ) -> c_int;

    fn rados_create_read_op() -> ReadHandle;
    fn rados_release_read_op(op: ReadHandle);
    fn rados_read_op_read(
        op: ReadHandle, offset: u64, len: usize, buf: *mut c_char, read: *mut usize,
        result: *mut c_int,
    );
    fn rados_read_op_stat(
        op: ReadHandle, size: *mut u64, mtime: *mut libc::time_t, result: *mut c_int,
    );
    fn rados_read_op_getxattrs(op: ReadHandle, iterator: *mut XattrIterator, result: *mut c_int);
    fn rados_read_op_omap_get_vals2(
        op: ReadHandle, start_after: *const c_char, prefix: *const c_char, count_max: u64,
        iterator: *mut RowIterator, more: *mut u8, result: *mut c_int,
    );
    fn rados_read_op_omap_get_vals_by_keys2(
        op: ReadHandle, keys: *const *const c_char, count: usize, key_lens: *const usize,
        iterator: *mut RowIterator, result: *mut c_int,
    );
    fn rados_aio_read_op_operate(
        op: ReadHandle, io: IoContext, completion: Completion, object: *const c_char, flags: c_int,
    ) -> c_int;
    fn rados_getxattrs_next(
        iterator: XattrIterator, name: *mut *const c_char, value: *mut *const c_char,
        value_len: *mut usize,
    ) -> c_int;
    fn rados_getxattrs_end(iterator: XattrIterator);
    fn rados_omap_get_next2(
        iterator: RowIterator, key: *mut *mut c_char, value: *mut *mut c_char,
        key_len: *mut usize, value_len: *mut usize,
    ) -> c_int;
    fn rados_omap_get_end(iterator: RowIterator);

    fn rados_lock_exclusive(
        io: IoContext, object: *const c_char, name: *const c_char, cookie: *const c_char,
        description: *const c_char, duration: *mut libc::timeval, flags: u8,
    ) -> c_int;
    fn rados_unlock(
        io: IoContext, object: *const c_char, name: *const c_char, cookie: *const c_char,
    ) -> c_int;
    fn rados_break_lock(
        io: IoContext, object: *const c_char, name: *const c_char, client: *const c_char,
        cookie: *const c_char,
    ) -> c_int;
    fn rados_list_lockers(
        io: IoContext, object: *const c_char, name: *const c_char, exclusive: *mut c_int,
        tag: *mut c_char, tag_len: *mut usize,
        clients: *mut c_char, clients_len: *mut usize,
        cookies: *mut c_char, cookies_len: *mut usize,
        addresses: *mut c_char, addresses_len: *mut usize,
    ) -> libc::ssize_t;

    fn rados_watch3(
        io: IoContext, object: *const c_char, cookie: *mut u64, on_notify: OnNotify,
        on_error: OnWatchError, timeout_seconds: u32, argument: *mut c_void,
    ) -> c_int;
    fn rados_watch_check(io: IoContext, cookie: u64) -> c_int;
    fn rados_unwatch2(io: IoContext, cookie: u64) -> c_int;
    fn rados_watch_flush(cluster: Cluster) -> c_int;
    fn rados_notify_ack(
        io: IoContext, object: *const c_char, notify_id: u64, cookie: u64,
        reply: *const c_char, reply_len: c_int,
    ) -> c_int;
    fn rados_aio_notify(
        io: IoContext, object: *const c_char, completion: Completion,
        bytes: *const c_char, len: c_int, timeout_ms: u64,
        reply: *mut *mut c_char, reply_len: *mut usize,
    ) -> c_int;
}

impl Library {
    /// Returns librados. The first successful call opens it; it is never closed, because its threads may run until the
    /// process ends.
    pub(crate) fn get() -> Result<&'static Library, ConnectError> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let library = Library::open(FILE)?;
        Ok(LIBRARY.get_or_init(|| library))
    }

    fn open(file: &CStr) -> Result<Library, LoadError> {
        Library::of(Handle::open(file)?)
    }
}

/// A library that the loader has opened.
struct Handle(*mut c_void);

impl Handle {
    fn open(file: &CStr) -> Result<Handle, LoadError> {
        // SAFETY: the name ends with a zero byte. Loading librados runs the same initializers as in any program that is
        // linked to it.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::Missing(loader_error()));
        }
        Ok(Handle(handle))
    }

    fn function(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is one that the loader gave and that is never closed.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!function.is_null()).then_some(function)
    }
}

/// The loader's last error on this thread.
fn loader_error() -> String {
    // SAFETY: it returns null or a text that stays until this thread calls the loader again.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// The version of librados' interface.
pub(crate) fn version(library: &Library) -> (c_int, c_int, c_int) {
    let (mut major, mut minor, mut extra) = (0, 0, 0);
    // SAFETY: it writes three numbers.
    unsafe { (library.rados_version)(&mut major, &mut minor, &mut extra) };
    (major, minor, extra)
}

/// The address and length of a buffer, as librados takes them.
pub(crate) fn parts(bytes: &[u8]) -> (*const c_char, usize) {
    (bytes.as_ptr().cast(), bytes.len())
}

/// Addresses and lengths of keys or values.
pub(crate) struct Lists {
    pub(crate) pointers: Vec<*const c_char>,
    pub(crate) lens: Vec<usize>,
}

impl Lists {
    pub(crate) fn of<'a>(items: impl Iterator<Item = &'a [u8]>) -> Lists {
        let (pointers, lens) = items.map(parts).unzip();
        Lists { pointers, lens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_package() {
        let error = Library::open(c"libnowhere-at-all.so.2").err();
        let error = ConnectError::from(error.unwrap());
        assert!(matches!(error, ConnectError::LibraryMissing { .. }));
        assert!(error.to_string().contains("install the package librados2"));
    }

    #[test]
    fn a_library_without_our_functions_is_too_old() {
        let error = Library::open(c"libc.so.6").err();
        let error = ConnectError::from(error.unwrap());
        assert!(matches!(error, ConnectError::LibraryTooOld { .. }));
        assert!(error.to_string().contains("release 15"));
    }
}
