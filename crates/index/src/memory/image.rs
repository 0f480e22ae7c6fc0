//! The content that a memory index writes when it is closed: streams, then rows.
//!
//! A stream is its id (8 bytes), the length of its last batch (4 bytes) and that batch as
//! `stream` encodes it. A row is its fingerprint (16 bytes) and its ten packed bytes. The header
//! has the extent of both and a hash over them.

use std::collections::BTreeMap;

use onefold_engine::Disk;

use super::table::Table;
use crate::entry::ENTRY_BYTES;
use crate::header::{BODY_OFFSET, Extent};
use crate::stream::LastBatch;
use crate::{IndexCounts, IndexError, Result, StreamId};

/// The last batch of each stream.
pub(super) type Streams = BTreeMap<StreamId, LastBatch>;

/// Bytes of an I/O: a whole number of rows, about a mebibyte.
const PIECE_BYTES: usize = ENTRY_BYTES << 15;

/// More than the streams of any pool take. A larger number is not trusted.
const STREAM_BYTES_MAX: u64 = 64 << 20;

/// Writes the body. It may become durable after the header, which has its hash: a body that a crash kept from the disk
/// is not mistaken for this one.
pub(super) fn write(disk: &dyn Disk, table: &Table, streams: &Streams) -> Result<Extent> {
    let mut body = BodyWriter {
        disk,
        hasher: blake3::Hasher::new(),
        written: 0,
        piece: Vec::with_capacity(PIECE_BYTES + ENTRY_BYTES),
    };
    for (id, last) in streams {
        let last = last.encode();
        body.push(&id.0.to_le_bytes())?;
        body.push(&(last.len() as u32).to_le_bytes())?;
        body.push(&last)?;
    }
    let stream_bytes = body.written + body.piece.len() as u64;
    for entry in table.entries() {
        body.push(&entry)?;
    }
    body.flush()?;
    Ok(Extent {
        stream_bytes,
        rows: table.rows(),
        hash: *body.hasher.finalize().as_bytes(),
    })
}

struct BodyWriter<'a> {
    disk: &'a dyn Disk,
    hasher: blake3::Hasher,
    /// Bytes written, without the bytes of `piece`.
    written: u64,
    piece: Vec<u8>,
}

impl BodyWriter<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.piece.extend(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.hasher.update(&self.piece);
        self.disk
            .write_at(&self.piece, BODY_OFFSET + self.written)?;
        self.written += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }
}

/// The content that was written.
pub(super) struct Image {
    pub(super) table: Table,
    pub(super) streams: Streams,
    pub(super) counts: IndexCounts,
}

/// Reads the body that the header describes, into a table of this limit: a table beyond it keeps
/// its rows, because their references exist.
pub(super) fn read(disk: &dyn Disk, extent: &Extent, limit_bytes: u64) -> Result<Image> {
    let damaged = |what: &str| IndexError::Damaged(format!("{what} in the written image"));
    let row_bytes = extent.rows.checked_mul(ENTRY_BYTES as u64);
    let body_bytes = row_bytes.and_then(|bytes| bytes.checked_add(extent.stream_bytes));
    let body_bytes_max = disk.len()?.saturating_sub(BODY_OFFSET);
    let is_there = body_bytes.is_some_and(|bytes| bytes <= body_bytes_max);
    if extent.stream_bytes > STREAM_BYTES_MAX || !is_there {
        return Err(damaged("an impossible length"));
    }
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; extent.stream_bytes as usize];
    disk.read_at(&mut bytes, BODY_OFFSET)?;
    hasher.update(&bytes);
    let streams = decode_streams(&bytes).ok_or_else(|| damaged("an impossible stream"))?;
    let mut image = Image {
        table: Table::new(limit_bytes),
        streams,
        counts: IndexCounts::default(),
    };
    let mut offset = BODY_OFFSET + extent.stream_bytes;
    let mut left = extent.rows;
    while left > 0 {
        let rows = left.min((PIECE_BYTES / ENTRY_BYTES) as u64);
        bytes.resize(rows as usize * ENTRY_BYTES, 0);
        disk.read_at(&mut bytes, offset)?;
        hasher.update(&bytes);
        for entry in bytes.as_chunks().0 {
            let row = image.table.take_entry(entry);
            let row = row.ok_or_else(|| damaged("an impossible row"))?;
            image.counts.replace(None, Some(row));
        }
        offset += bytes.len() as u64;
        left -= rows;
    }
    if hasher.finalize() != extent.hash {
        return Err(damaged("a wrong hash"));
    }
    Ok(image)
}

fn decode_streams(mut bytes: &[u8]) -> Option<Streams> {
    let mut streams = Streams::new();
    while !bytes.is_empty() {
        let (id, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (last, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let id = StreamId(u64::from_le_bytes(*id));
        if streams.insert(id, LastBatch::decode(last)?).is_some() {
            return None;
        }
        bytes = rest;
    }
    Some(streams)
}
