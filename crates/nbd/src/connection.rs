//! One client's connection after the handshake: the thread that reads its requests.
//!
//! A request is first tried right here, without blocking; the replies of all requests that came
//! with one read go out with one write. A request that would block goes to the workers, and later
//! requests overtake it. If no buffer, worker or budget is available, this thread blocks itself and
//! thereby stops reading: a client can overload only itself.
//!
//! Invariants:
//! - No reply is held back while this thread blocks: it sends the batch before it waits for input,
//!   for the disk, or for a large payload.
//! - When [`serve`] returns, no request of this client is in flight and its export is dropped.

use crate::buffer::{BufferPool, Share};
use crate::execution::{
    AttemptError, ConnectionState, QueuedRequest, Work, block_status, control_waiting,
    control_without_waiting,
};
use crate::export::Export;
use crate::handshake::Session;
use crate::input::Input;
use crate::limits::{BATCH_REPLIES_MAX, HANDED_OVER_MAX, SMALL_PAYLOAD_BYTES};
use crate::log_limit::LogLimit;
use crate::parking::Parking;
use crate::reply::Batch;
use crate::request::{Command, Control, admit};
use crate::send_queue::{Broken, SendQueue};
use crate::socket::Socket;
use crate::statistics::{Counters, Outcome, Received};
use crate::wire::{self, Errno, NotARequest, REQUEST_BYTES, ReplyHeader, Request, command};
use crate::workers::{WorkerPool, submit_with_threads};
use onefold_store::Blocking;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// State that all connections of a server share.
pub(crate) struct Resources {
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) workers: Arc<WorkerPool<QueuedRequest>>,
    pub(crate) parking: Arc<Parking<QueuedRequest>>,
    /// The part of the pool that one connection may hold.
    pub(crate) share_bytes: usize,
    /// Lines about clients that are not served.
    pub(crate) refusals: LogLimit,
    /// Logs clients that attach and detach: a line each, unless a client does it in a loop.
    pub(crate) attachments: LogLimit,
    /// Lines about requests that failed.
    pub(crate) failures: Arc<LogLimit>,
}

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// Earlier requests are still answered.
    #[error("the stream ended in the middle of a request")]
    CutShort,
    #[error("{0}")]
    NotARequest(#[from] NotARequest),
    #[error("the client does not take its replies")]
    Broken,
    #[error("a request panicked")]
    Panicked,
    #[error("a read failed after its reply had begun")]
    ReplyCutOff,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ConnectionError::CutShort,
            _ => ConnectionError::Io(error),
        }
    }
}

impl From<Broken> for ConnectionError {
    fn from(Broken: Broken) -> Self {
        ConnectionError::Broken
    }
}

/// Serves a client until it leaves, or is made to.
pub(crate) fn serve(
    id: u64,
    socket: Arc<Socket>,
    session: Session,
    counters: Arc<Counters>,
    resources: &Resources,
) -> Result<(), ConnectionError> {
    let Session {
        name,
        attached,
        terms,
    } = session;
    let shared = Arc::new(ConnectionState {
        id,
        name,
        terms,
        changes: attached.changes,
        socket,
        queue: SendQueue::new(),
        counters,
        workers: Arc::clone(&resources.workers),
        parking: Arc::clone(&resources.parking),
        failures: Arc::clone(&resources.failures),
        ended: AtomicBool::new(false),
    });
    let connection = Connection {
        shared: Arc::clone(&shared),
        export: attached.export,
        input: Input::new()?,
        batch: Batch::new()?,
        current: None,
        answered: Vec::with_capacity(BATCH_REPLIES_MAX),
        share: Share::new(resources.share_bytes),
        resources,
    };
    let ended = connection.run();
    shared.ended.store(true, Ordering::Release);
    if !matches!(ended, Ok(()) | Err(ConnectionError::CutShort)) {
        // Workers that wait for the client, or the client for us, wait in vain.
        shared.socket.close();
    }
    shared.queue.finish();
    ended
}

