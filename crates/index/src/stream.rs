//! The last number of a stream and its answers.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | number |
//! | 8 | 1 | kind of the batch: 0 none (a rebuild), 1 increment, 2 decrement |
//! | 9 | 4 | answers |
//! | 13 | 1 or 6 each | answers |
//! | end - 4 | 4 | CRC-32C of the bytes before |
//!
//! An answer is one byte, which is followed by five bytes of address if it is "shared".
//!
//! In a shard, where a batch arrives in parts ([`shard`](crate::shard)):
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | number |
//! | 8 | 1 | kind of the batch: 3 increment, 4 count existing, 5 decrement |
//! | 9 | 4 | answers |
//! | 13 | 1 | 1 if no further item of the batch may be executed |
//! | 14 | 3 or 8 each | answers, as in a message, in the order of their positions |
//! | end - 4 | 4 | CRC-32C of the bytes before |

use onefold_format::Pba;
use onefold_format::index_message::{
    IndexOperation, PositionedAnswer, decode_answers, encode_answers,
};

use crate::row::{NUMBER_BYTES, is_block, number};
use crate::{Counted, IndexError, Released, Result, StreamId};

/// The last batch of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastBatch {
    pub(crate) number: u64,
    pub(crate) answers: Answers,
}

/// The answers to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answers {
    /// No longer known: the index was rebuilt.
    Forgotten,
    Counted(Vec<Counted>),
    Released(Vec<Released>),
    /// The batch arrives in parts, at a shard.
    Parts(Parts),
}

/// The answers to the items of a batch that a shard has executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) operation: IndexOperation,
    /// Whether no further item may be executed.
    pub(crate) is_sealed: bool,
    /// Answers in the order of their positions.
    pub(crate) answers: Vec<PositionedAnswer>,
}

/// An answer to one item of a batch.
pub(crate) trait Answer: Sized + Copy {
    /// The answers, if they are of this kind.
    fn of(answers: &Answers) -> Option<&[Self]>;

    fn wrap(answers: Vec<Self>) -> Answers;
}

impl Answer for Counted {
    fn of(answers: &Answers) -> Option<&[Counted]> {
        match answers {
            Answers::Counted(answers) => Some(answers),
            Answers::Released(_) | Answers::Forgotten | Answers::Parts(_) => None,
        }
    }

    fn wrap(answers: Vec<Counted>) -> Answers {
        Answers::Counted(answers)
    }
}

impl Answer for Released {
    fn of(answers: &Answers) -> Option<&[Released]> {
        match answers {
            Answers::Released(answers) => Some(answers),
            Answers::Counted(_) | Answers::Forgotten | Answers::Parts(_) => None,
        }
    }

    fn wrap(answers: Vec<Released>) -> Answers {
        Answers::Released(answers)
    }
}

/// The original answers, if `number` repeats the stream's last batch; `None` if the number is new.
pub(crate) fn repeated<A: Answer>(
    stream: StreamId,
    last: Option<&LastBatch>,
    number: u64,
) -> Result<Option<Vec<A>>> {
    #[cfg(feature = "simulation")]
    let last = last.filter(|last| number != last.number || !FORGETS.get());
    match last {
        Some(last) if number <= last.number => match A::of(&last.answers) {
            Some(answers) if number == last.number => Ok(Some(answers.to_vec())),
            _ => Err(IndexError::Stale {
                stream,
                number,
                last: last.number,
            }),
        },
        _ => Ok(None),
    }
}

/// Makes every index, on this thread from now on, count a repeated batch as if it were new, or no
/// longer.
#[cfg(feature = "simulation")]
pub fn forget_answers(forget: bool) {
    FORGETS.set(forget);
}

