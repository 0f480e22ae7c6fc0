//! Threads that may wait for the disk, so that the threads that read sockets do not have to.
//!
//! All connections of a server share one [`WorkerPool`]. Tasks are queued by lane (a connection is
//! a lane) and lanes take turns, so a client with a hundred slow requests does not delay the one
//! slow request of another. Threads are started when a task finds none idle, and stay.
//!
//! A volume whose disk does not answer must not take all threads: a volume has at most [`SHARE`] times as many at
//! work as are left. So a single volume has seven eighths of them, several that wait have somewhat fewer each, and a
//! volume without any gets one. Tasks wait only for tasks of their volume that have begun, and those wait for no
//! other task.
//!
//! The queue itself is unlimited: a connection hands over a bounded number of requests
//! ([`crate::limits::HANDED_OVER_MAX`]) and executes the rest itself.

use crate::sync::{Condvar, Mutex, lock, wait};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Something a worker does once. It must not panic: a panic would cost the pool a thread.
pub(crate) trait Task: Send + 'static {
    /// Runs the task.
    fn run(self);

    /// Called before the task is queued, if it has to wait for a thread; must not wait.
    fn waits(&self) {}
}

/// How many threads a volume may have for each one that is left.
const SHARE: usize = 7;

/// A connection, for taking turns, and its volume, for the share of the threads; a number each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) connection: u64,
    pub(crate) volume: u64,
}

pub(crate) struct WorkerPool<T> {
    state: Mutex<WorkerState<T>>,
    work: Condvar,
}

struct WorkerState<T> {
    lanes: HashMap<Lane, VecDeque<T>>,
    /// Lanes that have tasks, each once, in the order of their turns.
    turns: VecDeque<Lane>,
    queued: usize,
    /// Volumes that have tasks, queued or running.
    volumes: HashMap<u64, VolumeTasks>,
    running: usize,
    threads_max: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The numbers of a volume's tasks.
#[derive(Debug, Clone, Copy, Default)]
struct VolumeTasks {
    queued: usize,
    running: usize,
}

/// The next step for the caller of [`WorkerPool::submit`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// There is nothing to do.
    Queued,
    /// Start a thread that calls [`WorkerPool::work`]; it is already counted.
    NeedsThread(usize),
}

