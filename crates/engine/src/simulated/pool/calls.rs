//! Calls to the owners of groups and shards, which are lost, doubled, kept and delivered late.
//!
//! The owner's code runs on the caller's thread, without any lock of the simulation. A call ends once: with the reply,
//! with the loss of the reply, when the owner drops it, or when a test lets it time out.

use super::super::random::Random;
use super::data::Client;
use super::{Pool, Standing, faults::ClusterRates};
use crate::cluster::{Answer, Answered, CallError, Owned, Reply};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Calls that have not ended.
#[derive(Default)]
pub(super) struct Calls {
    /// Requests that may still reach an owner, although no caller waits for them.
    kept: Vec<Kept>,
    waiting: Vec<Weak<Waiting>>,
}

/// A request on its way.
#[derive(Clone)]
struct Kept {
    what: Owned,
    request: Vec<u8>,
    is_doubled: bool,
}

/// A caller that has got no outcome yet.
pub(super) struct Waiting {
    answered: Mutex<Option<Answered>>,
    pool: Weak<Pool>,
}

impl Waiting {
    pub(super) fn new(pool: &Arc<Pool>, answered: Answered) -> Arc<Waiting> {
        Arc::new(Waiting {
            answered: Mutex::new(Some(answered)),
            pool: Arc::downgrade(pool),
        })
    }

    /// Ends the call, if it has not ended.
    pub(super) fn end(&self, outcome: Result<Vec<u8>, CallError>) {
        let taken = {
            let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            answered.take()
        };
        let Some(answered) = taken else { return };
        if let Some(pool) = self.pool.upgrade() {
            let counts = &mut pool.state().counts;
            match &outcome {
                Ok(reply) => counts.reply_bytes += reply.len() as u64,
                Err(CallError::Unserved) => counts.calls_unserved += 1,
                Err(CallError::Unknown(_)) => counts.calls_unknown += 1,
            }
        }
        answered(outcome);
    }

    pub(super) fn end_unknown(&self, why: &str) {
        let error = io::Error::new(ErrorKind::TimedOut, why);
        self.end(Err(CallError::Unknown(error)));
    }
}

/// The right to reply once. Dropping it ends the call.
struct ReplyTo {
    waiting: Option<Arc<Waiting>>,
    pool: Weak<Pool>,
    what: Owned,
    session: u64,
    is_lost: bool,
}

impl ReplyTo {
    fn reply(self, bytes: Vec<u8>) {
        let owns = self
            .pool
            .upgrade()
            .is_some_and(|pool| pool.owns(self.what, self.session));
        if let Some(waiting) = &self.waiting {
            if self.is_lost {
                waiting.end_unknown("the reply was lost");
            } else if owns {
                waiting.end(Ok(bytes));
            } else {
                waiting.end_unknown("the owner has lost it");
            }
        }
    }
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            waiting.end_unknown("the owner dropped the reply");
        }
    }
}

/// How a call travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Journey {
    Plain,
    RequestLost,
    Delayed,
    Doubled,
    ReplyLost,
}

impl Journey {
    fn draw(rates: &ClusterRates, random: &mut Random) -> Journey {
        if random.chance(rates.request_lost) {
            Journey::RequestLost
        } else if random.chance(rates.call_delayed) {
            Journey::Delayed
        } else if random.chance(rates.call_doubled) {
            Journey::Doubled
        } else if random.chance(rates.reply_lost) {
            Journey::ReplyLost
        } else {
            Journey::Plain
        }
    }
}

/// The outcome of looking for an owner.
enum Found {
    Owner(Arc<dyn Answer>, u64),
    /// No owner that answers calls.
    Nobody,
    /// An owner that does not answer.
    Silent,
}

