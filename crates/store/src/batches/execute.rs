//! Has the index execute a batch exactly once (P4), whether the store has it alone or the groups of a pool share it.
//!
//! An index of the store's own keeps the answers to the last batch. So a batch that may have been called before is called
//! again, with all of its unsettled items.
//!
//! The shards of a shared index keep the answers by their positions in the batch. Some shards may have executed their
//! items, and others not: so a batch that may have been called before is recalled from all shards first. The blocks of
//! answered items are not read, because a released one may be another group's by now; the others still have their
//! references.

use std::sync::Arc;
use std::time::Duration;

use onefold_format::index_message::IndexOperation;
use onefold_format::{BatchItem, Pba};
use onefold_index::shard::{AnswerAt, Positioned};
use onefold_index::sharded::{NewSessions, Recalled, Sharded};
use onefold_index::{
    Counted, Fingerprint, FingerprintIndex, IndexError, IndexReader, LookupAnswers, Released,
};
use onefold_journal::Journal;
use onefold_metadata::{Blocking, Guard, OpenBatch, Result, StoreError};

use super::index::{STREAM, last_answers};
use crate::blocks::Fingerprinted;

/// How long a guest's write waits for a lookup in other hosts: a device's write takes about as long.
const LOOKUP_PATIENCE: Duration = Duration::from_millis(5);

/// The index that executes batches and answers lookups.
pub(crate) enum Executor {
    /// An index that this store has alone.
    Own(Arc<dyn FingerprintIndex>),
    /// An index that all groups of a pool share.
    Shared(Arc<Sharded>),
}

/// The answers to a batch.
pub(super) struct Executed<A> {
    /// An answer for each unsettled item; nothing for one that was not executed and never will be.
    pub(super) answers: Vec<Option<A>>,
    /// Blocks that could not be read. Then no item is executed that had no answer before.
    pub(super) unreadable: Vec<Pba>,
}

impl<A> Executed<A> {
    /// An answer for each item of a batch whose blocks can all be read, or have listed fingerprints.
    pub(super) fn answered(self) -> Result<Vec<A>> {
        let answers: Option<Vec<A>> = self.answers.into_iter().collect();
        answers.ok_or_else(|| StoreError::damaged("the index did not answer all items of a batch"))
    }
}

/// Reads the fingerprints of items, one for each.
pub(super) type Fingerprints<'a> = &'a mut dyn FnMut(&[BatchItem]) -> Result<Fingerprinted>;

impl Executor {
    /// Reads of the index.
    pub(crate) fn reader(&self) -> &dyn IndexReader {
        match self {
            Executor::Own(index) => &**index,
            Executor::Shared(index) => &**index,
        }
    }

    /// Looks fingerprints up for a write in line, under a lookup version of the store. In a shared pool the rows that are
    /// found are held, and a row that no answer names within [`LOOKUP_PATIENCE`] counts as absent.
    ///
    /// # Errors
    ///
    /// As [`IndexReader::lookup`]; shards are only asked if the caller may wait.
    pub(crate) fn look_up(
        &self,
        journal: &Journal,
        version: u64,
        fingerprints: &[Fingerprint],
        blocking: Blocking,
    ) -> onefold_index::Result<LookupAnswers> {
        match self {
            Executor::Own(index) => index.lookup(fingerprints, blocking),
            Executor::Shared(_) if blocking == Blocking::No => Err(IndexError::WouldBlock),
            Executor::Shared(index) => {
                let held = index.hold(version, fingerprints, LOOKUP_PATIENCE);
                meet(journal, index, &held.met);
                Ok(held.answers)
            }
        }
    }

    /// Secures room on the disk for the next batches, with this many items each, if that is known.
    pub(crate) fn secure(&self, batches: &[usize]) -> Result<()> {
        match self {
            Executor::Own(index) => Ok(index.secure(batches)?),
            Executor::Shared(index) => Ok(index.secure(batches)?),
        }
    }

    /// Counts the references of a finder's batch.
    pub(super) fn increment(
        &self,
        batch: &OpenBatch,
        may_be_repeated: bool,
        fingerprints: Fingerprints<'_>,
    ) -> Result<Executed<Counted>> {
        match self {
            Executor::Own(index) => own(batch, fingerprints, |number, items| {
                index.increment(STREAM, number, items)
            }),
            Executor::Shared(index) => {
                INCREMENT.execute(index, batch, may_be_repeated, fingerprints)
            }
        }
    }

    /// Counts the references of a batch of claims.
    pub(super) fn count(
        &self,
        batch: &OpenBatch,
        may_be_repeated: bool,
        fingerprints: Fingerprints<'_>,
    ) -> Result<Executed<Counted>> {
        match self {
            Executor::Own(index) => own(batch, fingerprints, |number, items| {
                if Guard::CountKnownRow.holds() {
                    index.count_existing(STREAM, number, items)
                } else {
                    index.increment(STREAM, number, items)
                }
            }),
            Executor::Shared(index) => COUNT.execute(index, batch, may_be_repeated, fingerprints),
        }
    }

    /// Releases the references of a collector's batch.
    pub(super) fn decrement(
        &self,
        batch: &OpenBatch,
        may_be_repeated: bool,
        fingerprints: Fingerprints<'_>,
    ) -> Result<Executed<Released>> {
        match self {
            Executor::Own(index) => own(batch, fingerprints, |number, items| {
                index.decrement(STREAM, number, items)
            }),
            Executor::Shared(index) => {
                DECREMENT.execute(index, batch, may_be_repeated, fingerprints)
            }
        }
    }
}

