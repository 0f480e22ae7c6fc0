//! Lookups that hold rows, for writes in line, and the end of holds: the store's side of [`holds`](crate::holds).
//!
//! - A lookup names the session of the shard's owner that the store knows. Another owner refuses it, so no lookup from
//!   before a new owner makes a hold at it, and the store learns of the owner.
//! - A store that learns of a new session raises its lookup version before it uses the session
//!   ([`Sharded::meet`]): the claims that came of the former owner's answers can then be counted as a whole.
//! - A guest waits for a lookup: one that is late finds nothing. A shard that is late several times in a row is not
//!   asked before the next end of holds; and no shard is, if whole lookups are late several times in a row.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_format::Shard;
use onefold_format::index_message::{IndexReplyBody, IndexRequestBody};

use super::calls::{Call, Failure};
use super::{Sharded, fingerprints_of, looked_up, pieces};
use crate::{Fingerprint, LookedUp, LookupAnswers};

/// After this many late answers in a row a shard is not asked.
const LATE_MAX: u32 = 3;

/// After this many lookups in a row without any answer in time, no shard is asked: a guest would wait for each of many shards.
const LATE_LOOKUPS_MAX: u32 = 6;

/// Shards with sessions that the store did not know.
pub type NewSessions = Vec<(Shard, u64)>;

/// The outcome of a lookup that holds rows.
#[derive(Debug)]
pub struct HeldRows {
    /// An answer for each fingerprint. A row that is present is held.
    pub answers: LookupAnswers,
    /// For [`Sharded::meet`].
    pub met: NewSessions,
}

/// The outcome of ending holds.
#[derive(Debug, Default)]
pub struct EndedHolds {
    /// For [`Sharded::meet`].
    pub met: NewSessions,
    /// Shards that have not ended the holds, or not in time.
    pub unanswered: usize,
}

/// The holds of a store, as far as it knows.
pub(super) struct Holding {
    /// Held briefly, and with no other lock.
    shards: Mutex<Vec<OfShard>>,
    /// Lookups that have no answer yet, late ones included.
    in_flight: Arc<AtomicUsize>,
    /// Lookups in a row that had no answer in time. Relaxed: a lookup more or less does not matter.
    late_lookups: AtomicU32,
}

#[derive(Clone, Copy)]
struct OfShard {
    /// The session of the shard's owner; 0 if it is not known.
    session: u64,
    /// The last version of lookups that may have made holds; 0 if there are none.
    asked: u64,
    /// Late answers in a row.
    late: u32,
}

impl Holding {
    /// The store before this opening may have left holds in every shard.
    pub(super) fn new(shards: u16) -> Holding {
        let unknown = OfShard {
            session: 0,
            asked: 1,
            late: 0,
        };
        Holding {
            shards: Mutex::new(vec![unknown; shards.into()]),
            in_flight: Arc::default(),
            late_lookups: AtomicU32::new(0),
        }
    }

    /// A panic under the lock leaves nothing half done.
    fn shards(&self) -> MutexGuard<'_, Vec<OfShard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session with which to ask a shard for rows under a lookup version, unless it is not to be asked.
    fn begin(&self, shard: Shard, version: u64) -> Option<u64> {
        let mut shards = self.shards();
        let of_shard = shards.get_mut(usize::from(shard.0))?;
        if of_shard.session == 0 || of_shard.late >= LATE_MAX {
            return None;
        }
        of_shard.asked = of_shard.asked.max(version);
        Some(of_shard.session)
    }

    /// Whether lookups are late again and again.
    fn is_hopeless(&self) -> bool {
        self.late_lookups.load(Relaxed) >= LATE_LOOKUPS_MAX
    }

    fn note_lookup(&self, has_answer: bool) {
        if has_answer {
            self.late_lookups.store(0, Relaxed);
        } else {
            self.late_lookups.fetch_add(1, Relaxed);
        }
    }

