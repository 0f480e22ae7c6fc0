//! Hand-written synchronisation under shuttle: the server's own files, compiled against primitives
//! that try one interleaving after another and detect deadlocks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "the files are included whole")]

#[path = "../src/buffer.rs"]
mod buffer;
#[path = "../src/send_queue.rs"]
mod send_queue;
#[path = "../src/workers.rs"]
mod workers;

/// Stands in for the server's module `sync`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap()
    }
}

use buffer::{BufferPool, Share};
use send_queue::{Delivered, SendQueue, Sink};
use shuttle::thread;
use std::io;
use std::sync::Arc;
use sync::{AtomicUsize, Condvar, Mutex, Ordering, lock, wait};
use workers::{Lane, Submitted, Task, WorkerPool};

const ITERATIONS: usize = 3000;

/// Checks with both schedulers: one makes all choices at random, the other searches for orders with
/// few choices.
fn check(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(scenario.clone(), ITERATIONS);
    shuttle::check_pct(scenario, ITERATIONS, 3);
}

/// A reply in several parts, and how many of them have been sent.
struct Parts {
    name: usize,
    sent: usize,
}

const PARTS: usize = 3;

/// A socket with room for a number of parts, which may be closed.
struct Socket {
    state: Mutex<SocketState>,
    room_made: Condvar,
}

struct SocketState {
    room: usize,
    closed: bool,
    sent: Vec<usize>,
}

impl Socket {
    fn new(room: usize) -> Arc<Self> {
        let state = SocketState {
            room,
            closed: false,
            sent: Vec::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            room_made: Condvar::new(),
        })
    }

    /// The client reads the sent replies.
    fn make_room(&self, room: usize) {
        lock(&self.state).room += room;
        self.room_made.notify_all();
    }

    /// Sends parts while there is room; returns whether the whole reply is sent.
    fn push(state: &mut SocketState, reply: &mut Parts) -> io::Result<bool> {
        while reply.sent < PARTS && state.room > 0 && !state.closed {
            state.room -= 1;
            reply.sent += 1;
            state.sent.push(reply.name);
        }
        if state.closed {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(reply.sent == PARTS)
        }
    }

    /// Asserts that replies are whole and not mixed; returns their number.
    fn assert_whole(&self) -> usize {
        let sent = &lock(&self.state).sent;
        for parts in sent.chunks(PARTS) {
            assert!(
                parts.len() == PARTS && parts.iter().all(|name| *name == parts[0]),
                "{sent:?}"
            );
        }
        sent.len() / PARTS
    }
}

impl Sink<Parts> for Socket {
    fn try_send(&self, reply: &mut Parts) -> io::Result<bool> {
        Socket::push(&mut lock(&self.state), reply)
    }

    fn send(&self, reply: &mut Parts) -> io::Result<()> {
        let mut state = lock(&self.state);
        while !Socket::push(&mut state, reply)? {
            state = wait(&self.room_made, state);
        }
        Ok(())
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.room_made.notify_all();
    }
}

type Queue = Arc<SendQueue<Parts>>;

/// A worker's steps after a request: delivers, and starts the writer if it must.
fn deliver(queue: &Queue, socket: &Arc<Socket>, name: usize) {
    if queue.deliver(socket.as_ref(), Some(Parts { name, sent: 0 })) == Delivered::NeedsWriter {
        let (queue, socket) = (Arc::clone(queue), Arc::clone(socket));
        thread::spawn(move || queue.write(socket.as_ref()));
    }
}

/// Announces and starts `count` workers.
fn start_workers(queue: &Queue, socket: &Arc<Socket>, count: usize) {
    for _ in 0..count {
        assert!(queue.announce(count));
    }
    assert!(!queue.announce(count));
    for name in 0..count {
        let (queue, socket) = (Arc::clone(queue), Arc::clone(socket));
        thread::spawn(move || deliver(&queue, &socket, name));
    }
}

#[test]
fn every_reply_is_sent_whole_by_whoever_it_is() {
    check(|| {
        let socket = Socket::new(2);
        let queue: Queue = Arc::new(SendQueue::new());
        start_workers(&queue, &socket, 3);
        let client = Arc::clone(&socket);
        thread::spawn(move || {
            for _ in 0..5 {
                client.make_room(3);
            }
        });
        for name in 10..12 {
            let sent = queue.send_from_connection(socket.as_ref(), || {
                socket.send(&mut Parts { name, sent: 0 })
            });
            assert!(sent.is_ok());
        }
        queue.finish();
        assert_eq!(socket.assert_whole(), 5);
    });
}

