//! The segments: consecutive ranges of fingerprints, each with a run on the disk and the changes that are not in the
//! run yet. Memory only: `shared` reads the runs.

use std::ops::Range;

use hashbrown::HashTable;

use super::root::SegmentRecord;
use super::segment::{self, Run, Signatures, signature};
use crate::entry::{Entry, EntryBytes, hash};
use crate::row::PackedRow;
use crate::{Fingerprint, IndexError, LookedUp, Result};

/// Bytes that hashbrown takes for a change, at the fullness that its tables have on average: an
/// entry and a byte of control, in tables between seven sixteenths and seven eighths full.
pub(super) const CHANGE_BYTES: usize = 44;

/// A range of fingerprints, from `first` to the next segment's.
pub(super) struct Segment {
    pub(super) first: Fingerprint,
    /// The segment's rows as of frame `merged`.
    pub(super) run: Option<Run>,
    pub(super) merged: u64,
    /// Rows that were changed or removed since.
    changes: HashTable<Entry>,
    /// The run's fences; `None` until they are needed.
    fences: Option<Vec<Fingerprint>>,
    /// The run's signatures; `None` until they are needed, or if there is no room for them.
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

    /// The most rows that run and changes can have together.
    pub(super) fn rows_max(&self) -> usize {
        self.run.map_or(0, |run| run.rows as usize) + self.changes.len()
    }

    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Whether the data needed to look for rows of the run is in memory.
    pub(super) fn is_loaded(&self) -> bool {
        self.run.is_none() || self.fences.is_some()
    }

    /// A change since the run was written: a row, or its removal.
    pub(super) fn change(&self, fingerprint: Fingerprint) -> Option<PackedRow> {
        let same = |entry: &Entry| entry.fingerprint == fingerprint;
        self.changes
            .find(hash(&fingerprint), same)
            .map(|entry| entry.row)
    }

    /// The changes from a fingerprint on, in order.
    pub(super) fn changes_from(&self, from: Fingerprint) -> Vec<Entry> {
        let wanted = self
            .changes
            .iter()
            .filter(|entry| entry.fingerprint >= from);
        let mut changes: Vec<Entry> = wanted.copied().collect();
        changes.sort_unstable_by_key(|entry| entry.fingerprint);
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
        signatures.is_none_or(|signatures| signatures.may_have(leaf, signature(fingerprint)))
    }

