//! Calls of this host to the owners of groups and shards.
//!
//! A call is a notification on the head of what is owned. librados sends a notification again when it has lost the connection,
//! or the cluster's map has changed; so a call may arrive twice. It does not say whether it did, so a call that found no
//! watcher counts as unserved only if it ended at once: otherwise an owner that is gone by then may have answered it
//! the first time.
//!
//! A notification may wait for the cluster for ever, so a call has a deadline of its own. It keeps its memory until then,
//! so an owner with several such notifications is called no more until some end.

use super::head::SESSION_KEY;
use super::messages::{self, Called};
use super::names::Estate;
use crate::cluster::{Answered, CallError, Owned};
use onefold_rados::{Pool, Replies};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest request: a notification is held in memory by the cluster and by each watcher.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How long the cluster has, beyond a call's timeout, to report that the owner did not answer.
const GRACE: Duration = Duration::from_secs(2);

/// A notification that ends sooner was not sent again after its owner had died: the cluster keeps a dead owner's watch
/// for longer. An owner that gives up has answered before its watch ends.
const SENT_ONCE: Duration = Duration::from_secs(5);

/// An owner with this many notifications that outlived their calls gets no further one.
const OVERDUE_MAX: usize = 8;

/// Calls that have no outcome yet.
#[derive(Clone, Default)]
pub(super) struct Calls {
    /// No other lock is taken while this one is held.
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<u64, Pending>,
    /// Notifications whose calls have ended by their deadline.
    overdue: BTreeMap<u64, Owned>,
    next: u64,
    /// The sessions of the owners that answered last.
    sessions: BTreeMap<Owned, String>,
}

struct Pending {
    what: Owned,
    deadline: Instant,
    answered: Answered,
}

/// A call that has not ended.
struct Call {
    calls: Calls,
    number: u64,
    what: Owned,
    pool: Pool,
    began: Instant,
}

type Outcome = Result<Vec<u8>, CallError>;

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the owner of a group or a shard. `answered` receives the outcome, once.
    pub(super) fn begin(
        &self,
        pool: &Pool,
        what: Owned,
        request: &[u8],
        timeout: Duration,
        answered: Answered,
    ) {
        if request.len() > REQUEST_BYTES_MAX {
            let message = format!(
                "a request has {} bytes, and may have {REQUEST_BYTES_MAX}: split it",
                request.len()
            );
            let error = io::Error::new(io::ErrorKind::InvalidInput, message);
            return answered(Err(CallError::Unknown(error)));
        }
        let began = Instant::now();
        let mut state = self.state();
        let overdue = state.overdue.values().filter(|other| **other == what);
        if overdue.count() >= OVERDUE_MAX {
            drop(state);
            return answered(Err(timed_out()));
        }
        let number = state.next;
        state.next += 1;
        // A timeout that no clock can count never ends.
        let deadline = began.checked_add(timeout.saturating_add(GRACE));
        let deadline = deadline.unwrap_or_else(|| began + Duration::from_secs(1 << 32));
        let pending = Pending {
            what,
            deadline,
            answered,
        };
        state.pending.insert(number, pending);
        drop(state);
        let call = Call {
            calls: self.clone(),
            number,
            what,
            pool: pool.clone(),
            began,
        };
        let head = Estate::Shared(what).head();
        pool.notify(&head, &messages::call(request), timeout, move |replies| {
            call.take_replies(replies);
        });
    }

    /// Ends a call, unless it has ended.
    fn end(&self, number: u64, outcome: Outcome) {
        let mut state = self.state();
        let pending = state.pending.remove(&number);
        state.overdue.remove(&number);
        drop(state);
        if let Some(Pending { answered, .. }) = pending {
            answered(outcome);
        }
    }

    /// Ends the calls whose deadline has passed.
    pub(super) fn end_overdue(&self) {
        let now = Instant::now();
        self.end_those(|pending| pending.deadline <= now);
    }

    /// Ends all calls, because the host ends.
    pub(super) fn end_all(&self) {
        self.end_those(|_| true);
    }

    fn end_those(&self, ends: impl Fn(&Pending) -> bool) {
        let state = self.state();
        let pending = state.pending.iter();
        let overdue = pending.filter(|(_, pending)| ends(pending));
        let overdue: Vec<u64> = overdue.map(|(number, _)| *number).collect();
        drop(state);
        for number in overdue {
            let mut state = self.state();
            let pending = state.pending.remove(&number);
            if let Some(Pending { what, answered, .. }) = pending {
                state.overdue.insert(number, what);
                drop(state);
                answered(Err(timed_out()));
            }
        }
    }
}

