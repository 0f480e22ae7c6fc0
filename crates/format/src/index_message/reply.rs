//! Replies of a shard.

use super::{
    FINGERPRINT_BYTES, INDEX_REPLY_HEADER_BYTES, NUMBER_BYTES, PositionedAnswer, decode_answers,
    encode_answers, put_number, take_block, take_number,
};
use crate::Pba;
use crate::bytes::{put, u64_at};
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;
use crate::message::{
    REPLY_PAYLOAD_AT, VERSION, flag, open_reply, put_sentence, seal, take_sentence,
};

const MAGIC: [u8; 4] = *b"1FIA";

/// Bytes of a row.
pub(super) const ROW_BYTES: usize = FINGERPRINT_BYTES + 2 * NUMBER_BYTES;

const ANSWERS: u8 = 1;
const REFUSED: u8 = 2;
const LOOKED_UP: u8 = 3;
const ROWS: u8 = 4;
const COUNTS: u8 = 5;
const SECURED: u8 = 6;
const ENDED: u8 = 7;
const MARKED: u8 = 8;

/// The reply of a shard to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexReply {
    /// The session of the shard's owner.
    pub session: u64,
    /// The checksum of the request.
    pub request: u32,
    /// The reply's content.
    pub body: IndexReplyBody,
}

/// The content of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexReplyBody {
    /// Answers to items of a batch, in the order of their positions.
    Answers {
        /// The answers.
        answers: Vec<PositionedAnswer>,
        /// There are further answers.
        has_more: bool,
    },
    /// The request was not carried out, or its outcome is not known.
    Refused(Refusal),
    /// An answer for each fingerprint.
    LookedUp(Vec<LookupAnswer>),
    /// Rows in the order of their fingerprints.
    Rows {
        /// The rows.
        rows: Vec<IndexRow>,
        /// There may be further rows.
        has_more: bool,
    },
    /// The numbers of rows and references.
    Counts {
        /// Rows with one reference.
        unique: u64,
        /// Rows with more references.
        shared: u64,
        /// References of all rows.
        references: u64,
    },
    /// Room is secured.
    Secured,
    /// The holds have ended.
    Ended,
    /// The blocks are marked.
    Marked,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub code: RefusalCode,
    /// The number that belongs to the reason: of the last batch, or of the session; else 0.
    pub detail: u64,
    /// A sentence for people.
    pub text: String,
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// The batch is not the last one, or the last one was of another kind.
    Stale,
    /// The batch is sealed, and has no answer for one of the items.
    Sealed,
    /// The answers to the batch were lost when the index was rebuilt.
    Forgotten,
    /// Another shard is served here, or the index has another number of shards.
    WrongShard,
    /// The shard has another session.
    WrongSession,
    /// The shard belongs to another pool.
    WrongPool,
    /// The request could not be decoded, or has an impossible value.
    Malformed,
    /// The shard has to be rebuilt first.
    Unready,
    /// The disk is full. Nothing was changed.
    NoRoom,
    /// The shard has too much to do. Nothing was changed.
    Busy,
    /// The shard failed. Whether the request takes effect is unknown.
    Failed,
}

/// All reasons, in the order of their numbers, from 1 on.
const CODES: [RefusalCode; 11] = [
    RefusalCode::Stale,
    RefusalCode::Sealed,
    RefusalCode::Forgotten,
    RefusalCode::WrongShard,
    RefusalCode::WrongSession,
    RefusalCode::WrongPool,
    RefusalCode::Malformed,
    RefusalCode::Unready,
    RefusalCode::NoRoom,
    RefusalCode::Busy,
    RefusalCode::Failed,
];

/// What a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupAnswer {
    /// The fingerprint has no row.
    Absent,
    /// The fingerprint has a row with this block.
    Present(Pba),
    /// The fingerprint has no row, as signatures show.
    AbsentBySignature,
}

/// A row of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexRow {
    /// The fingerprint.
    pub fingerprint: [u8; FINGERPRINT_BYTES],
    /// The block that holds the content.
    pub pba: Pba,
    /// References to the block: 1 to 2^40 - 1.
    pub references: u64,
}

impl IndexReply {
    /// Encodes the reply. The end of a long sentence is cut off.
    ///
    /// # Panics
    ///
    /// If there is more in it than a message can hold, which is the sender's mistake.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; INDEX_REPLY_HEADER_BYTES];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.session.to_le_bytes());
        put(&mut bytes, 16, &self.request.to_le_bytes());
        self.body.put(&mut bytes);
        seal(&mut bytes, INDEX_REPLY_HEADER_BYTES, REPLY_PAYLOAD_AT);
        bytes
    }

    /// Decodes the reply to the request with this checksum.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8], request: u32) -> Result<IndexReply, FormatError> {
        open_reply(bytes, &MAGIC, "index reply", request)?;
        Ok(IndexReply {
            session: u64_at(bytes, 8),
            request,
            body: IndexReplyBody::take(bytes)?,
        })
    }
}

