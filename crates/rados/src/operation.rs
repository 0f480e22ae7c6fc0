//! How an operation is submitted, and what belongs to it until it has ended.
//!
//! Its state and what is to be called are one box, whose address librados has. The box is taken back once: by the
//! callback, or where librados refuses the operation, which then never calls back.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;

use crate::callback;
use crate::failure::check;
use crate::library::{Completion, IoContext, Library};
use crate::session::Namespace;

/// A number that each change of an object raises. That of one object says nothing about another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub(crate) u64);

/// How an operation ended.
pub(crate) type Ended = io::Result<Version>;

/// An operation under way.
struct UnderWay<S, F> {
    /// So that neither pool nor client is shut down before.
    namespace: Arc<Namespace>,
    state: S,
    on_end: F,
}

/// Begins an operation by `start`, which gets what librados wants to know, and returns librados' answer. When the
/// operation has ended, `on_end` gets the state back. That is on librados' thread, or at once if it is refused.
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
    // SAFETY: the callback is one for what the argument points to. It writes the handle.
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

/// An operation that does not even get as far as librados.
pub(crate) fn refuse<S, F: FnOnce(Ended, S)>(error: io::Error, state: S, on_end: F) {
    on_end(Err(error), state);
}

/// Called by librados, once for each operation.
unsafe extern "C" fn on_complete<S, F>(completion: Completion, argument: *mut c_void)
where
    F: FnOnce(Ended, S),
{
    callback::run(|| {
        // SAFETY: the argument is the box of this operation, which calls back once. What librados was to fill is
        // complete.
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
        // Whoever hears of the end may let go of the client and end the process. The client must not be shut down
        // then by a thread that nobody waits for.
        drop(namespace);
        on_end(check(result).map(|()| Version(version)), state);
    });
}