    fn note_late(&self, shard: Shard, is_late: bool) {
        if let Some(of_shard) = self.shards().get_mut(usize::from(shard.0)) {
            of_shard.late = if is_late { of_shard.late + 1 } else { 0 };
        }
    }
}

impl Sharded {
    /// Looks fingerprints up under a lookup version of the store, waits at most `patience`, and has the shards hold the
    /// rows that are found. A row that no answer names in time counts as absent.
    pub fn hold(&self, version: u64, fingerprints: &[Fingerprint], patience: Duration) -> HeldRows {
        let order = self.by_shard(fingerprints);
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for piece in pieces(&order) {
            let shard = piece[0].0;
            if !self.holding.is_hopeless()
                && let Some(session) = self.holding.begin(shard, version)
            {
                calls.push(Call {
                    shard,
                    session,
                    body: IndexRequestBody::Hold {
                        version,
                        fingerprints: fingerprints_of(piece, fingerprints),
                    },
                });
                asked.push(piece);
            }
        }
        let mut held = HeldRows {
            answers: LookupAnswers::from_elem(LookedUp::Absent, fingerprints.len()),
            met: NewSessions::new(),
        };
        let outcomes = self
            .caller
            .ask_briefly(&calls, patience, Some(&self.holding.in_flight));
        if !calls.is_empty() {
            self.holding
                .note_lookup(outcomes.iter().any(Option::is_some));
        }
        for (piece, outcome) in asked.into_iter().zip(outcomes) {
            let shard = piece[0].0;
            self.holding.note_late(shard, outcome.is_none());
            match outcome {
                Some(Ok(IndexReplyBody::LookedUp(some))) if some.len() == piece.len() => {
                    for ((_, at), answer) in piece.iter().zip(some) {
                        held.answers[*at] = looked_up(answer);
                    }
                }
                Some(Err(Failure::OtherSession(session))) => held.met.push((shard, session)),
                Some(_) | None => {}
            }
        }
        held
    }

    /// Whether the store may have holds.
    pub fn may_hold(&self) -> bool {
        self.holding
            .shards()
            .iter()
            .any(|of_shard| of_shard.asked > 0)
    }

    /// Ends the holds of all lookup versions up to this one. The store has raised its version since, and all references
    /// that it made under these versions are counted. A shard that does not answer within `patience` keeps them; a later
    /// call ends them.
    pub fn end_holds(&self, version: u64, patience: Duration) -> EndedHolds {
        let (mut calls, mut ended) = (Vec::new(), EndedHolds::default());
        self.holding.note_lookup(true);
        for (shard, of_shard) in self.shards().zip(&mut *self.holding.shards()) {
            of_shard.late = 0;
            if of_shard.asked > 0 {
                let is_last = of_shard.asked <= version;
                calls.push(Call {
                    shard,
                    session: of_shard.session,
                    body: IndexRequestBody::EndHolds { version, is_last },
                });
            }
        }
        let outcomes = self.caller.ask_briefly(&calls, patience, None);
        for (call, outcome) in calls.iter().zip(outcomes) {
            match outcome {
                Some(Ok(IndexReplyBody::Ended)) => {
                    let mut shards = self.holding.shards();
                    if let Some(of_shard) = shards.get_mut(usize::from(call.shard.0))
                        && of_shard.asked <= version
                    {
                        of_shard.asked = 0;
                    }
                }
                Some(Err(Failure::OtherSession(session))) => {
                    ended.met.push((call.shard, session));
                }
                Some(_) | None => ended.unanswered += 1,
            }
        }
        ended
    }

    /// Uses these sessions from now on. The store has raised its lookup version since it learned of them.
    pub fn meet(&self, sessions: &NewSessions) {
        let mut shards = self.holding.shards();
        for (shard, session) in sessions {
            if let Some(of_shard) = shards.get_mut(usize::from(shard.0))
                && *session > of_shard.session
            {
                of_shard.session = *session;
                of_shard.late = 0;
            }
        }
    }
}
