//! The index of a shared pool, as one of its stores uses it: its shards, asked by messages.
//!
//! A batch is split by the fingerprints of its items. All shards get their parts at once, under the batch's number, and
//! one wait is for all of them. An item travels with its position in the batch, and a shard keeps the position with the
//! answer. So a store that does not know the outcome of a batch, because a shard did not reply or the store died,
//! *recalls* the answers, and repeats the batch under the same number: each item is executed once (P4).
//!
//! A shard without an owner delays its own items only: the call returns [`IndexError::Away`] after all other shards have
//! answered, and the store keeps its batch open.
//!
//! Crash behaviour: nothing is kept here. The store recalls the batch that is open in its log.

mod calls;
mod holding;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onefold_engine::Blocking;
use onefold_engine::cluster::Cluster;
use onefold_format::index_message::{
    INDEX_ITEMS_MAX, INDEX_LOOKUPS_MAX, INDEX_MARKS_MAX, INDEX_ROWS_MAX, INDEX_SECURED_MAX,
    IndexAnswer, IndexItem, IndexOperation, IndexReplyBody, IndexRequestBody, IndexRow,
    LookupAnswer, PositionedAnswer, RefusalCode, first_fingerprint, is_shard_count, shard_of,
};
use onefold_format::{GroupId, Pba, PoolId, Shard};

use crate::batch::check_blocks;
use crate::shard::{AnswerAt, Positioned};
use crate::{
    Counted, Fingerprint, IndexCounts, IndexError, IndexReader, LookedUp, LookupAnswers, Released,
    Result, Row, StreamId,
};
use calls::{Call, Caller, Failure, Trouble};
use holding::Holding;
pub use holding::{EndedHolds, HeldRows, NewSessions};

/// Room that is secured for a batch at each shard beyond twice its even share: fingerprints scatter.
const SECURED_BESIDE: usize = 64;

/// The answers to the items of a batch that were executed, in the order of their positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recalled {
    /// Answers to a batch that counts references.
    Counted(Vec<AnswerAt<Counted>>),
    /// Answers to a batch that releases references.
    Released(Vec<AnswerAt<Released>>),
}

/// The shards of an index, as one store sees them.
pub struct Sharded {
    caller: Caller,
    /// The last known state of each shard. Held briefly, and with no other lock.
    known: Mutex<Vec<Known>>,
    /// Blocks that answers have named as bad since they were last taken. Held briefly, and with no other lock.
    bad: Mutex<BTreeSet<Pba>>,
    holding: Holding,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    counts: IndexCounts,
    is_unready: bool,
}

