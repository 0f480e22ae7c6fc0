//! Answers to the items of a batch: in replies, and in a shard beside the number of the batch.
//!
//! An answer is the item's position, 2 bytes; a byte for what was done; and 5 bytes of address if that is "shared" or
//! "shared, bad".

use super::{IndexOperation, NUMBER_BYTES, put_number, take_block};
use crate::Pba;
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;

/// The most bytes of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 2 + 1 + NUMBER_BYTES;

/// The answer to an item of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexAnswer {
    /// A reference was counted: the row has the item's own block.
    Inserted,
    /// A reference was counted: the row has this other block.
    Shared(Pba),
    /// No reference was counted.
    Full,
    /// A reference was released, and others are left.
    Remaining,
    /// The last reference was released.
    Zero,
    /// No reference was released: the row has another block.
    Mismatch,
    /// No reference was released: there is no row.
    Unknown,
    /// No reference was released: it is the last one of a row that a store may be about to refer to.
    Held,
    /// A reference was counted: the row has this other block, which is marked as bad. Only in replies: what a shard keeps is
    /// [`IndexAnswer::Shared`].
    SharedBad(Pba),
}

impl IndexAnswer {
    /// Whether an item of such a batch can have this answer.
    #[must_use]
    pub fn answers(self, operation: IndexOperation) -> bool {
        match self {
            IndexAnswer::Inserted | IndexAnswer::Full => operation != IndexOperation::Decrement,
            IndexAnswer::Shared(_) | IndexAnswer::SharedBad(_) => {
                operation == IndexOperation::Increment
            }
            IndexAnswer::Remaining
            | IndexAnswer::Zero
            | IndexAnswer::Mismatch
            | IndexAnswer::Unknown
            | IndexAnswer::Held => operation == IndexOperation::Decrement,
        }
    }

    fn number(self) -> u8 {
        match self {
            IndexAnswer::Inserted => 0,
            IndexAnswer::Shared(_) => 1,
            IndexAnswer::Full => 2,
            IndexAnswer::Remaining => 3,
            IndexAnswer::Zero => 4,
            IndexAnswer::Mismatch => 5,
            IndexAnswer::Unknown => 6,
            IndexAnswer::Held => 7,
            IndexAnswer::SharedBad(_) => 8,
        }
    }
}

/// The answer to the item at a position of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PositionedAnswer {
    /// The item's position in its batch.
    pub position: u16,
    /// The answer to the item.
    pub answer: IndexAnswer,
}

/// Appends answers, which are in the order of their positions.
pub fn encode_answers(answers: &[PositionedAnswer], out: &mut Vec<u8>) {
    for PositionedAnswer { position, answer } in answers {
        out.extend(position.to_le_bytes());
        out.push(answer.number());
        if let IndexAnswer::Shared(pba) | IndexAnswer::SharedBad(pba) = answer {
            put_number(out, pba.0);
        }
    }
}

/// Decodes answers to the end of the bytes.
///
/// # Errors
///
/// [`FormatError::Short`] and [`FormatError::Field`]: each position must be higher than the one before.
pub fn decode_answers(bytes: &[u8]) -> Result<Vec<PositionedAnswer>, FormatError> {
    let mut rest = Cursor(bytes);
    let mut answers: Vec<PositionedAnswer> = Vec::new();
    while !rest.0.is_empty() {
        let position = rest.u16()?;
        if answers.last().is_some_and(|last| last.position >= position) {
            return Err(impossible("position", position.into()));
        }
        let [number] = rest.take()?;
        let answer = match number {
            0 => IndexAnswer::Inserted,
            1 => IndexAnswer::Shared(take_block(&mut rest)?),
            2 => IndexAnswer::Full,
            3 => IndexAnswer::Remaining,
            4 => IndexAnswer::Zero,
            5 => IndexAnswer::Mismatch,
            6 => IndexAnswer::Unknown,
            7 => IndexAnswer::Held,
            8 => IndexAnswer::SharedBad(take_block(&mut rest)?),
            other => return Err(impossible("answer", other.into())),
        };
        answers.push(PositionedAnswer { position, answer });
    }
    Ok(answers)
}
