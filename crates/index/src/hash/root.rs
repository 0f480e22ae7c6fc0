//! The root: a checkpoint, and the two slots that point to it.
//!
//! A slot is the first sector of page 0 or 1 of the body:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic, `1FLR` |
//! | 4 | 4 | zeros |
//! | 8 | 8 | number: one more for each checkpoint |
//! | 16 | 8 | first page of the checkpoint |
//! | 24 | 8 | bytes of the checkpoint |
//! | 32 | 16 | BLAKE3 of the checkpoint, cut to 128 bits |
//! | 48 | 16 | BLAKE3 of the pool's id and the slot with this field zero, cut to 128 bits |
//! | 64 | 448 | zeros |
//!
//! One slot is written and made durable, then the other, and only then are the pages that the older
//! checkpoint needed reused. So an unreadable slot, torn or damaged, costs nothing: the other one
//! is as good.
//!
//! A checkpoint:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | life of the log |
//! | 8 | 8 | the next generation |
//! | 16 | 8 | sequence number of the last frame that the checkpoint has |
//! | 24 | 24 | rows with one reference, rows with more, references |
//! | 48 | 16 | cursor: the fingerprint from which on to merge next |
//! | 64 | 48 | log: first page and pages of an extent, byte in it, sequence number, hash before |
//! | 112 | 4 | segments |
//! | 116 | 4 | streams |
//! | 120 | 48 each | segments |
//! | | | streams: id, 8 bytes; length, 4 bytes; last batch |
//! | | | only in a shard, and only if there are any, or marks: the number of streams that may hold rows, 4 bytes; each: id, 8 bytes |
//! | | | only in a shard, and only if there are any: the number of marked blocks, 4 bytes; each: address, 8 bytes |
//!
//! A segment is its first fingerprint (16 bytes), its run's first page, generation and rows (8 bytes
//! each; no rows: no run), and the last frame whose changes are in the run (8 bytes).

use std::collections::{BTreeMap, BTreeSet};

use onefold_engine::Disk;
use onefold_format::{Pba, PoolId};

use super::log::Position;
use super::segment::Run;
use super::space::{Extent, PAGE_BYTES, page_offset, pages_for};
use crate::fingerprint::FINGERPRINT_BYTES;
use crate::stream::LastBatch;
use crate::{Fingerprint, IndexCounts, IndexError, Result, StreamId};

/// Pages of the slots, at the beginning of the body.
pub(super) const SLOT_PAGES: u64 = 2;

const MAGIC: [u8; 4] = *b"1FLR";

const SLOT_BYTES: usize = 512;
const SLOT_HASH_OFFSET: usize = 48;
const SLOT_END: usize = 64;

type Hash = [u8; 16];

/// A slot's pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) hash: Hash,
}

impl Slot {
    pub(super) fn of(number: u64, start: u64, checkpoint: &[u8]) -> Slot {
        Slot {
            number,
            start,
            bytes: checkpoint.len() as u64,
            hash: hash_of(&[checkpoint]),
        }
    }

    /// The pages of the checkpoint.
    pub(super) fn extent(&self) -> Option<Extent> {
        let bytes = usize::try_from(self.bytes).ok()?;
        Extent::checked(self.start, pages_for(bytes))
    }

    /// Writes it into one of the slots. Not durable when this returns.
    pub(super) fn write(&self, disk: &dyn Disk, pool: PoolId, which: u64) -> Result<()> {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[32..SLOT_HASH_OFFSET].copy_from_slice(&self.hash);
        let hash = hash_of(&[&pool.0, &bytes]);
        bytes[SLOT_HASH_OFFSET..SLOT_END].copy_from_slice(&hash);
        disk.write_at(&bytes, page_offset(which))
            .map_err(IndexError::of_write)
    }

    fn decode(bytes: &[u8; SLOT_BYTES], pool: PoolId) -> Option<Slot> {
        let mut blank = *bytes;
        blank[SLOT_HASH_OFFSET..SLOT_END].fill(0);
        if !bytes.starts_with(&MAGIC)
            || bytes[SLOT_HASH_OFFSET..SLOT_END] != hash_of(&[&pool.0, &blank])
        {
            return None;
        }
        let mut fields = Fields(&bytes[8..]);
        Some(Slot {
            number: fields.number()?,
            start: fields.number()?,
            bytes: fields.number()?,
            hash: fields.bytes()?,
        })
    }
}

