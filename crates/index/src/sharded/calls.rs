//! Calls to many shards at once, with one wait for all of them.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::cluster::{CallError, Cluster, Owned};
use onefold_format::index_message::{
    IndexReply, IndexReplyBody, IndexRequest, IndexRequestBody, Refusal, RefusalCode,
};
use onefold_format::{GroupId, PoolId, Shard};

use crate::{IndexError, Result, StreamId};

/// How often a call is made whose outcome stays unknown. A message that was lost is rare, so one repeat finds out
/// whether there is an owner.
const ATTEMPTS: usize = 2;

/// Most brief calls of a store that have no outcome yet.
const IN_FLIGHT_MAX: usize = 128;

/// Asks shards on behalf of a store.
pub(super) struct Caller {
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) pool: PoolId,
    pub(super) group: GroupId,
    pub(super) shards: u16,
    pub(super) timeout: Duration,
}

/// A call to a shard.
pub(super) struct Call {
    pub(super) shard: Shard,
    /// The session of the shard's owner; 0 for any.
    pub(super) session: u64,
    pub(super) body: IndexRequestBody,
}

impl Call {
    /// A call that any owner of the shard may answer.
    pub(super) fn any(shard: Shard, body: IndexRequestBody) -> Call {
        Call {
            shard,
            session: 0,
            body,
        }
    }
}

/// Why a shard did not carry out a request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The shard cannot be asked now; whether it has carried out the request, or will, is unknown.
    Away(String),
    /// The shard did not carry out the request.
    Refused(Refusal),
    /// The shard has this session, and not the one that the request names.
    OtherSession(u64),
}

/// The outcome of a single attempt.
enum Attempt {
    Ended(std::result::Result<IndexReplyBody, Failure>),
    /// Another attempt may have a reply.
    Unknown(String),
}

impl Caller {
    /// Makes all calls at once, and waits until each has its outcome.
    pub(super) fn ask(&self, calls: &[Call]) -> Vec<std::result::Result<IndexReplyBody, Failure>> {
        let messages: Vec<Vec<u8>> = calls.iter().map(|call| self.message(call)).collect();
        let mut ended: Vec<_> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        for attempt in 1..=ATTEMPTS {
            let sent = open.iter().map(|at| (calls[*at].shard, &messages[*at]));
            let outcomes = self.send(sent);
            let mut again = Vec::new();
            for (at, outcome) in open.into_iter().zip(outcomes) {
                match Attempt::of(outcome, &messages[at]) {
                    Attempt::Ended(outcome) => ended[at] = Some(outcome),
                    Attempt::Unknown(_) if attempt < ATTEMPTS => again.push(at),
                    Attempt::Unknown(reason) => ended[at] = Some(Err(Failure::Away(reason))),
                }
            }
            open = again;
            if open.is_empty() {
                break;
            }
        }
        let without = || Err(Failure::Away(NO_OUTCOME.to_owned()));
        ended
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(without))
            .collect()
    }

    /// Makes all calls once, and waits for them at most this long. Nothing stands for an outcome that is not there in
    /// time, or unknown: its call may still be executed. If too many
    /// calls of those `in_flight` have no outcome, a further one is not made, as if nobody served the shard.
    pub(super) fn ask_briefly(
        &self,
        calls: &[Call],
        patience: Duration,
        in_flight: Option<&Arc<AtomicUsize>>,
    ) -> Vec<Option<std::result::Result<IndexReplyBody, Failure>>> {
        let messages: Vec<Vec<u8>> = calls.iter().map(|call| self.message(call)).collect();
        let gathering = Gathering::of(calls.len());
        for (at, (call, message)) in calls.iter().zip(&messages).enumerate() {
            let slot = Slot {
                gathering: Arc::clone(&gathering),
                at,
            };
            let flight = in_flight.map(Flight::begin);
            if matches!(flight, Some(None)) {
                slot.fill(Err(CallError::Unserved));
                continue;
            }
            let ended = Box::new(move |outcome| {
                drop(flight);
                slot.fill(outcome);
            });
            self.cluster.call(
                Owned::Shard(call.shard),
                message.clone(),
                self.timeout,
                ended,
            );
        }
        let outcomes = gathering.wait_briefly(patience).into_iter();
        let outcomes = outcomes.zip(&messages).map(|(outcome, message)| {
            match Attempt::of(outcome?, message) {
                Attempt::Ended(outcome) => Some(outcome),
                Attempt::Unknown(_) => None,
            }
        });
        outcomes.collect()
    }

    fn message(&self, call: &Call) -> Vec<u8> {
        IndexRequest {
            pool: self.pool,
            session: call.session,
            group: self.group,
            shard: call.shard,
            shards: self.shards,
            body: call.body.clone(),
        }
        .encode()
    }

    /// Sends messages, and waits for the outcomes of all.
    fn send<'a>(
        &self,
        messages: impl ExactSizeIterator<Item = (Shard, &'a Vec<u8>)>,
    ) -> Vec<std::result::Result<Vec<u8>, CallError>> {
        let gathering = Gathering::of(messages.len());
        for (at, (shard, message)) in messages.enumerate() {
            let slot = Slot {
                gathering: Arc::clone(&gathering),
                at,
            };
            // No lock is held: the cluster may call back before it returns.
            self.cluster.call(
                Owned::Shard(shard),
                message.clone(),
                self.timeout,
                Box::new(move |outcome| slot.fill(outcome)),
            );
        }
        gathering.wait()
    }
}

