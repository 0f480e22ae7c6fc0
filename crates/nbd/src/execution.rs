//! Executing requests on an export, on any thread, and handling every way in which they end.

use crate::block_status::StatusQuery;
use crate::buffer::PoolBuffer;
use crate::export::{Changes, Export, ExportError, Failure};
use crate::handshake::Terms;
use crate::limits::{PARKED_RETRY_INTERVAL, SMALL_PAYLOAD_BYTES};
use crate::log_limit::LogLimit;
use crate::parking::{Parking, Waiting};
use crate::reply::{Payload, Reply};
use crate::request::Command;
use crate::send_queue::{Delivered, SendQueue};
use crate::socket::Socket;
use crate::statistics::{Counters, Outcome, Received};
use crate::wire::{Errno, ReplyHeader};
use crate::workers::{Lane, Task, WorkerPool, submit_with_threads};
use onefold_store::{Blocking, FoundBytes, split_name};
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
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
    /// The snapshots with which the export is compared, in the order of their numbers.
    pub(crate) changes: Vec<Arc<dyn Changes>>,
    pub(crate) socket: Arc<Socket>,
    pub(crate) queue: SendQueue<Reply>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) workers: Arc<WorkerPool<QueuedRequest>>,
    pub(crate) parking: Arc<Parking<QueuedRequest>>,
    pub(crate) failures: Arc<LogLimit>,
    /// Set when nothing more is read from the client.
    pub(crate) ended: AtomicBool,
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptError {
    /// The request has to be repeated where waiting is allowed.
    WouldBlock,
    /// The request has to be repeated until there is space.
    WaitForSpace,
    /// The server stops while the request waits for space. The client gets no reply: it repeats the request
    /// when it reconnects, as after a crash of the server; a client that does not reconnect loses no more
    /// than by an error.
    Unanswered,
    /// The request failed with this errno for the client.
    Failed(Errno),
    /// The export panicked and may be in any state: this connection is closed.
    Panicked,
}

impl ConnectionState {
    /// The lane of the connection's tasks. A snapshot has its volume's lane, because it is on the
    /// same disk.
    pub(crate) fn lane(&self) -> Lane {
        let (volume, _) = split_name(&self.name);
        let mut hasher = DefaultHasher::new();
        volume.hash(&mut hasher);
        Lane {
            connection: self.id,
            volume: hasher.finish(),
        }
    }

    /// Calls the export, and logs failures for the operator.
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

