//! Messages between the host that takes a census of a shared pool and the owner of a group. A message is no part of a
//! pool: it is never stored.
//!
//! ```text
//! request
//!  0 magic     u32   "1FNQ"
//!  4 version   u16   1
//!  6 kind      u8    1 begin, 2 blocks, 3 findings, 4 end, 5 begin a rebuild, 6 decide, 7 settle, 8 fingerprints
//!  7 zeros     u8
//!  8 pool      16 bytes
//! 24 group     u64   that is asked
//! 32 census    u64   its number, which no other census has
//! 40 from      u64   kinds 2 and 6: the first block that is asked for; kind 3: the first finding; else 0
//! 48 to        u64   kinds 1 and 5: the first block beyond the pool; kinds 2 and 6: the block after the last one asked
//!                    for; else 0
//! 56 payload   u32   bytes
//! 60 checksum  u32   CRC-32C of header and payload with this field zero
//!
//! reply
//!  0 magic     u32   "1FNA"
//!  4 version   u16   1
//!  6 kind      u8    1 refused, 2 under way, 3 begun, 4 blocks, 5 findings, 6 ended, 7 decided, 8 settled,
//!                    9 fingerprints
//!  7 more      u8    findings: 1 if there are further ones; else 0
//!  8 session   u64   of the group
//! 16 request   u32   checksum of the request
//! 20 payload   u32   bytes
//! 24 reserved  u32
//! 28 checksum  u32   CRC-32C of header and payload with this field zero
//! ```
//!
//! `docs/format/census_message.md` has the payloads.

use std::ops::Range;

use crate::bytes::{array_at, put, u32_at, u64_at};
use crate::cursor::{Cursor, impossible, put_varint};
use crate::error::FormatError;
use crate::message::{
    MESSAGE_BYTES_MAX, REPLY_HEADER_BYTES, REPLY_PAYLOAD_AT, VERSION, flag, open, open_reply,
    put_sentence, seal, take_sentence,
};
use crate::units::{PBA_END, is_id};
use crate::{GroupId, Pba, PoolId};

/// Bytes of a request before its payload.
pub const CENSUS_REQUEST_HEADER_BYTES: usize = 64;

/// Bytes of a reply before its payload.
pub const CENSUS_REPLY_HEADER_BYTES: usize = REPLY_HEADER_BYTES;

/// Most bytes of a reply's payload.
const PAYLOAD_MAX: usize = MESSAGE_BYTES_MAX - CENSUS_REPLY_HEADER_BYTES;

/// Most bytes of a gap and a length below 2^40.
const RANGE_BYTES_MAX: usize = 6 + 6;

/// Most bytes of a run: a gap, a length, a byte, and a number of references.
const RUN_BYTES_MAX: usize = RANGE_BYTES_MAX + 1 + 10;

/// Bytes of a block's fingerprint, with the block.
const FOUND_BYTES: usize = 8 + FINGERPRINT_BYTES;

const FINGERPRINT_BYTES: usize = 16;

/// Most runs of a reply, of whatever kind.
pub const CENSUS_RUNS_MAX: usize = (PAYLOAD_MAX - 8) / RUN_BYTES_MAX;

/// Most ranges of a request.
pub const CENSUS_RANGES_MAX: usize =
    (MESSAGE_BYTES_MAX - CENSUS_REQUEST_HEADER_BYTES) / RANGE_BYTES_MAX;

/// Most blocks whose fingerprints a request asks for.
pub const CENSUS_FINGERPRINTS_MAX: usize = (PAYLOAD_MAX - 8) / FOUND_BYTES;

/// Most findings of a reply, however long they are.
pub const CENSUS_FINDINGS_MAX: usize = 60;

const REQUEST_MAGIC: [u8; 4] = *b"1FNQ";
const REQUEST_PAYLOAD_AT: usize = 56;
const REPLY_MAGIC: [u8; 4] = *b"1FNA";

const BEGIN: u8 = 1;
const BLOCKS: u8 = 2;
const FINDINGS: u8 = 3;
const END: u8 = 4;
const BEGIN_REBUILD: u8 = 5;
const DECIDE: u8 = 6;
const SETTLE: u8 = 7;
const FINGERPRINTS: u8 = 8;

const REFUSED: u8 = 1;
const UNDER_WAY: u8 = 2;
const BEGUN: u8 = 3;
const RUNS: u8 = 4;
const LISTED: u8 = 5;
const ENDED: u8 = 6;
const DECIDED: u8 = 7;
const SETTLED: u8 = 8;
const FOUND: u8 = 9;

