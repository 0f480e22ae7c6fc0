//! The threads of librados, on which operations end and notifications arrive.
//!
//! A client has few of these threads for all its operations, and needs them to end any. Blocking on librados in a
//! callback can deadlock: calls that wait return an error there, and such work has to move to another thread.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

thread_local! {
    /// Whether this is a thread of librados that runs one of our callbacks.
    static IS_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a callback of librados. The panic hook reports a panic; it must not reach librados, whose frames cannot be
/// unwound.
pub(crate) fn run(work: impl FnOnce()) {
    IS_CALLBACK.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CALLBACK.set(false);
    // The message of a panic may panic when it is dropped.
    std::mem::forget(result.err());
}

/// Fails on a thread that must not wait for librados.
pub(crate) fn may_wait() -> io::Result<()> {
    if IS_CALLBACK.get() {
        Err(io::ErrorKind::Deadlock.into())
    } else {
        Ok(())
    }
}

/// Runs work that waits for librados: on this thread, or on a new one if this thread must not wait.
pub(crate) fn wait_elsewhere(work: impl FnOnce() + Send + 'static) {
    if !IS_CALLBACK.get() {
        return work();
    }
    // If no thread can be started, the work is not done, and its resources stay until the process ends.
    let _ = thread::Builder::new()
        .name("rados-end".to_owned())
        .spawn(work);
}

/// The result of one operation, for a thread that waits for it.
///
/// ```
/// use onefold_rados::Wait;
///
/// let (on_done, wait) = Wait::new();
/// std::thread::spawn(|| on_done(Ok(7)));
/// assert_eq!(wait.result().unwrap(), 7);
/// ```
pub struct Wait<T> {
    receiver: mpsc::Receiver<io::Result<T>>,
}

impl<T: Send + 'static> Wait<T> {
    /// Returns the callback for an operation, and the value that waits for its result.
    pub fn new() -> (impl FnOnce(io::Result<T>) + Send + 'static, Wait<T>) {
        let (sender, receiver) = mpsc::sync_channel(1);
        let on_done = move |result| {
            // If the waiting side is gone, the result is not needed.
            let _ = sender.send(result);
        };
        (on_done, Wait { receiver })
    }

    /// Submits an operation and waits for it.
    pub fn of(submit: impl FnOnce(Box<dyn FnOnce(io::Result<T>) + Send>)) -> io::Result<T> {
        may_wait()?;
        let (on_done, wait) = Wait::new();
        submit(Box::new(on_done));
        wait.result()
    }

    /// Waits until the operation has ended.
    ///
    /// # Errors
    /// The operation's error; `Deadlock` on a thread of librados, where the wait would never end.
    pub fn result(self) -> io::Result<T> {
        may_wait()?;
        let gone = |_| Err(io::Error::other("the operation was dropped"));
        self.receiver.recv().unwrap_or_else(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_may_panic_and_must_not_wait() {
        run(|| panic!("of a test"));
        may_wait().unwrap();
        let (told, hears) = mpsc::channel();
        run(|| {
            told.send(may_wait().unwrap_err().kind()).unwrap();
            let told = told.clone();
            wait_elsewhere(move || {
                told.send(may_wait().map_or_else(|error| error.kind(), |()| io::ErrorKind::Other))
                    .unwrap()
            });
        });
        assert_eq!(hears.recv().unwrap(), io::ErrorKind::Deadlock);
        assert_eq!(hears.recv().unwrap(), io::ErrorKind::Other);
    }

    #[test]
    fn an_operation_that_is_dropped_is_an_error() {
        let (on_done, wait) = Wait::<()>::new();
        drop(on_done);
        assert!(wait.result().is_err());
    }
}