    /// Whether the client has gone, or has to go: then nothing waits for space any more.
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.socket.has_ended()
    }

    /// The result of a request that can no longer wait for space.
    fn end_of_waiting(&self) -> AttemptError {
        if self.socket.is_draining() {
            AttemptError::Unanswered
        } else {
            AttemptError::WaitForSpace
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
}

fn errno_of(failure: Failure) -> Errno {
    match failure {
        Failure::Io | Failure::LoggedIo => Errno::Io,
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

/// A request and its memory, on any thread.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) cookie: u64,
    /// The part of the request left to do: only a flush once the data of a FUA write is in place.
    pub(crate) command: Command,
    /// The memory for the request's data; without it, the connection's memory is used.
    pub(crate) buffer: Option<PoolBuffer>,
}

impl Work {
    pub(crate) fn new(cookie: u64, command: Command, buffer: Option<PoolBuffer>) -> Self {
        Self {
            cookie,
            command,
            buffer,
        }
    }

    /// Executes the request, with its data in `memory` if it has no buffer. If it would block and must
    /// not, `command` is the part left to do. Returns the chunks of the reply to BLOCK_STATUS; for
    /// other requests, nothing.
    pub(crate) fn execute(
        &mut self,
        shared: &ConnectionState,
        export: &dyn Export,
        memory: &mut [u8],
        blocking: Blocking,
    ) -> Result<Vec<u8>, AttemptError> {
        let what = self.command.name();
        shared.attempt(what, || {
            let memory = self.buffer.as_deref_mut().unwrap_or(memory);
            let mut needs_flush = false;
            match &self.command {
                Command::Read { range, .. } if !range.is_empty() => {
                    export.read(range.start, memory, blocking)?;
                }
                Command::Nothing | Command::Disconnect | Command::Read { .. } => {}
                Command::Write { range, fua } => {
                    if !range.is_empty() {
                        export.write(range.start, memory, blocking)?;
                    }
                    needs_flush = *fua;
                }
                Command::Flush => needs_flush = true,
                Command::Trim { range, fua } => {
                    export.trim(range.clone(), blocking)?;
                    needs_flush = *fua;
                }
                Command::WriteZeroes {
                    range,
                    options,
                    fua,
                } => {
                    export.write_zeroes(range.clone(), *options, blocking)?;
                    needs_flush = *fua;
                }
                Command::Prefetch(_) if blocking == Blocking::No => {
                    return Err(ExportError::WouldBlock);
                }
                Command::Prefetch(range) => export.prefetch(range.clone(), memory)?,
                Command::BlockStatus { range, only_first } => {
                    let query = StatusQuery {
                        cookie: self.cookie,
                        range: range.clone(),
                        only_first: *only_first,
                        blocking,
                    };
                    return query.reply(export, &shared.terms, &shared.changes);
                }
            }
            if needs_flush && blocking == Blocking::No {
                self.command = Command::Flush;
                return Err(ExportError::WouldBlock);
            }
            if needs_flush {
                export.flush()?;
            }
            Ok(Vec::new())
        })
    }

    /// Like [`Work::execute`] with [`Blocking::Yes`]; also waits for space, until the client
    /// leaves.
    pub(crate) fn execute_until_space(
        &mut self,
        shared: &ConnectionState,
        export: &dyn Export,
        memory: &mut [u8],
    ) -> Result<Vec<u8>, AttemptError> {
        let mut waiting = None;
        loop {
            match self.execute(shared, export, memory, Blocking::Yes) {
                Err(AttemptError::WaitForSpace) if shared.has_ended() => {
                    return Err(shared.end_of_waiting());
                }
                Err(AttemptError::WaitForSpace) => {
                    waiting.get_or_insert_with(|| {
                        shared.parking.enter(&shared.workers, export.hurry())
                    });
                    thread::sleep(PARKED_RETRY_INTERVAL);
                }
                done => return done,
            }
        }
    }

    /// The header of the reply to a request that succeeded.
    pub(crate) fn header(&self, shared: &ConnectionState) -> ReplyHeader {
        let cookie = self.cookie;
        match &self.command {
            Command::Read { range, .. } if shared.terms.structured_replies => {
                if range.is_empty() {
                    return ReplyHeader::done(cookie);
                }
                // Lengths come from 32-bit fields.
                let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                ReplyHeader::data(cookie, true, range.start, len)
            }
            Command::BlockStatus { .. } => ReplyHeader::empty(),
            _ => ReplyHeader::simple(cookie, None),
        }
    }

    /// The header of the reply to a request that failed.
    pub(crate) fn error_header(&self, shared: &ConnectionState, errno: Errno) -> ReplyHeader {
        match &self.command {
            Command::Read { .. } | Command::BlockStatus { .. } => {
                shared.chunk_error_header(self.cookie, errno)
            }
            _ => ReplyHeader::simple(self.cookie, Some(errno)),
        }
    }

    /// The reply to a request that was executed with its own buffer, if it gets one.
    fn into_reply(
        self,
        shared: &ConnectionState,
        done: Result<Vec<u8>, AttemptError>,
    ) -> Option<Reply> {
        match done {
            Ok(chunks) => {
                let header = self.header(shared);
                let payload = match (self.command, self.buffer) {
                    (Command::Read { .. }, Some(buffer)) => Payload::Buffer(buffer),
                    _ => Payload::Bytes(chunks),
                };
                Some(Reply::new(header, payload))
            }
            Err(AttemptError::Panicked | AttemptError::Unanswered) => None,
            Err(failure) => {
                let header = self.error_header(shared, failure.errno());
                Some(Reply::new(header, Payload::None))
            }
        }
    }
}

impl Command {
    /// The memory needed for the request's data, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            // Lengths come from 32-bit fields.
            Command::Read { range, .. } | Command::Write { range, .. } => {
                (range.end - range.start) as usize
            }
            Command::Prefetch(_) => SMALL_PAYLOAD_BYTES,
            _ => 0,
        }
    }

    /// The request's name in the log.
    fn name(&self) -> &'static str {
        match self {
            Command::Nothing | Command::Disconnect => "nothing",
            Command::Read { .. } => "read",
            Command::Write { .. } => "write",
            Command::Flush => "flush",
            Command::Trim { .. } => "trim",
            Command::WriteZeroes { .. } => "write of zeros",
            Command::Prefetch(_) => "prefetch",
            Command::BlockStatus { .. } => "block status",
        }
    }
}