impl Pool {
    /// Sends a call of a process that runs.
    pub(super) fn send(
        self: &Arc<Pool>,
        client: Client,
        what: Owned,
        request: Vec<u8>,
        waiting: &Arc<Waiting>,
    ) {
        let mut state = self.state();
        state.counts.calls += 1;
        state.counts.request_bytes += request.len() as u64;
        let rates = state.rates;
        let journey = Journey::draw(&rates, &mut state.random);
        state
            .calls
            .waiting
            .retain(|waiting| waiting.strong_count() > 0);
        state.calls.waiting.push(Arc::downgrade(waiting));
        if let Journey::Delayed | Journey::Doubled = journey {
            let is_doubled = journey == Journey::Doubled;
            state.calls.kept.push(Kept {
                what,
                request: request.clone(),
                is_doubled,
            });
        }
        drop(state);
        match journey {
            Journey::RequestLost => waiting.end_unknown("the request was lost"),
            Journey::Delayed => waiting.end_unknown("the request is late"),
            Journey::Plain | Journey::Doubled | Journey::ReplyLost => {
                let is_lost = journey == Journey::ReplyLost;
                self.deliver(what, request, Some(waiting), is_lost);
            }
        }
        // A caller that died in its owner's code learns nothing.
        if self.standing(client) == Standing::Dead {
            waiting.end_unknown("the caller has died");
        }
    }

    /// Brings a request to the owner of this moment. No caller waits for a late one.
    fn deliver(
        self: &Arc<Pool>,
        what: Owned,
        request: Vec<u8>,
        waiting: Option<&Arc<Waiting>>,
        is_lost: bool,
    ) {
        match self.find(what) {
            Found::Owner(answer, session) => {
                let reply = ReplyTo {
                    waiting: waiting.cloned(),
                    pool: Arc::downgrade(self),
                    what,
                    session,
                    is_lost,
                };
                let reply: Reply = Box::new(move |bytes| reply.reply(bytes));
                answer.answer(request, reply);
            }
            Found::Nobody => match waiting {
                Some(waiting) => waiting.end(Err(CallError::Unserved)),
                None => self.state().counts.calls_dropped += 1,
            },
            Found::Silent => {
                let mut state = self.state();
                if state.random.coin() {
                    state.calls.kept.push(Kept {
                        what,
                        request,
                        is_doubled: false,
                    });
                }
                drop(state);
                if let Some(waiting) = waiting {
                    waiting.end_unknown("the owner does not answer");
                }
            }
        }
    }

    /// Looks for an owner. The cluster may not have noticed yet that an owner is dead.
    fn find(&self, what: Owned) -> Found {
        let mut state = self.state();
        let record = state.owned.get(&what);
        let Some(owner) = record.and_then(|record| record.owner.as_ref()) else {
            return Found::Nobody;
        };
        let session = record.map_or(0, |record| record.session);
        let answer = owner.answer.clone();
        match state.standing(owner.client) {
            Standing::Live => answer.map_or(Found::Nobody, |answer| Found::Owner(answer, session)),
            Standing::Silent => Found::Silent,
            Standing::Dead if state.random.coin() => Found::Nobody,
            Standing::Dead => Found::Silent,
        }
    }

    /// Keeps the request of a caller that died as it sent it.
    pub(super) fn keep(&self, what: Owned, request: Vec<u8>) {
        self.state().calls.kept.push(Kept {
            what,
            request,
            is_doubled: false,
        });
    }

    /// Delivers kept requests, if any are due before the next I/O.
    pub(super) fn deliver_due(self: &Arc<Pool>) {
        loop {
            let mut state = self.state();
            let rate = state.rates.call_delivered;
            if state.calls.kept.is_empty() || !state.random.chance(rate) {
                return;
            }
            drop(state);
            self.deliver_one();
        }
    }

    /// Delivers one kept request. Returns whether there was one.
    pub(super) fn deliver_one(self: &Arc<Pool>) -> bool {
        let mut state = self.state();
        let count = state.calls.kept.len() as u64;
        if count == 0 {
            return false;
        }
        let nth = state.random.below(count) as usize;
        let kept = state.calls.kept.swap_remove(nth);
        if kept.is_doubled {
            state.counts.calls_doubled += 1;
        } else {
            state.counts.calls_late += 1;
        }
        drop(state);
        self.deliver(kept.what, kept.request, None, false);
        true
    }

    /// The number of requests that may still reach an owner although no caller waits for them.
    pub(super) fn calls_kept(&self) -> usize {
        self.state().calls.kept.len()
    }

    /// Ends all calls that wait for a reply.
    pub(super) fn time_out_calls(&self) {
        let waiting = std::mem::take(&mut self.state().calls.waiting);
        for waiting in waiting.iter().filter_map(Weak::upgrade) {
            waiting.end_unknown("no reply in time");
        }
    }
}
