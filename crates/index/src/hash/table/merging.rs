//! Merging the changes of a segment with its run, one segment after the other.

use std::ops::Range;

use super::{Buffers, Merge, Table};
use crate::Fingerprint;
use crate::entry::{Entry, EntryBytes, fingerprint_of};
use crate::hash::directory::{CHANGE_BYTES, Directory, Segment};
use crate::hash::frame::Change;
use crate::hash::segment::{self, Run, Signatures};
use crate::hash::space::Extent;
use crate::row::PackedRow;
use crate::{IndexError, Result};

/// Bytes of the log for a row: twice the bytes of its changes in memory.
const LOG_BYTES_PER_ROW: u64 = 8;

/// A merge's input, copied from the directory, which is not locked during I/O.
struct Turn {
    segments: Range<usize>,
    first: Fingerprint,
    /// Memory of the signatures that are replaced.
    signature_bytes: usize,
    /// The run and the changes of each segment.
    parts: Vec<(Option<Run>, Vec<Entry>)>,
}

impl Table {
    /// Changes that may be in memory: a share of the rows, as far as a third of the memory holds
    /// them.
    pub(super) fn changes_max(&self) -> u64 {
        let wanted = (self.counts.rows() / self.shape.rows_per_change).max(self.shape.changes_min);
        let fences = self.shared.directory().footprint().fences;
        let room = self.limit_bytes.saturating_sub(fences) / 3;
        wanted.min((room / CHANGE_BYTES) as u64)
    }