const IS_FREE: u8 = 1;
const IS_OWNED: u8 = 2;
const IS_REFERENCED: u8 = 4;
const IS_PUBLISHING: u8 = 8;
const IS_RELEASING: u8 = 16;
const ALL_USES: u8 = IS_FREE | IS_OWNED | IS_REFERENCED | IS_PUBLISHING | IS_RELEASING;

/// A request to the owner of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CensusRequest {
    /// The pool that is counted.
    pub pool: PoolId,
    /// The group that is asked.
    pub group: GroupId,
    /// The number of the census, which no other census has.
    pub census: u64,
    /// What is asked.
    pub body: CensusRequestBody,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CensusRequestBody {
    /// Settles the open batch and pauses the jobs of the group, unless they are paused for this census already.
    Begin {
        /// The first block beyond the pool.
        pool_end: Pba,
    },
    /// Pauses the jobs of the group for a rebuild of the index, which leaves the open batch without answers.
    BeginRebuild {
        /// The first block beyond the pool.
        pool_end: Pba,
    },
    /// Decides what the open batch of a rebuild does with its blocks in a range. The ranges of all requests follow one
    /// another from block 0 on.
    Decide {
        /// The first block of the range.
        from: Pba,
        /// The block after the last one of the range.
        to: Pba,
        /// The blocks that the finder has published, or that the collector frees.
        granted: Vec<Range<u64>>,
    },
    /// Settles the open batch as it was decided, and ends all claims, because the rebuild counts their entries.
    Settle,
    /// Asks for the fingerprints of blocks that entries or dropped references of the group share.
    Fingerprints(
        /// The blocks, in ascending order; at least one.
        Vec<Range<u64>>,
    ),
    /// Asks for the group's use of blocks, from the first one that is wanted to the last.
    Blocks {
        /// The first block that is wanted.
        from: Pba,
        /// The block after the last one that is wanted.
        to: Pba,
    },
    /// Asks for the findings in the blocks that were asked for last.
    Findings {
        /// How many findings the sender has.
        from: u64,
    },
    /// Ends the census.
    End,
}

/// The reply of a group's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CensusReply {
    /// The session of the group's owner.
    pub session: u64,
    /// The checksum of the request.
    pub request: u32,
    /// The reply's content.
    pub body: CensusReplyBody,
}

/// The content of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CensusReplyBody {
    /// The request was not carried out.
    Refused {
        /// The reason.
        reason: CensusRefusal,
        /// A sentence for people.
        text: String,
    },
    /// The answer is not there yet: ask again.
    UnderWay,
    /// The jobs are paused.
    Begun,
    /// The group's use of blocks.
    Blocks {
        /// The first block that is not answered for.
        next: Pba,
        /// Runs of blocks that the group uses, in ascending order.
        runs: Vec<BlockRun>,
    },
    /// Findings in the blocks that were asked for last.
    Findings {
        /// Entries of the group's maps that were read.
        mapped_blocks: u64,
        /// Pages of metadata that were read.
        pages_read: u64,
        /// A sentence for each.
        findings: Vec<String>,
        /// There are further findings.
        has_more: bool,
    },
    /// The census has ended.
    Ended,
    /// The decision is noted.
    Decided,
    /// The open batch is settled, and there are no claims.
    Settled {
        /// The number of the group's last batch.
        last_number: u64,
    },
    /// Fingerprints of blocks that were asked for.
    Fingerprints {
        /// The first block that is not answered for.
        next: Pba,
        /// Blocks in ascending order, with their fingerprints. Blocks below `next` that cannot be read are missing.
        found: Vec<(Pba, [u8; FINGERPRINT_BYTES])>,
    },
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CensusRefusal {
    /// The request could not be decoded, or is for another pool or group.
    Malformed,
    /// Another census is in progress.
    Busy,
    /// The census has ended, or has never begun with this owner.
    Ended,
    /// The group failed.
    Failed,
}

/// All reasons, in the order of their numbers, from 1 on.
const REFUSALS: [CensusRefusal; 4] = [
    CensusRefusal::Malformed,
    CensusRefusal::Busy,
    CensusRefusal::Ended,
    CensusRefusal::Failed,
];

/// Blocks that a group uses in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRun {
    /// The first block.
    pub first: Pba,
    /// The number of blocks, at least 1.
    pub count: u64,
    /// The use of each of them.
    pub usage: BlockUse,
}