impl IndexReplyBody {
    fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            IndexReplyBody::Answers { answers, has_more } => {
                (bytes[6], bytes[7]) = (ANSWERS, u8::from(*has_more));
                encode_answers(answers, bytes);
            }
            IndexReplyBody::Refused(refusal) => {
                bytes[6] = REFUSED;
                refusal.put(bytes);
            }
            IndexReplyBody::LookedUp(answers) => {
                bytes[6] = LOOKED_UP;
                answers.iter().for_each(|answer| answer.put(bytes));
            }
            IndexReplyBody::Rows { rows, has_more } => {
                (bytes[6], bytes[7]) = (ROWS, u8::from(*has_more));
                for row in rows {
                    bytes.extend(row.fingerprint);
                    put_number(bytes, row.pba.0);
                    put_number(bytes, row.references);
                }
            }
            IndexReplyBody::Counts {
                unique,
                shared,
                references,
            } => {
                bytes[6] = COUNTS;
                for number in [unique, shared, references] {
                    bytes.extend(number.to_le_bytes());
                }
            }
            IndexReplyBody::Secured => bytes[6] = SECURED,
            IndexReplyBody::Ended => bytes[6] = ENDED,
            IndexReplyBody::Marked => bytes[6] = MARKED,
        }
    }

    fn take(bytes: &[u8]) -> Result<IndexReplyBody, FormatError> {
        let (kind, has_more) = (bytes[6], flag("more", bytes[7])?);
        if has_more && !matches!(kind, ANSWERS | ROWS) {
            return Err(impossible("more", 1));
        }
        let payload = &bytes[INDEX_REPLY_HEADER_BYTES..];
        let mut rest = Cursor(payload);
        let body = match kind {
            ANSWERS => {
                return Ok(IndexReplyBody::Answers {
                    answers: decode_answers(payload)?,
                    has_more,
                });
            }
            REFUSED => IndexReplyBody::Refused(Refusal::take(&mut rest)?),
            LOOKED_UP => {
                let mut answers = Vec::new();
                while !rest.0.is_empty() {
                    answers.push(LookupAnswer::take(&mut rest)?);
                }
                IndexReplyBody::LookedUp(answers)
            }
            ROWS => IndexReplyBody::Rows {
                rows: take_rows(&mut rest)?,
                has_more,
            },
            COUNTS => IndexReplyBody::Counts {
                unique: rest.u64()?,
                shared: rest.u64()?,
                references: rest.u64()?,
            },
            SECURED => IndexReplyBody::Secured,
            ENDED => IndexReplyBody::Ended,
            MARKED => IndexReplyBody::Marked,
            other => return Err(impossible("kind", other.into())),
        };
        rest.finish()?;
        Ok(body)
    }
}

impl Refusal {
    fn put(&self, out: &mut Vec<u8>) {
        let number = CODES.iter().position(|code| *code == self.code);
        out.extend((number.map_or(0, |number| number + 1) as u16).to_le_bytes());
        out.extend(self.detail.to_le_bytes());
        put_sentence(out, &self.text);
    }

    fn take(rest: &mut Cursor<'_>) -> Result<Refusal, FormatError> {
        let number = rest.u16()?;
        let code = usize::from(number)
            .checked_sub(1)
            .and_then(|at| CODES.get(at));
        Ok(Refusal {
            code: *code.ok_or_else(|| impossible("reason", number.into()))?,
            detail: rest.u64()?,
            text: take_sentence(rest, "text of a refusal")?,
        })
    }
}

impl LookupAnswer {
    fn put(self, out: &mut Vec<u8>) {
        match self {
            LookupAnswer::Absent => out.push(0),
            LookupAnswer::Present(pba) => {
                out.push(1);
                put_number(out, pba.0);
            }
            LookupAnswer::AbsentBySignature => out.push(2),
        }
    }

    fn take(rest: &mut Cursor<'_>) -> Result<LookupAnswer, FormatError> {
        match rest.take()? {
            [0] => Ok(LookupAnswer::Absent),
            [1] => Ok(LookupAnswer::Present(take_block(rest)?)),
            [2] => Ok(LookupAnswer::AbsentBySignature),
            [other] => Err(impossible("answer", other.into())),
        }
    }
}

fn take_rows(rest: &mut Cursor<'_>) -> Result<Vec<IndexRow>, FormatError> {
    let mut rows: Vec<IndexRow> = Vec::with_capacity(rest.0.len() / ROW_BYTES);
    while !rest.0.is_empty() {
        let row = IndexRow {
            fingerprint: rest.take()?,
            pba: take_block(rest)?,
            references: take_number(rest)?,
        };
        let is_behind = rows
            .last()
            .is_none_or(|last| last.fingerprint < row.fingerprint);
        if row.references == 0 || !is_behind {
            return Err(impossible("row", row.references));
        }
        rows.push(row);
    }
    Ok(rows)
}