    /// Does the merges and checkpoints that are due.
    pub(super) fn maintain(&mut self) -> Result<()> {
        let mut turns = self.shared.directory().segments().len();
        while turns > 0 && (self.changes() > self.changes_max() || self.is_log_long()) {
            self.merge_next()?;
            turns -= 1;
        }
        let (extents, unneeded) = self.log.extents_before(self.needed());
        if self.is_durable && self.checkpoint.is_none() && unneeded > extents / 4 {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    fn is_log_long(&self) -> bool {
        let max = (self.counts.rows() * LOG_BYTES_PER_ROW).max(self.shape.log_bytes_min);
        self.log.bytes_from(self.needed()) > max
    }

    /// The first frame whose changes are not all in runs.
    pub(super) fn needed(&self) -> u64 {
        let directory = self.shared.directory();
        let segments = directory.segments().iter();
        let changed = segments.filter(|segment| segment.changes() > 0);
        let merged = changed.map(|segment| segment.merged).min();
        merged.unwrap_or(self.log.last()) + 1
    }

    /// Merges the segment whose turn it is; with the next one, if both are small.
    pub(super) fn merge_next(&mut self) -> Result<()> {
        let Some(turn) = self.next_turn() else {
            return Ok(());
        };
        self.read_merged(&turn)?;
        let merged = self.log.last();
        let generation = self.next_generation;
        self.next_generation += 1;
        let signatures = self.shared.directory().footprint().signatures;
        let signatures_max =
            (self.signatures_max() + turn.signature_bytes).saturating_sub(signatures);
        let mut replacement = Vec::new();
        let written = self.write_runs(
            turn.first,
            merged,
            generation,
            signatures_max,
            &mut replacement,
        );
        if let Err(error) = written {
            // Nothing refers to the pages that were written. Runs of another generation are never
            // mistaken for them.
            let runs = replacement.iter().filter_map(|segment| segment.run);
            runs.for_each(|run| self.space.give(run.extent()));
            return Err(error);
        }
        let change = Change {
            generation,
            first: turn.first,
            replaced: turn.segments.len() as u32,
            segments: replacement.iter().map(Segment::record).collect(),
        };
        let replaced = {
            let mut directory = self.shared.directory_mut();
            let behind = turn.segments.start + replacement.len() - 1;
            let replaced = directory.replace(turn.segments, replacement);
            self.cursor = directory.next_first(behind);
            replaced
        };
        let old: Vec<Extent> = replaced
            .iter()
            .filter_map(|segment| Some(segment.run?.extent()))
            .collect();
        if self.is_durable {
            self.written.push(Merge { change, old });
            Ok(())
        } else {
            self.free(old)
        }
    }

    /// The segments whose turn it is; `None`, which ends the turn, if there is nothing to do.
    fn next_turn(&mut self) -> Option<Turn> {
        let directory = self.shared.directory();
        let at = directory.at(self.cursor);
        let end = at + joined_at(&directory, at, self.shape.segment_rows);
        let segments = &directory.segments()[at..end];
        if let [segment] = segments
            && segment.changes() == 0
        {
            self.cursor = directory.next_first(at);
            return None;
        }
        let parts = segments
            .iter()
            .map(|segment| (segment.run, segment.changes_from(Fingerprint::default())));
        Some(Turn {
            segments: at..end,
            first: segments[0].first,
            signature_bytes: segments.iter().map(Segment::signature_bytes).sum(),
            parts: parts.collect(),
        })
    }

    /// Merges the runs and changes of these segments into the buffer `new`.
    fn read_merged(&mut self, turn: &Turn) -> Result<()> {
        let Buffers {
            bytes, old, new, ..
        } = &mut self.buffers;
        new.clear();
        for (run, changes) in &turn.parts {
            old.clear();
            if let Some(run) = run {
                segment::read_entries(&*self.disk, self.pool, *run, bytes, old)?;
            }
            merge(old, changes.iter().copied(), new);
        }
        Ok(())
    }

    /// Writes the merged rows as runs of segments, the first of which begins with `first`, as of frame `merged`. After
    /// an error `into` has the segments whose space was taken.
    fn write_runs(
        &mut self,
        first: Fingerprint,
        merged: u64,
        generation: u64,
        signatures_max: usize,
        into: &mut Vec<Segment>,
    ) -> Result<()> {
        let rows = &self.buffers.new;
        let pieces = rows.len().div_ceil(self.shape.segment_rows).max(1);
        let rows_each = rows.len().div_ceil(pieces).max(1);
        let mut room = signatures_max;
        for entries in rows.chunks(rows_each) {
            let run = Run {
                start: self.space.take(segment::pages_of(entries.len())).start,
                rows: entries.len() as u32,
                generation,
            };
            let first = if into.is_empty() {
                first
            } else {
                fingerprint_of(&entries[0])
            };
            let bytes = Signatures::bytes_for(entries.len());
            let has_room = bytes <= room;
            room = room.saturating_sub(bytes);
            into.push(Segment::written(first, run, merged, entries, has_room));
            segment::encode(self.pool, run, entries, &mut self.buffers.bytes);
            self.disk
                .write_at(&self.buffers.bytes, run.extent().offset())
                .map_err(IndexError::of_write)?;
        }
        if into.is_empty() {
            into.push(Segment::new(first, None, merged));
        }
        Ok(())
    }
}

/// How many segments from this one on are merged into one: two if both have few rows.
fn joined_at(directory: &Directory, at: usize, segment_rows: usize) -> usize {
    let rows = |at: usize| directory.segments().get(at).map(Segment::rows_max);
    match (rows(at), rows(at + 1)) {
        (Some(one), Some(other)) if one + other <= segment_rows / 2 => 2,
        _ => 1,
    }
}

/// Rows with the changes made to them, both in order. Rows that are gone are left out.
pub(super) fn merge(
    rows: &[EntryBytes],
    changes: impl Iterator<Item = Entry>,
    into: &mut Vec<EntryBytes>,
) {
    let mut rest = rows;
    for change in changes {
        // A few rows are between two changes, so the next one is not far.
        let behind = rest
            .iter()
            .position(|row| fingerprint_of(row) >= change.fingerprint);
        let (before, behind) = rest.split_at(behind.unwrap_or(rest.len()));
        into.extend_from_slice(before);
        rest = match behind.split_first() {
            Some((same, behind)) if fingerprint_of(same) == change.fingerprint => behind,
            _ => behind,
        };
        if change.row != PackedRow::NONE {
            into.push(change.to_bytes());
        }
    }
    into.extend_from_slice(rest);
}