impl AttemptError {
    /// The errno for the client. An export that would block although it may has a defect.
    pub(crate) fn errno(self) -> Errno {
        match self {
            AttemptError::Failed(errno) => errno,
            // The client has gone.
            AttemptError::WaitForSpace | AttemptError::Unanswered => Errno::Shutdown,
            AttemptError::WouldBlock | AttemptError::Panicked => Errno::Io,
        }
    }
}

/// A request that has to block, on its way to a worker. It holds a separate reference to the export
/// so that the last one is gone before the connection counts the request as delivered.
pub(crate) struct QueuedRequest {
    pub(crate) shared: Arc<ConnectionState>,
    pub(crate) export: Arc<dyn Export>,
    pub(crate) work: Work,
    pub(crate) received: Option<Received>,
    /// Present once the request has had to wait for space.
    pub(crate) waiting: Option<Waiting<QueuedRequest>>,
}

/// A request in flight without a thread. If it is dropped before its completion arrives, it ends like a
/// request that panicked: otherwise its connection would wait for it for ever.
pub(crate) struct StartedRequest(Option<QueuedRequest>);

impl StartedRequest {
    pub(crate) fn new(request: QueuedRequest) -> Self {
        Self(Some(request))
    }

    /// Completes a write.
    pub(crate) fn written(mut self, written: Result<(), ExportError>, data: &[u8]) {
        if let Some(request) = self.0.take() {
            request.written(written, data);
        }
    }

    /// Completes a read.
    pub(crate) fn read(mut self, found: Option<FoundBytes>) {
        if let Some(request) = self.0.take() {
            request.read(found);
        }
    }
}

impl Drop for StartedRequest {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            let QueuedRequest { shared, work, .. } = &request;
            tracing::error!(
                client = shared.id,
                "the end of a {} on export {:?} panicked, closing this connection",
                work.command.name(),
                shared.name
            );
            request.deliver(Err(AttemptError::Panicked));
        }
    }
}

impl Task for QueuedRequest {
    fn run(mut self) {
        let export = self.export.as_ref();
        match self
            .work
            .execute(&self.shared, export, &mut [], Blocking::Yes)
        {
            Err(AttemptError::WaitForSpace) => self.wait_for_space(),
            done => self.deliver(done),
        }
    }

    fn waits(&self) {
        self.shared.counters.note_wait();
    }
}

impl QueuedRequest {
    /// Completes a write that ran without a worker, or hands it to a worker if it has to wait after all.
    fn written(mut self, written: Result<(), ExportError>, data: &[u8]) {
        let shared = Arc::clone(&self.shared);
        match shared.attempt(self.work.command.name(), || written) {
            Err(AttemptError::WaitForSpace) => {
                if let Some(buffer) = &mut self.work.buffer {
                    buffer.copy_from_slice(data);
                }
                self.wait_for_space();
            }
            // There was more to wait for than the device.
            Err(AttemptError::WouldBlock) => {
                if let Some(buffer) = &mut self.work.buffer {
                    buffer.copy_from_slice(data);
                }
                self.hand_over();
            }
            done => self.deliver(done.map(|()| Vec::new())),
        }
    }

