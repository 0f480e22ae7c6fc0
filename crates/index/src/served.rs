//! Answers the calls to one shard of a shared pool's index, around its [`HashIndex`].
//!
//! A call arrives on a thread that must not wait, such as a callback of a cluster's library. So [`Served`] decodes it
//! there, refuses a call that is not for this shard, and puts any other in a queue. The owner of the shard provides a
//! worker, which takes all waiting requests and executes them ([`Served::work`]): the parts of all streams' batches
//! become durable in one frame, with one sync.
//!
//! A lookup that holds rows, too, is answered on the thread that brings it if that is possible without waiting. The first
//! one of a store waits for the worker, which lists the store durably ([`holds`](crate::holds)).
//!
//! Invariants:
//! - A reply goes out after the frame is durable, and without a lock.
//! - The queue has limits (P9): beyond them a request is refused with "busy", and the caller repeats it.
//!
//! Crash behaviour: requests in the queue are lost. Their callers repeat them under the same numbers and positions.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use onefold_engine::Blocking;
use onefold_engine::cluster::{Answer, Reply};
use onefold_format::index_message::{
    INDEX_ANSWERS_MAX, INDEX_ITEMS_MAX, INDEX_ROWS_MAX, IndexItem, IndexOperation, IndexReply,
    IndexReplyBody, IndexRequest, IndexRequestBody, IndexRow, LookupAnswer, Refusal, RefusalCode,
};
use onefold_format::{Pba, PoolId, Shard};

use crate::hash::{HashIndex, PartAnswers};
use crate::holds::{Holds, Noted, ends_in_its_session};
use crate::marks::{MARKS_MAX, Marks};
use crate::shard::{Positioned, ShardBatch, ShardWork};
use crate::{
    Fingerprint, FingerprintIndex, IndexError, IndexReader, LookedUp, LookupAnswers, Result, Row,
    StreamId,
};

/// Most requests that wait. A thousand hosts with a batch each are not refused.
const WAITING_MAX: usize = 2048;

/// Most bytes of requests that wait.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// Most items of a frame, unless one part has more: the changes that `hash` accepts while merges are behind.
const FRAME_ITEMS_MAX: usize = 65_536;

/// Most rows that a store holds in all shards together. A hold has some 60 bytes, twice.
const HELD_ROWS_MAX: usize = 65_536;

/// Fewest rows that a store may hold in a shard: fingerprints scatter.
const HELD_ROWS_MIN: usize = 1024;

/// How often a lookup is tried while frames remove rows, before it finds nothing.
const LOOKUPS_MAX: usize = 3;

/// Most fingerprints that are looked up on the caller's thread: some tens of microseconds.
const LOOKUPS_AT_ONCE_MAX: usize = 64;

/// The shard that is served, and its owner's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedShard {
    /// The pool.
    pub pool: PoolId,
    /// The shard.
    pub shard: Shard,
    /// The number of shards of the pool's index.
    pub shards: u16,
    /// The session of the shard's owner.
    pub session: u64,
}

/// The thread that executes requests.
pub enum Worker {
    /// The thread that brings the request executes it before [`Answer::answer`] returns. For callers that may wait, as
    /// in a simulation.
    Caller,
    /// A thread of the owner, which calls [`Served::work`] whenever this function has woken it.
    Woken(Box<dyn Fn() + Send + Sync>),
}

/// Numbers of requests since the shard was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServedCounters {
    /// Requests that have a reply, refusals included.
    pub replies: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// A shard whose index answers calls.
pub struct Served {
    index: Arc<HashIndex>,
    shard: ServedShard,
    worker: Worker,
    holds: Holds,
    marks: Marks,
    /// The requests that wait for the worker. Held briefly, and never with another lock.
    queue: Mutex<Queue>,
    /// Held while requests are executed. Never waited for: who cannot have it leaves its requests to the holder.
    turn: Mutex<()>,
    /// Counts only: their order publishes nothing.
    replies: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    bytes: usize,
}

/// A request that has no reply yet.
struct Waiting {
    request: IndexRequest,
    caller: Caller,
}

/// The sender of a request, which waits for a reply.
struct Caller {
    /// The checksum of the request.
    request: u32,
    reply: Reply,
}