impl<T: Task> WorkerPool<T> {
    /// A pool of at most `threads_max` threads, at least one.
    pub(crate) fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WorkerState {
                lanes: HashMap::new(),
                turns: VecDeque::new(),
                queued: 0,
                volumes: HashMap::new(),
                running: 0,
                threads_max: threads_max.max(1),
                threads: 0,
                idle: 0,
                closed: false,
            }),
            work: Condvar::new(),
        })
    }

    /// Queues a task after the others of its lane.
    pub(crate) fn submit(&self, lane: Lane, task: T) -> Submitted {
        let mut state = lock(&self.state);
        if !state.would_start(lane.volume) {
            task.waits();
        }
        state.push(lane, task);
        if state.idle >= state.queued {
            self.work.notify_one();
            return Submitted::Queued;
        }
        if state.threads < state.threads_max {
            state.threads += 1;
            return Submitted::NeedsThread(state.threads);
        }
        // Every thread that is awake or waking looks for work before it sleeps. Some may sleep although tasks
        // are queued that exceed their volumes' share.
        if state.idle > 0 {
            self.work.notify_one();
        }
        Submitted::Queued
    }

    /// Runs a worker thread: executes tasks until the pool is closed and its queue is empty.
    pub(crate) fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some((volume, task)) = state.next_task() {
                self.wake_another(&state);
                drop(state);
                task.run();
                state = lock(&self.state);
                state.ended(volume);
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

    /// Wakes another thread, because a task that has ended may let several begin.
    fn wake_another(&self, state: &WorkerState<T>) {
        if state.idle > 0 && state.runnable() > 0 {
            self.work.notify_one();
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

    /// Starts the first thread. A caller that hands over a task may not run it, so there has to be a thread even if the
    /// system provides no more later.
    pub(crate) fn start_first(self: &Arc<Self>) -> io::Result<()> {
        let number = {
            let mut state = lock(&self.state);
            state.threads += 1;
            state.threads
        };
        start_worker(self, number).inspect_err(|_| self.thread_failed())
    }

    /// Corrects the count after a thread could not be started.
    fn thread_failed(&self) {
        lock(&self.state).threads -= 1;
        self.work.notify_all();
    }
}

impl<T> WorkerState<T> {
    fn push(&mut self, lane: Lane, task: T) {
        let tasks = self.lanes.entry(lane).or_default();
        tasks.push_back(task);
        if tasks.len() == 1 {
            self.turns.push_back(lane);
        }
        self.queued += 1;
        self.volumes.entry(lane.volume).or_default().queued += 1;
    }

    /// How many more tasks of a volume may begin, one after another, if `running` of its tasks are at work.
    fn allowance(&self, running: usize) -> usize {
        let left = self.threads_max.saturating_sub(self.running);
        if left == 0 {
            return 0;
        }
        // Each task that begins also takes one of the threads that are left.
        let most = (SHARE * (left - 1)).saturating_sub(running);
        let most = most.div_ceil(SHARE + 1);
        // A volume without any also gets the last thread.
        most.max(usize::from(running == 0)).min(left)
    }

    /// Whether a task of this volume would begin at once.
    fn would_start(&self, volume: u64) -> bool {
        let tasks = self.volumes.get(&volume).copied().unwrap_or_default();
        tasks.queued < self.allowance(tasks.running)
            && self.running + self.runnable() < self.threads_max
    }

    /// How many queued tasks may begin, considering each volume separately.
    fn runnable(&self) -> usize {
        if self.queued == 0 {
            return 0;
        }
        let volumes = self.volumes.values();
        volumes
            .map(|tasks| tasks.queued.min(self.allowance(tasks.running)))
            .sum()
    }

    /// The next task in turn that may begin, and its volume.
    fn next_task(&mut self) -> Option<(u64, T)> {
        for _ in 0..self.turns.len() {
            let lane = self.turns.pop_front()?;
            let of_volume = self.volumes.get(&lane.volume).copied().unwrap_or_default();
            if self.allowance(of_volume.running) == 0 {
                self.turns.push_back(lane);
                continue;
            }
            let tasks = self.lanes.get_mut(&lane)?;
            let task = tasks.pop_front()?;
            if tasks.is_empty() {
                self.lanes.remove(&lane);
            } else {
                self.turns.push_back(lane);
            }
            self.queued -= 1;
            self.running += 1;
            let of_volume = self.volumes.entry(lane.volume).or_default();
            of_volume.queued -= 1;
            of_volume.running += 1;
            return Some((lane.volume, task));
        }
        None
    }

    /// Notes that a task of this volume has ended.
    fn ended(&mut self, volume: u64) {
        self.running -= 1;
        if let Some(tasks) = self.volumes.get_mut(&volume) {
            tasks.running -= 1;
            if tasks.running + tasks.queued == 0 {
                self.volumes.remove(&volume);
            }
        }
    }
}

/// Queues a task, and starts a thread for it if needed. If the system provides no thread, the
/// existing ones suffice.
pub(crate) fn submit_with_threads<T: Task>(pool: &Arc<WorkerPool<T>>, lane: Lane, task: T) {
    let Submitted::NeedsThread(number) = pool.submit(lane, task) else {
        return;
    };
    if let Err(error) = start_worker(pool, number) {
        tracing::warn!(%error, "cannot start another thread for requests that wait");
        pool.thread_failed();
    }
}

fn start_worker<T: Task>(pool: &Arc<WorkerPool<T>>, number: usize) -> io::Result<()> {
    let pool = Arc::clone(pool);
    std::thread::Builder::new()
        .name(format!("nbd-worker-{number}"))
        .spawn(move || pool.work())?;
    Ok(())
}
