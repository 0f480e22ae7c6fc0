//! Requests to a shard.

use super::{
    FINGERPRINT_BYTES, INDEX_REQUEST_HEADER_BYTES, INDEX_SECURED_MAX, IndexOperation, NUMBER_BYTES,
    is_shard_count, put_number, shard_of, take_block,
};
use crate::bytes::{array_at, put, u16_at, u32_at, u64_at};
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;
use crate::message::{VERSION, flag, open, seal};
use crate::units::is_id;
use crate::{GroupId, Pba, PoolId, Shard};

const MAGIC: [u8; 4] = *b"1FIQ";
const PAYLOAD_AT: usize = 56;

/// Bytes of an item.
pub(super) const ITEM_BYTES: usize = 2 + FINGERPRINT_BYTES + NUMBER_BYTES;

/// Positions of a batch.
const POSITIONS: u32 = 1 << 16;

const RECALL: u8 = 4;
const LOOKUP: u8 = 5;
const ROWS: u8 = 6;
const COUNTS: u8 = 7;
const SECURE: u8 = 8;
const HOLD: u8 = 9;
const END_HOLDS: u8 = 10;
const MARK: u8 = 11;

/// A request to a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexRequest {
    /// The pool whose index it is.
    pub pool: PoolId,
    /// The session of the shard's owner, as the sender knows it; 0 for any.
    pub session: u64,
    /// The sender, whose batches are one stream.
    pub group: GroupId,
    /// The shard that is asked.
    pub shard: Shard,
    /// The number of shards, a power of two.
    pub shards: u16,
    /// What is asked.
    pub body: IndexRequestBody,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexRequestBody {
    /// Executes items of a batch, unless they were executed before.
    Batch {
        /// The number of the batch.
        number: u64,
        /// The batch's effect.
        operation: IndexOperation,
        /// Items in the order of their positions.
        items: Vec<IndexItem>,
    },
    /// Asks for the answers to the items of a batch that were executed.
    Recall {
        /// The number of the batch.
        number: u64,
        /// The batch's effect.
        operation: IndexOperation,
        /// From now on no further item of the batch may be executed.
        is_sealing: bool,
        /// The first position whose answer is wanted.
        from: u16,
    },
    /// Looks these fingerprints up.
    Lookup(Vec<[u8; FINGERPRINT_BYTES]>),
    /// Asks for rows in the order of their fingerprints.
    Rows {
        /// The first fingerprint whose row is wanted.
        from: [u8; FINGERPRINT_BYTES],
        /// Most rows that are wanted.
        max: u32,
    },
    /// Asks for the numbers of rows and references.
    Counts,
    /// Secures room for batches with these numbers of items.
    Secure(Vec<u32>),
    /// Looks these fingerprints up, and holds the rows that it finds: none of them loses its last reference.
    Hold {
        /// The lookup version of the sender.
        version: u64,
        /// The fingerprints.
        fingerprints: Vec<[u8; FINGERPRINT_BYTES]>,
    },
    /// Ends the sender's holds of all lookup versions up to this one.
    EndHolds {
        /// The last lookup version.
        version: u64,
        /// The sender has no holds of later versions.
        is_last: bool,
    },
    /// Marks blocks as bad, or no longer.
    Mark {
        /// The blocks are bad: they cannot be read, or have other content than their fingerprints say.
        is_bad: bool,
        /// The blocks, whether the shard has rows of them or not.
        blocks: Vec<Pba>,
    },
}

/// An item of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexItem {
    /// The item's position in its batch.
    pub position: u16,
    /// The fingerprint of the block's content.
    pub fingerprint: [u8; FINGERPRINT_BYTES],
    /// The block.
    pub pba: Pba,
}