impl Sharded {
    /// The index of a pool, for the store that is this group. A shard that does not reply within `timeout` is asked once
    /// more.
    ///
    /// # Errors
    /// [`IndexError::Io`] if `shards` is not a power of two, or there are more than an index can have.
    pub fn new(
        cluster: Arc<dyn Cluster>,
        pool: PoolId,
        group: GroupId,
        shards: u16,
        timeout: Duration,
    ) -> Result<Sharded> {
        if !is_shard_count(shards) {
            return Err(IndexError::Io(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("an index cannot have {shards} shards"),
            )));
        }
        Ok(Sharded {
            caller: Caller {
                cluster,
                pool,
                group,
                shards,
                timeout,
            },
            known: Mutex::new(vec![Known::default(); shards.into()]),
            bad: Mutex::default(),
            holding: Holding::new(shards),
        })
    }

    /// Counts one reference for each item, as [`FingerprintIndex::increment`] does. Positions are unique in the batch.
    /// Items that were executed before under this number get their answers, and count nothing.
    ///
    /// # Errors
    /// [`IndexError::Away`]: some shards have not answered, and it is unknown whether they will execute their items. The
    /// caller keeps the batch open, and recalls or repeats it later under the same number. [`IndexError::NoRoom`]: some
    /// shards have executed their items, and some have not; the same applies. [`IndexError::Stale`],
    /// [`IndexError::Sealed`], [`IndexError::Forgotten`], [`IndexError::Unready`], [`IndexError::BadBlock`].
    ///
    /// [`FingerprintIndex::increment`]: crate::FingerprintIndex::increment
    pub fn increment(&self, number: u64, items: &[Positioned]) -> Result<Vec<AnswerAt<Counted>>> {
        self.execute(number, IndexOperation::Increment, items, counted)
    }

    /// Counts one reference for each item whose row has the item's own block, as [`FingerprintIndex::count_existing`]
    /// does. Positions, repeats and errors work as in [`Sharded::increment`].
    ///
    /// [`FingerprintIndex::count_existing`]: crate::FingerprintIndex::count_existing
    pub fn count_existing(
        &self,
        number: u64,
        items: &[Positioned],
    ) -> Result<Vec<AnswerAt<Counted>>> {
        self.execute(number, IndexOperation::CountExisting, items, counted)
    }

    /// Releases one reference for each item, as [`FingerprintIndex::decrement`] does. Positions, repeats and errors work
    /// as in [`Sharded::increment`].
    ///
    /// [`FingerprintIndex::decrement`]: crate::FingerprintIndex::decrement
    pub fn decrement(&self, number: u64, items: &[Positioned]) -> Result<Vec<AnswerAt<Released>>> {
        self.execute(number, IndexOperation::Decrement, items, released)
    }

    /// The answers to all items of a batch that any shard has executed; none if no shard knows the batch. With
    /// `is_sealing`, no shard executes a further item of the batch once this has returned, however late it arrives.
    ///
    /// # Errors
    /// [`IndexError::Away`]: some shards have not answered. [`IndexError::Stale`] if a shard has had a later batch, or
    /// one of another kind; [`IndexError::Forgotten`]; with `is_sealing` [`IndexError::NoRoom`].
    pub fn recall(
        &self,
        number: u64,
        operation: IndexOperation,
        is_sealing: bool,
    ) -> Result<Recalled> {
        let recall = |shard, from| {
            let body = IndexRequestBody::Recall {
                number,
                operation,
                is_sealing,
                from,
            };
            Call::any(shard, body)
        };
        let mut calls: Vec<Call> = self.shards().map(|shard| recall(shard, 0)).collect();
        let (mut answers, mut trouble) = (Vec::new(), self.trouble(number));
        while !calls.is_empty() {
            let mut further = Vec::new();
            for (call, reply) in calls.iter().zip(self.ask(&calls)) {
                match reply {
                    Ok(IndexReplyBody::Answers {
                        answers: some,
                        has_more,
                    }) => {
                        let next = some.last().and_then(|last| last.position.checked_add(1));
                        match next {
                            Some(next) if has_more => further.push(recall(call.shard, next)),
                            _ if has_more => trouble.does_not_fit(call.shard),
                            _ => {}
                        }
                        answers.extend(some);
                    }
                    Ok(_) => trouble.does_not_fit(call.shard),
                    Err(failure) => trouble.add(call.shard, failure),
                }
            }
            calls = further;
        }
        trouble.into_result()?;
        self.note_bad(&answers);
        let misfit = || IndexError::Damaged("a shard keeps answers of another kind".to_owned());
        Ok(if operation == IndexOperation::Decrement {
            Recalled::Released(in_order(&answers, released).ok_or_else(misfit)?)
        } else {
            Recalled::Counted(in_order(&answers, counted).ok_or_else(misfit)?)
        })
    }

    /// Secures room for batches with these numbers of items, as [`FingerprintIndex::secure`] does. It is no promise:
    /// batches of other stores may take the room.
    ///
    /// # Errors
    /// [`IndexError::NoRoom`], [`IndexError::Away`], [`IndexError::Unready`].
    ///
    /// [`FingerprintIndex::secure`]: crate::FingerprintIndex::secure
    pub fn secure(&self, batches: &[usize]) -> Result<()> {
        let share = |items: &usize| {
            let even = items / usize::from(self.caller.shards);
            let share = (*items).min(even * 2 + SECURED_BESIDE);
            u32::try_from(share).unwrap_or(u32::MAX)
        };
        let shares: Vec<u32> = batches.iter().map(share).collect();
        let mut trouble = self.trouble(0);
        for some in shares.chunks(INDEX_SECURED_MAX) {
            let secure = |shard| Call::any(shard, IndexRequestBody::Secure(some.to_vec()));
            let calls: Vec<Call> = self.shards().map(secure).collect();
            for (call, reply) in calls.iter().zip(self.ask(&calls)) {
                match reply {
                    Ok(IndexReplyBody::Secured) => {}
                    Ok(_) => trouble.does_not_fit(call.shard),
                    Err(failure) => trouble.add(call.shard, failure),
                }
            }
        }
        trouble.into_result()
    }

    /// Marks blocks as bad in all shards, or as bad no longer. A marked block is absent for lookups, and answers to
    /// increments name it as bad.
    ///
    /// # Errors
    /// [`IndexError::Away`]: some shards have not answered, and may have marked the blocks or not; the call can be repeated.
    /// [`IndexError::NoRoom`], [`IndexError::Unready`].
    pub fn mark(&self, blocks: &[Pba], is_bad: bool) -> Result<()> {
        let mut trouble = self.trouble(0);
        for some in blocks.chunks(INDEX_MARKS_MAX) {
            let mark = |shard| {
                let blocks = some.to_vec();
                Call::any(shard, IndexRequestBody::Mark { is_bad, blocks })
            };
            let calls: Vec<Call> = self.shards().map(mark).collect();
            for (call, reply) in calls.iter().zip(self.ask(&calls)) {
                match reply {
                    Ok(IndexReplyBody::Marked) => {}
                    Ok(_) => trouble.does_not_fit(call.shard),
                    Err(failure) => trouble.add(call.shard, failure),
                }
            }
        }
        trouble.into_result()
    }

    /// Removes and returns the blocks that answers to increments have named as bad.
    pub fn take_bad(&self) -> BTreeSet<Pba> {
        std::mem::take(&mut *self.bad())
    }

    fn execute<A>(
        &self,
        number: u64,
        operation: IndexOperation,
        items: &[Positioned],
        answer: impl Fn(IndexAnswer) -> Option<A>,
    ) -> Result<Vec<AnswerAt<A>>> {
        check_blocks(items.iter().map(|item| item.pba))?;
        let calls = self.split(number, operation, items);
        let (mut answers, mut trouble) = (Vec::new(), self.trouble(number));
        for (call, reply) in calls.iter().zip(self.ask(&calls)) {
            match reply {
                Ok(IndexReplyBody::Answers { answers: some, .. }) if fits(&call.body, &some) => {
                    answers.extend(some);
                }
                Ok(_) => trouble.does_not_fit(call.shard),
                Err(failure) => trouble.add(call.shard, failure),
            }
        }
        trouble.into_result()?;
        self.note_bad(&answers);
        let misfit = || IndexError::Damaged("a shard gave answers of another kind".to_owned());
        in_order(&answers, answer).ok_or_else(misfit)
    }

    /// The calls for a batch: one for each shard that has an item, or more if those are many.
    fn split(&self, number: u64, operation: IndexOperation, items: &[Positioned]) -> Vec<Call> {
        let mut order: Vec<(Shard, IndexItem)> = items
            .iter()
            .map(|item| {
                let fingerprint = item.fingerprint.0;
                let item = IndexItem {
                    position: item.position,
                    fingerprint,
                    pba: item.pba,
                };
                (shard_of(&fingerprint, self.caller.shards), item)
            })
            .collect();
        order.sort_by_key(|(shard, item)| (*shard, item.position));
        let mut calls = Vec::new();
        for of_shard in order.chunk_by(|one, other| one.0 == other.0) {
            for piece in of_shard.chunks(INDEX_ITEMS_MAX) {
                let items = piece.iter().map(|(_, item)| *item).collect();
                let body = IndexRequestBody::Batch {
                    number,
                    operation,
                    items,
                };
                calls.push(Call::any(of_shard[0].0, body));
            }
        }
        calls
    }

    /// Asks shards, all at once, and keeps the counts and states in their replies.
    fn ask(&self, calls: &[Call]) -> Vec<std::result::Result<IndexReplyBody, Failure>> {
        let replies = self.caller.ask(calls);
        let mut known = self.known();
        for (call, reply) in calls.iter().zip(&replies) {
            let Some(known) = known.get_mut(usize::from(call.shard.0)) else {
                continue;
            };
            match reply {
                Ok(IndexReplyBody::Counts {
                    unique,
                    shared,
                    references,
                }) => {
                    known.counts = IndexCounts {
                        unique: *unique,
                        shared: *shared,
                        references: *references,
                    };
                }
                // A shard that has lost its rows answers so, too.
                Ok(IndexReplyBody::Marked) => {}
                Ok(_) => known.is_unready = false,
                Err(Failure::Refused(refusal)) if refusal.code == RefusalCode::Unready => {
                    known.is_unready = true;
                }
                Err(_) => {}
            }
        }
        replies
    }

    /// The places of fingerprints, by the shards that have them.
    fn by_shard(&self, fingerprints: &[Fingerprint]) -> Vec<(Shard, usize)> {
        let shards = self.caller.shards;
        let mut order: Vec<(Shard, usize)> = fingerprints
            .iter()
            .map(|fingerprint| shard_of(&fingerprint.0, shards))
            .zip(0..)
            .collect();
        order.sort_unstable();
        order
    }

    fn shards(&self) -> impl Iterator<Item = Shard> {
        (0..self.caller.shards).map(Shard)
    }

    fn trouble(&self, number: u64) -> Trouble {
        Trouble::of(StreamId(self.caller.group.0), number)
    }

    fn note_bad(&self, answers: &[PositionedAnswer]) {
        let bad = answers.iter().filter_map(|at| match at.answer {
            IndexAnswer::SharedBad(pba) => Some(pba),
            _ => None,
        });
        let mut bad = bad.peekable();
        if bad.peek().is_some() {
            self.bad().extend(bad);
        }
    }

    /// A panic under the lock leaves blocks that were named.
    fn bad(&self) -> MutexGuard<'_, BTreeSet<Pba>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A panic under the lock leaves nothing that the next replies do not replace.
    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IndexReader for Sharded {
    fn lookup(&self, fingerprints: &[Fingerprint], blocking: Blocking) -> Result<LookupAnswers> {
        if blocking == Blocking::No {
            return Err(IndexError::WouldBlock);
        }
        let order = self.by_shard(fingerprints);
        let pieces = pieces(&order);
        let call = |piece: &&[(Shard, usize)]| {
            Call::any(
                piece[0].0,
                IndexRequestBody::Lookup(fingerprints_of(piece, fingerprints)),
            )
        };
        let calls: Vec<Call> = pieces.iter().map(call).collect();
        let mut answers = LookupAnswers::from_elem(LookedUp::Absent, fingerprints.len());
        let mut trouble = self.trouble(0);
        for (piece, reply) in pieces.iter().zip(self.ask(&calls)) {
            let shard = piece[0].0;
            match reply {
                Ok(IndexReplyBody::LookedUp(some)) if some.len() == piece.len() => {
                    for ((_, at), answer) in piece.iter().zip(some) {
                        answers[*at] = looked_up(answer);
                    }
                }
                Ok(_) => trouble.does_not_fit(shard),
                Err(failure) => trouble.add(shard, failure),
            }
        }
        trouble.into_result()?;
        Ok(answers)
    }

    /// Asks all shards. A shard that does not answer counts as it did when it last answered.
    fn counts(&self) -> IndexCounts {
        let call = |shard| Call::any(shard, IndexRequestBody::Counts);
        self.ask(&self.shards().map(call).collect::<Vec<_>>());
        let mut sum = IndexCounts::default();
        for Known { counts, .. } in &*self.known() {
            sum.unique += counts.unique;
            sum.shared += counts.shared;
            sum.references += counts.references;
        }
        sum
    }

    fn rows(&self, from: Fingerprint, max: usize) -> Result<Vec<(Fingerprint, Row)>> {
        let shards = self.caller.shards;
        let (mut rows, mut next) = (Vec::new(), Some(from));
        while let Some(from) = next.filter(|_| rows.len() < max) {
            let shard = shard_of(&from.0, shards);
            let page = (max - rows.len()).min(INDEX_ROWS_MAX);
            let body = IndexRequestBody::Rows {
                from: from.0,
                max: page as u32,
            };
            let call = Call::any(shard, body);
            let mut trouble = self.trouble(0);
            let reply = self.ask(std::slice::from_ref(&call)).pop();
            match reply {
                Some(Ok(IndexReplyBody::Rows {
                    rows: some,
                    has_more,
                })) if is_page(&some, from, page) => {
                    let last = some.last().map(|row| Fingerprint(row.fingerprint));
                    rows.extend(some.iter().map(row));
                    next = match last {
                        Some(last) if has_more => last.successor(),
                        _ if shard.0 + 1 < shards => {
                            let first = first_fingerprint(Shard(shard.0 + 1), shards);
                            Some(Fingerprint(first))
                        }
                        _ => None,
                    };
                }
                Some(Err(failure)) => trouble.add(shard, failure),
                _ => trouble.does_not_fit(shard),
            }
            trouble.into_result()?;
        }
        Ok(rows)
    }

    /// Whether a shard has refused a request because it has to be rebuilt, and has executed nothing since.
    fn needs_rebuild(&self) -> bool {
        self.known().iter().any(|known| known.is_unready)
    }
}

