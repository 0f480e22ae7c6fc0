//! The parts of batches that a shard of a shared pool's index gets.
//!
//! A store's batch has items for many shards, so each shard gets a part of it, in pieces if it is large. Messages may be
//! lost, late, or arrive twice, so each item has a position in its batch, and a shard keeps the positions with the
//! answers: an item that is sent again gets its answer, and any other item of the batch is executed, once (P4).

use onefold_format::Pba;
use onefold_format::index_message::{IndexAnswer, IndexOperation};

use crate::{Counted, Fingerprint, Released, StreamId};

/// An item with its position in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positioned {
    /// The item's position in its batch.
    pub position: u16,
    /// The fingerprint of the block's content.
    pub fingerprint: Fingerprint,
    /// The block.
    pub pba: Pba,
}

/// The answer to the item at a position of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AnswerAt<A> {
    /// The item's position in its batch.
    pub position: u16,
    /// The answer to the item.
    pub answer: A,
}

/// A piece of a batch, as a shard gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardBatch {
    /// The stream of the batch.
    pub stream: StreamId,
    /// The number of the batch.
    pub number: u64,
    /// The batch's effect.
    pub operation: IndexOperation,
    /// What to do with the batch.
    pub work: ShardWork,
}

/// What a shard does with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardWork {
    /// Execute these items, except those whose positions have an answer already.
    Execute(Vec<Positioned>),
    /// List the answers of all items that were executed.
    Recall {
        /// Execute no further item of this batch from now on, durably.
        is_sealing: bool,
    },
}

impl From<Counted> for IndexAnswer {
    fn from(counted: Counted) -> IndexAnswer {
        match counted {
            Counted::Inserted => IndexAnswer::Inserted,
            Counted::Shared(pba) => IndexAnswer::Shared(pba),
            Counted::Full => IndexAnswer::Full,
        }
    }
}

impl From<Released> for IndexAnswer {
    fn from(released: Released) -> IndexAnswer {
        match released {
            Released::Remaining => IndexAnswer::Remaining,
            Released::Zero => IndexAnswer::Zero,
            Released::Mismatch => IndexAnswer::Mismatch,
            Released::Unknown => IndexAnswer::Unknown,
            Released::Held => IndexAnswer::Held,
        }
    }
}
