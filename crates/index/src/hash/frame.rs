//! The content of a frame with changes of rows.
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | merges |
//! | | each: generation, 8 bytes; first fingerprint, 16; segments replaced, 4; segments, 4; those, 48 each |
//! | 24 | rows with one reference, rows with more, references: after the batch |
//! | 4 | streams: only in a frame of parts, of holders or of marks; else there is one |
//! | | each: id, 8 bytes; and, except in a frame of holders, length, 4 bytes; last batch. In a frame of marks: blocks, 8 bytes each |
//! | 26 each | the rows that the batch changed, in order; one that is gone is zeros behind its fingerprint |

use std::collections::{BTreeMap, BTreeSet};

use onefold_format::Pba;

use super::log::FrameKind;
use super::root::{
    Beside, Fields, SEGMENT_BYTES, SegmentRecord, decode_counts, decode_numbers, decode_stream,
    encode_counts, encode_numbers, encode_stream,
};
use crate::entry::{ENTRY_BYTES, Entry, EntryBytes};
use crate::fingerprint::FINGERPRINT_BYTES;
use crate::stream::LastBatch;
use crate::{Fingerprint, IndexCounts, StreamId};

/// Segments that a merge has replaced by others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The generation of the runs that the merge wrote; later merges have higher numbers.
    pub(super) generation: u64,
    /// The first fingerprint of the first segment that is replaced.
    pub(super) first: Fingerprint,
    /// The number of segments that are replaced.
    pub(super) replaced: u32,
    /// The segments that replace them.
    pub(super) segments: Vec<SegmentRecord>,
}

/// The streams in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Streams {
    /// The last batch of a stream whose batches come whole.
    One(StreamId, LastBatch),
    /// The last batches of streams whose batches come in parts.
    Many(BTreeMap<StreamId, LastBatch>),
    /// The streams that may hold rows from here on.
    Holders(BTreeSet<StreamId>),
    /// The blocks that are marked as bad from here on.
    Marks(BTreeSet<Pba>),
}

impl Streams {
    /// The kind of the frame.
    pub(super) fn kind(&self) -> FrameKind {
        match self {
            Streams::One(..) => FrameKind::Batch,
            Streams::Many(_) => FrameKind::Parts,
            Streams::Holders(_) => FrameKind::Holders,
            Streams::Marks(_) => FrameKind::Marks,
        }
    }

    /// Puts the batches, the list of holders, or the marks, in place of earlier ones.
    pub(super) fn replace_in(
        self,
        batches: &mut BTreeMap<StreamId, LastBatch>,
        beside: &mut Beside,
    ) {
        match self {
            Streams::One(stream, last) => drop(batches.insert(stream, last)),
            Streams::Many(streams) => batches.extend(streams),
            Streams::Holders(streams) => beside.holders = streams,
            Streams::Marks(blocks) => beside.marks = blocks,
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Streams::One(stream, last) => encode_stream(*stream, last, into),
            Streams::Many(streams) => {
                into.extend((streams.len() as u32).to_le_bytes());
                for (stream, last) in streams {
                    encode_stream(*stream, last, into);
                }
            }
            Streams::Holders(holders) => encode_numbers(holders.iter().map(|id| id.0), into),
            Streams::Marks(blocks) => encode_numbers(blocks.iter().map(|pba| pba.0), into),
        }
    }

    fn decode(kind: FrameKind, fields: &mut Fields<'_>) -> Option<Streams> {
        match kind {
            FrameKind::Batch => {
                let (stream, last) = decode_stream(fields)?;
                Some(Streams::One(stream, last))
            }
            FrameKind::Parts => {
                let count = fields.small_number()?;
                let streams = (0..count).map(|_| decode_stream(fields));
                let streams = streams.collect::<Option<Vec<_>>>()?;
                let is_sorted = streams.is_sorted_by(|one, other| one.0 < other.0);
                is_sorted.then(|| Streams::Many(streams.into_iter().collect()))
            }
            FrameKind::Holders => decode_numbers(fields, StreamId).map(Streams::Holders),
            FrameKind::Marks => decode_numbers(fields, Pba).map(Streams::Marks),
        }
    }
}

/// A frame that is read.
pub(super) struct Frame<'a> {
    pub(super) changes: Vec<Change>,
    pub(super) counts: IndexCounts,
    pub(super) streams: Streams,
    pub(super) rows: &'a [EntryBytes],
}

impl<'a> Frame<'a> {
    /// Appends the body of a frame.
    pub(super) fn encode<'b>(
        changes: impl ExactSizeIterator<Item = &'b Change>,
        counts: IndexCounts,
        streams: &Streams,
        rows: &[Entry],
        into: &mut Vec<u8>,
    ) {
        into.extend((changes.len() as u32).to_le_bytes());
        for change in changes {
            into.extend(change.generation.to_le_bytes());
            into.extend(change.first.0);
            into.extend(change.replaced.to_le_bytes());
            into.extend((change.segments.len() as u32).to_le_bytes());
            for segment in &change.segments {
                segment.encode(into);
            }
        }
        encode_counts(counts, into);
        streams.encode(into);
        into.reserve(rows.len() * ENTRY_BYTES);
        for row in rows {
            into.extend(row.to_bytes());
        }
    }

    /// The most bytes of the body of a frame of one batch with this many items, without its merges.
    pub(super) fn bytes_max(items: usize) -> usize {
        const FIXED_BYTES: usize = 4 + 24 + 4 + 8 + 4 + LastBatch::BYTES_BESIDE_ANSWERS;
        items
            .saturating_mul(ENTRY_BYTES + LastBatch::ANSWER_BYTES_MAX)
            .saturating_add(FIXED_BYTES)
    }

    /// `None` for bytes that no frame has.
    pub(super) fn decode(kind: FrameKind, body: &'a [u8]) -> Option<Frame<'a>> {
        let mut fields = Fields(body);
        let count = fields.small_number()?;
        let changes = (0..count).map(|_| decode_change(&mut fields));
        let changes = changes.collect::<Option<Vec<_>>>()?;
        let counts = decode_counts(&mut fields)?;
        let streams = Streams::decode(kind, &mut fields)?;
        let (rows, rest) = fields.0.as_chunks();
        rest.is_empty().then_some(Frame {
            changes,
            counts,
            streams,
            rows,
        })
    }
}

impl Change {
    /// Bytes of this change in the body of a frame.
    pub(super) fn bytes(&self) -> usize {
        8 + FINGERPRINT_BYTES + 4 + 4 + self.segments.len() * SEGMENT_BYTES
    }
}

#[cfg(feature = "conformance")]
impl Frame<'_> {
    pub(super) fn encoded(&self) -> Vec<u8> {
        let rows: Vec<Entry> = self.rows.iter().map(Entry::from_bytes).collect();
        let mut bytes = Vec::new();
        let (changes, streams) = (self.changes.iter(), &self.streams);
        Frame::encode(changes, self.counts, streams, &rows, &mut bytes);
        bytes
    }
}

fn decode_change(fields: &mut Fields<'_>) -> Option<Change> {
    let generation = fields.number()?;
    let first = Fingerprint(fields.bytes()?);
    let (replaced, count) = (fields.small_number()?, fields.small_number()?);
    let segments = (0..count).map(|_| SegmentRecord::decode(fields));
    Some(Change {
        generation,
        first,
        replaced,
        segments: segments.collect::<Option<_>>()?,
    })
}
