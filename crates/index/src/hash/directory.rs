//! The segments: consecutive ranges of fingerprints, each with a run on the disk and the changes
//! that are not in it yet.

use std::ops::Range;

use hashbrown::HashTable;
use onefold_engine::Disk;
use onefold_format::PoolId;

use super::root::SegmentRecord;
use super::segment::{self, Run, Signatures, signature};
use crate::entry::{Entry, EntryBytes, hash};
use crate::row::PackedRow;
use crate::{Fingerprint, IndexError, Result};

/// Bytes that hashbrown takes for a change, at the fullness that its tables have on average: an
/// entry and a byte of control, in tables between seven sixteenths and seven eighths full.
pub(super) const CHANGE_BYTES: usize = 44;

/// A range of fingerprints, from `first` to the next segment's.
pub(super) struct Segment {
    pub(super) first: Fingerprint,
    /// Its rows as of frame `merged`.
    pub(super) run: Option<Run>,
    pub(super) merged: u64,
    /// Rows changed since, or that they are gone.
    changes: HashTable<Entry>,
    /// Of the run; `None` until they are needed.
    fences: Option<Vec<Fingerprint>>,
    /// Of the run; `None` until they are needed, or where there is no room for them.
    signatures: Option<Signatures>,
}

impl Segment {
    pub(super) fn new(first: Fingerprint, run: Option<Run>, merged: u64) -> Segment {
        Segment {
            first,
            run,
            merged,
            changes: HashTable::new(),
            fences: None,
            signatures: None,
        }
    }

    /// A segment whose run has just been written with these entries.
    pub(super) fn written(
        first: Fingerprint,
        run: Run,
        merged: u64,
        entries: &[EntryBytes],
        keeps_signatures: bool,
    ) -> Segment {
        let (fences, signatures) = segment::resident(entries, keeps_signatures);
        Segment {
            fences: Some(fences),
            signatures,
            ..Segment::new(first, Some(run), merged)
        }
    }

    pub(super) fn record(&self) -> SegmentRecord {
        SegmentRecord {
            first: self.first,
            run: self.run,
            merged: self.merged,
        }
    }

    /// At most so many rows are in run and changes.
    pub(super) fn rows_max(&self) -> usize {
        self.run.map_or(0, |it| it.rows as usize) + self.changes.len()
    }

    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// A change since the run was written: a row, or its removal.
    pub(super) fn change(&self, fingerprint: Fingerprint) -> Option<PackedRow> {
        let same = |it: &Entry| it.fingerprint == fingerprint;
        self.changes.find(hash(&fingerprint), same).map(|it| it.row)
    }

    /// The changes from a fingerprint on, in order.
    pub(super) fn changes_from(&self, from: Fingerprint) -> Vec<Entry> {
        let wanted = self.changes.iter().filter(|it| it.fingerprint >= from);
        let mut changes: Vec<Entry> = wanted.copied().collect();
        changes.sort_unstable_by_key(|it| it.fingerprint);
        changes
    }

    /// The leaf of the run, counted from its first, from which on rows can have this
    /// fingerprint or a larger one. The segment must be loaded, as for [`Segment::leaf_of`].
    pub(super) fn fence_before(&self, fingerprint: Fingerprint) -> u64 {
        let fences = self.fences.as_deref().unwrap_or_default();
        segment::fences_up_to(fences, fingerprint).saturating_sub(1) as u64
    }

    /// The leaf of the run, counted from its first, that has the fingerprint if any has.
    /// `None` if it would be before all of them.
    pub(super) fn leaf_of(&self, fingerprint: Fingerprint) -> Option<usize> {
        let fences = self.fences.as_deref().unwrap_or_default();
        segment::fences_up_to(fences, fingerprint).checked_sub(1)
    }

    /// Whether a leaf may have the fingerprint, as far as this is known without reading it.
    pub(super) fn may_have(&self, leaf: usize, fingerprint: Fingerprint) -> bool {
        let signatures = self.signatures.as_ref();
        signatures.is_none_or(|it| it.may_have(leaf, signature(fingerprint)))
    }