/// The newest slot, and its checkpoint.
pub(super) fn read(disk: &dyn Disk, pool: PoolId) -> Result<(Slot, Checkpoint)> {
    let mut newest: Option<Slot> = None;
    for which in 0..SLOT_PAGES {
        let mut bytes = [0; SLOT_BYTES];
        disk.read_at(&mut bytes, page_offset(which))?;
        let slot = Slot::decode(&bytes, pool);
        newest = newest
            .into_iter()
            .chain(slot)
            .max_by_key(|slot| slot.number);
    }
    let damaged = |what: &str| IndexError::Damaged(what.to_owned());
    let slot = newest.ok_or_else(|| damaged("neither of its roots can be read"))?;
    let extent = slot.extent().filter(|extent| {
        extent.offset() + extent.bytes()
            <= disk.len().unwrap_or(0).next_multiple_of(PAGE_BYTES as u64)
    });
    let extent = extent.ok_or_else(|| damaged("its root names an impossible place"))?;
    let mut bytes = vec![0; slot.bytes as usize];
    disk.read_at(&mut bytes, extent.offset())?;
    let checkpoint = Checkpoint::decode(&bytes).filter(|_| hash_of(&[&bytes]) == slot.hash);
    let checkpoint = checkpoint.ok_or_else(|| damaged("its checkpoint"))?;
    Ok((slot, checkpoint))
}

fn hash_of(parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut hash = Hash::default();
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

/// A segment as a checkpoint and the log have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentRecord {
    pub(super) first: Fingerprint,
    pub(super) run: Option<Run>,
    pub(super) merged: u64,
}

pub(super) const SEGMENT_BYTES: usize = 48;

impl SegmentRecord {
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let run = self.run.unwrap_or(Run {
            start: 0,
            rows: 0,
            generation: 0,
        });
        into.extend(self.first.0);
        into.extend(run.start.to_le_bytes());
        into.extend(run.generation.to_le_bytes());
        into.extend(u64::from(run.rows).to_le_bytes());
        into.extend(self.merged.to_le_bytes());
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Option<SegmentRecord> {
        let first = Fingerprint(fields.bytes::<FINGERPRINT_BYTES>()?);
        let (start, generation) = (fields.number()?, fields.number()?);
        let rows = u32::try_from(fields.number()?).ok()?;
        let run = Run {
            start,
            rows,
            generation,
        };
        let merged = fields.number()?;
        match rows {
            0 if (start, generation) != (0, 0) => return None,
            0 => {}
            _ => drop(Extent::checked(start, run.extent().pages)?),
        }
        Some(SegmentRecord {
            first,
            run: (rows > 0).then_some(run),
            merged,
        })
    }
}

/// Everything but the rows, and but the changes in the log since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) life: u64,
    pub(super) next_generation: u64,
    pub(super) last: u64,
    pub(super) counts: IndexCounts,
    pub(super) cursor: Fingerprint,
    pub(super) log: Position,
    pub(super) segments: Vec<SegmentRecord>,
    pub(super) streams: BTreeMap<StreamId, LastBatch>,
    pub(super) beside: Beside,
}

/// The lists that a shard keeps beside rows and batches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Beside {
    /// The streams that may hold rows.
    pub(super) holders: BTreeSet<StreamId>,
    /// The blocks that are marked as bad.
    pub(super) marks: BTreeSet<Pba>,
}