    /// Completes a read that ran without a worker, or hands it to a worker if the data was not
    /// found.
    fn read(mut self, found: Option<FoundBytes>) {
        match (found, &mut self.work.buffer) {
            (Some(found), Some(buffer)) => {
                found.copy_to(buffer);
                self.deliver(Ok(Vec::new()));
            }
            _ => self.hand_over(),
        }
    }

    /// Has a worker execute the request.
    fn hand_over(self) {
        let (workers, lane) = (Arc::clone(&self.shared.workers), self.shared.lane());
        submit_with_threads(&workers, lane, self);
    }

    /// Parks the request, so that the worker is free; a worker retries it later.
    fn wait_for_space(mut self) {
        let shared = Arc::clone(&self.shared);
        if !shared.has_ended() {
            let waiting = self.waiting.take();
            let enter = || shared.parking.enter(&shared.workers, self.export.hurry());
            self.waiting = waiting.or_else(|| Some(enter()));
            match shared.parking.park(shared.lane(), self) {
                Ok(()) => return,
                Err(unparked) => self = unparked,
            }
        }
        self.deliver(Err(shared.end_of_waiting()));
    }

    /// Delivers the result of an executed request ([step 9 reply]).
    fn deliver(self, done: Result<Vec<u8>, AttemptError>) {
        let Self {
            shared,
            export,
            work,
            received,
            waiting,
        } = self;
        let outcome = Outcome::of(&done);
        // Earlier replies still go out to a client that is cut off.
        let must_close = done == Err(AttemptError::Panicked);
        let reply = work.into_reply(&shared, done);
        drop(waiting);
        if let Some(received) = received {
            shared.counters.count(received, outcome, Instant::now());
        }
        if must_close {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Extent;
    use std::io::Read;
    use std::ops::Range;
    use std::os::unix::net::UnixStream;

    /// Stands in where no export is ever called.
    struct Unused;

    impl Export for Unused {
        fn size_bytes(&self) -> u64 {
            0
        }

        fn preferred_block_bytes(&self) -> u32 {
            4096
        }

        fn read(&self, _: u64, _: &mut [u8], _: Blocking) -> Result<(), ExportError> {
            Ok(())
        }

        fn extents(
            &self,
            _: Range<u64>,
            _: usize,
            _: Blocking,
        ) -> Result<Vec<Extent>, ExportError> {
            Ok(Vec::new())
        }

        fn prefetch(&self, _: Range<u64>, _: &mut [u8]) -> Result<(), ExportError> {
            Ok(())
        }
    }

    fn shared(socket: UnixStream) -> Arc<ConnectionState> {
        Arc::new(ConnectionState {
            id: 1,
            name: "vol".to_owned(),
            terms: Terms {
                size_bytes: 4096,
                read_only: false,
                structured_replies: false,
                base_allocation: false,
                bitmaps: 0,
            },
            changes: Vec::new(),
            socket: Arc::new(Socket::from_unix(socket).unwrap()),
            queue: SendQueue::new(),
            counters: Arc::default(),
            workers: WorkerPool::new(1),
            parking: Parking::new(),
            failures: Arc::new(LogLimit::new(1)),
            ended: AtomicBool::new(false),
        })
    }

    #[test]
    fn a_request_whose_end_panics_closes_its_connection_and_is_not_waited_for() {
        let (socket, mut client) = UnixStream::pair().unwrap();
        let shared = shared(socket);
        assert!(shared.queue.announce(1));
        let command = Command::Write {
            range: 0..4096,
            fua: false,
        };
        let started = StartedRequest::new(QueuedRequest {
            shared: Arc::clone(&shared),
            export: Arc::new(Unused),
            work: Work::new(7, command, None),
            received: None,
            waiting: None,
        });
        let end = move |_: Result<(), ExportError>| -> Result<(), ExportError> {
            let _started = started;
            panic!("the end of the write is broken")
        };
        assert!(catch_unwind(AssertUnwindSafe(|| end(Ok(())))).is_err());
        assert!(!shared.queue.is_pending());
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "it gets no reply");
    }
}