/// The pieces that a request each looks up.
fn pieces(order: &[(Shard, usize)]) -> Vec<&[(Shard, usize)]> {
    order
        .chunk_by(|one, other| one.0 == other.0)
        .flat_map(|of_shard| of_shard.chunks(INDEX_LOOKUPS_MAX))
        .collect()
}

fn fingerprints_of(piece: &[(Shard, usize)], fingerprints: &[Fingerprint]) -> Vec<[u8; 16]> {
    piece.iter().map(|(_, at)| fingerprints[*at].0).collect()
}

/// Whether these are the answers to exactly the items of a request.
fn fits(body: &IndexRequestBody, answers: &[PositionedAnswer]) -> bool {
    let IndexRequestBody::Batch {
        operation, items, ..
    } = body
    else {
        return false;
    };
    let is_answer = |(item, at): (&IndexItem, &PositionedAnswer)| {
        item.position == at.position && at.answer.answers(*operation)
    };
    items.len() == answers.len() && items.iter().zip(answers).all(is_answer)
}

/// Answers in the order of their positions; `None` if one is of another kind.
fn in_order<A>(
    answers: &[PositionedAnswer],
    answer: impl Fn(IndexAnswer) -> Option<A>,
) -> Option<Vec<AnswerAt<A>>> {
    let positioned = |at: &PositionedAnswer| {
        Some(AnswerAt {
            position: at.position,
            answer: answer(at.answer)?,
        })
    };
    let answers = answers.iter().map(positioned);
    let mut answers = answers.collect::<Option<Vec<AnswerAt<A>>>>()?;
    answers.sort_by_key(|at| at.position);
    Some(answers)
}