/// The use that a group makes of a block. An error in the group can make several of them true.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockUse {
    /// The block is free, and the group's.
    pub is_free: bool,
    /// An entry owns the block alone.
    pub is_owned: bool,
    /// Entries share the block: the references that the index should count for the group.
    pub references: Option<u64>,
    /// In a rebuild: an open batch of the finder publishes the block. That is no reference.
    pub is_publishing: bool,
    /// In a rebuild: an open batch of the collector releases the block. That is no reference.
    pub is_releasing: bool,
}

impl BlockUse {
    /// Whether the group does not use the block.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == BlockUse::default()
    }
}

impl CensusRequest {
    /// Encodes the request.
    ///
    /// # Panics
    ///
    /// If there is more in it than a message can hold, which is the sender's mistake.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, from, to) = match &self.body {
            CensusRequestBody::Begin { pool_end } => (BEGIN, 0, pool_end.0),
            CensusRequestBody::Blocks { from, to } => (BLOCKS, from.0, to.0),
            CensusRequestBody::Findings { from } => (FINDINGS, *from, 0),
            CensusRequestBody::End => (END, 0, 0),
            CensusRequestBody::BeginRebuild { pool_end } => (BEGIN_REBUILD, 0, pool_end.0),
            CensusRequestBody::Decide { from, to, .. } => (DECIDE, from.0, to.0),
            CensusRequestBody::Settle => (SETTLE, 0, 0),
            CensusRequestBody::Fingerprints(_) => (FINGERPRINTS, 0, 0),
        };
        let mut bytes = vec![0; CENSUS_REQUEST_HEADER_BYTES];
        put(&mut bytes, 0, &REQUEST_MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        bytes[6] = kind;
        put(&mut bytes, 8, &self.pool.0);
        put(&mut bytes, 24, &self.group.0.to_le_bytes());
        put(&mut bytes, 32, &self.census.to_le_bytes());
        put(&mut bytes, 40, &from.to_le_bytes());
        put(&mut bytes, 48, &to.to_le_bytes());
        match &self.body {
            CensusRequestBody::Decide { granted, .. } => put_ranges(granted, &mut bytes),
            CensusRequestBody::Fingerprints(blocks) => put_ranges(blocks, &mut bytes),
            _ => {}
        }
        seal(&mut bytes, CENSUS_REQUEST_HEADER_BYTES, REQUEST_PAYLOAD_AT);
        bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<CensusRequest, FormatError> {
        open(
            bytes,
            CENSUS_REQUEST_HEADER_BYTES,
            &REQUEST_MAGIC,
            REQUEST_PAYLOAD_AT,
        )?;
        if bytes[7] != 0 {
            return Err(FormatError::Reserved {
                structure: "census request",
            });
        }
        let (group, from, to) = (u64_at(bytes, 24), u64_at(bytes, 40), u64_at(bytes, 48));
        if !is_id(group) {
            return Err(impossible("group", group));
        }
        let mut rest = Cursor(&bytes[CENSUS_REQUEST_HEADER_BYTES..]);
        let body = match bytes[6] {
            BEGIN if from == 0 && to <= PBA_END => CensusRequestBody::Begin { pool_end: Pba(to) },
            BEGIN_REBUILD if from == 0 && to <= PBA_END => {
                CensusRequestBody::BeginRebuild { pool_end: Pba(to) }
            }
            BLOCKS if from < to && to <= PBA_END => CensusRequestBody::Blocks {
                from: Pba(from),
                to: Pba(to),
            },
            DECIDE if from < to && to <= PBA_END => CensusRequestBody::Decide {
                from: Pba(from),
                to: Pba(to),
                granted: take_ranges(&mut rest, from..to)?,
            },
            FINDINGS if to == 0 => CensusRequestBody::Findings { from },
            END if (from, to) == (0, 0) => CensusRequestBody::End,
            SETTLE if (from, to) == (0, 0) => CensusRequestBody::Settle,
            FINGERPRINTS if (from, to) == (0, 0) => {
                let blocks = take_ranges(&mut rest, 0..PBA_END)?;
                let count: u64 = blocks.iter().map(|range| range.end - range.start).sum();
                if count == 0 || count > CENSUS_FINGERPRINTS_MAX as u64 {
                    return Err(impossible("number of blocks", count));
                }
                CensusRequestBody::Fingerprints(blocks)
            }
            BEGIN..=FINGERPRINTS => return Err(impossible("range", to)),
            kind => return Err(impossible("kind", kind.into())),
        };
        rest.finish()?;
        Ok(CensusRequest {
            pool: PoolId(array_at(bytes, 8)),
            group: GroupId(group),
            census: u64_at(bytes, 32),
            body,
        })
    }

    /// The checksum of an encoded request, which its reply has.
    #[must_use]
    pub fn checksum(encoded: &[u8]) -> u32 {
        let header = encoded.get(..CENSUS_REQUEST_HEADER_BYTES);
        header.map_or(0, |header| u32_at(header, CENSUS_REQUEST_HEADER_BYTES - 4))
    }
}