#[test]
fn a_closed_socket_leaves_nobody_waiting() {
    check(|| {
        let socket = Socket::new(1);
        let queue: Queue = Arc::new(SendQueue::new());
        start_workers(&queue, &socket, 3);
        let client = Arc::clone(&socket);
        thread::spawn(move || {
            client.make_room(4);
            client.close();
        });
        let _ = queue.send_from_connection(socket.as_ref(), || {
            socket.send(&mut Parts { name: 10, sent: 0 })
        });
        queue.finish();
        assert!(lock(&socket.state).sent.len() <= 5);
    });
}

/// A connection to a volume.
fn lane(connection: u64, volume: u64) -> Lane {
    Lane { connection, volume }
}

struct Count(Arc<AtomicUsize>);

impl Task for Count {
    fn run(self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn every_task_is_run_and_threads_end() {
    for threads in [1, 2] {
        check(move || {
            let pool = WorkerPool::new(threads);
            let done = Arc::new(AtomicUsize::new(0));
            let submitters: Vec<_> = (0..2)
                .map(|number| {
                    let (pool, done) = (Arc::clone(&pool), Arc::clone(&done));
                    thread::spawn(move || {
                        for _ in 0..3 {
                            let lane = lane(number, number);
                            let submitted = pool.submit(lane, Count(Arc::clone(&done)));
                            if let Submitted::NeedsThread(number) = submitted {
                                assert!(number <= threads);
                                let pool = Arc::clone(&pool);
                                thread::spawn(move || pool.work());
                            }
                        }
                    })
                })
                .collect();
            for submitter in submitters {
                submitter.join().unwrap();
            }
            pool.close();
            assert_eq!(done.load(Ordering::SeqCst), 6);
        });
    }
}

/// Notifies a gate's keeper that the task runs, and waits to be let through.
enum Step {
    Block(Arc<(Mutex<bool>, Condvar)>),
    Finish(Arc<(Mutex<bool>, Condvar)>),
}

impl Task for Step {
    fn run(self) {
        match self {
            Step::Block(gate) => {
                let mut open = lock(&gate.0);
                while !*open {
                    open = wait(&gate.1, open);
                }
            }
            Step::Finish(gate) => {
                *lock(&gate.0) = true;
                gate.1.notify_all();
            }
        }
    }
}

#[test]
fn a_task_does_not_wait_behind_another_while_threads_are_allowed() {
    check(|| {
        // A volume may have two of three threads.
        let pool = WorkerPool::new(3);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        // After the first, a thread may be idle. The second ends only when the third has run: if
        // one of them had to wait for the other's thread, neither could continue.
        let before = Arc::new((Mutex::new(false), Condvar::new()));
        let tasks = [
            Step::Finish(before),
            Step::Block(Arc::clone(&gate)),
            Step::Finish(Arc::clone(&gate)),
        ];
        for task in tasks {
            if let Submitted::NeedsThread(_) = pool.submit(lane(1, 1), task) {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.work());
            }
        }
        pool.close();
        assert!(*lock(&gate.0));
    });
}

#[test]
fn a_volume_whose_tasks_wait_leaves_threads_to_others() {
    check(|| {
        let pool = WorkerPool::new(3);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let submit = |lane, task| {
            if let Submitted::NeedsThread(_) = pool.submit(lane, task) {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.work());
            }
        };
        // From several connections, and more of them than there are threads.
        for n in 0..4 {
            submit(lane(n % 2, 1), Step::Block(Arc::clone(&gate)));
        }
        submit(lane(2, 2), Step::Finish(Arc::clone(&gate)));
        pool.close();
        assert!(*lock(&gate.0));
    });
}

#[test]
fn buffers_stay_within_pool_and_share() {
    check(|| {
        let pool = BufferPool::new(16 << 10);
        let taken = Arc::new(AtomicUsize::new(0));
        let takers: Vec<_> = (0..3)
            .map(|number| {
                let (pool, taken) = (Arc::clone(&pool), Arc::clone(&taken));
                thread::spawn(move || {
                    let share = Share::new(8 << 10);
                    for len in [4096, 5000, 8192 - number] {
                        let first = pool.take(&share, len);
                        let second = pool.take(&share, 8192);
                        assert!(first.is_none() || second.is_none());
                        let held = first.iter().chain(&second).count();
                        taken.fetch_add(held, Ordering::SeqCst);
                    }
                    assert!(pool.take(&share, 8193).is_none());
                })
            })
            .collect();
        for taker in takers {
            taker.join().unwrap();
        }
        assert!(taken.load(Ordering::SeqCst) > 0);
        assert!(pool.bytes_peak() <= 16 << 10);
        let share = Share::new(16 << 10);
        assert!(pool.take(&share, 16 << 10).is_some());
    });
}
