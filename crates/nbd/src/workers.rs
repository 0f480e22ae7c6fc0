//! Threads that may wait for the disk, so that the threads that read sockets need not.
//!
//! All connections of a server share one [`WorkerPool`]. Tasks are queued by lane (a connection is
//! a lane) and lanes take turns, so a client with a hundred slow requests does not delay the one
//! slow request of another. Threads are started when a task finds none idle, and stay.
//!
//! The queue has no limit of its own: a connection hands over a bounded number of requests
//! ([`crate::limits::HANDED_OVER_MAX`]) and executes the rest itself.

use crate::sync::{Condvar, Mutex, lock, wait};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Something a worker does once. It must not panic: a panic would cost the pool a thread.
pub(crate) trait Task: Send + 'static {
    /// Does it.
    fn run(self);
}

/// A connection's number, for taking turns.
pub(crate) type Lane = u64;

pub(crate) struct WorkerPool<T> {
    threads_max: usize,
    state: Mutex<WorkerState<T>>,
    work: Condvar,
}

struct WorkerState<T> {
    lanes: HashMap<Lane, VecDeque<T>>,
    /// Lanes that have tasks, each once, in the order of their turns.
    turns: VecDeque<Lane>,
    queued: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The next step for the caller of [`WorkerPool::submit`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// Nothing.
    Queued,
    /// Start a thread that calls [`WorkerPool::work`]; it is already counted.
    NeedsThread(usize),
}

impl<T: Task> WorkerPool<T> {
    /// A pool of at most `threads_max` threads, at least one.
    pub(crate) fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self {
            threads_max: threads_max.max(1),
            state: Mutex::new(WorkerState {
                lanes: HashMap::new(),
                turns: VecDeque::new(),
                queued: 0,
                threads: 0,
                idle: 0,
                closed: false,
            }),
            work: Condvar::new(),
        })
    }

    /// Queues a task behind those of its lane.
    pub(crate) fn submit(&self, lane: Lane, task: T) -> Submitted {
        let mut state = lock(&self.state);
        let tasks = state.lanes.entry(lane).or_default();
        tasks.push_back(task);
        if tasks.len() == 1 {
            state.turns.push_back(lane);
        }
        state.queued += 1;
        if state.idle >= state.queued {
            self.work.notify_one();
            return Submitted::Queued;
        }
        if state.threads < self.threads_max {
            state.threads += 1;
            return Submitted::NeedsThread(state.threads);
        }
        // Every thread that is awake or waking looks for work before it sleeps.
        Submitted::Queued
    }

    /// The life of a worker thread: runs tasks until the pool is closed and its queue is empty.
    pub(crate) fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.next_task() {
                drop(state);
                task.run();
                state = lock(&self.state);
            } else if state.closed {
                state.threads -= 1;
                self.work.notify_all();
                return;
            } else {
                state.idle += 1;
                state = wait(&self.work, state);
                state.idle -= 1;
            }
        }
    }

    /// Ends all threads when the queue is empty, and returns when they have ended.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.work.notify_all();
        while state.threads > 0 {
            state = wait(&self.work, state);
        }
    }

    /// Uncounts a thread that could not be started. Returns whether tasks now have no thread at
    /// all, so that the caller must run them: see [`WorkerPool::work_off`].
    fn thread_failed(&self) -> bool {
        let mut state = lock(&self.state);
        state.threads -= 1;
        self.work.notify_all();
        state.threads == 0
    }

    /// Runs queued tasks on the calling thread until there are none.
    fn work_off(&self) {
        loop {
            let task = lock(&self.state).next_task();
            match task {
                Some(task) => task.run(),
                None => return,
            }
        }
    }
}

impl<T> WorkerState<T> {
    fn next_task(&mut self) -> Option<T> {
        let lane = self.turns.pop_front()?;
        let tasks = self.lanes.get_mut(&lane)?;
        let task = tasks.pop_front();
        if tasks.is_empty() {
            self.lanes.remove(&lane);
        } else {
            self.turns.push_back(lane);
        }
        self.queued -= 1;
        task
    }
}

/// Queues a task and starts a thread for it where that is due. If the system gives no thread,
/// those that exist will do; if there is none, the caller does the work.
pub(crate) fn submit_with_threads<T: Task>(pool: &Arc<WorkerPool<T>>, lane: Lane, task: T) {
    let Submitted::NeedsThread(number) = pool.submit(lane, task) else {
        return;
    };
    if let Err(error) = start_worker(pool, number) {
        tracing::warn!(%error, "cannot start another thread for requests that wait");
        if pool.thread_failed() {
            pool.work_off();
        }
    }
}

fn start_worker<T: Task>(pool: &Arc<WorkerPool<T>>, number: usize) -> io::Result<()> {
    let pool = Arc::clone(pool);
    std::thread::Builder::new()
        .name(format!("nbd-worker-{number}"))
        .spawn(move || pool.work())?;
    Ok(())
}