impl Served {
    /// Serves the index of a shard.
    #[must_use]
    pub fn new(index: Arc<HashIndex>, shard: ServedShard, worker: Worker) -> Served {
        let rows_max = (HELD_ROWS_MAX / usize::from(shard.shards)).max(HELD_ROWS_MIN);
        Served {
            holds: Holds::new(index.holders(), rows_max),
            marks: Marks::new(index.marks()),
            index,
            shard,
            worker,
            queue: Mutex::default(),
            turn: Mutex::default(),
            replies: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The index of the shard.
    #[must_use]
    pub fn index(&self) -> &Arc<HashIndex> {
        &self.index
    }

    /// Numbers of requests so far.
    #[must_use]
    pub fn counters(&self) -> ServedCounters {
        ServedCounters {
            replies: self.replies.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Executes all requests that wait, and replies to them; unless another call of this does so, perhaps on this thread:
    /// then that call executes them.
    pub fn work(&self) {
        while !self.queue().waiting.is_empty() {
            let _turn = match self.turn.try_lock() {
                Ok(turn) => turn,
                // A panic lost the requests that it executed, and the index knows whether it is good.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let Queue { waiting, .. } = std::mem::take(&mut *self.queue());
            self.execute_all(waiting);
        }
    }

    /// Does work on the index while no request is being executed; those that arrive in the meantime are executed afterwards.
    pub fn in_turn<T>(&self, work: impl FnOnce(&HashIndex) -> T) -> T {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&self.index);
        drop(turn);
        self.work();
        result
    }

    /// Closes the index, once no request is being executed. Later requests are refused.
    ///
    /// # Errors
    /// As [`FingerprintIndex::close`].
    pub fn close(&self) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.index.close()
    }

    fn execute_all(&self, waiting: Vec<Waiting>) {
        let is_part = |waiting: &Waiting| {
            matches!(
                waiting.request.body,
                IndexRequestBody::Batch { .. } | IndexRequestBody::Recall { .. }
            )
        };
        let (parts, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_part);
        let is_lookup = |waiting: &Waiting| {
            matches!(
                waiting.request.body,
                IndexRequestBody::Lookup(_) | IndexRequestBody::Hold { .. }
            )
        };
        let (lookups, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_lookup);
        let is_end =
            |waiting: &Waiting| matches!(waiting.request.body, IndexRequestBody::EndHolds { .. });
        let (ends, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_end);
        // Lookups wait for no frame, but for the one that lists their stores.
        self.carry_out(lookups);
        // Rows whose holds end can be removed by this frame.
        self.end_holds(ends);
        self.execute(parts);
        self.carry_out(others);
    }

    /// Ends holds. Stores without any are taken off the list, together.
    fn end_holds(&self, waiting: Vec<Waiting>) {
        let (mut ended, mut is_shorter) = (Vec::new(), false);
        for Waiting { request, caller } in waiting {
            if let IndexRequestBody::EndHolds { version, is_last } = request.body {
                is_shorter |= self.holds.end(StreamId(request.group.0), version, is_last);
                ended.push(caller);
            }
        }
        let listed = if is_shorter {
            self.index.set_holders(self.holds.listed())
        } else {
            Ok(())
        };
        for caller in ended {
            // After an error the store repeats this, and a later list lacks it.
            self.reply(
                caller,
                match &listed {
                    Ok(()) => IndexReplyBody::Ended,
                    Err(error) => refused(error),
                },
            );
        }
    }

    /// Lists a store, durably, so that it can hold rows.
    fn list(&self, store: StreamId) -> Result<()> {
        let mut holders = self.holds.listed();
        if holders.insert(store) {
            self.index.set_holders(holders)?;
            self.holds.list([store]);
        }
        Ok(())
    }

    /// Executes parts of batches in as few frames as possible.
    fn execute(&self, parts: Vec<Waiting>) {
        let (mut together, mut items) = (Vec::new(), 0);
        for waiting in parts {
            let more = match &waiting.request.body {
                IndexRequestBody::Batch { items, .. } => items.len(),
                _ => 0,
            };
            if items + more > FRAME_ITEMS_MAX {
                self.execute_together(std::mem::take(&mut together));
                items = 0;
            }
            items += more;
            together.push(waiting);
        }
        self.execute_together(together);
    }

    fn execute_together(&self, waiting: Vec<Waiting>) {
        let mut parts = Vec::with_capacity(waiting.len());
        for Waiting { request, caller } in waiting {
            let from = match request.body {
                IndexRequestBody::Recall { from, .. } => from,
                _ => 0,
            };
            if let Some(part) = part_of(request) {
                parts.push((part, (caller, from)));
            }
        }
        self.execute_parts(parts);
    }

    /// Executes parts in one frame. If there is no room for it, executes them one by one, those that make room first.
    fn execute_parts(&self, parts: Vec<(ShardBatch, (Caller, u16))>) {
        if parts.is_empty() {
            return;
        }
        let (parts, callers): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        match self.index.execute(&parts, &self.holds) {
            Ok(answers) => {
                for ((caller, from), mut answers) in callers.into_iter().zip(answers) {
                    if let Ok(answers) = &mut answers {
                        self.marks.point_out(answers);
                    }
                    self.reply(caller, answered(answers, from));
                }
            }
            Err(IndexError::NoRoom(_)) if parts.len() > 1 => {
                let parts = parts.into_iter().zip(callers);
                let (releases, others): (Vec<_>, Vec<_>) =
                    parts.partition(|(part, _)| part.operation == IndexOperation::Decrement);
                for part in releases.into_iter().chain(others) {
                    self.execute_parts(vec![part]);
                }
            }
            Err(error) => {
                for (caller, _) in callers {
                    self.reply(caller, refused(&error));
                }
            }
        }
    }

    /// Carries out requests that change no rows.
    fn carry_out(&self, waiting: Vec<Waiting>) {
        for Waiting { request, caller } in waiting {
            let reply = match request.body {
                IndexRequestBody::Lookup(fingerprints) => {
                    self.look_up(&fingerprints, Blocking::Yes)
                }
                IndexRequestBody::Hold {
                    version,
                    fingerprints,
                } => {
                    let holder = (StreamId(request.group.0), version);
                    self.hold(holder, &fingerprints)
                }
                IndexRequestBody::Rows { from, max } => self.rows(from, max),
                IndexRequestBody::Counts => {
                    let counts = self.index.counts();
                    Ok(IndexReplyBody::Counts {
                        unique: counts.unique,
                        shared: counts.shared,
                        references: counts.references,
                    })
                }
                IndexRequestBody::Secure(batches) => self.secure(&batches),
                IndexRequestBody::Mark { is_bad, blocks } => self.mark(&blocks, is_bad),
                // These are executed together.
                IndexRequestBody::Batch { .. }
                | IndexRequestBody::Recall { .. }
                | IndexRequestBody::EndHolds { .. } => continue,
            };
            self.reply(caller, reply.unwrap_or_else(|error| refused(&error)));
        }
    }

    fn look_up(&self, fingerprints: &[[u8; 16]], blocking: Blocking) -> Result<IndexReplyBody> {
        let fingerprints: Vec<Fingerprint> =
            fingerprints.iter().copied().map(Fingerprint).collect();
        let mut answers = self.index.lookup(&fingerprints, blocking)?;
        self.marks.hide(&mut answers);
        Ok(found(answers))
    }

    /// Looks fingerprints up and holds the rows that are found. The store may have to be listed first.
    fn hold(&self, holder: (StreamId, u64), fingerprints: &[[u8; 16]]) -> Result<IndexReplyBody> {
        match self.try_hold(holder, fingerprints, Blocking::Yes)? {
            Some(found) => Ok(found),
            None => {
                self.list(holder.0)?;
                let found = self.try_hold(holder, fingerprints, Blocking::Yes)?;
                found.ok_or(IndexError::WouldBlock)
            }
        }
    }

    /// As [`Served::hold`], but nothing if the store has to be listed first.
    fn try_hold(
        &self,
        holder: (StreamId, u64),
        fingerprints: &[[u8; 16]],
        blocking: Blocking,
    ) -> Result<Option<IndexReplyBody>> {
        let fingerprints: Vec<Fingerprint> =
            fingerprints.iter().copied().map(Fingerprint).collect();
        for _ in 0..LOOKUPS_MAX {
            let removals = self.holds.removals();
            let mut answers = self.index.lookup(&fingerprints, blocking)?;
            self.marks.hide(&mut answers);
            let noted = self
                .holds
                .note(holder, removals, &fingerprints, &mut answers);
            match noted {
                Noted::Held => return Ok(Some(found(answers))),
                Noted::Unlisted => return Ok(None),
                Noted::Outdated => {}
            }
        }
        let absent = LookupAnswers::from_elem(LookedUp::Absent, fingerprints.len());
        Ok(Some(found(absent)))
    }

    fn rows(&self, from: [u8; 16], max: u32) -> Result<IndexReplyBody> {
        let max = (max as usize).min(INDEX_ROWS_MAX);
        if self.index.needs_rebuild() {
            return Err(IndexError::Unready(crate::NEEDS_REBUILD));
        }
        let rows = self.index.rows(Fingerprint(from), max)?;
        let row = |(fingerprint, row): &(Fingerprint, Row)| IndexRow {
            fingerprint: fingerprint.0,
            pba: row.pba,
            references: row.references,
        };
        Ok(IndexReplyBody::Rows {
            rows: rows.iter().map(row).collect(),
            has_more: rows.len() == max,
        })
    }

    /// Secures room for batches, each of which comes in requests that may be executed one by one: every frame has the
    /// batch's answers so far.
    fn secure(&self, batches: &[u32]) -> Result<IndexReplyBody> {
        let requests = batches.iter().flat_map(|items| {
            let items = *items as usize;
            let sizes = (1..=items.div_ceil(INDEX_ITEMS_MAX)).map(|n| n * INDEX_ITEMS_MAX);
            sizes.map(move |size| size.min(items))
        });
        self.index.secure(&requests.collect::<Vec<_>>())?;
        Ok(IndexReplyBody::Secured)
    }

    /// Marks blocks as bad, or no longer, durably.
    fn mark(&self, blocks: &[Pba], is_bad: bool) -> Result<IndexReplyBody> {
        if let Some(marks) = self.marks.changed(blocks, is_bad) {
            if marks.len() > MARKS_MAX {
                let text = format!("it has marked {MARKS_MAX} blocks as bad, and marks no more");
                return Err(IndexError::NoRoom(io::Error::other(text)));
            }
            self.index.set_marks(marks.clone())?;
            self.marks.set(marks);
        }
        Ok(IndexReplyBody::Marked)
    }

    /// Checks that a request is for this shard.
    fn check(&self, request: &IndexRequest) -> std::result::Result<(), Refusal> {
        let here = &self.shard;
        let (code, detail, text) = if request.pool != here.pool {
            let text = format!("the shard belongs to the pool {}", here.pool);
            (RefusalCode::WrongPool, 0, text)
        } else if (request.shard, request.shards) != (here.shard, here.shards) {
            let text = format!("this is shard {} of {}", here.shard, here.shards);
            (RefusalCode::WrongShard, 0, text)
        } else if self.is_of_other_session(request) {
            let text = format!("the shard's session is {}", here.session);
            (RefusalCode::WrongSession, here.session, text)
        } else {
            return Ok(());
        };
        Err(Refusal { code, detail, text })
    }

    /// Whether a request is for another session of the shard. Holds are of one session, which the sender must know.
    fn is_of_other_session(&self, request: &IndexRequest) -> bool {
        let must_know = match request.body {
            IndexRequestBody::Hold { .. } => true,
            IndexRequestBody::EndHolds { .. } => request.session == 0 || ends_in_its_session(),
            _ => request.session != 0,
        };
        must_know && request.session != self.shard.session
    }

    /// Puts a request into the queue, or gives it back if that is full.
    fn enqueue(&self, waiting: Waiting, bytes: usize) -> std::result::Result<(), Waiting> {
        let mut queue = self.queue();
        if queue.waiting.len() >= WAITING_MAX || queue.bytes + bytes > WAITING_BYTES_MAX {
            return Err(waiting);
        }
        queue.bytes += bytes;
        queue.waiting.push(waiting);
        Ok(())
    }

    fn refuse(&self, caller: Caller, refusal: Refusal) {
        self.reply(caller, IndexReplyBody::Refused(refusal));
    }

    fn reply(&self, caller: Caller, body: IndexReplyBody) {
        self.replies.fetch_add(1, Relaxed);
        if matches!(body, IndexReplyBody::Refused(_)) {
            self.refused.fetch_add(1, Relaxed);
        }
        let reply = IndexReply {
            session: self.shard.session,
            request: caller.request,
            body,
        };
        (caller.reply)(reply.encode());
    }

    /// A panic under the lock leaves a queue that lacks a request at most.
    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer for Served {
    fn answer(&self, request: Vec<u8>, reply: Reply) {
        let caller = Caller {
            request: IndexRequest::checksum(&request),
            reply,
        };
        let bytes = request.len();
        let request = match IndexRequest::decode(&request) {
            Ok(request) => request,
            Err(error) => {
                let refusal = Refusal {
                    code: RefusalCode::Malformed,
                    detail: 0,
                    text: format!("the request cannot be decoded: {error}"),
                };
                return self.refuse(caller, refusal);
            }
        };
        if let Err(refusal) = self.check(&request) {
            return self.refuse(caller, refusal);
        }
        if let IndexRequestBody::Lookup(fingerprints) = &request.body
            && fingerprints.len() <= LOOKUPS_AT_ONCE_MAX
            && let Ok(found) = self.look_up(fingerprints, Blocking::No)
        {
            return self.reply(caller, found);
        }
        if let IndexRequestBody::Hold {
            version,
            fingerprints,
        } = &request.body
            && fingerprints.len() <= LOOKUPS_AT_ONCE_MAX
            && let holder = (StreamId(request.group.0), *version)
            && let Ok(Some(found)) = self.try_hold(holder, fingerprints, Blocking::No)
        {
            return self.reply(caller, found);
        }
        if let Err(waiting) = self.enqueue(Waiting { request, caller }, bytes) {
            let refusal = Refusal {
                code: RefusalCode::Busy,
                detail: 0,
                text: format!("shard {} has too many requests", self.shard.shard),
            };
            return self.refuse(waiting.caller, refusal);
        }
        match &self.worker {
            Worker::Caller => self.work(),
            Worker::Woken(wake) => wake(),
        }
    }
}

fn found(answers: LookupAnswers) -> IndexReplyBody {
    let answer = |looked_up: LookedUp| match looked_up {
        LookedUp::Present(pba) => LookupAnswer::Present(pba),
        LookedUp::Absent => LookupAnswer::Absent,
        LookedUp::AbsentBySignature => LookupAnswer::AbsentBySignature,
    };
    IndexReplyBody::LookedUp(answers.into_iter().map(answer).collect())
}

/// The part of a batch that a request has, if it has one.
fn part_of(request: IndexRequest) -> Option<ShardBatch> {
    let (number, operation, work) = match request.body {
        IndexRequestBody::Batch {
            number,
            operation,
            items,
        } => {
            let item = |item: &IndexItem| Positioned {
                position: item.position,
                fingerprint: Fingerprint(item.fingerprint),
                pba: item.pba,
            };
            let items = items.iter().map(item).collect();
            (number, operation, ShardWork::Execute(items))
        }
        IndexRequestBody::Recall {
            number,
            operation,
            is_sealing,
            ..
        } => (number, operation, ShardWork::Recall { is_sealing }),
        _ => return None,
    };
    Some(ShardBatch {
        stream: StreamId(request.group.0),
        number,
        operation,
        work,
    })
}

/// The reply with the answers from this position on.
fn answered(answers: PartAnswers, from: u16) -> IndexReplyBody {
    match answers {
        Ok(mut answers) => {
            answers.retain(|at| at.position >= from);
            let has_more = answers.len() > INDEX_ANSWERS_MAX;
            answers.truncate(INDEX_ANSWERS_MAX);
            IndexReplyBody::Answers { answers, has_more }
        }
        Err(error) => refused(&error),
    }
}

fn refused(error: &IndexError) -> IndexReplyBody {
    let (code, detail) = match error {
        IndexError::Stale { last, .. } => (RefusalCode::Stale, *last),
        IndexError::Sealed { .. } => (RefusalCode::Sealed, 0),
        IndexError::Forgotten { .. } => (RefusalCode::Forgotten, 0),
        IndexError::BadBlock(_) => (RefusalCode::Malformed, 0),
        IndexError::Unready(_) => (RefusalCode::Unready, 0),
        IndexError::NoRoom(_) => (RefusalCode::NoRoom, 0),
        _ => (RefusalCode::Failed, 0),
    };
    IndexReplyBody::Refused(Refusal {
        code,
        detail,
        text: error.to_string(),
    })
}