/// Uses sessions of shards that a store has learned of. The answers of their former owners are outdated first.
pub(crate) fn meet(journal: &Journal, index: &Sharded, sessions: &NewSessions) {
    if !sessions.is_empty() && journal.outdate_lookups().is_ok() {
        index.meet(sessions);
    }
}

fn own<A: Copy>(
    batch: &OpenBatch,
    fingerprints: Fingerprints<'_>,
    call: impl Fn(u64, &[(Fingerprint, Pba)]) -> onefold_index::Result<Vec<A>>,
) -> Result<Executed<A>> {
    let Fingerprinted { items, unreadable } = fingerprints(batch.unsettled())?;
    // A batch without items uses up its number, unless the index has its answers already.
    let items = if unreadable.is_empty() {
        &items[..]
    } else {
        &[]
    };
    let answers = call(batch.number, items)?;
    let answers = if answers.is_empty() {
        vec![None; batch.unsettled().len()]
    } else {
        last_answers(&answers, batch)?
            .iter()
            .copied()
            .map(Some)
            .collect()
    };
    Ok(Executed {
        answers,
        unreadable,
    })
}

/// Sends items to the shards.
type Call<A> = fn(&Sharded, u64, &[Positioned]) -> onefold_index::Result<Vec<AnswerAt<A>>>;

/// The shards' side of one kind of batch.
struct Shards<A> {
    operation: IndexOperation,
    call: Call<A>,
    /// The answers, if they are of this kind.
    recalled: fn(Recalled) -> Option<Vec<AnswerAt<A>>>,
}

const INCREMENT: Shards<Counted> = Shards {
    operation: IndexOperation::Increment,
    call: Sharded::increment,
    recalled: counted,
};

const COUNT: Shards<Counted> = Shards {
    operation: IndexOperation::CountExisting,
    call: Sharded::count_existing,
    recalled: counted,
};

const DECREMENT: Shards<Released> = Shards {
    operation: IndexOperation::Decrement,
    call: Sharded::decrement,
    recalled: released,
};

fn counted(recalled: Recalled) -> Option<Vec<AnswerAt<Counted>>> {
    match recalled {
        Recalled::Counted(answers) => Some(answers),
        Recalled::Released(_) => None,
    }
}

fn released(recalled: Recalled) -> Option<Vec<AnswerAt<Released>>> {
    match recalled {
        Recalled::Released(answers) => Some(answers),
        Recalled::Counted(_) => None,
    }
}

impl<A: Copy> Shards<A> {
    fn execute(
        &self,
        index: &Sharded,
        batch: &OpenBatch,
        may_be_repeated: bool,
        fingerprints: Fingerprints<'_>,
    ) -> Result<Executed<A>> {
        let mut answers = vec![None; batch.unsettled().len()];
        let is_recalled = may_be_repeated && Guard::RecallBeforeRepeat.holds();
        if is_recalled {
            self.recall(index, batch, false, &mut answers)?;
        }
        let asked: Vec<usize> = (0..answers.len())
            .filter(|n| answers[*n].is_none())
            .collect();
        let items: Vec<BatchItem> = asked.iter().map(|n| batch.unsettled()[*n]).collect();
        let Fingerprinted { items, unreadable } = if items.is_empty() {
            Fingerprinted::default()
        } else {
            fingerprints(&items)?
        };
        if is_recalled && !items.is_empty() {
            // A call of the process before may have arrived while a block was read, so that it was another group's.
            self.recall(index, batch, false, &mut answers)?;
        }
        let open = asked.iter().zip(&items);
        let open = open.filter(|(n, _)| answers[**n].is_none());
        let positioned: Vec<Positioned> = open
            .map(|(n, (fingerprint, pba))| Positioned {
                position: (batch.done + n) as u16,
                fingerprint: *fingerprint,
                pba: *pba,
            })
            .collect();
        if !unreadable.is_empty() {
            // No call that is on its way is executed later.
            self.recall(index, batch, true, &mut answers)?;
        } else if !positioned.is_empty() {
            match (self.call)(index, batch.number, &positioned) {
                Ok(answered) => note(answered, batch, &mut answers),
                // The batch was called off before.
                Err(IndexError::Sealed { .. }) => self.recall(index, batch, true, &mut answers)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Executed {
            answers,
            unreadable,
        })
    }

    fn recall(
        &self,
        index: &Sharded,
        batch: &OpenBatch,
        is_sealing: bool,
        answers: &mut [Option<A>],
    ) -> Result<()> {
        let recalled = index.recall(batch.number, self.operation, is_sealing)?;
        let answered = (self.recalled)(recalled).ok_or_else(|| {
            StoreError::damaged(format!(
                "the index has executed batch {} as one of another kind",
                batch.number
            ))
        })?;
        note(answered, batch, answers);
        Ok(())
    }
}

/// Puts answers to unsettled items where they belong.
fn note<A>(answered: Vec<AnswerAt<A>>, batch: &OpenBatch, answers: &mut [Option<A>]) {
    for AnswerAt { position, answer } in answered {
        let n = usize::from(position).checked_sub(batch.done);
        if let Some(slot) = n.and_then(|n| answers.get_mut(n)) {
            *slot = Some(answer);
        }
    }
}