    fn fence_bytes(&self) -> usize {
        self.fences
            .as_ref()
            .map_or(0, |it| it.capacity() * size_of::<Fingerprint>())
    }

    pub(super) fn signature_bytes(&self) -> usize {
        self.signatures.as_ref().map_or(0, Signatures::bytes)
    }
}

/// Bytes of memory that the segments take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Footprint {
    pub(super) fences: usize,
    pub(super) signatures: usize,
}

/// All segments. They leave no gaps, and there is always one.
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Changes of all segments.
    changes: u64,
    footprint: Footprint,
}

impl Directory {
    /// One segment without rows.
    pub(super) fn empty() -> Directory {
        Directory {
            segments: vec![Segment::new(Fingerprint::default(), None, 0)],
            changes: 0,
            footprint: Footprint::default(),
        }
    }

    /// `None` for segments that leave a gap or overlap.
    pub(super) fn from_records(records: &[SegmentRecord]) -> Option<Directory> {
        let is_whole = records.first()?.first == Fingerprint::default();
        let is_sorted = records.is_sorted_by(|one, other| one.first < other.first);
        let segments = records
            .iter()
            .map(|it| Segment::new(it.first, it.run, it.merged));
        (is_whole && is_sorted).then(|| Directory {
            segments: segments.collect(),
            changes: 0,
            footprint: Footprint::default(),
        })
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// The segment of a fingerprint.
    pub(super) fn at(&self, fingerprint: Fingerprint) -> usize {
        let behind = self.segments.partition_point(|it| it.first <= fingerprint);
        behind.saturating_sub(1)
    }

    /// The first fingerprint behind a segment; the smallest one behind the last.
    pub(super) fn next_first(&self, at: usize) -> Fingerprint {
        self.segments
            .get(at + 1)
            .map(|it| it.first)
            .unwrap_or_default()
    }

    /// Notes a change to the row of a fingerprint.
    pub(super) fn set(&mut self, at: usize, entry: Entry) {
        let changes = &mut self.segments[at].changes;
        let same = |it: &Entry| it.fingerprint == entry.fingerprint;
        match changes.find_mut(hash(&entry.fingerprint), same) {
            Some(found) => *found = entry,
            None => {
                changes.insert_unique(hash(&entry.fingerprint), entry, |it| hash(&it.fingerprint));
                self.changes += 1;
            }
        }
    }

    /// Puts other segments into the place of some, of which all changes are forgotten.
    pub(super) fn replace(&mut self, range: Range<usize>, by: Vec<Segment>) {
        for new in &by {
            self.footprint.fences += new.fence_bytes();
            self.footprint.signatures += new.signature_bytes();
        }
        for gone in &self.segments[range.clone()] {
            self.changes -= gone.changes.len() as u64;
            self.footprint.fences -= gone.fence_bytes();
            self.footprint.signatures -= gone.signature_bytes();
        }
        drop(self.segments.splice(range, by));
    }

    /// Reads the data needed to look for rows in a segment, unless it is there already.
    pub(super) fn load(
        &mut self,
        at: usize,
        disk: &dyn Disk,
        pool: PoolId,
        signatures_max: usize,
    ) -> Result<()> {
        let segment = &mut self.segments[at];
        let Some(run) = segment.run else {
            return Ok(());
        };
        if segment.fences.is_some() {
            return Ok(());
        }
        let fences = segment::read_fences(disk, pool, run)?;
        let is_right = fences.is_sorted_by(|one, other| one < other)
            && fences.first().is_some_and(|it| *it >= segment.first);
        if !is_right {
            return Err(IndexError::Damaged(format!(
                "the fences of the run in page {}",
                run.start
            )));
        }
        segment.fences = Some(fences);
        let bytes = Signatures::bytes_for(run.rows as usize);
        if self.footprint.signatures + bytes <= signatures_max {
            segment.signatures = Some(segment::read_signatures(disk, pool, run)?);
        }
        self.footprint.fences += segment.fence_bytes();
        self.footprint.signatures += segment.signature_bytes();
        Ok(())
    }
}