impl Call {
    fn end(self, outcome: Outcome) {
        self.calls.end(self.number, outcome);
    }

    /// Takes the replies of all watchers of the head. Runs on a thread that must not wait.
    fn take_replies(self, replies: io::Result<Replies>) {
        let replies = match replies {
            Ok(replies) => replies,
            // There is no such group or shard.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.end(Err(CallError::Unserved));
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return self.end(Err(timed_out()));
            }
            Err(error) => return self.end(Err(CallError::Unknown(error))),
        };
        let has_watcher = !replies.replies.is_empty() || !replies.timed_out.is_empty();
        let payloads = replies.replies.into_iter().map(|reply| reply.payload);
        let answers: Vec<_> = payloads.filter_map(|payload| answer(&payload)).collect();
        if answers.is_empty() {
            let is_unserved = !has_watcher && self.began.elapsed() < SENT_ONCE;
            return self.end(Err(if is_unserved {
                CallError::Unserved
            } else {
                timed_out()
            }));
        }
        let known = self.calls.state().sessions.get(&self.what).cloned();
        if answers.len() == 1
            && let Some(known) = known
            && known == answers[0].session
        {
            return self.end_with(answers, &known);
        }
        self.ask_for_session(answers);
    }

    /// Asks the head for the present session, and ends with the answer of its owner.
    fn ask_for_session(self, answers: Vec<Said>) {
        let head = Estate::Shared(self.what).head();
        let op = self.pool.read_op().xattrs();
        self.pool
            .clone()
            .submit_read(&head, op, move |found| match found {
                Ok(reply) => {
                    let mut attributes = reply.xattrs.into_iter();
                    let session = attributes.find(|(name, _)| name == SESSION_KEY);
                    let session = session.and_then(|(_, value)| String::from_utf8(value).ok());
                    let session = session.unwrap_or_default();
                    let mut state = self.calls.state();
                    state.sessions.insert(self.what, session.clone());
                    drop(state);
                    self.end_with(answers, &session);
                }
                Err(error) => self.end(Err(CallError::Unknown(error))),
            });
    }

    fn end_with(self, answers: Vec<Said>, session: &str) {
        let mut answers = answers.into_iter();
        let of_owner = answers.find(|answer| answer.session == session);
        self.end(match of_owner.map(|answer| answer.reply) {
            Some(Some(reply)) => Ok(reply),
            Some(None) => Err(CallError::Unserved),
            None => Err(CallError::Unknown(io::Error::other(
                "a former owner answered",
            ))),
        });
    }
}

/// A watcher's answer, and its session.
struct Said {
    session: String,
    /// Nothing if the watcher answers no calls.
    reply: Option<Vec<u8>>,
}

fn answer(payload: &[u8]) -> Option<Said> {
    let (session, called) = messages::called_of(payload)?;
    Some(Said {
        session: session.to_owned(),
        reply: match called {
            Called::Reply(bytes) => Some(bytes.to_vec()),
            Called::Unserved => None,
        },
    })
}

fn timed_out() -> CallError {
    let message = "no reply in time: ask again, when there is an owner";
    CallError::Unknown(io::Error::new(io::ErrorKind::TimedOut, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::Shard;
    use std::sync::mpsc;

    #[test]
    fn a_call_ends_once_and_no_later_than_its_deadline() {
        let calls = Calls::default();
        let (told, hears) = mpsc::channel();
        let begin = |number, after: Duration| {
            let told = told.clone();
            let answered: Answered = Box::new(move |outcome: Outcome| {
                told.send((number, outcome.is_ok())).unwrap();
            });
            let pending = Pending {
                what: Owned::Shard(Shard(0)),
                deadline: Instant::now() + after,
                answered,
            };
            calls.state().pending.insert(number, pending);
        };
        begin(1, Duration::ZERO);
        begin(2, Duration::from_secs(3600));
        calls.end_overdue();
        assert_eq!(calls.state().overdue.len(), 1);
        calls.end(1, Ok(Vec::new()));
        assert!(calls.state().overdue.is_empty());
        calls.end(2, Ok(Vec::new()));
        calls.end_overdue();
        drop(told);
        assert_eq!(hears.iter().collect::<Vec<_>>(), [(1, false), (2, true)]);
    }
}