impl IndexRequest {
    /// Encodes the request.
    ///
    /// # Panics
    ///
    /// If there is more in it than a message can hold, which is the sender's mistake.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; INDEX_REQUEST_HEADER_BYTES];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.pool.0);
        put(&mut bytes, 24, &self.session.to_le_bytes());
        put(&mut bytes, 32, &self.group.0.to_le_bytes());
        put(&mut bytes, 48, &self.shard.0.to_le_bytes());
        put(&mut bytes, 50, &self.shards.to_le_bytes());
        self.body.put(&mut bytes);
        seal(&mut bytes, INDEX_REQUEST_HEADER_BYTES, PAYLOAD_AT);
        bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`], also where an item or a fingerprint belongs to another shard.
    pub fn decode(bytes: &[u8]) -> Result<IndexRequest, FormatError> {
        open(bytes, INDEX_REQUEST_HEADER_BYTES, &MAGIC, PAYLOAD_AT)?;
        if bytes[7] != 0 || u16_at(bytes, 54) != 0 {
            return Err(FormatError::Reserved {
                structure: "index request",
            });
        }
        let (shard, shards) = (u16_at(bytes, 48), u16_at(bytes, 50));
        if !is_shard_count(shards) {
            return Err(impossible("number of shards", shards.into()));
        }
        if shard >= shards {
            return Err(impossible("shard", shard.into()));
        }
        let group = u64_at(bytes, 32);
        if !is_id(group) {
            return Err(impossible("group", group));
        }
        let request = IndexRequest {
            pool: PoolId(array_at(bytes, 8)),
            session: u64_at(bytes, 24),
            group: GroupId(group),
            shard: Shard(shard),
            shards,
            body: IndexRequestBody::take(bytes)?,
        };
        request.check_shard()?;
        Ok(request)
    }

    /// The checksum of an encoded request, which its reply has.
    #[must_use]
    pub fn checksum(encoded: &[u8]) -> u32 {
        let Some(header) = encoded.get(..INDEX_REQUEST_HEADER_BYTES) else {
            return 0;
        };
        u32_at(header, INDEX_REQUEST_HEADER_BYTES - 4)
    }

    fn check_shard(&self) -> Result<(), FormatError> {
        let check = |fingerprint: &[u8; FINGERPRINT_BYTES]| {
            let found = shard_of(fingerprint, self.shards);
            if found == self.shard {
                return Ok(());
            }
            Err(FormatError::Address {
                field: "shard of a fingerprint",
                expected: self.shard.0.into(),
                found: found.0.into(),
            })
        };
        match &self.body {
            IndexRequestBody::Batch { items, .. } => {
                items.iter().try_for_each(|item| check(&item.fingerprint))
            }
            IndexRequestBody::Lookup(fingerprints)
            | IndexRequestBody::Hold { fingerprints, .. } => {
                fingerprints.iter().try_for_each(check)
            }
            IndexRequestBody::Rows { from, .. } => check(from),
            IndexRequestBody::Recall { .. }
            | IndexRequestBody::Counts
            | IndexRequestBody::Secure(_)
            | IndexRequestBody::EndHolds { .. }
            | IndexRequestBody::Mark { .. } => Ok(()),
        }
    }
}

impl IndexRequestBody {
    fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            IndexRequestBody::Batch {
                number,
                operation,
                items,
            } => {
                bytes[6] = operation.number();
                put(bytes, 40, &number.to_le_bytes());
                bytes.reserve(items.len() * ITEM_BYTES);
                for item in items {
                    bytes.extend(item.position.to_le_bytes());
                    bytes.extend(item.fingerprint);
                    put_number(bytes, item.pba.0);
                }
            }
            IndexRequestBody::Recall {
                number,
                operation,
                is_sealing,
                from,
            } => {
                bytes[6] = RECALL;
                put(bytes, 40, &number.to_le_bytes());
                bytes[52] = operation.number();
                bytes[53] = u8::from(*is_sealing);
                bytes.extend(from.to_le_bytes());
            }
            IndexRequestBody::Lookup(fingerprints) => {
                bytes[6] = LOOKUP;
                fingerprints.iter().for_each(|one| bytes.extend(one));
            }
            IndexRequestBody::Rows { from, max } => {
                bytes[6] = ROWS;
                bytes.extend(from);
                bytes.extend(max.to_le_bytes());
            }
            IndexRequestBody::Counts => bytes[6] = COUNTS,
            IndexRequestBody::Secure(batches) => {
                bytes[6] = SECURE;
                let items = batches.iter().map(|items| items.to_le_bytes());
                items.for_each(|items| bytes.extend(items));
            }
            IndexRequestBody::Hold {
                version,
                fingerprints,
            } => {
                bytes[6] = HOLD;
                put(bytes, 40, &version.to_le_bytes());
                fingerprints.iter().for_each(|one| bytes.extend(one));
            }
            IndexRequestBody::EndHolds { version, is_last } => {
                bytes[6] = END_HOLDS;
                put(bytes, 40, &version.to_le_bytes());
                bytes.push(u8::from(*is_last));
            }
            IndexRequestBody::Mark { is_bad, blocks } => {
                bytes[6] = MARK;
                bytes.push(u8::from(*is_bad));
                blocks.iter().for_each(|pba| put_number(bytes, pba.0));
            }
        }
    }

    fn take(bytes: &[u8]) -> Result<IndexRequestBody, FormatError> {
        let kind = bytes[6];
        let (number, batch) = (u64_at(bytes, 40), bytes[52]);
        let has_number = !matches!(kind, LOOKUP | ROWS | COUNTS | SECURE | MARK);
        if has_number != is_id(number) || !has_number && number != 0 {
            return Err(impossible("number", number));
        }
        if kind != RECALL && batch != 0 {
            return Err(impossible("kind of the recalled batch", batch.into()));
        }
        let is_sealing = flag("sealing", bytes[53])?;
        if is_sealing && kind != RECALL {
            return Err(impossible("sealing", 1));
        }
        let mut rest = Cursor(&bytes[INDEX_REQUEST_HEADER_BYTES..]);
        let body = match kind {
            RECALL => IndexRequestBody::Recall {
                number,
                operation: IndexOperation::from_number(batch)
                    .ok_or_else(|| impossible("kind of the recalled batch", batch.into()))?,
                is_sealing,
                from: rest.u16()?,
            },
            LOOKUP => IndexRequestBody::Lookup(all(&mut rest, Cursor::take)?),
            ROWS => IndexRequestBody::Rows {
                from: rest.take()?,
                max: rest.u32()?,
            },
            COUNTS => IndexRequestBody::Counts,
            SECURE => {
                let batches = all(&mut rest, Cursor::u32)?;
                if batches.len() > INDEX_SECURED_MAX {
                    return Err(impossible("number of batches", batches.len() as u64));
                }
                if let Some(items) = batches.iter().find(|items| **items > POSITIONS) {
                    return Err(impossible("items of a batch", (*items).into()));
                }
                IndexRequestBody::Secure(batches)
            }
            HOLD => IndexRequestBody::Hold {
                version: number,
                fingerprints: all(&mut rest, Cursor::take)?,
            },
            END_HOLDS => {
                let [is_last] = rest.take()?;
                IndexRequestBody::EndHolds {
                    version: number,
                    is_last: flag("last", is_last)?,
                }
            }
            MARK => {
                let [is_bad] = rest.take()?;
                IndexRequestBody::Mark {
                    is_bad: flag("bad", is_bad)?,
                    blocks: all(&mut rest, take_block)?,
                }
            }
            _ => IndexRequestBody::Batch {
                number,
                operation: IndexOperation::from_number(kind)
                    .ok_or_else(|| impossible("kind", kind.into()))?,
                items: take_items(&mut rest)?,
            },
        };
        rest.finish()?;
        Ok(body)
    }
}

/// Takes fields to the end.
fn all<'a, T>(
    rest: &mut Cursor<'a>,
    take: impl Fn(&mut Cursor<'a>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let mut fields = Vec::new();
    while !rest.0.is_empty() {
        fields.push(take(rest)?);
    }
    Ok(fields)
}

fn take_items(rest: &mut Cursor<'_>) -> Result<Vec<IndexItem>, FormatError> {
    let items = all(rest, |rest| {
        Ok(IndexItem {
            position: rest.u16()?,
            fingerprint: rest.take()?,
            pba: take_block(rest)?,
        })
    })?;
    let out_of_order = items
        .array_windows()
        .find(|[one, next]| one.position >= next.position);
    match out_of_order {
        Some([_, next]) => Err(impossible("position", next.position.into())),
        None => Ok(items),
    }
}