impl CensusReply {
    /// Encodes the reply. The end of a long sentence is cut off.
    ///
    /// # Panics
    ///
    /// If there is more in it than a message can hold, which is the sender's mistake.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CENSUS_REPLY_HEADER_BYTES];
        put(&mut bytes, 0, &REPLY_MAGIC);
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.session.to_le_bytes());
        put(&mut bytes, 16, &self.request.to_le_bytes());
        self.body.put(&mut bytes);
        seal(&mut bytes, CENSUS_REPLY_HEADER_BYTES, REPLY_PAYLOAD_AT);
        bytes
    }

    /// Decodes the reply to the request with this checksum.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8], request: u32) -> Result<CensusReply, FormatError> {
        open_reply(bytes, &REPLY_MAGIC, "census reply", request)?;
        Ok(CensusReply {
            session: u64_at(bytes, 8),
            request,
            body: CensusReplyBody::take(bytes)?,
        })
    }
}

impl CensusReplyBody {
    fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            CensusReplyBody::Refused { reason, text } => {
                bytes[6] = REFUSED;
                let number = REFUSALS.iter().position(|refusal| refusal == reason);
                bytes.push(number.map_or(0, |number| number as u8 + 1));
                put_sentence(bytes, text);
            }
            CensusReplyBody::UnderWay => bytes[6] = UNDER_WAY,
            CensusReplyBody::Begun => bytes[6] = BEGUN,
            CensusReplyBody::Blocks { next, runs } => {
                bytes[6] = RUNS;
                bytes.extend(next.0.to_le_bytes());
                put_runs(runs, bytes);
            }
            CensusReplyBody::Findings {
                mapped_blocks,
                pages_read,
                findings,
                has_more,
            } => {
                (bytes[6], bytes[7]) = (LISTED, u8::from(*has_more));
                bytes.extend(mapped_blocks.to_le_bytes());
                bytes.extend(pages_read.to_le_bytes());
                findings.iter().for_each(|text| put_sentence(bytes, text));
            }
            CensusReplyBody::Ended => bytes[6] = ENDED,
            CensusReplyBody::Decided => bytes[6] = DECIDED,
            CensusReplyBody::Settled { last_number } => {
                bytes[6] = SETTLED;
                bytes.extend(last_number.to_le_bytes());
            }
            CensusReplyBody::Fingerprints { next, found } => {
                bytes[6] = FOUND;
                bytes.extend(next.0.to_le_bytes());
                for (pba, fingerprint) in found {
                    bytes.extend(pba.0.to_le_bytes());
                    bytes.extend(fingerprint);
                }
            }
        }
    }

    fn take(bytes: &[u8]) -> Result<CensusReplyBody, FormatError> {
        let (kind, has_more) = (bytes[6], flag("more", bytes[7])?);
        if has_more && kind != LISTED {
            return Err(impossible("more", 1));
        }
        let mut rest = Cursor(&bytes[CENSUS_REPLY_HEADER_BYTES..]);
        let body = match kind {
            REFUSED => {
                let [number] = rest.take()?;
                let reason = usize::from(number).checked_sub(1);
                let reason = reason.and_then(|at| REFUSALS.get(at));
                CensusReplyBody::Refused {
                    reason: *reason.ok_or_else(|| impossible("reason", number.into()))?,
                    text: take_sentence(&mut rest, "text of a refusal")?,
                }
            }
            UNDER_WAY => CensusReplyBody::UnderWay,
            BEGUN => CensusReplyBody::Begun,
            RUNS => CensusReplyBody::Blocks {
                next: Pba(rest.u64()?),
                runs: take_runs(&mut rest)?,
            },
            LISTED => {
                let (mapped_blocks, pages_read) = (rest.u64()?, rest.u64()?);
                let mut findings = Vec::new();
                while !rest.0.is_empty() {
                    findings.push(take_sentence(&mut rest, "finding")?);
                }
                CensusReplyBody::Findings {
                    mapped_blocks,
                    pages_read,
                    findings,
                    has_more,
                }
            }
            ENDED => CensusReplyBody::Ended,
            DECIDED => CensusReplyBody::Decided,
            SETTLED => CensusReplyBody::Settled {
                last_number: rest.u64()?,
            },
            FOUND => CensusReplyBody::Fingerprints {
                next: Pba(rest.u64()?),
                found: take_found(&mut rest)?,
            },
            kind => return Err(impossible("kind", kind.into())),
        };
        rest.finish()?;
        Ok(body)
    }
}