/// Why a shard that has lost its rows refuses a request.
const SHARD_IS_LOST: &str = "a shard has lost its rows; 'onefold index rebuild' counts them again from the maps of all groups";

/// Why there is no outcome, although the contract of a cluster demands one.
const NO_OUTCOME: &str = "the call was given up";

impl Attempt {
    fn of(outcome: std::result::Result<Vec<u8>, CallError>, message: &[u8]) -> Attempt {
        let reply = match outcome {
            Ok(reply) => reply,
            Err(error @ CallError::Unserved) => {
                return Attempt::Ended(Err(Failure::Away(error.to_string())));
            }
            Err(error @ CallError::Unknown(_)) => return Attempt::Unknown(error.to_string()),
        };
        match IndexReply::decode(&reply, IndexRequest::checksum(message)) {
            Ok(IndexReply {
                body: IndexReplyBody::Refused(refusal),
                ..
            }) => match refusal.code {
                RefusalCode::Busy => Attempt::Unknown(refusal.text),
                RefusalCode::WrongSession => {
                    Attempt::Ended(Err(Failure::OtherSession(refusal.detail)))
                }
                RefusalCode::Failed => Attempt::Ended(Err(Failure::Away(refusal.text))),
                _ => Attempt::Ended(Err(Failure::Refused(refusal))),
            },
            Ok(reply) => Attempt::Ended(Ok(reply.body)),
            Err(error) => Attempt::Unknown(format!("its reply cannot be decoded: {error}")),
        }
    }
}

/// Outcomes of calls that were made at once.
struct Gathering {
    /// Held briefly: a callback must not wait.
    outcomes: Mutex<Outcomes>,
    /// Notified when the last outcome is there.
    is_complete: Condvar,
}

struct Outcomes {
    by_call: Vec<Option<std::result::Result<Vec<u8>, CallError>>>,
    missing: usize,
}

impl Gathering {
    fn of(calls: usize) -> Arc<Gathering> {
        Arc::new(Gathering {
            outcomes: Mutex::new(Outcomes {
                by_call: (0..calls).map(|_| None).collect(),
                missing: calls,
            }),
            is_complete: Condvar::new(),
        })
    }

    fn put(&self, at: usize, outcome: std::result::Result<Vec<u8>, CallError>) {
        let mut outcomes = self.outcomes();
        let Outcomes { by_call, missing } = &mut *outcomes;
        if let Some(empty @ None) = by_call.get_mut(at) {
            *empty = Some(outcome);
            *missing -= 1;
        }
        if outcomes.missing == 0 {
            self.is_complete.notify_all();
        }
    }

