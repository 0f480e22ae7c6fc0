//! Blocks that are marked as bad, for all stores that ask a shard.
//!
//! A store that cannot read a block, or finds other content in it than the fingerprint says, marks it in all shards. A
//! store that does not know the block then gets no hit on it, and learns with the answer to a batch that its own block
//! has the content of a bad one: it repairs that before it gives its own up.
//!
//! - A mark is for a block, not for a row: a store that cannot read a block may not know its fingerprint.
//! - A mark that is outdated costs hits, and nothing else: a store reads the block before it repairs it, and takes the mark
//!   off if it is good.
//! - Marks are durable in the index. A rebuild forgets them, and the stores set theirs again.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onefold_format::Pba;
use onefold_format::index_message::{IndexAnswer, PositionedAnswer};

use crate::{LookedUp, LookupAnswers};

/// Most marks of a shard. More bad blocks are a cluster that fails.
pub(crate) const MARKS_MAX: usize = 8192;

/// The marks of a shard.
pub(crate) struct Marks {
    /// Held briefly, and with no other lock.
    blocks: Mutex<BTreeSet<Pba>>,
    /// How many there are: nearly always none, and then nothing else is asked. Relaxed, because a request that comes
    /// with the mark may see it or not.
    count: AtomicUsize,
}

impl Marks {
    pub(crate) fn new(blocks: BTreeSet<Pba>) -> Marks {
        Marks {
            count: AtomicUsize::new(blocks.len()),
            blocks: Mutex::new(blocks),
        }
    }

    /// The marked blocks, with these as well, or without them; nothing if that changes nothing.
    pub(crate) fn changed(&self, blocks: &[Pba], is_bad: bool) -> Option<BTreeSet<Pba>> {
        let marked = self.blocks();
        let mut changed = marked.clone();
        if is_bad {
            changed.extend(blocks);
        } else {
            blocks.iter().for_each(|pba| {
                changed.remove(pba);
            });
        }
        (changed != *marked).then_some(changed)
    }

    /// Replaces the marks by those that are in the index.
    pub(crate) fn set(&self, blocks: BTreeSet<Pba>) {
        self.count.store(blocks.len(), Relaxed);
        *self.blocks() = blocks;
    }

    /// Makes found blocks that are marked absent.
    pub(crate) fn hide(&self, answers: &mut LookupAnswers) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let marked = self.blocks();
        for answer in answers {
            if answer.pba().is_some_and(|pba| marked.contains(&pba)) {
                *answer = LookedUp::Absent;
            }
        }
    }

    /// Says with the answers of a batch which blocks are marked.
    pub(crate) fn point_out(&self, answers: &mut [PositionedAnswer]) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let marked = self.blocks();
        for PositionedAnswer { answer, .. } in answers {
            if let IndexAnswer::Shared(pba) = answer
                && marked.contains(pba)
            {
                *answer = IndexAnswer::SharedBad(*pba);
            }
        }
    }

    /// A panic under the lock leaves either the marks before or those after.
    fn blocks(&self) -> MutexGuard<'_, BTreeSet<Pba>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