/// Appends runs in ascending order.
fn put_runs(runs: &[BlockRun], out: &mut Vec<u8>) {
    let mut at = 0;
    for run in runs {
        put_varint(out, run.first.0 - at);
        put_varint(out, run.count);
        let BlockUse {
            is_free,
            is_owned,
            references,
            is_publishing,
            is_releasing,
        } = run.usage;
        let bits = [
            (is_free, IS_FREE),
            (is_owned, IS_OWNED),
            (references.is_some(), IS_REFERENCED),
            (is_publishing, IS_PUBLISHING),
            (is_releasing, IS_RELEASING),
        ];
        let set = bits.into_iter().filter(|(is_set, _)| *is_set);
        out.push(set.map(|(_, bit)| bit).sum());
        if let Some(references) = references {
            put_varint(out, references);
        }
        at = run.first.0 + run.count;
    }
}

fn take_runs(rest: &mut Cursor<'_>) -> Result<Vec<BlockRun>, FormatError> {
    let (mut runs, mut at) = (Vec::new(), 0);
    while !rest.0.is_empty() {
        let Range { start, end } = take_range(rest, at, PBA_END)?;
        let [flags] = rest.take()?;
        if flags == 0 || flags > ALL_USES {
            return Err(impossible("use of a block", flags.into()));
        }
        let is_referenced = flags & IS_REFERENCED != 0;
        runs.push(BlockRun {
            first: Pba(start),
            count: end - start,
            usage: BlockUse {
                is_free: flags & IS_FREE != 0,
                is_owned: flags & IS_OWNED != 0,
                references: is_referenced.then(|| rest.varint()).transpose()?,
                is_publishing: flags & IS_PUBLISHING != 0,
                is_releasing: flags & IS_RELEASING != 0,
            },
        });
        at = end;
    }
    Ok(runs)
}

/// Appends ranges in ascending order.
fn put_ranges(ranges: &[Range<u64>], out: &mut Vec<u8>) {
    let mut at = 0;
    for range in ranges {
        put_varint(out, range.start - at);
        put_varint(out, range.end - range.start);
        at = range.end;
    }
}

/// Takes ranges of these blocks, to the end.
fn take_ranges(rest: &mut Cursor<'_>, blocks: Range<u64>) -> Result<Vec<Range<u64>>, FormatError> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while !rest.0.is_empty() {
        let range = take_range(rest, at, blocks.end)?;
        if range.start < blocks.start {
            return Err(impossible("first block of a range", range.start));
        }
        at = range.end;
        ranges.push(range);
    }
    Ok(ranges)
}

/// Takes a gap after block `at`, and a length.
fn take_range(rest: &mut Cursor<'_>, at: u64, end: u64) -> Result<Range<u64>, FormatError> {
    let (gap, count) = (rest.varint()?, rest.varint()?);
    let start = gap.checked_add(at).filter(|_| count > 0);
    let range = start.and_then(|start| Some(start..start.checked_add(count)?));
    let range = range.filter(|range| range.end <= end);
    range.ok_or_else(|| impossible("length of a run", count))
}

fn take_found(rest: &mut Cursor<'_>) -> Result<Vec<(Pba, [u8; FINGERPRINT_BYTES])>, FormatError> {
    let mut found: Vec<(Pba, [u8; FINGERPRINT_BYTES])> = Vec::new();
    while !rest.0.is_empty() {
        let pba = rest.u64()?;
        let is_behind = found.last().is_none_or(|(last, _)| last.0 < pba);
        if pba >= PBA_END || !is_behind {
            return Err(impossible("block", pba));
        }
        found.push((Pba(pba), rest.take()?));
    }
    Ok(found)
}
