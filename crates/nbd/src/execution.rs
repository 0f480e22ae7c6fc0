//! Executing requests on an export, on any thread, with every possible end.

use crate::buffer::PoolBuffer;
use crate::export::{Change, ChangedExtent, Changes, Export, ExportError, Extent, Failure};
use crate::handshake::Terms;
use crate::limits::EXTENTS_MAX;
use crate::limits::PARKED_RETRY_INTERVAL;
use crate::log_limit::LogLimit;
use crate::parking::{Parking, Waiting};
use crate::reply::{Payload, Reply};
use crate::request::Control;
use crate::send_queue::{Delivered, SendQueue};
use crate::socket::Socket;
use crate::statistics::{Counters, Outcome, Received};
use crate::wire::{
    self, BASE_ALLOCATION_ID, Errno, FIRST_BITMAP_ID, ReplyHeader, allocation, bitmap,
};
use crate::workers::{Task, WorkerPool};
use onefold_store::Blocking;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// State that the threads that serve a connection share.
pub(crate) struct ConnectionState {
    pub(crate) id: u64,
    /// The export's name.
    pub(crate) name: String,
    pub(crate) terms: Terms,
    /// The snapshots that the export is compared with, in the order of their numbers.
    pub(crate) changes: Vec<Arc<dyn Changes>>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) queue: SendQueue<Reply>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) workers: Arc<WorkerPool<QueuedRequest>>,
    pub(crate) parking: Arc<Parking<QueuedRequest>>,
    pub(crate) failures: Arc<LogLimit>,
    /// Nothing more is read from the client.
    pub(crate) ended: AtomicBool,
}

/// How an attempt ended, if not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptError {
    /// It has to be repeated where waiting is allowed.
    WouldBlock,
    /// It has to be repeated until there is space.
    WaitForSpace,
    /// The client's errno.
    Failed(Errno),
    /// The export's state may be anything now: this connection is not continued.
    Panicked,
}

impl ConnectionState {
    /// Calls the export, and logs failures in a way that helps the reader of the log.
    pub(crate) fn attempt<T>(
        &self,
        what: &str,
        call: impl FnOnce() -> Result<T, ExportError>,
    ) -> Result<T, AttemptError> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(ExportError::WouldBlock)) => Err(AttemptError::WouldBlock),
            Ok(Err(ExportError::WaitForSpace(source))) => {
                let ConnectionState { id, name, .. } = self;
                tracing::debug!(client = id, "{what} waits on export {name:?}: {source}");
                Err(AttemptError::WaitForSpace)
            }
            Ok(Err(ExportError::Failed { failure, source })) => {
                let ConnectionState { id, name, .. } = self;
                if failure == Failure::Io {
                    self.failures.line(|left_out| {
                        tracing::error!(
                            client = id,
                            left_out,
                            "{what} failed on export {name:?}: {source}"
                        );
                    });
                } else {
                    tracing::debug!(client = id, "{what} refused on export {name:?}: {source}");
                }
                Err(AttemptError::Failed(errno_of(failure)))
            }
            Err(panic) => {
                let ConnectionState { id, name, .. } = self;
                let text = panic_text(panic.as_ref());
                tracing::error!(
                    client = id,
                    "{what} on export {name:?} panicked, closing this connection: {text}"
                );
                Err(AttemptError::Panicked)
            }
        }
    }

    /// As [`ConnectionState::attempt`], on a thread that can do nothing else: waits for space as well, unless the
    /// client goes.
    pub(crate) fn attempt_until_space<T>(
        &self,
        what: &str,
        mut call: impl FnMut() -> Result<T, ExportError>,
    ) -> Result<T, AttemptError> {
        let mut waiting = None;
        loop {
            match self.attempt(what, &mut call) {
                Err(AttemptError::WaitForSpace) if !self.has_ended() => {
                    waiting.get_or_insert_with(|| self.parking.enter(&self.workers));
                    thread::sleep(PARKED_RETRY_INTERVAL);
                }
                done => return done,
            }
        }
    }

    /// Whether the client has gone, or is to go: then nothing waits for space any more.
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.socket.has_ended()
    }

    /// The header of the reply to a READ that succeeded.
    pub(crate) fn read_header(&self, cookie: u64, offset: u64, len: usize) -> ReplyHeader {
        // Lengths come from 32-bit fields.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        match (self.terms.structured_replies, len) {
            (false, _) => ReplyHeader::simple(cookie, None),
            (true, 0) => ReplyHeader::done(cookie),
            (true, _) => ReplyHeader::data(cookie, true, offset, len),
        }
    }

    /// The header of the reply to a READ or BLOCK_STATUS that failed.
    pub(crate) fn chunk_error_header(&self, cookie: u64, errno: Errno) -> ReplyHeader {
        if self.terms.structured_replies {
            ReplyHeader::error(cookie, errno)
        } else {
            ReplyHeader::simple(cookie, Some(errno))
        }
    }

    /// The header of the reply to any other request that failed.
    pub(crate) fn error_header(&self, cookie: u64, errno: Errno) -> ReplyHeader {
        ReplyHeader::simple(cookie, Some(errno))
    }
}