fn counted(answer: IndexAnswer) -> Option<Counted> {
    match answer {
        IndexAnswer::Inserted => Some(Counted::Inserted),
        IndexAnswer::Shared(pba) | IndexAnswer::SharedBad(pba) => Some(Counted::Shared(pba)),
        IndexAnswer::Full => Some(Counted::Full),
        _ => None,
    }
}

fn released(answer: IndexAnswer) -> Option<Released> {
    match answer {
        IndexAnswer::Remaining => Some(Released::Remaining),
        IndexAnswer::Zero => Some(Released::Zero),
        IndexAnswer::Mismatch => Some(Released::Mismatch),
        IndexAnswer::Unknown => Some(Released::Unknown),
        IndexAnswer::Held => Some(Released::Held),
        _ => None,
    }
}

fn looked_up(answer: LookupAnswer) -> LookedUp {
    match answer {
        LookupAnswer::Present(pba) => LookedUp::Present(pba),
        LookupAnswer::Absent => LookedUp::Absent,
        LookupAnswer::AbsentBySignature => LookedUp::AbsentBySignature,
    }
}

/// Whether rows can be the requested page. Their order was checked when they were decoded.
fn is_page(rows: &[IndexRow], from: Fingerprint, max: usize) -> bool {
    let first = rows.first().map(|row| row.fingerprint);
    rows.len() <= max && first.is_none_or(|first| first >= from.0)
}

fn row(row: &IndexRow) -> (Fingerprint, Row) {
    let IndexRow {
        fingerprint,
        pba: Pba(pba),
        references,
    } = *row;
    let row = Row {
        pba: Pba(pba),
        references,
    };
    (Fingerprint(fingerprint), row)
}
