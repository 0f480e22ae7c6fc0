//! One client's connection after the handshake: the thread that reads its requests.
//!
//! A request is first tried right here, without blocking; the replies of all requests that came with
//! one read go out with one write. A request that would block goes to the workers, and later requests
//! overtake it. If no buffer, worker or budget is available, this thread blocks itself and thereby
//! stops reading: a client can overload only itself. Requests to an export of background work stay on
//! this thread, which is pinned to one processor.
//!
//! Invariants:
//! - While this thread blocks, no reply and no started write is held back: it sends the batch before
//!   it waits for input, for the disk, or for a large payload.
//! - When [`serve`] returns, no request of this client is in flight and its export is dropped.

use crate::buffer::{BufferPool, Share};
use crate::ending::ConnectionError;
use crate::execution::{AttemptError, ConnectionState, QueuedRequest, StartedRequest, Work};
use crate::export::Export;
use crate::handshake::Session;
use crate::input::Input;
use crate::limits::{BATCH_REPLIES_MAX, HANDED_OVER_MAX, SMALL_PAYLOAD_BYTES};
use crate::log_limit::LogLimit;
use crate::parking::Parking;
use crate::pieces::{execute_in_slot, pieces, read_of};
use crate::reply::Batch;
use crate::request::{Command, admit, has_large_payload};
use crate::send_queue::SendQueue;
use crate::socket::Socket;
use crate::statistics::{Counters, Outcome, Received};
use crate::volume::PreparedWrite;
use crate::wire::{self, Errno, REQUEST_BYTES, ReplyHeader, Request, command};
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
    /// Limits log lines about clients that are not served.
    pub(crate) refusals: LogLimit,
    /// Limits log lines about clients that attach and detach: a line each, unless a client does it
    /// in a loop.
    pub(crate) attachments: LogLimit,
    /// Limits log lines about requests that failed.
    pub(crate) failures: Arc<LogLimit>,
}

/// Serves a client until it leaves or is cut off.
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
        prepared_bytes_max: attached.export.prepared_bytes_max(),
        prepared_read_bytes_max: attached.export.prepared_read_bytes_max(),
        has_started: false,
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
    if ended.as_ref().is_err_and(ConnectionError::cuts_off) {
        // Workers that wait for the client, or the client for us, wait in vain.
        shared.socket.close();
    }
    shared.queue.finish();
    ended
}

struct Connection<'a> {
    shared: Arc<ConnectionState>,
    export: Arc<dyn Export>,
    prepared_bytes_max: usize,
    prepared_read_bytes_max: usize,
    /// Whether requests were started that may wait for [`Export::submit`].
    has_started: bool,
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