fn errno_of(failure: Failure) -> Errno {
    match failure {
        Failure::Io => Errno::Io,
        Failure::NoSpace => Errno::NoSpace,
        Failure::ReadOnly => Errno::Perm,
        Failure::Invalid => Errno::Inval,
        Failure::Unsupported => Errno::NotSup,
        Failure::Gone => Errno::Shutdown,
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}

/// Does as much of a request as possible without blocking; returns the rest.
pub(crate) fn control_without_waiting(
    export: &dyn Export,
    control: Control,
) -> Result<Option<Control>, ExportError> {
    let (done, fua) = match &control {
        Control::Nothing => return Ok(None),
        Control::Flush => return Ok(Some(control)),
        Control::Trim { range, fua } => (export.trim(range.clone(), Blocking::No), *fua),
        Control::WriteZeroes {
            range,
            options,
            fua,
        } => (
            export.write_zeroes(range.clone(), *options, Blocking::No),
            *fua,
        ),
    };
    match done {
        Ok(()) => Ok(fua.then_some(Control::Flush)),
        Err(ExportError::WouldBlock) => Ok(Some(control)),
        Err(error) => Err(error),
    }
}

/// Does all of a request.
pub(crate) fn control_waiting(export: &dyn Export, control: &Control) -> Result<(), ExportError> {
    let fua = match control.clone() {
        Control::Nothing => false,
        Control::Flush => true,
        Control::Trim { range, fua } => {
            export.trim(range, Blocking::Yes)?;
            fua
        }
        Control::WriteZeroes {
            range,
            options,
            fua,
        } => {
            export.write_zeroes(range, options, Blocking::Yes)?;
            fua
        }
    };
    if fua { export.flush() } else { Ok(()) }
}

/// The whole reply with the range's states, a chunk for each metadata context.
pub(crate) fn block_status(
    shared: &ConnectionState,
    export: &dyn Export,
    (cookie, range, only_first): (u64, Range<u64>, bool),
    blocking: Blocking,
) -> Result<Vec<u8>, ExportError> {
    let contexts = usize::from(shared.terms.base_allocation) + shared.changes.len();
    let extents_max = match only_first {
        true => 1,
        false => EXTENTS_MAX / contexts.max(1),
    };
    let len = range.end - range.start;
    let mut chunks: Vec<(u32, Vec<u8>)> = Vec::with_capacity(contexts);
    if shared.terms.base_allocation {
        let extents = export
            .extents(range.clone(), extents_max, blocking)?
            .into_iter();
        let states = extents.map(|Extent { len, data }| match data {
            true => (len, 0),
            false => (len, allocation::HOLE | allocation::ZERO),
        });
        chunks.push((BASE_ALLOCATION_ID, descriptors(len, extents_max, states)?));
    }
    for (changes, id) in shared.changes.iter().zip(FIRST_BITMAP_ID..) {
        let extents = changes
            .extents(range.clone(), extents_max, blocking)?
            .into_iter();
        let states = extents.map(|ChangedExtent { len, change }| match change {
            Change::Same => (len, 0),
            Change::Data | Change::Zero => (len, bitmap::DIRTY),
        });
        chunks.push((id, descriptors(len, extents_max, states)?));
    }
    let mut reply = Vec::new();
    for (n, (id, descriptors)) in chunks.iter().enumerate() {
        let is_last = n + 1 == chunks.len();
        let len = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        let header = ReplyHeader::block_status(cookie, is_last, *id, len);
        reply.extend_from_slice(header.as_bytes());
        reply.extend_from_slice(descriptors);
    }
    Ok(reply)
}

/// States with their lengths as a chunk carries them: equal neighbours are joined, and the end is
/// the requested one.
fn descriptors(
    mut left: u64,
    descriptors_max: usize,
    states: impl Iterator<Item = (u64, u32)>,
) -> Result<Vec<u8>, ExportError> {
    let mut runs: Vec<(u64, u32)> = Vec::new();
    for (len, state) in states {
        let len = len.min(left);
        left -= len;
        match runs.last_mut() {
            _ if len == 0 => break,
            Some((last_len, last)) if *last == state => *last_len += len,
            _ => runs.push((len, state)),
        }
    }
    runs.truncate(descriptors_max);
    if runs.is_empty() {
        // The protocol knows no answer without a state.
        let source = "the export told no state of a range".into();
        return Err(ExportError::Failed {
            failure: Failure::Io,
            source,
        });
    }
    let mut descriptors = Vec::with_capacity(runs.len() * 8);
    for (len, state) in runs {
        // The range was given by a 32-bit length.
        wire::push_descriptor(
            &mut descriptors,
            u32::try_from(len).unwrap_or(u32::MAX),
            state,
        );
    }
    Ok(descriptors)
}

/// A request that has to block, on its way to a worker. It holds its own reference to the export so
/// that the last one is gone before the connection counts the request as delivered.
pub(crate) struct QueuedRequest {
    pub(crate) shared: Arc<ConnectionState>,
    pub(crate) export: Arc<dyn Export>,
    pub(crate) cookie: u64,
    pub(crate) received: Option<Received>,
    pub(crate) work: Work,
    /// It has had to wait for space.
    pub(crate) waiting: Option<Waiting<QueuedRequest>>,
}

/// The rest of a request.
pub(crate) enum Work {
    Read {
        offset: u64,
        buffer: PoolBuffer,
    },
    Write {
        offset: u64,
        buffer: PoolBuffer,
        fua: bool,
    },
    Control(Control),
    Prefetch {
        range: Range<u64>,
        scratch: PoolBuffer,
    },
    BlockStatus {
        range: Range<u64>,
        only_first: bool,
    },
}

impl Task for QueuedRequest {
    fn run(mut self) {
        let work = std::mem::replace(&mut self.work, Work::Control(Control::Nothing));
        match execute(&self.shared, self.export.as_ref(), self.cookie, work) {
            Ok(executed) => self.deliver(executed),
            Err(work) => Self { work, ..self }.wait_for_space(),
        }
    }
}

impl QueuedRequest {
    /// Leaves the worker to others; comes back to one later.
    fn wait_for_space(mut self) {
        let shared = Arc::clone(&self.shared);
        if !shared.has_ended() {
            let waiting = self.waiting.take();
            self.waiting = waiting.or_else(|| Some(shared.parking.enter(&shared.workers)));
            match shared.parking.park(shared.id, self) {
                Ok(()) => return,
                Err(unparked) => self = unparked,
            }
        }
        let header = shared.error_header(self.cookie, AttemptError::WaitForSpace.errno());
        self.deliver(Executed {
            reply: Some(Reply::new(header, Payload::None)),
            outcome: Outcome::Error,
        });
    }

    /// The request is done ([step 8 reply]).
    fn deliver(self, executed: Executed) {
        let Self {
            shared,
            export,
            received,
            waiting,
            ..
        } = self;
        let Executed { reply, outcome } = executed;
        drop(waiting);
        if let Some(received) = received {
            shared.counters.count(received, outcome, Instant::now());
        }
        if reply.is_none() {
            shared.socket.close();
        }
        // A panic that escapes from a destructor of the export must not cost the thread either.
        let _ = shared.attempt("detaching", || {
            drop(export);
            Ok(())
        });
        if shared.queue.deliver(shared.socket.as_ref(), reply) == Delivered::NeedsWriter {
            start_writer(shared);
        }
    }
}

/// How a request ended on a worker.
struct Executed {
    /// None if it panicked.
    reply: Option<Reply>,
    outcome: Outcome,
}

/// Executes a request where blocking is allowed. A request that has to wait for space is returned.
fn execute(
    shared: &ConnectionState,
    export: &dyn Export,
    cookie: u64,
    work: Work,
) -> Result<Executed, Work> {
    let plain = |()| plain_reply(cookie);
    let (done, error_header): (_, fn(&ConnectionState, u64, Errno) -> ReplyHeader) = match work {
        Work::Read { offset, mut buffer } => {
            let done = shared.attempt("read", || export.read(offset, &mut buffer, Blocking::Yes));
            let reply = done.map(|()| {
                let header = shared.read_header(cookie, offset, buffer.len());
                Reply::new(header, Payload::Buffer(buffer))
            });
            (reply, ConnectionState::chunk_error_header)
        }
        Work::Write {
            offset,
            buffer,
            fua,
        } => {
            let done = shared.attempt("write", || {
                export.write(offset, &buffer, Blocking::Yes)?;
                if fua { export.flush() } else { Ok(()) }
            });
            if done == Err(AttemptError::WaitForSpace) {
                return Err(Work::Write {
                    offset,
                    buffer,
                    fua,
                });
            }
            (done.map(plain), ConnectionState::error_header)
        }
        Work::Control(control) => {
            let done = shared.attempt(control.name(), || control_waiting(export, &control));
            if done == Err(AttemptError::WaitForSpace) {
                return Err(Work::Control(control));
            }
            (done.map(plain), ConnectionState::error_header)
        }
        Work::Prefetch { range, mut scratch } => {
            let done = shared.attempt("prefetch", || export.prefetch(range, &mut scratch));
            (done.map(plain), ConnectionState::error_header)
        }
        Work::BlockStatus { range, only_first } => {
            let done = shared.attempt("block status", || {
                block_status(shared, export, (cookie, range, only_first), Blocking::Yes)
            });
            let reply = done.map(|chunks| Reply::new(ReplyHeader::empty(), Payload::Bytes(chunks)));
            (reply, ConnectionState::chunk_error_header)
        }
    };
    let outcome = match done {
        Ok(_) => Outcome::Ok,
        Err(_) => Outcome::Error,
    };
    let reply = match done {
        Ok(reply) => Some(reply),
        Err(AttemptError::Panicked) => None,
        Err(failure) => Some(Reply::new(
            error_header(shared, cookie, failure.errno()),
            Payload::None,
        )),
    };
    Ok(Executed { reply, outcome })
}

impl AttemptError {
    /// The client's errno. An export that would block where it may has a defect.
    pub(crate) fn errno(self) -> Errno {
        match self {
            AttemptError::Failed(errno) => errno,
            // The client that hears this has gone, or the server goes.
            AttemptError::WaitForSpace => Errno::Shutdown,
            AttemptError::WouldBlock | AttemptError::Panicked => Errno::Io,
        }
    }
}

impl Control {
    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Control::Nothing => "nothing",
            Control::Flush => "flush",
            Control::Trim { .. } => "trim",
            Control::WriteZeroes { .. } => "write of zeros",
        }
    }
}

fn plain_reply(cookie: u64) -> Reply {
    Reply::new(ReplyHeader::simple(cookie, None), Payload::None)
}

fn start_writer(shared: Arc<ConnectionState>) {
    let name = format!("nbd-writer-{}", shared.id);
    let writer = Arc::clone(&shared);
    let started = std::thread::Builder::new().name(name).spawn(move || {
        writer.queue.write(writer.socket.as_ref());
    });
    if let Err(error) = started {
        tracing::warn!(client = shared.id, %error, "cannot start a thread, closing this connection");
        shared.queue.no_writer(shared.socket.as_ref());
    }
}