    /// Every slot puts its outcome at the latest when it is dropped, so this ends.
    fn wait(&self) -> Vec<std::result::Result<Vec<u8>, CallError>> {
        let outcomes = self.outcomes();
        let mut complete = self
            .is_complete
            .wait_while(outcomes, |outcomes| outcomes.missing > 0)
            .unwrap_or_else(PoisonError::into_inner);
        let by_call = std::mem::take(&mut complete.by_call);
        let given_up = || Err(given_up());
        by_call
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(given_up))
            .collect()
    }

    /// The outcomes that are there in time.
    fn wait_briefly(
        &self,
        patience: Duration,
    ) -> Vec<Option<std::result::Result<Vec<u8>, CallError>>> {
        let (mut outcomes, _) = self
            .is_complete
            .wait_timeout_while(self.outcomes(), patience, |outcomes| outcomes.missing > 0)
            .unwrap_or_else(PoisonError::into_inner);
        outcomes.by_call.iter_mut().map(Option::take).collect()
    }

    /// The outcomes, even after a panic: nothing under the lock panics half-way.
    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that nobody may wait for any more. Counted until it has its outcome, so that calls to a shard that does not answer
/// are few.
struct Flight(Arc<AtomicUsize>);

impl Flight {
    fn begin(in_flight: &Arc<AtomicUsize>) -> Option<Flight> {
        // Relaxed: it only counts.
        let before = in_flight.fetch_add(1, Relaxed);
        let flight = Flight(Arc::clone(in_flight));
        (before < IN_FLIGHT_MAX).then_some(flight)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The place for the outcome of one call. If it is dropped unused, the outcome is unknown.
struct Slot {
    gathering: Arc<Gathering>,
    at: usize,
}

impl Slot {
    fn fill(self, outcome: std::result::Result<Vec<u8>, CallError>) {
        self.gathering.put(self.at, outcome);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Does nothing where the outcome is there.
        self.gathering.put(self.at, Err(given_up()));
    }
}

fn given_up() -> CallError {
    CallError::Unknown(io::Error::other(NO_OUTCOME))
}

/// What went wrong at the shards that were asked.
pub(super) struct Trouble {
    stream: StreamId,
    number: u64,
    away: Vec<Shard>,
    /// Why the first shard that is away has not answered.
    reason: String,
    /// The first refusal.
    refused: Option<IndexError>,
}

impl Trouble {
    /// No trouble so far, with a batch of this number.
    pub(super) fn of(stream: StreamId, number: u64) -> Trouble {
        Trouble {
            stream,
            number,
            away: Vec::new(),
            reason: String::new(),
            refused: None,
        }
    }

    pub(super) fn add(&mut self, shard: Shard, failure: Failure) {
        match failure {
            Failure::Away(reason) => self.add_away(shard, reason),
            Failure::OtherSession(session) => {
                self.add_away(shard, format!("its session is {session} now"));
            }
            Failure::Refused(refusal) => {
                let error = self.error_of(shard, refusal);
                self.refused.get_or_insert(error);
            }
        }
    }

    /// Notes a reply that does not answer the request: the outcome is unknown.
    pub(super) fn does_not_fit(&mut self, shard: Shard) {
        let reason = "its reply does not fit the request; all hosts must have the same release";
        self.add_away(shard, reason.to_owned());
    }

    fn add_away(&mut self, shard: Shard, reason: String) {
        if self.away.is_empty() {
            self.reason = reason;
        }
        if !self.away.contains(&shard) {
            self.away.push(shard);
        }
    }

    /// A refusal is reported before shards that are away, because a repeat does not help against it.
    pub(super) fn into_result(self) -> Result<()> {
        match self.refused {
            Some(error) => Err(error),
            None if self.away.is_empty() => Ok(()),
            None => Err(IndexError::Away {
                shards: self.away,
                reason: self.reason,
            }),
        }
    }

    fn error_of(&self, shard: Shard, refusal: Refusal) -> IndexError {
        let (stream, number) = (self.stream, self.number);
        match refusal.code {
            RefusalCode::Stale => IndexError::Stale {
                stream,
                number,
                last: refusal.detail,
            },
            RefusalCode::Sealed => IndexError::Sealed { stream, number },
            RefusalCode::Forgotten => IndexError::Forgotten { stream, number },
            RefusalCode::Unready => IndexError::Unready(SHARD_IS_LOST),
            RefusalCode::NoRoom => IndexError::NoRoom(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("shard {shard} of the index: {}", refusal.text),
            )),
            _ => IndexError::Refused {
                shard,
                reason: refusal.text,
            },
        }
    }
}