/// Counts a request that was still in progress when its connection broke.
impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.submit();
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
                Ok(Command::Write { range, fua }) if has_large_payload(&request) => {
                    self.large_write(&request, range, fua)?;
                }
                Ok(command @ Command::Write { .. }) => self.small_write(&request, command)?,
                Ok(Command::Disconnect) => {
                    self.current = None;
                    break;
                }
                Ok(command) => self.try_or_hand_over(Work::new(cookie, command, None))?,
                Err(errno) => self.refuse(&request, errno)?,
            }
        }
        self.send_batch()
    }

    /// The next request, without its payload. `None` when the client has left, or should leave.
    fn next_request(&mut self) -> Result<Option<Request>, ConnectionError> {
        if self.input.len() < REQUEST_BYTES {
            self.send_batch()?;
            if self.shared.socket.is_draining() {
                return Ok(None);
            }
            if self.export.uses_idle_processors() || self.export.is_background() {
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

    /// Counts the current request, whose reply does not pass through the batch.
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
            _ => ReplyHeader::simple(request.cookie, Some(errno)),
        };
        self.reply_error(&header)
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
        let mut buffer = None;
        if len > SMALL_PAYLOAD_BYTES {
            buffer = self.resources.pool.take(&self.share, len);
            if buffer.is_none() {
                return self.read_piecewise(cookie, range, whole);
            }
        } else {
            self.make_room(len)?;
        }
        self.try_or_hand_over(Work::new(cookie, Command::Read { range, whole }, buffer))
    }

    /// Serves a large read without a large buffer.
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
        for piece in pieces(range.clone()) {
            let (offset, is_last) = (piece.start, piece.end == range.end);
            let mut work = read_of(cookie, piece);
            let done = execute_in_slot(
                &self.shared,
                self.export.as_ref(),
                &mut self.batch,
                &mut work,
            );
            if done.is_err() {
                return self.reply_to(work, done);
            }
            let len = work.command.memory_bytes();
            let header = ReplyHeader::data(cookie, is_last, offset, len as u32);
            self.batch.push(header.as_bytes(), len);
            if is_last {
                self.end(Outcome::Ok);
            }
            self.send_batch()?;
        }
        Ok(())
    }

    /// Sends the header for everything with the first piece. If a later piece fails, only closing
    /// the connection can notify the client. No other thread may send before the last piece is out.
    fn read_to_one_reply(&mut self, cookie: u64, range: Range<u64>) -> Result<(), ConnectionError> {
        let header = read_of(cookie, range.clone()).header(&self.shared);
        let mut pieces = pieces(range.clone());
        let mut work = read_of(cookie, pieces.next().unwrap_or(range));
        let done = execute_in_slot(
            &self.shared,
            self.export.as_ref(),
            &mut self.batch,
            &mut work,
        );
        if done.is_err() {
            return self.reply_to(work, done);
        }
        self.batch
            .push(header.as_bytes(), work.command.memory_bytes());

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
                    let next = pieces.next();
                    if next.is_none()
                        && let Some(request) = current.take()
                    {
                        shared.counters.count(request, Outcome::Ok, Instant::now());
                    }
                    batch.send(&shared.socket)?;
                    batch.clear();
                    let Some(piece) = next else {
                        return Ok(());
                    };
                    let mut work = read_of(cookie, piece);
                    if let Err(failure) = execute_in_slot(shared, export.as_ref(), batch, &mut work)
                    {
                        failed = Some(failure);
                        return Err(io::ErrorKind::Other.into());
                    }
                    batch.push(&[], work.command.memory_bytes());
                }
            });
        match failed {
            Some(AttemptError::Panicked) => return Err(ConnectionError::Panicked),
            Some(_) => return Err(ConnectionError::ReplyCutOff),
            None => sent?,
        }
        Ok(())
    }

    fn small_write(&mut self, request: &Request, command: Command) -> Result<(), ConnectionError> {
        let len = request.len as usize;
        if self.input.len() < len {
            self.send_batch()?;
            if !self.input.wait_for(&self.shared.socket, len)? {
                return Err(ConnectionError::CutShort);
            }
        }
        self.begin(request, self.input.received_at());
        self.try_or_hand_over(Work::new(request.cookie, command, None))?;
        self.input.consume(len);
        Ok(())
    }

    fn large_write(
        &mut self,
        request: &Request,
        range: Range<u64>,
        fua: bool,
    ) -> Result<(), ConnectionError> {
        let len = request.len as usize;
        let Some(mut buffer) = self.resources.pool.take(&self.share, len) else {
            return self.write_piecewise(request, range, fua);
        };
        self.receive_to(&mut buffer)?;
        self.begin(request, Instant::now());
        let command = Command::Write { range, fua };
        self.try_or_hand_over(Work::new(request.cookie, command, Some(buffer)))
    }

    /// Serves a large write without a large buffer. After a piece has failed, the rest is read and
    /// discarded.
    /// discarded.
    fn write_piecewise(
        &mut self,
        request: &Request,
        range: Range<u64>,
        fua: bool,
    ) -> Result<(), ConnectionError> {
        self.send_batch()?;
        for piece in pieces(range.clone()) {
            let (is_first, left) = (piece.start == range.start, range.end - piece.end);
            let command = Command::Write {
                range: piece,
                fua: false,
            };
            let mut work = Work::new(request.cookie, command, None);
            let slot = self.batch.slot(work.command.memory_bytes());
            let moved = self.input.move_to(slot);
            self.shared
                .socket
                .recv_exact(slot.get_mut(moved..).unwrap_or_default())?;
            if is_first {
                self.current = Some(Received::new(request, Instant::now()));
            }
            match work.execute_until_space(&self.shared, self.export.as_ref(), slot) {
                Ok(_) => {}
                Err(AttemptError::Panicked) => return Err(ConnectionError::Panicked),
                Err(AttemptError::Unanswered) => return Err(ConnectionError::Unanswered),
                failed => {
                    self.skip_payload(left as usize)?;
                    return self.reply_to(work, failed);
                }
            }
        }
        // The data is in place; only a flush is left to do.
        let rest = if fua {
            Command::Flush
        } else {
            Command::Nothing
        };
        self.try_or_hand_over(Work::new(request.cookie, rest, None))
    }

    /// Fills `buffer` with payload: bytes in the input are copied, and the rest is read directly
    /// into it.
    fn receive_to(&mut self, buffer: &mut [u8]) -> Result<(), ConnectionError> {
        self.send_batch()?;
        let moved = self.input.move_to(buffer);
        Ok(self
            .shared
            .socket
            .recv_exact(buffer.get_mut(moved..).unwrap_or_default())?)
    }

    /// Executes a request that has arrived whole: without blocking if possible, otherwise on a worker.
    /// If there is no memory or budget to hand it over, or the export does background work, this thread blocks.
    fn try_or_hand_over(&mut self, mut work: Work) -> Result<(), ConnectionError> {
        let len = work.command.memory_bytes();
        let mut done = match work.command {
            _ if self.export.is_background() => Err(AttemptError::WouldBlock),
            Command::Write {
                ref range,
                fua: false,
            } if work.buffer.is_none()
                && len <= self.prepared_bytes_max
                && self.has_company(len) =>
            {
                let offset = range.start;
                match self.write_or_prepare(offset, len) {
                    Ok(Some(prepared)) => match self.start(work, prepared) {
                        None => return Ok(()),
                        Some(unstarted) => {
                            work = unstarted;
                            Err(AttemptError::WouldBlock)
                        }
                    },
                    done => done.map(|_| Vec::new()),
                }
            }
            Command::Read { .. } if len <= self.prepared_read_bytes_max => {
                work = match self.start_read(work) {
                    None => return Ok(()),
                    Some(unstarted) => unstarted,
                };
                let memory = self.batch.slot(len);
                work.execute(&self.shared, self.export.as_ref(), memory, Blocking::No)
            }
            _ => {
                let memory = match work.command {
                    Command::Write { .. } => self.input.front_mut(len),
                    _ => self.batch.slot(len),
                };
                work.execute(&self.shared, self.export.as_ref(), memory, Blocking::No)
            }
        };
        if done == Err(AttemptError::WouldBlock) {
            if !self.export.is_background() {
                work = match self.hand_over(work) {
                    None => return Ok(()),
                    Some(work) => work,
                };
            }
            self.send_batch()?;
            let slot = self.batch.slot(work.command.memory_bytes());
            if let Command::Write { .. } = work.command {
                self.input.copy_to(slot);
            }
            done = work.execute_until_space(&self.shared, self.export.as_ref(), slot);
        }
        self.reply_to(work, done)
    }

    /// Whether other requests are in progress, or have arrived after this one's payload. A request that is
    /// alone is answered sooner by a worker: there is nothing to submit to the kernel together with it.
    fn has_company(&self, payload_bytes: usize) -> bool {
        self.has_started || self.input.len() > payload_bytes || self.shared.queue.is_pending()
    }

    /// Like [`Work::execute`] without blocking, for a write whose data is next in the input.
    fn write_or_prepare(
        &mut self,
        offset: u64,
        len: usize,
    ) -> Result<Option<PreparedWrite>, AttemptError> {
        let data = self.input.front_mut(len);
        let export = Arc::clone(&self.export);
        self.shared
            .attempt("write", || export.write_or_prepare(offset, data))
    }

    /// Starts a prepared write; returns the request if this is not possible. The request takes a buffer,
    /// because it may have to wait for space after all.
    fn start(&mut self, mut work: Work, prepared: PreparedWrite) -> Option<Work> {
        let buffer = self
            .resources
            .pool
            .take(&self.share, work.command.memory_bytes());
        if buffer.is_none() || !self.shared.queue.announce(HANDED_OVER_MAX) {
            return Some(work);
        }
        work.buffer = buffer;
        let request = StartedRequest::new(self.queued(work));
        prepared.start(move |written, data| request.written(written, data));
        self.has_started = true;
        None
    }

    /// Starts a read that needs no worker; returns the request if it needs one, or nothing has to be read.
    fn start_read(&mut self, mut work: Work) -> Option<Work> {
        let Command::Read { ref range, .. } = work.command else {
            return Some(work);
        };
        let (offset, len) = (range.start, work.command.memory_bytes());
        let prepare = || Ok(Arc::clone(&self.export).prepare_read(offset, len));
        let prepared = self.shared.attempt("read", prepare);
        let Ok(Some(prepared)) = prepared else {
            return Some(work);
        };
        if work.buffer.is_none() {
            work.buffer = self.resources.pool.take(&self.share, len);
        }
        if work.buffer.is_none() || !self.shared.queue.announce(HANDED_OVER_MAX) {
            return Some(work);
        }
        let request = StartedRequest::new(self.queued(work));
        prepared.start(move |found| request.read(found));
        self.has_started = true;
        None
    }

    /// Submits the requests that were started.
    fn submit(&mut self) {
        if std::mem::take(&mut self.has_started) {
            self.export.submit();
        }
    }

    /// Detaches the current request from this thread.
    fn queued(&mut self, work: Work) -> QueuedRequest {
        self.input.leave_processor();
        QueuedRequest {
            shared: Arc::clone(&self.shared),
            export: Arc::clone(&self.export),
            work,
            received: self.current.take(),
            waiting: None,
        }
    }

    /// Hands a request over to the workers; returns the request if this is not possible.
    fn hand_over(&mut self, mut work: Work) -> Option<Work> {
        let len = work.command.memory_bytes();
        let mut taken = None;
        if len == 0 {
            // Only a flush is left to do, and the data is no longer needed.
            work.buffer = None;
        } else if work.buffer.is_none() {
            taken = self.resources.pool.take(&self.share, len);
            if taken.is_none() {
                return Some(work);
            }
        }
        if !self.shared.queue.announce(HANDED_OVER_MAX) {
            return Some(work);
        }
        if let Some(mut buffer) = taken {
            if let Command::Write { .. } = work.command {
                self.input.copy_to(&mut buffer);
            }
            work.buffer = Some(buffer);
        }
        let request = self.queued(work);
        submit_with_threads(&self.resources.workers, self.shared.lane(), request);
        None
    }

    /// Replies to a request that was executed on this thread ([step 9 reply]).
    fn reply_to(
        &mut self,
        work: Work,
        done: Result<Vec<u8>, AttemptError>,
    ) -> Result<(), ConnectionError> {
        let chunks = match done {
            Ok(chunks) => chunks,
            Err(AttemptError::Panicked) => return Err(ConnectionError::Panicked),
            Err(AttemptError::Unanswered) => return Err(ConnectionError::Unanswered),
            Err(failure) => {
                return self.reply_error(&work.error_header(&self.shared, failure.errno()));
            }
        };
        let header = work.header(&self.shared);
        match (&work.command, &work.buffer) {
            (Command::Read { .. }, Some(data)) => {
                self.send_batch()?;
                self.count_current(Outcome::Ok);
                return self.send(&mut [IoSlice::new(header.as_bytes()), IoSlice::new(data)]);
            }
            // The data is in the batch already.
            (Command::Read { .. }, None) => {
                self.batch
                    .push(header.as_bytes(), work.command.memory_bytes());
            }
            _ => {
                self.make_room(chunks.len())?;
                self.batch.slot(chunks.len()).copy_from_slice(&chunks);
                self.batch.push(header.as_bytes(), chunks.len());
            }
        }
        self.end(Outcome::Ok);
        Ok(())
    }

    fn reply_error(&mut self, header: &ReplyHeader) -> Result<(), ConnectionError> {
        self.make_room(0)?;
        self.batch.push(header.as_bytes(), 0);
        self.end(Outcome::Error);
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
        self.submit();
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