    fn fence_bytes(&self) -> usize {
        self.fences
            .as_ref()
            .map_or(0, |fences| fences.capacity() * size_of::<Fingerprint>())
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

/// A segment whose run cannot be searched before data of it is loaded.
pub(super) struct Unloaded {
    pub(super) run: Run,
    /// Whether there is room for the run's signatures.
    pub(super) has_room: bool,
}

/// The data needed to look for rows of a run.
pub(super) struct Resident {
    pub(super) fences: Vec<Fingerprint>,
    pub(super) signatures: Option<Signatures>,
}

/// The answer about a fingerprint from memory alone.
pub(super) enum Known {
    /// The whole answer.
    Answer(LookedUp),
    /// The answer is in this leaf.
    Leaf(Run, u64),
    /// Unknown, as long as the segment is not loaded.
    Unloaded,
}

/// All segments. They leave no gaps, and there is always one.
pub(super) struct Directory {
    segments: Vec<Segment>,
    /// Changes of all segments.
    changes: u64,
    footprint: Footprint,
    /// Bytes that signatures may take.
    signatures_max: usize,
}

impl Directory {
    /// A directory of one segment without rows.
    pub(super) fn empty() -> Directory {
        Directory {
            segments: vec![Segment::new(Fingerprint::default(), None, 0)],
            changes: 0,
            footprint: Footprint::default(),
            signatures_max: 0,
        }
    }

    /// `None` for segments that leave a gap or overlap.
    pub(super) fn from_records(records: &[SegmentRecord]) -> Option<Directory> {
        let is_whole = records.first()?.first == Fingerprint::default();
        let is_sorted = records.is_sorted_by(|one, other| one.first < other.first);
        let segments = records
            .iter()
            .map(|record| Segment::new(record.first, record.run, record.merged));
        (is_whole && is_sorted).then(|| Directory {
            segments: segments.collect(),
            changes: 0,
            footprint: Footprint::default(),
            signatures_max: 0,
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
        let behind = self
            .segments
            .partition_point(|segment| segment.first <= fingerprint);
        behind.saturating_sub(1)
    }

    /// The first fingerprint behind a segment; the smallest one behind the last.
    pub(super) fn next_first(&self, at: usize) -> Fingerprint {
        self.segments
            .get(at + 1)
            .map(|segment| segment.first)
            .unwrap_or_default()
    }

    /// Whether a fingerprint, which is not before a segment, is behind it.
    pub(super) fn is_behind(&self, at: usize, fingerprint: Fingerprint) -> bool {
        let next = self.segments.get(at + 1);
        next.is_some_and(|segment| segment.first <= fingerprint)
    }

    /// Answers from memory about a fingerprint.
    pub(super) fn known(&self, fingerprint: Fingerprint) -> Known {
        let absent = Known::Answer(LookedUp::AbsentBySignature);
        let segment = &self.segments[self.at(fingerprint)];
        if let Some(changed) = segment.change(fingerprint) {
            return Known::Answer(LookedUp::of(changed.row()));
        }
        let Some(run) = segment.run else {
            return absent;
        };
        if !segment.is_loaded() {
            return Known::Unloaded;
        }
        match segment.leaf_of(fingerprint) {
            Some(leaf) if segment.may_have(leaf, fingerprint) => {
                Known::Leaf(run, run.first_leaf() + leaf as u64)
            }
            _ => absent,
        }
    }

    /// The run of the segment that has a fingerprint.
    pub(super) fn run_of(&self, fingerprint: Fingerprint) -> Option<Run> {
        self.segments[self.at(fingerprint)].run
    }

    /// Notes changes, which are sorted.
    pub(super) fn note(&mut self, rows: &[Entry]) {
        let Some(first) = rows.first() else {
            return;
        };
        let mut at = self.at(first.fingerprint);
        for row in rows {
            while self.is_behind(at, row.fingerprint) {
                at += 1;
            }
            self.set(at, *row);
        }
    }

    /// Notes a change to the row of a fingerprint.
    pub(super) fn set(&mut self, at: usize, entry: Entry) {
        let changes = &mut self.segments[at].changes;
        let same = |other: &Entry| other.fingerprint == entry.fingerprint;
        match changes.find_mut(hash(&entry.fingerprint), same) {
            Some(found) => *found = entry,
            None => {
                changes.insert_unique(hash(&entry.fingerprint), entry, |other| {
                    hash(&other.fingerprint)
                });
                self.changes += 1;
            }
        }
    }

    /// Replaces segments by others, and forgets all changes of the replaced ones. Returns these.
    pub(super) fn replace(&mut self, range: Range<usize>, by: Vec<Segment>) -> Vec<Segment> {
        for new in &by {
            self.footprint.fences += new.fence_bytes();
            self.footprint.signatures += new.signature_bytes();
        }
        for gone in &self.segments[range.clone()] {
            self.changes -= gone.changes.len() as u64;
            self.footprint.fences -= gone.fence_bytes();
            self.footprint.signatures -= gone.signature_bytes();
        }
        self.segments.splice(range, by).collect()
    }

    pub(super) fn set_signatures_max(&mut self, bytes: usize) {
        self.signatures_max = bytes;
    }

    /// The run whose data has to be loaded to look for a fingerprint; `None` if it is loaded.
    pub(super) fn unloaded(&self, fingerprint: Fingerprint) -> Option<Unloaded> {
        let segment = &self.segments[self.at(fingerprint)];
        let run = segment.run.filter(|_| !segment.is_loaded())?;
        let has_room = self.has_room(run);
        Some(Unloaded { run, has_room })
    }

    fn has_room(&self, run: Run) -> bool {
        let bytes = Signatures::bytes_for(run.rows as usize);
        self.footprint.signatures + bytes <= self.signatures_max
    }

    /// Keeps the loaded data of the run that has a fingerprint. Ignores it if the run has been replaced, or is loaded
    /// already. Fences that no run can have are damage.
    pub(super) fn keep(
        &mut self,
        fingerprint: Fingerprint,
        run: Run,
        Resident { fences, signatures }: Resident,
    ) -> Result<()> {
        // Other segments may have taken the room since.
        let has_room = self.has_room(run);
        let at = self.at(fingerprint);
        let segment = &mut self.segments[at];
        if segment.run != Some(run) || segment.is_loaded() {
            return Ok(());
        }
        let is_right = fences.is_sorted_by(|one, other| one < other)
            && fences.first().is_some_and(|fence| *fence >= segment.first);
        if !is_right {
            return Err(IndexError::Damaged(format!(
                "the fences of the run in page {}",
                run.start
            )));
        }
        segment.fences = Some(fences);
        segment.signatures = signatures.filter(|_| has_room);
        self.footprint.fences += segment.fence_bytes();
        self.footprint.signatures += segment.signature_bytes();
        Ok(())
    }
}
