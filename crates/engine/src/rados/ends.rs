//! The thread on which prepared writes end.
//!
//! The end of a write takes locks of the store, and a thread that holds one of them may wait for an operation of the
//! cluster. All operations end on a thread of librados. So that thread must not wait for such a lock: neither would ever
//! get any further.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread;

type End = Box<dyn FnOnce() + Send>;

/// Runs ends of writes, in order, on a thread of its own. The thread ends with the last clone.
#[derive(Clone)]
pub(super) struct Ends(Sender<End>);

impl Ends {
    pub(super) fn start() -> io::Result<Ends> {
        let (sender, ends) = channel::<End>();
        let run = move || {
            for end in ends {
                // The panic hook reports it. It must not keep the other writes from ending.
                let ended = catch_unwind(AssertUnwindSafe(end));
                // The message of a panic may panic when it is dropped.
                std::mem::forget(ended.err());
            }
        };
        let thread = thread::Builder::new().name("rados-ends".to_owned());
        thread.spawn(run).map(|_| Ends(sender))
    }

    pub(super) fn run(&self, end: impl FnOnce() + Send + 'static) {
        // The thread receives until no sender is left.
        let _ = self.0.send(Box::new(end));
    }
}
