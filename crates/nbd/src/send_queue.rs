//! Turns of the threads that write to a client's socket.
//!
//! Replies come from the connection's own thread and from workers. A thread that finds the socket
//! free sends at once; otherwise it leaves the reply in the queue for the thread that is sending.
//!
//! Invariants:
//! - One thread at a time sends, so replies never mix: `sending` is true while it does.
//! - A worker never waits for a client: it sends only as much as the socket takes at once. The rest
//!   goes to the connection's writer thread, which is started when this first happens.
//! - The queue is not empty only while a thread is sending, which checks it before stopping.
//! - After the first failed send nothing more is sent, and all replies are dropped.

use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use std::collections::VecDeque;
use std::io;

/// The destination of replies.
pub(crate) trait Sink<R> {
    /// Sends as much as possible without blocking; returns whether that was everything. Called
    /// again with the same reply, it continues where it stopped.
    fn try_send(&self, reply: &mut R) -> io::Result<bool>;

    /// Sends the rest of the reply, blocking as long as necessary.
    fn send(&self, reply: &mut R) -> io::Result<()>;

    /// Makes the other calls fail from now on, including calls in progress.
    fn close(&self);
}

#[derive(Debug)]
pub(crate) struct SendQueue<R> {
    state: Mutex<QueueState<R>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<R> {
    /// Requests handed over to workers and not yet delivered.
    pending: usize,
    queue: VecDeque<R>,
    sending: bool,
    writer: Writer,
    ending: bool,
    broken: bool,
    /// Threads that wait for `changed`. Notifying costs a system call even if there are none.
    waiting: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// There is no writer thread.
    None,
    /// The writer thread waits.
    Idle,
    /// The writer thread is sending, or about to.
    Sending,
}

/// The error that nothing more can be sent to the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The next step for the caller of [`SendQueue::deliver`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// There is nothing to do.
    Done,
    /// Start a thread that calls [`SendQueue::write`], or else call [`SendQueue::no_writer`].
    NeedsWriter,
}

impl<R> SendQueue<R> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(QueueState {
                pending: 0,
                queue: VecDeque::new(),
                sending: false,
                writer: Writer::None,
                ending: false,
                broken: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Announces a worker's reply, unless `pending_max` are already announced.
    pub(crate) fn announce(&self, pending_max: usize) -> bool {
        let mut state = lock(&self.state);
        let admitted = state.pending < pending_max;
        if admitted {
            state.pending += 1;
        }
        admitted
    }

    /// Whether a reply is announced and not sent yet.
    pub(crate) fn is_pending(&self) -> bool {
        lock(&self.state).pending > 0
    }

    /// Sends from the connection's own thread: waits until no other thread is sending, calls
    /// `send`, and then sends the replies queued in that time.
    pub(crate) fn send_from_connection<S: Sink<R>>(
        &self,
        sink: &S,
        send: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Broken> {
        let mut state = lock(&self.state);
        while state.sending && !state.broken {
            state = self.wait(state);
        }
        if state.broken {
            return Err(Broken);
        }
        state.sending = true;
        drop(state);
        match send() {
            Ok(()) => {
                self.send_queued(sink);
                Ok(())
            }
            Err(_) => {
                self.break_off(sink);
                Err(Broken)
            }
        }
    }

    /// Sends the reply of an announced request from a worker, without waiting; `None` if there is
    /// none to send.
    pub(crate) fn deliver<S: Sink<R>>(&self, sink: &S, reply: Option<R>) -> Delivered {
        let mut delivered = Delivered::Done;
        let mut state = lock(&self.state);
        if let Some(reply) = reply
            && !state.broken
        {
            state.queue.push_back(reply);
            if !state.sending {
                state.sending = true;
                drop(state);
                delivered = self.try_send_queued(sink);
                state = lock(&self.state);
            }
        }
        state.pending -= 1;
        self.notify(&state);
        delivered
    }

    /// Sends queued replies as far as possible without blocking. The caller is the sender.
    fn try_send_queued<S: Sink<R>>(&self, sink: &S) -> Delivered {
        while let Some(mut reply) = self.next_or_release() {
            match sink.try_send(&mut reply) {
                Ok(true) => {}
                Ok(false) => return self.pass_to_writer(reply),
                Err(_) => {
                    self.break_off(sink);
                    break;
                }
            }
        }
        Delivered::Done
    }

    /// Sends all queued replies, waiting for the client. The caller is the sender.
    fn send_queued<S: Sink<R>>(&self, sink: &S) {
        while let Some(mut reply) = self.next_or_release() {
            if sink.send(&mut reply).is_err() {
                return self.break_off(sink);
            }
        }
    }

    /// The next reply to send; if there is none, the caller is no longer the sender.
    fn next_or_release(&self) -> Option<R> {
        let mut state = lock(&self.state);
        let next = state.queue.pop_front();
        if next.is_none() {
            self.release(&mut state);
        }
        next
    }

    fn release(&self, state: &mut QueueState<R>) {
        state.sending = false;
        // If it was the writer's turn then this is the writer, or there is none.
        if state.writer == Writer::Sending {
            state.writer = Writer::Idle;
        }
        self.notify(state);
    }

    /// Makes the writer thread the sender, beginning with the rest of `reply`.
    fn pass_to_writer(&self, reply: R) -> Delivered {
        let mut state = lock(&self.state);
        state.queue.push_front(reply);
        let before = state.writer;
        state.writer = Writer::Sending;
        self.notify(&state);
        if before == Writer::None {
            Delivered::NeedsWriter
        } else {
            Delivered::Done
        }
    }

    fn break_off<S: Sink<R>>(&self, sink: &S) {
        sink.close();
        let mut state = lock(&self.state);
        state.broken = true;
        let queue = std::mem::take(&mut state.queue);
        self.release(&mut state);
        drop(state);
        // Replies give memory back when dropped; no need to do that under the lock.
        drop(queue);
    }

    /// Runs the writer thread: sends replies that workers could not, until the connection ends.
    pub(crate) fn write<S: Sink<R>>(&self, sink: &S) {
        let mut state = lock(&self.state);
        loop {
            if state.writer == Writer::Sending {
                drop(state);
                self.send_queued(sink);
                state = lock(&self.state);
            } else if state.ending {
                state.writer = Writer::None;
                self.notify(&state);
                return;
            } else {
                state = self.wait(state);
            }
        }
    }

    /// Gives the client up because there is no thread to write to it.
    pub(crate) fn no_writer<S: Sink<R>>(&self, sink: &S) {
        self.break_off(sink);
        let mut state = lock(&self.state);
        state.writer = Writer::None;
        self.notify(&state);
    }

    /// Returns when every announced request has been delivered, everything has been sent or
    /// dropped, and the writer thread has ended.
    pub(crate) fn finish(&self) {
        let mut state = lock(&self.state);
        while state.pending > 0 || state.sending {
            state = self.wait(state);
        }
        state.ending = true;
        self.notify(&state);
        while state.writer != Writer::None {
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, QueueState<R>>) -> MutexGuard<'a, QueueState<R>> {
        state.waiting += 1;
        let mut state = wait(&self.changed, state);
        state.waiting -= 1;
        state
    }

    fn notify(&self, state: &QueueState<R>) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }
}
