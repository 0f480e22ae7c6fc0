//! The threads on which this host answers calls to its groups and shards.
//!
//! A notification arrives on a thread of librados, which must not wait. So calls queue for threads of their own.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

/// Threads: one waits for a write of an index while another looks something up.
const THREADS: usize = 2;

/// Calls that wait for a thread. More are dropped, and their callers ask again. They have at most 64 KiB each.
const WAITING_MAX: usize = 256;

thread_local! {
    /// Whether this is a thread that answers calls.
    static IS_SERVING: Cell<bool> = const { Cell::new(false) };
}

/// The work of answering a call.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Where calls queue.
pub(super) type Queue = mpsc::SyncSender<Job>;

/// Threads that answer calls, until this is dropped.
pub(super) struct Serving {
    queue: Option<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    pub(super) fn start() -> io::Result<Serving> {
        let (queue, jobs) = mpsc::sync_channel::<Job>(WAITING_MAX);
        // The lock guards the queue's other end: its holder waits for the next call.
        let jobs = Arc::new(Mutex::new(jobs));
        let mut serving = Serving {
            queue: Some(queue),
            threads: Vec::new(),
        };
        for _ in 0..THREADS {
            let jobs = Arc::clone(&jobs);
            let thread = thread::Builder::new().name("rados-serve".to_owned());
            serving.threads.push(thread.spawn(move || serve(&jobs))?);
        }
        Ok(serving)
    }

    pub(super) fn queue(&self) -> Option<Queue> {
        self.queue.clone()
    }
}

fn serve(jobs: &Mutex<mpsc::Receiver<Job>>) {
    IS_SERVING.set(true);
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // The panic hook has reported a panic; its caller gets no reply, and others do.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// Whether this thread answers a call now.
pub(super) fn is_serving() -> bool {
    IS_SERVING.get()
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.queue = None;
        if is_serving() {
            // The threads end by themselves once no holding has the queue.
            return;
        }
        for thread in self.threads.drain(..) {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}
