//! How an operation is submitted, and the memory that belongs to it until it has ended.
//!
//! The operation's state and its callback are in one box, whose address librados has. The box is taken back exactly
//! once: by the callback, or here if librados refuses the operation and so never calls back.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;

use crate::callback;
use crate::failure::check;
use crate::library::{Completion, IoContext, Library};
use crate::session::Namespace;

/// An object's version, which each change raises. Versions of different objects are unrelated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The version as a number, for callers that keep it elsewhere.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The version with this [number](Version::number).
    pub fn from_number(number: u64) -> Version {
        Version(number)
    }
}

/// How an operation ended.
pub(crate) type Ended = io::Result<Version>;

/// An operation in flight.
struct UnderWay<S, F> {
    /// Keeps pool and client from being shut down before the operation ends.
    namespace: Arc<Namespace>,
    state: S,
    on_end: F,
}

/// Begins an operation with `start`, which receives the arguments for librados and returns librados' result. When the
/// operation has ended, `on_end` receives the state: on librados' thread, or at once if the operation is refused.
pub(crate) fn submit<S, F>(
    namespace: &Arc<Namespace>,
    state: S,
    start: impl FnOnce(&Library, IoContext, Completion) -> c_int,
    on_end: F,
) where
    S: Send + 'static,
    F: FnOnce(Ended, S) + Send + 'static,
{
    let library = namespace.library();
    let under_way = Box::into_raw(Box::new(UnderWay {
        namespace: Arc::clone(namespace),
        state,
        on_end,
    }));
    let mut completion = std::ptr::null_mut();
    // SAFETY: the callback takes the type that the argument points to. The call writes the handle.
    let created = unsafe {
        let argument = under_way.cast::<c_void>();
        (library.rados_aio_create_completion2)(argument, on_complete::<S, F>, &mut completion)
    };
    let mut result = check(created);
    if result.is_ok() {
        result = check(start(library, namespace.io(), completion));
        // SAFETY: nothing here uses the completion any more; librados keeps it until it has called back.
        unsafe { (library.rados_aio_release)(completion) };
    }
    if let Err(error) = result {
        // SAFETY: the operation was refused, so it does not call back, and the box is ours.
        let under_way = unsafe { Box::from_raw(under_way) };
        (under_way.on_end)(Err(error), under_way.state);
    }
}

/// Ends an operation that was never passed to librados.
pub(crate) fn refuse<S, F: FnOnce(Ended, S)>(error: io::Error, state: S, on_end: F) {
    on_end(Err(error), state);
}

/// Called by librados, once for each operation.
unsafe extern "C" fn on_complete<S, F>(completion: Completion, argument: *mut c_void)
where
    F: FnOnce(Ended, S),
{
    callback::run(|| {
        // SAFETY: the argument is the box of this operation, which calls back once. librados has finished writing to
        // its memory.
        let under_way = unsafe { Box::from_raw(argument.cast::<UnderWay<S, F>>()) };
        let UnderWay {
            namespace,
            state,
            on_end,
        } = *under_way;
        let library = namespace.library();
        // SAFETY: librados keeps the completion during this call.
        let (result, version) = unsafe {
            (
                (library.rados_aio_get_return_value)(completion),
                (library.rados_aio_get_version)(completion),
            )
        };
        // Dropped before the callback, which may drop the client and end the process: the last reference would then be
        // dropped here, and shut the client down on a thread that is not joined.
        drop(namespace);
        on_end(check(result).map(|()| Version(version)), state);
    });
}