#[cfg(feature = "simulation")]
thread_local! {
    static FORGETS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

const KIND_FORGOTTEN: u8 = 0;
const KIND_COUNTED: u8 = 1;
const KIND_RELEASED: u8 = 2;

/// The kind of a batch that arrives in parts is this plus the number of its operation.
const KIND_PARTS: u8 = 2;

const INSERTED: u8 = 0;
const SHARED: u8 = 1;
const FULL: u8 = 2;

/// Each value at the index of its number on disk.
const RELEASED: [Released; 5] = [
    Released::Remaining,
    Released::Zero,
    Released::Mismatch,
    Released::Unknown,
    Released::Held,
];

fn released_number(answer: Released) -> u8 {
    match answer {
        Released::Remaining => 0,
        Released::Zero => 1,
        Released::Mismatch => 2,
        Released::Unknown => 3,
        Released::Held => 4,
    }
}

const CHECKSUM_BYTES: usize = 4;

impl LastBatch {
    /// The most bytes of the result of [`LastBatch::encode`] without answers: those of a batch in parts.
    pub(crate) const BYTES_BESIDE_ANSWERS: usize = 14 + CHECKSUM_BYTES;

    /// The most bytes of an encoded answer: of one with a position.
    pub(crate) const ANSWER_BYTES_MAX: usize = 2 + 1 + NUMBER_BYTES;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        let (kind, count) = match &self.answers {
            Answers::Forgotten => (KIND_FORGOTTEN, 0),
            Answers::Counted(answers) => (KIND_COUNTED, answers.len()),
            Answers::Released(answers) => (KIND_RELEASED, answers.len()),
            Answers::Parts(parts) => (KIND_PARTS + parts.operation.number(), parts.answers.len()),
        };
        bytes.push(kind);
        bytes.extend((count as u32).to_le_bytes());
        match &self.answers {
            Answers::Forgotten => {}
            Answers::Counted(answers) => {
                for answer in answers {
                    match answer {
                        Counted::Inserted => bytes.push(INSERTED),
                        Counted::Full => bytes.push(FULL),
                        Counted::Shared(pba) => {
                            bytes.push(SHARED);
                            bytes.extend(&pba.0.to_le_bytes()[..NUMBER_BYTES]);
                        }
                    }
                }
            }
            Answers::Released(answers) => {
                bytes.extend(answers.iter().map(|answer| released_number(*answer)));
            }
            Answers::Parts(parts) => {
                bytes.push(u8::from(parts.is_sealed));
                encode_answers(&parts.answers, &mut bytes);
            }
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// `None` for bytes that no batch encodes into.
    pub(crate) fn decode(bytes: &[u8]) -> Option<LastBatch> {
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (batch_number, body) = body.split_first_chunk::<8>()?;
        let (kind, body) = body.split_first()?;
        let (count, body) = body.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let answers = match *kind {
            KIND_FORGOTTEN if count == 0 && body.is_empty() => Answers::Forgotten,
            KIND_COUNTED => Answers::Counted(decode_counted(body, count)?),
            KIND_RELEASED if body.len() == count => {
                let answers = body
                    .iter()
                    .map(|tag| RELEASED.get(usize::from(*tag)).copied());
                Answers::Released(answers.collect::<Option<_>>()?)
            }
            kind => Answers::Parts(Parts::decode(kind, body, count)?),
        };
        Some(LastBatch {
            number: u64::from_le_bytes(*batch_number),
            answers,
        })
    }
}

impl Parts {
    fn decode(kind: u8, body: &[u8], count: usize) -> Option<Parts> {
        let operation = IndexOperation::from_number(kind.checked_sub(KIND_PARTS)?)?;
        let (is_sealed, body) = body.split_first()?;
        let answers = decode_answers(body).ok()?;
        let fits = |at: &PositionedAnswer| at.answer.answers(operation);
        let is_possible = *is_sealed <= 1 && answers.len() == count && answers.iter().all(fits);
        is_possible.then_some(Parts {
            operation,
            is_sealed: *is_sealed == 1,
            answers,
        })
    }
}

fn decode_counted(mut bytes: &[u8], count: usize) -> Option<Vec<Counted>> {
    let mut answers = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        bytes = rest;
        answers.push(match *tag {
            INSERTED => Counted::Inserted,
            FULL => Counted::Full,
            SHARED => {
                let (pba, rest) = bytes.split_at_checked(NUMBER_BYTES)?;
                bytes = rest;
                Counted::Shared(Some(Pba(number(pba))).filter(|pba| is_block(*pba))?)
            }
            _ => return None,
        });
    }
    (answers.len() == count).then_some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::index_message::IndexAnswer;

    fn positioned(answers: &[(u16, IndexAnswer)]) -> Vec<PositionedAnswer> {
        let positioned = |(position, answer): &(u16, IndexAnswer)| PositionedAnswer {
            position: *position,
            answer: *answer,
        };
        answers.iter().map(positioned).collect()
    }

    fn batches() -> Vec<LastBatch> {
        let counted = vec![
            Counted::Inserted,
            Counted::Shared(Pba(1)),
            Counted::Full,
            Counted::Shared(Pba((1 << 40) - 1)),
        ];
        let answers = [
            Answers::Forgotten,
            Answers::Counted(Vec::new()),
            Answers::Counted(counted),
            Answers::Released(Vec::new()),
            Answers::Released(RELEASED.to_vec()),
            Answers::Parts(Parts {
                operation: IndexOperation::CountExisting,
                is_sealed: true,
                answers: Vec::new(),
            }),
            Answers::Parts(Parts {
                operation: IndexOperation::Increment,
                is_sealed: false,
                answers: positioned(&[
                    (0, IndexAnswer::Shared(Pba(7))),
                    (1, IndexAnswer::Full),
                    (u16::MAX, IndexAnswer::Inserted),
                ]),
            }),
            Answers::Parts(Parts {
                operation: IndexOperation::Decrement,
                is_sealed: true,
                answers: positioned(&[(5, IndexAnswer::Zero), (9, IndexAnswer::Unknown)]),
            }),
        ];
        let numbered = |answers| LastBatch {
            number: 1 << 40,
            answers,
        };
        answers.into_iter().map(numbered).collect()
    }

    #[test]
    fn batches_survive_encoding() {
        for batch in batches() {
            assert_eq!(LastBatch::decode(&batch.encode()), Some(batch));
        }
    }

    #[test]
    fn damaged_bytes_are_no_batch() {
        for batch in batches() {
            let bytes = batch.encode();
            for len in 0..bytes.len() {
                assert_eq!(LastBatch::decode(&bytes[..len]), None);
            }
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(LastBatch::decode(&bytes), None);
            }
        }
    }

    #[test]
    fn impossible_values_under_a_right_checksum_are_no_batch() {
        let sealed = |kind: u8, count: u32, answers: &[u8]| {
            let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, kind];
            bytes.extend(count.to_le_bytes());
            bytes.extend(answers);
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            LastBatch::decode(&bytes)
        };
        assert!(sealed(1, 2, &[INSERTED, FULL]).is_some());
        for (kind, count, answers) in [
            (3, 0, &[][..]),
            (3, 0, &[2]),
            (3, 1, &[0, 1, 0, 3]),
            (3, 2, &[0, 1, 0, 0, 1, 0, 0]),
            (4, 1, &[0, 1, 0, 1, 1, 0, 0, 0, 0]),
            (5, 2, &[0, 1, 0, 4]),
            (6, 0, &[0]),
            (0, 1, &[]),
            (0, 0, &[0]),
            (1, 1, &[INSERTED, FULL]),
            (1, u32::MAX, &[INSERTED]),
            (1, 1, &[3]),
            (1, 1, &[SHARED, 1, 0, 0, 0]),
            (1, 1, &[SHARED, 0, 0, 0, 0, 0]),
            (2, 1, &[5]),
            (2, 2, &[0]),
        ] {
            assert_eq!(
                sealed(kind, count, answers),
                None,
                "{kind} {count} {answers:?}"
            );
        }
    }

    #[test]
    fn only_the_last_batch_of_the_same_kind_is_repeated() {
        let last = LastBatch {
            number: 7,
            answers: Answers::Released(vec![Released::Zero]),
        };
        let stream = StreamId(1);
        let ask = |number| repeated::<Released>(stream, Some(&last), number);
        assert_eq!(ask(8).unwrap(), None);
        assert_eq!(ask(7).unwrap(), Some(vec![Released::Zero]));
        assert!(matches!(ask(6), Err(IndexError::Stale { last: 7, .. })));
        let other_kind = repeated::<Counted>(stream, Some(&last), 7);
        assert!(matches!(other_kind, Err(IndexError::Stale { .. })));
        assert_eq!(repeated::<Counted>(stream, None, 0).unwrap(), None);
    }
}
