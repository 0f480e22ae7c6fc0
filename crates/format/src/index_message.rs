//! Messages between a store of a shared pool and the owner of a shard of the fingerprint index. A message is no part of
//! a pool: it is never stored.
//!
//! ```text
//! request
//!  0 magic     u32   "1FIQ"
//!  4 version   u16   1
//!  6 kind      u8    1 increment, 2 count existing, 3 decrement, 4 recall, 5 lookup, 6 rows, 7 counts, 8 secure,
//!                    9 hold, 10 end holds, 11 mark
//!  7 zeros     u8
//!  8 pool      16 bytes
//! 24 session   u64   of the shard, as the sender knows it; 0: any
//! 32 group     u64   the sender
//! 40 number    u64   of the batch; kinds 9 and 10: lookup version; kinds 5 to 8 and 11: 0
//! 48 shard     u16
//! 50 shards    u16   of the index: a power of two
//! 52 batch     u8    recall: the kind of the batch; else 0
//! 53 sealing   u8    recall: 1 if nothing further of the batch may be executed; else 0
//! 54 reserved  u16
//! 56 payload   u32   bytes
//! 60 checksum  u32   CRC-32C of header and payload with this field zero
//!
//! reply
//!  0 magic     u32   "1FIA"
//!  4 version   u16   1
//!  6 kind      u8    1 answers, 2 refused, 3 looked up, 4 rows, 5 counts, 6 secured, 7 ended, 8 marked
//!  7 more      u8    answers, rows: 1 if there are further ones; else 0
//!  8 session   u64   of the shard
//! 16 request   u32   checksum of the request
//! 20 payload   u32   bytes
//! 24 reserved  u32
//! 28 checksum  u32   CRC-32C of header and payload with this field zero
//! ```
//!
//! `docs/format/index_message.md` has the payloads.

mod answer;
mod reply;
mod request;

pub use answer::{IndexAnswer, PositionedAnswer, decode_answers, encode_answers};
pub use reply::{IndexReply, IndexReplyBody, IndexRow, LookupAnswer, Refusal, RefusalCode};
pub use request::{IndexItem, IndexRequest, IndexRequestBody};

use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;
use crate::message::{MESSAGE_BYTES_MAX, REPLY_HEADER_BYTES};
use crate::units::{PBA_END, SHARDS_MAX};
use crate::{Pba, Shard};

/// Most bytes of a message.
pub const INDEX_MESSAGE_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Bytes of a request before its payload.
pub const INDEX_REQUEST_HEADER_BYTES: usize = 64;

/// Bytes of a reply before its payload.
pub const INDEX_REPLY_HEADER_BYTES: usize = REPLY_HEADER_BYTES;

const REQUEST_PAYLOAD_MAX: usize = INDEX_MESSAGE_BYTES_MAX - INDEX_REQUEST_HEADER_BYTES;
const REPLY_PAYLOAD_MAX: usize = INDEX_MESSAGE_BYTES_MAX - INDEX_REPLY_HEADER_BYTES;

/// Most items of a request.
pub const INDEX_ITEMS_MAX: usize = REQUEST_PAYLOAD_MAX / request::ITEM_BYTES;

/// Most fingerprints that a request looks up.
pub const INDEX_LOOKUPS_MAX: usize = REQUEST_PAYLOAD_MAX / FINGERPRINT_BYTES;

/// Most blocks that a request marks.
pub const INDEX_MARKS_MAX: usize = (REQUEST_PAYLOAD_MAX - 1) / NUMBER_BYTES;

/// Most batches for which a request secures room.
pub const INDEX_SECURED_MAX: usize = 64;

/// Most answers of a reply, of whatever kind.
pub const INDEX_ANSWERS_MAX: usize = REPLY_PAYLOAD_MAX / answer::ANSWER_BYTES_MAX;

/// Most rows of a reply.
pub const INDEX_ROWS_MAX: usize = REPLY_PAYLOAD_MAX / reply::ROW_BYTES;

const FINGERPRINT_BYTES: usize = 16;

/// Bytes of an address, or of a number of references.
const NUMBER_BYTES: usize = 5;

/// A batch's effect on the rows of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexOperation {
    /// One reference more for each item; a row is made where there is none.
    Increment,
    /// One reference more for each item whose row has the item's block.
    CountExisting,
    /// One reference less for each item.
    Decrement,
}

impl IndexOperation {
    /// The operation's number in a message.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            IndexOperation::Increment => 1,
            IndexOperation::CountExisting => 2,
            IndexOperation::Decrement => 3,
        }
    }

    /// The operation that has this number in a message.
    #[must_use]
    pub fn from_number(number: u8) -> Option<IndexOperation> {
        match number {
            1 => Some(IndexOperation::Increment),
            2 => Some(IndexOperation::CountExisting),
            3 => Some(IndexOperation::Decrement),
            _ => None,
        }
    }
}

/// Whether an index can have this number of shards.
#[must_use]
pub fn is_shard_count(shards: u16) -> bool {
    shards.is_power_of_two() && shards <= SHARDS_MAX
}

/// The shard that has this fingerprint: its first bits. `shards` is a power of two.
#[must_use]
pub fn shard_of(fingerprint: &[u8; FINGERPRINT_BYTES], shards: u16) -> Shard {
    let [high, low, ..] = *fingerprint;
    let first = u32::from(u16::from_le_bytes([low, high]));
    Shard(((first * u32::from(shards)) >> 16) as u16)
}

/// The first fingerprint of a shard. `shards` is a power of two above the shard's number.
#[must_use]
pub fn first_fingerprint(shard: Shard, shards: u16) -> [u8; FINGERPRINT_BYTES] {
    let first = (u32::from(shard.0) << 16) / u32::from(shards.max(1));
    let mut fingerprint = [0; FINGERPRINT_BYTES];
    fingerprint[..2].copy_from_slice(&[(first >> 8) as u8, first as u8]);
    fingerprint
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_le_bytes()[..NUMBER_BYTES]);
}

fn take_number(rest: &mut Cursor<'_>) -> Result<u64, FormatError> {
    let [a, b, c, d, e] = rest.take::<NUMBER_BYTES>()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))
}

/// A block that a pool can have for data.
fn take_block(rest: &mut Cursor<'_>) -> Result<Pba, FormatError> {
    match take_number(rest)? {
        0 => Err(impossible("block", 0)),
        number => Ok(Pba(number)),
    }
}

const _: () = assert!(PBA_END == 1 << (8 * NUMBER_BYTES));