struct Connection<'a> {
    shared: Arc<ConnectionState>,
    export: Arc<dyn Export>,
    input: Input,
    batch: Batch,
    /// The request that this thread is processing, once it has arrived whole.
    current: Option<Received>,
    /// The requests whose replies are in the batch. They are counted when it is sent, so one
    /// reading of the clock serves all.
    answered: Vec<Answered>,
    share: Arc<Share>,
    resources: &'a Resources,
}

struct Answered {
    request: Received,
    outcome: Outcome,
}

/// A request that its connection did not survive is counted as well.
impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.count_answered();
        self.count_current(Outcome::Error);
    }
}

impl Connection<'_> {
    fn run(mut self) -> Result<(), ConnectionError> {
        while let Some(request) = self.next_request()? {
            let cookie = request.cookie;
            self.shared.counters.note_request();
            self.input.expect_large_payload(has_large_payload(&request));
            if request.command != command::WRITE {
                self.begin(&request, self.input.received_at());
            }
            match admit(&request, &self.shared.terms) {
                Ok(Command::Read { range, whole }) => self.read(cookie, range, whole)?,
                Ok(Command::Write { fua, .. }) if has_large_payload(&request) => {
                    self.large_write(&request, fua)?;
                }
                Ok(Command::Write { fua, .. }) => {
                    self.small_write(&request, fua)?;
                }
                Ok(Command::Control(control)) => self.control(cookie, control)?,
                Ok(Command::Prefetch(range)) => self.prefetch(cookie, range)?,
                Ok(Command::BlockStatus { range, only_first }) => {
                    self.block_status(cookie, range, only_first)?;
                }
                Ok(Command::Disconnect) => {
                    self.current = None;
                    break;
                }
                Err(errno) => self.refuse(&request, errno)?,
            }
        }
        self.send_batch()
    }

    /// The next request, without its payload. `None` when the client has left, or is to be left.
    fn next_request(&mut self) -> Result<Option<Request>, ConnectionError> {
        if self.input.len() < REQUEST_BYTES {
            self.send_batch()?;
            if self.shared.socket.is_draining() {
                return Ok(None);
            }
            if self.export.uses_idle_processors() {
                self.input.leave_processor();
            }
            if !self.input.wait_for(&self.shared.socket, REQUEST_BYTES)? {
                return Ok(None);
            }
        }
        let Some(header) = self.input.bytes().first_chunk::<REQUEST_BYTES>() else {
            return Ok(None);
        };
        let request = wire::decode_request(header)?;
        self.input.consume(REQUEST_BYTES);
        Ok(Some(request))
    }

    /// Notes that a request has arrived whole.
    fn begin(&mut self, request: &Request, at: Instant) {
        self.current = Some(Received::new(request, at));
    }

    /// Notes that the reply to the current request is in the batch.
    fn end(&mut self, outcome: Outcome) {
        if let Some(request) = self.current.take() {
            self.answered.push(Answered { request, outcome });
        }
    }

    /// Counts the current request, whose reply does not go by way of the batch.
    fn count_current(&mut self, outcome: Outcome) {
        if let Some(request) = self.current.take() {
            self.shared.counters.count(request, outcome, Instant::now());
        }
    }

    fn count_answered(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        let now = Instant::now();
        for Answered { request, outcome } in self.answered.drain(..) {
            self.shared.counters.count(request, outcome, now);
        }
    }

    fn refuse(&mut self, request: &Request, errno: Errno) -> Result<(), ConnectionError> {
        tracing::debug!(client = self.shared.id, ?request, ?errno, "request refused");
        if request.command == command::WRITE {
            self.skip_payload(request.len as usize)?;
            self.begin(request, self.input.received_at());
        }
        let header = match request.command {
            command::READ | command::BLOCK_STATUS => {
                self.shared.chunk_error_header(request.cookie, errno)
            }
            _ => self.shared.error_header(request.cookie, errno),
        };
        self.reply(&header, Outcome::Error)
    }

    fn skip_payload(&mut self, mut len: usize) -> Result<(), ConnectionError> {
        loop {
            let skipped = len.min(self.input.len());
            self.input.consume(skipped);
            len -= skipped;
            if len == 0 {
                return Ok(());
            }
            self.send_batch()?;
            if !self.input.wait_for(&self.shared.socket, 1)? {
                return Err(ConnectionError::CutShort);
            }
        }
    }

    fn read(&mut self, cookie: u64, range: Range<u64>, whole: bool) -> Result<(), ConnectionError> {
        let len = (range.end - range.start) as usize;
        if len > SMALL_PAYLOAD_BYTES {
            return self.large_read(cookie, range, whole);
        }
        self.make_room(len)?;
        match self.read_to_slot(range.start, len, Blocking::No) {
            Err(AttemptError::WouldBlock) => {}
            done => return self.reply_to_read(cookie, range.start, len, done),
        }
        if let Some(buffer) = self.resources.pool.take(&self.share, len)
            && self.shared.queue.announce(HANDED_OVER_MAX)
        {
            self.submit(
                cookie,
                Work::Read {
                    offset: range.start,
                    buffer,
                },
            );
            return Ok(());
        }
        self.send_batch()?;
        let done = self.read_to_slot(range.start, len, Blocking::Yes);
        self.reply_to_read(cookie, range.start, len, done)
    }

    fn read_to_slot(
        &mut self,
        offset: u64,
        len: usize,
        blocking: Blocking,
    ) -> Result<(), AttemptError> {
        if len == 0 {
            return Ok(());
        }
        let slot = self.batch.slot(len);
        self.shared
            .attempt("read", || self.export.read(offset, slot, blocking))
    }

    fn reply_to_read(
        &mut self,
        cookie: u64,
        offset: u64,
        len: usize,
        done: Result<(), AttemptError>,
    ) -> Result<(), ConnectionError> {
        match done {
            Ok(()) => {
                self.batch
                    .push(self.shared.read_header(cookie, offset, len).as_bytes(), len);
                self.end(Outcome::Ok);
                Ok(())
            }
            Err(AttemptError::Panicked) => Err(ConnectionError::Panicked),
            Err(failure) => {
                let header = self.shared.chunk_error_header(cookie, failure.errno());
                self.reply(&header, Outcome::Error)
            }
        }
    }

    fn large_read(
        &mut self,
        cookie: u64,
        range: Range<u64>,
        whole: bool,
    ) -> Result<(), ConnectionError> {
        let len = (range.end - range.start) as usize;
        let offset = range.start;
        let Some(mut buffer) = self.resources.pool.take(&self.share, len) else {
            return self.read_piecewise(cookie, range, whole);
        };
        let mut done = self.shared.attempt("read", || {
            self.export.read(offset, &mut buffer, Blocking::No)
        });
        if done == Err(AttemptError::WouldBlock) {
            if self.shared.queue.announce(HANDED_OVER_MAX) {
                self.submit(cookie, Work::Read { offset, buffer });
                return Ok(());
            }
            self.send_batch()?;
            done = self.shared.attempt("read", || {
                self.export.read(offset, &mut buffer, Blocking::Yes)
            });
        }
        if done.is_err() {
            return self.reply_to_read(cookie, offset, len, done);
        }
        self.send_batch()?;
        self.count_current(Outcome::Ok);
        let header = self.shared.read_header(cookie, offset, len);
        self.send(&mut [IoSlice::new(header.as_bytes()), IoSlice::new(&buffer)])
    }

    /// A large read without a large buffer.
    fn read_piecewise(
        &mut self,
        cookie: u64,
        range: Range<u64>,
        whole: bool,
    ) -> Result<(), ConnectionError> {
        self.send_batch()?;
        if self.shared.terms.structured_replies && !whole {
            self.read_to_chunks(cookie, range)
        } else {
            self.read_to_one_reply(cookie, range)
        }
    }

    /// Sends every piece as a chunk, so that a failure can be reported at any point.
    fn read_to_chunks(&mut self, cookie: u64, range: Range<u64>) -> Result<(), ConnectionError> {
        let mut offset = range.start;
        while offset < range.end {
            let len = piece_bytes(offset, range.end);
            let done = self.read_to_slot(offset, len, Blocking::Yes);
            if done.is_err() {
                return self.reply_to_read(cookie, offset, len, done);
            }
            let last = offset + len as u64 == range.end;
            let header = ReplyHeader::data(cookie, last, offset, len as u32);
            self.batch.push(header.as_bytes(), len);
            if last {
                self.end(Outcome::Ok);
            }
            self.send_batch()?;
            offset += len as u64;
        }
        Ok(())
    }

    /// Sends the header for everything with the first piece. If a later one fails, only the end of
    /// the connection can tell the client. No other thread may send before the last piece is out.
    fn read_to_one_reply(&mut self, cookie: u64, range: Range<u64>) -> Result<(), ConnectionError> {
        let reply_bytes = (range.end - range.start) as usize;
        let mut offset = range.start;
        let mut len = piece_bytes(offset, range.end);
        let done = self.read_to_slot(offset, len, Blocking::Yes);
        if done.is_err() {
            return self.reply_to_read(cookie, offset, len, done);
        }
        self.batch.push(
            self.shared
                .read_header(cookie, offset, reply_bytes)
                .as_bytes(),
            len,
        );

        let Self {
            shared,
            export,
            batch,
            current,
            ..
        } = self;
        let mut failed = None;
        let sent = shared
            .queue
            .send_from_connection(shared.socket.as_ref(), || {
                loop {
                    if offset + len as u64 == range.end
                        && let Some(request) = current.take()
                    {
                        shared.counters.count(request, Outcome::Ok, Instant::now());
                    }
                    batch.send(&shared.socket)?;
                    batch.clear();
                    offset += len as u64;
                    if offset == range.end {
                        return Ok(());
                    }
                    len = piece_bytes(offset, range.end);
                    let slot = batch.slot(len);
                    if let Err(failure) =
                        shared.attempt("read", || export.read(offset, slot, Blocking::Yes))
                    {
                        failed = Some(failure);
                        return Err(io::ErrorKind::Other.into());
                    }
                    batch.push(&[], len);
                }
            });
        match failed {
            Some(AttemptError::Panicked) => return Err(ConnectionError::Panicked),
            Some(_) => return Err(ConnectionError::ReplyCutOff),
            None => sent?,
        }
        Ok(())
    }

    fn small_write(&mut self, request: &Request, fua: bool) -> Result<(), ConnectionError> {
        let Request { cookie, offset, .. } = *request;
        let len = request.len as usize;
        if self.input.len() < len {
            self.send_batch()?;
            if !self.input.wait_for(&self.shared.socket, len)? {
                return Err(ConnectionError::CutShort);
            }
        }
        self.begin(request, self.input.received_at());
        let data = self.input.bytes().get(..len).unwrap_or_default();
        let mut done = self.shared.attempt("write", || match len {
            0 => Ok(()),
            _ => self.export.write(offset, data, Blocking::No),
        });
        if done == Err(AttemptError::WouldBlock) {
            if let Some(mut buffer) = self.resources.pool.take(&self.share, len)
                && self.shared.queue.announce(HANDED_OVER_MAX)
            {
                self.input.move_to(&mut buffer);
                self.submit(
                    cookie,
                    Work::Write {
                        offset,
                        buffer,
                        fua,
                    },
                );
                return Ok(());
            }
            self.send_batch()?;
            let slot = self.batch.slot(len);
            slot.copy_from_slice(self.input.bytes().get(..len).unwrap_or_default());
            done = self
                .shared
                .attempt_until_space("write", || self.export.write(offset, slot, Blocking::Yes));
        }
        self.input.consume(len);
        self.reply_to_write(cookie, fua, done)
    }

    fn reply_to_write(
        &mut self,
        cookie: u64,
        fua: bool,
        done: Result<(), AttemptError>,
    ) -> Result<(), ConnectionError> {
        match done {
            // The data is in place; only a flush is left.
            Ok(()) if fua => self.control(cookie, Control::Flush),
            done => self.reply_plainly(cookie, done),
        }
    }

    fn large_write(&mut self, request: &Request, fua: bool) -> Result<(), ConnectionError> {
        let Request { cookie, offset, .. } = *request;
        let taken = self.resources.pool.take(&self.share, request.len as usize);
        let Some(mut buffer) = taken else {
            return self.write_piecewise(request, fua);
        };
        self.receive_to(&mut buffer)?;
        self.begin(request, Instant::now());
        let mut done = self
            .shared
            .attempt("write", || self.export.write(offset, &buffer, Blocking::No));
        if done == Err(AttemptError::WouldBlock) {
            if self.shared.queue.announce(HANDED_OVER_MAX) {
                self.submit(
                    cookie,
                    Work::Write {
                        offset,
                        buffer,
                        fua,
                    },
                );
                return Ok(());
            }
            done = self.shared.attempt_until_space("write", || {
                self.export.write(offset, &buffer, Blocking::Yes)
            });
        }
        self.reply_to_write(cookie, fua, done)
    }

    /// A large write without a large buffer. After a piece has failed, the rest is read and
    /// discarded.
    fn write_piecewise(&mut self, request: &Request, fua: bool) -> Result<(), ConnectionError> {
        self.send_batch()?;
        let Request { cookie, offset, .. } = *request;
        let end = offset + u64::from(request.len);
        let mut at = offset;
        while at < end {
            let piece = piece_bytes(at, end);
            let slot = self.batch.slot(piece);
            let moved = self.input.move_to(slot);
            self.shared
                .socket
                .recv_exact(slot.get_mut(moved..).unwrap_or_default())?;
            if at == offset {
                self.current = Some(Received::new(request, Instant::now()));
            }
            let done = self
                .shared
                .attempt_until_space("write", || self.export.write(at, slot, Blocking::Yes));
            at += piece as u64;
            match done {
                Ok(()) => {}
                Err(AttemptError::Panicked) => return Err(ConnectionError::Panicked),
                failed => {
                    self.skip_payload((end - at) as usize)?;
                    return self.reply_plainly(cookie, failed);
                }
            }
        }
        self.reply_to_write(cookie, fua, Ok(()))
    }

    /// Fills `buffer` with payload: bytes in the input are copied, the rest is read there directly.
    fn receive_to(&mut self, buffer: &mut [u8]) -> Result<(), ConnectionError> {
        self.send_batch()?;
        let moved = self.input.move_to(buffer);
        Ok(self
            .shared
            .socket
            .recv_exact(buffer.get_mut(moved..).unwrap_or_default())?)
    }

    fn control(&mut self, cookie: u64, control: Control) -> Result<(), ConnectionError> {
        let name = control.name();
        let export = Arc::clone(&self.export);
        let tried = self
            .shared
            .attempt(name, || control_without_waiting(export.as_ref(), control));
        let rest = match tried {
            Ok(Some(rest)) => rest,
            Ok(None) => return self.reply_plainly(cookie, Ok(())),
            Err(failure) => return self.reply_plainly(cookie, Err(failure)),
        };
        if self.shared.queue.announce(HANDED_OVER_MAX) {
            self.submit(cookie, Work::Control(rest));
            return Ok(());
        }
        self.send_batch()?;
        let done = self
            .shared
            .attempt_until_space(name, || control_waiting(export.as_ref(), &rest));
        self.reply_plainly(cookie, done)
    }

    /// Always waits, and so is handed over where that is possible.
    fn prefetch(&mut self, cookie: u64, range: Range<u64>) -> Result<(), ConnectionError> {
        let scratch = self.resources.pool.take(&self.share, SMALL_PAYLOAD_BYTES);
        if let Some(scratch) = scratch
            && self.shared.queue.announce(HANDED_OVER_MAX)
        {
            self.submit(cookie, Work::Prefetch { range, scratch });
            return Ok(());
        }
        self.send_batch()?;
        let scratch = self.batch.slot(SMALL_PAYLOAD_BYTES);
        let done = self
            .shared
            .attempt("prefetch", || self.export.prefetch(range, scratch));
        self.reply_plainly(cookie, done)
    }

    fn reply_plainly(
        &mut self,
        cookie: u64,
        done: Result<(), AttemptError>,
    ) -> Result<(), ConnectionError> {
        match done {
            Ok(()) => self.reply(&ReplyHeader::simple(cookie, None), Outcome::Ok),
            Err(AttemptError::Panicked) => Err(ConnectionError::Panicked),
            Err(failure) => {
                let header = self.shared.error_header(cookie, failure.errno());
                self.reply(&header, Outcome::Error)
            }
        }
    }

    fn block_status(
        &mut self,
        cookie: u64,
        range: Range<u64>,
        only_first: bool,
    ) -> Result<(), ConnectionError> {
        let asked = (cookie, range.clone(), only_first);
        let mut done = self.ask_status(asked.clone(), Blocking::No);
        if done == Err(AttemptError::WouldBlock) {
            if self.shared.queue.announce(HANDED_OVER_MAX) {
                self.submit(cookie, Work::BlockStatus { range, only_first });
                return Ok(());
            }
            self.send_batch()?;
            done = self.ask_status(asked, Blocking::Yes);
        }
        match done {
            Ok(chunks) => {
                self.make_room(chunks.len())?;
                self.batch.slot(chunks.len()).copy_from_slice(&chunks);
                self.batch.push(&[], chunks.len());
                self.end(Outcome::Ok);
                Ok(())
            }
            Err(AttemptError::Panicked) => Err(ConnectionError::Panicked),
            Err(failure) => {
                let header = self.shared.chunk_error_header(cookie, failure.errno());
                self.reply(&header, Outcome::Error)
            }
        }
    }

    fn ask_status(
        &self,
        asked: (u64, Range<u64>, bool),
        blocking: Blocking,
    ) -> Result<Vec<u8>, AttemptError> {
        self.shared.attempt("block status", || {
            block_status(&self.shared, self.export.as_ref(), asked, blocking)
        })
    }

    /// Hands over a request that has been announced.
    fn submit(&mut self, cookie: u64, work: Work) {
        self.input.leave_processor();
        let shared = Arc::clone(&self.shared);
        let export = Arc::clone(&self.export);
        let request = QueuedRequest {
            shared,
            export,
            cookie,
            received: self.current.take(),
            work,
            waiting: None,
        };
        submit_with_threads(&self.resources.workers, self.shared.id, request);
    }

    fn reply(&mut self, header: &ReplyHeader, outcome: Outcome) -> Result<(), ConnectionError> {
        self.make_room(0)?;
        self.batch.push(header.as_bytes(), 0);
        self.end(outcome);
        Ok(())
    }

    fn make_room(&mut self, payload_bytes: usize) -> Result<(), ConnectionError> {
        if self.batch.has_room(payload_bytes) {
            Ok(())
        } else {
            self.send_batch()
        }
    }

    fn send_batch(&mut self) -> Result<(), ConnectionError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.count_answered();
        let Self { shared, batch, .. } = self;
        shared
            .queue
            .send_from_connection(shared.socket.as_ref(), || batch.send(&shared.socket))?;
        batch.clear();
        Ok(())
    }

    fn send(&self, slices: &mut [IoSlice<'_>]) -> Result<(), ConnectionError> {
        let socket = self.shared.socket.as_ref();
        Ok(self
            .shared
            .queue
            .send_from_connection(socket, || socket.send_all(slices))?)
    }
}

fn has_large_payload(request: &Request) -> bool {
    request.command == command::WRITE && request.len as usize > SMALL_PAYLOAD_BYTES
}

/// The end of the next step from `offset` with the connection's own memory: a boundary of device
/// blocks, so that the following step does not touch the same block twice.
fn piece_bytes(offset: u64, end: u64) -> usize {
    let piece = SMALL_PAYLOAD_BYTES as u64;
    ((end - offset).min(piece - offset % piece)) as usize
}