impl Beside {
    fn encode(&self, into: &mut Vec<u8>) {
        if self.holders.is_empty() && self.marks.is_empty() {
            return;
        }
        encode_numbers(self.holders.iter().map(|stream| stream.0), into);
        if !self.marks.is_empty() {
            encode_numbers(self.marks.iter().map(|pba| pba.0), into);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Option<Beside> {
        let mut beside = Beside::default();
        if fields.0.is_empty() {
            return Some(beside);
        }
        beside.holders = decode_numbers(fields, StreamId)?;
        if !fields.0.is_empty() || beside.holders.is_empty() {
            beside.marks = decode_numbers(fields, Pba).filter(|marks| !marks.is_empty())?;
        }
        Some(beside)
    }
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(120 + self.segments.len() * SEGMENT_BYTES);
        for number in [self.life, self.next_generation, self.last] {
            bytes.extend(number.to_le_bytes());
        }
        encode_counts(self.counts, &mut bytes);
        bytes.extend(self.cursor.0);
        let log = &self.log;
        for number in [log.extent.start, log.extent.pages, log.at, log.sequence] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(log.previous);
        bytes.extend((self.segments.len() as u32).to_le_bytes());
        bytes.extend((self.streams.len() as u32).to_le_bytes());
        for segment in &self.segments {
            segment.encode(&mut bytes);
        }
        for (stream, last) in &self.streams {
            encode_stream(*stream, last, &mut bytes);
        }
        self.beside.encode(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        let mut fields = Fields(bytes);
        let (life, next_generation, last) = (fields.number()?, fields.number()?, fields.number()?);
        let counts = decode_counts(&mut fields)?;
        let cursor = Fingerprint(fields.bytes()?);
        let extent = Extent::checked(fields.number()?, fields.number()?)?;
        let log = Position {
            extent,
            at: fields.number()?,
            sequence: fields.number()?,
            previous: fields.bytes()?,
        };
        let (segments, streams) = (fields.small_number()?, fields.small_number()?);
        let segments = (0..segments).map(|_| SegmentRecord::decode(&mut fields));
        let segments = segments.collect::<Option<Vec<_>>>()?;
        let streams = (0..streams).map(|_| decode_stream(&mut fields));
        let streams = streams.collect::<Option<Vec<_>>>()?;
        let beside = Beside::decode(&mut fields)?;
        let is_possible = fields.0.is_empty()
            && log.at <= extent.bytes()
            && streams.is_sorted_by(|one, other| one.0 < other.0);
        is_possible.then_some(Checkpoint {
            life,
            next_generation,
            last,
            counts,
            cursor,
            log,
            segments,
            streams: streams.into_iter().collect(),
            beside,
        })
    }
}

pub(super) fn encode_counts(counts: IndexCounts, into: &mut Vec<u8>) {
    for number in [counts.unique, counts.shared, counts.references] {
        into.extend(number.to_le_bytes());
    }
}

pub(super) fn decode_counts(fields: &mut Fields<'_>) -> Option<IndexCounts> {
    Some(IndexCounts {
        unique: fields.number()?,
        shared: fields.number()?,
        references: fields.number()?,
    })
}

pub(super) fn encode_stream(stream: StreamId, last: &LastBatch, into: &mut Vec<u8>) {
    let last = last.encode();
    into.extend(stream.0.to_le_bytes());
    into.extend((last.len() as u32).to_le_bytes());
    into.extend(last);
}

pub(super) fn decode_stream(fields: &mut Fields<'_>) -> Option<(StreamId, LastBatch)> {
    let stream = StreamId(fields.number()?);
    let bytes = fields.small_number()? as usize;
    let last = LastBatch::decode(fields.some(bytes)?)?;
    Some((stream, last))
}

/// A set of ids: how many, and each, ascending.
pub(super) fn encode_numbers(numbers: impl ExactSizeIterator<Item = u64>, into: &mut Vec<u8>) {
    into.extend((numbers.len() as u32).to_le_bytes());
    numbers.for_each(|number| into.extend(number.to_le_bytes()));
}

pub(super) fn decode_numbers<T: Ord>(
    fields: &mut Fields<'_>,
    id: fn(u64) -> T,
) -> Option<BTreeSet<T>> {
    let count = fields.small_number()?;
    let ids = (0..count).map(|_| fields.number().map(id));
    let ids = ids.collect::<Option<Vec<_>>>()?;
    let is_sorted = ids.is_sorted_by(|one, other| one < other);
    is_sorted.then(|| ids.into_iter().collect())
}

/// The bytes that are left to decode.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn some(&mut self, count: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(field)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes()?))
    }

    pub(super) fn small_number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes()?))
    }
}
