//! The rows: reads and changes of batches, and the schedule of writes.
//!
//! # A batch
//!
//! 1. Recently changed rows are in memory. For the others, signatures exclude those that cannot
//!    exist, and the leaves of the rest are read, many at a time.
//! 2. The changes of the batch become one frame of the log, with the answers and the counts. A sync
//!    makes it durable. Only then is anything changed in memory, where lookups see it (`shared`).
//! 3. If there are too many changes in memory, segments are merged, one after the other in the
//!    order of fingerprints: the rows of the run and the changes become a new run, in free space.
//!
//! # The steps of a merge
//!
//! A new run is *written*; the next sync, for any purpose, makes it durable; the frame after that
//! refers to it; when that frame is durable, the pages of the old run are free. So a merge costs no
//! sync of its own. If a crash comes first, the old run is there, and the log still has its
//! changes.
//!
//! The log is needed from the first frame on whose changes are not in the run of their segment. As
//! segments take turns, that moves on, and a checkpoint moves the beginning of the log. Its steps
//! (checkpoint, one slot, the other slot, free the pages of the older one) are each followed by a
//! sync that happens anyway.
//!
//! # Where there is no room
//!
//! A batch whose frame cannot be written is refused, and nothing is changed. The rest, that is merges, checkpoints and
//! reservations, happens after a batch is durable; a step that fails for want of room leaves the state unchanged, and
//! is retried after the next batch. Batches are refused for it only if their changes would not fit in memory, until a
//! merge finds room.

mod lookup;
mod merging;
mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;

use onefold_engine::{Blocking, Disk};
use onefold_format::PoolId;

use crate::entry::{Entry, EntryBytes, fingerprint_of};
use crate::guarded::Searchable;
use crate::hash::directory::{Directory, Segment};
use crate::hash::frame::{Change, Frame, Streams};
use crate::hash::log::{self, FRAME_HEADER_BYTES, Log, Reader, unique_number};
use crate::hash::root::{self, Beside, Checkpoint, SLOT_PAGES, SegmentRecord, Slot};
use crate::hash::segment::{self, Run};
use crate::hash::shared::Shared;
use crate::hash::space::{Extent, Space, pages_for};
use crate::header::BODY_OFFSET;
use crate::stream::{self, Answer, Answers, LastBatch};
use crate::{Fingerprint, IndexCounts, IndexError, Result, Row, StreamId};
pub(super) use lookup::Lookup;
use lookup::{Found, Wanted};
use merging::merge;

/// Rows that a batch notes before it lets lookups continue: a few tens of microseconds.
const NOTED_TOGETHER: usize = 256;

/// Sizes that decide when something is done, but not its result. Tests make them small.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Rows in a segment: half this many to this many. A merge reads and writes that much.
    pub segment_rows: usize,
    /// Rows for which there may be one change in memory.
    pub rows_per_change: u64,
    /// The least limit on changes in memory, however few rows there are.
    pub changes_min: u64,
    /// Additional changes that are accepted while merges find no room on the disk.
    pub changes_behind: u64,
    /// Pages in an extent of the log.
    pub log_pages: u64,
    /// The least limit on bytes of the log, however few rows there are.
    pub log_bytes_min: u64,
    /// Free pages that stay allocated, however little is in use.
    pub spare_pages: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            segment_rows: 32_768,
            rows_per_change: 20,
            changes_min: 32_768,
            changes_behind: 65_536,
            log_pages: 1024,
            log_bytes_min: 16 << 20,
            spare_pages: 4096,
        }
    }
}

/// The rows of an index on its disk.
pub(super) struct Table {
    disk: Arc<dyn Disk>,
    pool: PoolId,
    shape: Shape,
    limit_bytes: usize,
    /// The segments. Batches alone replace them.
    shared: Arc<Shared>,
    space: Space,
    log: Log,
    streams: BTreeMap<StreamId, LastBatch>,
    beside: Beside,
    counts: IndexCounts,
    /// The segment of this fingerprint is merged next.
    cursor: Fingerprint,
    next_generation: u64,
    /// Merges that a crash would undo, in their order.
    written: Vec<Merge>,
    /// Merges whose runs are durable; the next frame refers to them.
    durable: Vec<Merge>,
    /// The root in the slots.
    root: Option<Slot>,
    checkpoint: Option<Pending>,
    /// The last frame that the newest checkpoint has.
    checkpointed: u64,
    /// Whether the content of the disk is valid. If not, nothing there has to survive.
    is_durable: bool,
    buffers: Buffers,
}

/// A merge of one or two segments into others.
struct Merge {
    change: Change,
    old: Vec<Extent>,
}

/// A checkpoint on its way into the slots.
struct Pending {
    slot: Slot,
    /// The frame with which the log begins after the checkpoint.
    log_start: u64,
    slots_written: u64,
}

/// Large allocations that are needed all the time: each kept, so that they leave no gaps between
/// long-lived allocations.
#[derive(Default)]
struct Buffers {
    /// A run that is read or written.
    bytes: Vec<u8>,
    old: Vec<EntryBytes>,
    new: Vec<EntryBytes>,
    frame: Vec<u8>,
    /// Leaves that a batch reads, and the fingerprints that need them.
    leaves: Vec<u8>,
    wanted: Vec<Wanted>,
    may_have: Vec<bool>,
    found: Vec<Found>,
    changed: Vec<Entry>,
}

impl Table {
    /// A table without rows, over the old content of the disk. It is not valid before
    /// [`Table::make_durable`].
    pub(super) fn empty(
        disk: Arc<dyn Disk>,
        pool: PoolId,
        limit_bytes: u64,
        shape: Shape,
    ) -> Result<Table> {
        let len = disk.len()?;
        if len > BODY_OFFSET {
            put_off(
                disk.discard(BODY_OFFSET, len - BODY_OFFSET)
                    .map_err(IndexError::of_write),
            )?;
        }
        let mut space = Space::behind(SLOT_PAGES);
        let log = Log::new(pool, unique_number(), shape.log_pages, &mut space);
        let directory = Directory::empty();
        Ok(Table::new(
            disk,
            pool,
            limit_bytes,
            shape,
            directory,
            space,
            log,
        ))
    }

    fn new(
        disk: Arc<dyn Disk>,
        pool: PoolId,
        limit_bytes: u64,
        shape: Shape,
        directory: Directory,
        space: Space,
        log: Log,
    ) -> Table {
        let shared = Shared::new(Arc::clone(&disk), pool, directory);
        let table = Table {
            disk,
            pool,
            shape,
            limit_bytes: usize::try_from(limit_bytes).unwrap_or(usize::MAX),
            shared: Arc::new(shared),
            space,
            log,
            streams: BTreeMap::new(),
            beside: Beside::default(),
            counts: IndexCounts::default(),
            cursor: Fingerprint::default(),
            next_generation: 1,
            written: Vec::new(),
            durable: Vec::new(),
            root: None,
            checkpoint: None,
            checkpointed: 0,
            is_durable: false,
            buffers: Buffers::default(),
        };
        table.allot_signatures();
        table
    }

    /// The table that is on the disk.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        pool: PoolId,
        limit_bytes: u64,
        shape: Shape,
    ) -> Result<Table> {
        let damaged = |what: &str| IndexError::Damaged(what.to_owned());
        let (slot, checkpoint) = root::read(&*disk, pool)?;
        let reader = Reader {
            disk: &*disk,
            pool,
            life: checkpoint.life,
            start: checkpoint.log,
        };
        // The segments must be known before the changes that they lack can be determined.
        let mut records = checkpoint.segments.clone();
        let mut next_generation = checkpoint.next_generation;
        let first_pass = reader.replay(shape.log_pages, &mut |_, kind, body| {
            let frame = Frame::decode(kind, body).ok_or_else(|| damaged("a frame of its log"))?;
            for change in frame
                .changes
                .iter()
                .filter(|change| change.generation >= checkpoint.next_generation)
            {
                change
                    .apply(&mut records)
                    .ok_or_else(|| damaged("a merge in its log"))?;
                next_generation = next_generation.max(change.generation + 1);
            }
            Ok(())
        })?;
        let mut directory =
            Directory::from_records(&records).ok_or_else(|| damaged("its segments"))?;
        let (mut counts, mut streams) = (checkpoint.counts, checkpoint.streams);
        let mut beside = checkpoint.beside;
        let log = reader.replay(shape.log_pages, &mut |sequence, kind, body| {
            let frame = Frame::decode(kind, body).ok_or_else(|| damaged("a frame of its log"))?;
            if sequence > checkpoint.last {
                counts = frame.counts;
                frame.streams.replace_in(&mut streams, &mut beside);
            }
            for entry in frame.rows.iter().map(Entry::from_bytes) {
                let at = directory.at(entry.fingerprint);
                // Changes that a run already has would do no harm, only take memory.
                if sequence > directory.segments()[at].merged {
                    directory.set(at, entry);
                }
            }
            Ok(())
        })?;
        if log.last() < checkpoint.last || log.last() != first_pass.last() {
            return Err(damaged("its log ends before its checkpoint"));
        }
        let space = space_beside(&directory, &log, slot);
        let space = space.ok_or_else(|| damaged("two things in one place"))?;
        let table = Table {
            streams,
            beside,
            counts,
            cursor: checkpoint.cursor,
            next_generation,
            root: Some(slot),
            checkpointed: checkpoint.last,
            is_durable: true,
            ..Table::new(disk, pool, limit_bytes, shape, directory, space, log)
        };
        table.allot_signatures();
        Ok(table)
    }

    pub(super) fn counts(&self) -> IndexCounts {
        self.counts
    }

    /// Answers a batch: from the stream if it is the last one again, else by changing rows.
    pub(super) fn batch<A: Answer>(
        &mut self,
        stream: StreamId,
        number: u64,
        apply: impl FnOnce(&mut Lookup<'_>, &mut IndexCounts) -> Result<Vec<A>>,
    ) -> Result<Vec<A>> {
        if let Some(answers) = stream::repeated(stream, self.streams.get(&stream), number)? {
            return Ok(answers);
        }
        self.catch_up(0)?;
        let mut counts = self.counts;
        let mut lookup = Lookup::new(self);
        let answers = apply(&mut lookup, &mut counts)?;
        let changed = lookup.into_changed();
        let last = LastBatch {
            number,
            answers: A::wrap(answers.clone()),
        };
        self.complete(Streams::One(stream, last), counts, changed)?;
        Ok(answers)
    }

    /// Makes changes durable, then visible, and does the work that is due after them.
    ///
    /// # Errors
    /// [`IndexError::NoRoom`] leaves everything as it was.
    fn complete(
        &mut self,
        streams: Streams,
        counts: IndexCounts,
        changed: Vec<Entry>,
    ) -> Result<()> {
        self.commit(&streams, counts, &changed)?;
        self.note(&changed);
        self.buffers.changed = changed;
        self.counts = counts;
        streams.replace_in(&mut self.streams, &mut self.beside);
        put_off(self.go_on_with_checkpoint())?;
        put_off(self.maintain())?;
        put_off(self.log.secure(&*self.disk, &mut self.space, 0))
    }

    /// Changes in memory.
    fn changes(&self) -> u64 {
        self.shared.directory().changes()
    }

    /// Makes sure that a batch may follow batches of this many items. That takes merges only if earlier ones found no
    /// room.
    fn catch_up(&mut self, items: u64) -> Result<()> {
        let max = (self.changes_max() + self.shape.changes_behind).saturating_sub(items);
        if self.changes() <= max {
            return Ok(());
        }
        match self.maintain() {
            Err(IndexError::NoRoom(_)) if self.changes() <= max => Ok(()),
            maintained => maintained,
        }
    }

    /// Secures room for batches with these numbers of items.
    pub(super) fn secure(&mut self, batches: &[usize]) -> Result<()> {
        self.catch_up(batches.iter().map(|items| *items as u64).sum())?;
        let merges = self.durable.iter().chain(&self.written);
        let merges: usize = merges.map(|merge| merge.change.bytes()).sum();
        let frames = batches
            .iter()
            .map(|items| log::frame_bytes(Frame::bytes_max(*items)));
        let bytes = frames.fold(merges, usize::saturating_add);
        self.log.secure(&*self.disk, &mut self.space, bytes)
    }

    /// Writes a frame and makes it durable, and with it the merges that are ready.
    ///
    /// # Errors
    /// [`IndexError::NoRoom`] leaves everything as it was.
    fn commit(&mut self, streams: &Streams, counts: IndexCounts, changed: &[Entry]) -> Result<()> {
        let frame = &mut self.buffers.frame;
        frame.clear();
        frame.resize(FRAME_HEADER_BYTES, 0);
        let changes = self.durable.iter().map(|merge| &merge.change);
        Frame::encode(changes, counts, streams, changed, frame);
        let kind = streams.kind();
        self.log.append(&*self.disk, &mut self.space, kind, frame)?;
        self.disk.sync()?;
        self.log.synced();
        let named = std::mem::replace(&mut self.durable, std::mem::take(&mut self.written));
        self.free(named.into_iter().flat_map(|merge| merge.old))
    }

    /// Frees pages that nothing refers to any more; discards them, too, if many are free.
    fn free(&mut self, extents: impl IntoIterator<Item = Extent>) -> Result<()> {
        for extent in extents {
            self.space.give(extent);
            if self.space.is_roomy(self.shape.spare_pages) {
                // Some file systems need room to make a hole. Without one the pages stay ours.
                let discarded = self.disk.discard(extent.offset(), extent.bytes());
                put_off(discarded.map_err(IndexError::of_write))?;
            }
        }
        Ok(())
    }

    /// Keeps rows, which are sorted, as changes of their segments. From here on lookups find them.
    fn note(&self, rows: &[Entry]) {
        for some in rows.chunks(NOTED_TOGETHER) {
            self.shared.directory_mut().note(some);
        }
    }

    /// Adds rows counted from the maps. Not durable before [`Table::make_durable`].
    pub(super) fn add(&mut self, rows: &[(Fingerprint, Row)]) -> Result<Vec<(Fingerprint, Row)>> {
        self.catch_up(0)?;
        let mut counts = self.counts;
        let mut lookup = Lookup::new(self);
        let refused = crate::batch::add(&mut lookup, &mut counts, rows)?;
        let changed = lookup.into_changed();
        self.note(&changed);
        self.buffers.changed = changed;
        self.counts = counts;
        put_off(self.maintain())?;
        Ok(refused)
    }

    /// Makes the next opening quick, and leaves nothing of the log to chance: a frame that cannot be
    /// read later is known to be missing. Where there is no room, the log has everything all the
    /// same.
    pub(super) fn close(&mut self) -> Result<()> {
        put_off(self.checkpoint_all())
    }

    fn checkpoint_all(&mut self) -> Result<()> {
        self.finish_checkpoint()?;
        if self.checkpointed < self.log.last() {
            self.begin_checkpoint()?;
            self.finish_checkpoint()?;
        }
        Ok(())
    }

    fn finish_checkpoint(&mut self) -> Result<()> {
        while self.checkpoint.is_some() {
            self.disk.sync()?;
            self.go_on_with_checkpoint()?;
        }
        Ok(())
    }

    /// Ends a rebuild: from here on the disk holds the table, and every batch is durable. May be
    /// called again where it found no room.
    pub(super) fn make_durable(&mut self, last_numbers: &[(StreamId, u64)]) -> Result<()> {
        self.cursor = Fingerprint::default();
        while self.changes() > 0 {
            self.merge_next()?;
        }
        self.streams = last_numbers
            .iter()
            .map(|&(stream, number)| {
                let answers = Answers::Forgotten;
                (stream, LastBatch { number, answers })
            })
            .collect();
        self.finish_checkpoint()?;
        self.begin_checkpoint()?;
        self.finish_checkpoint()?;
        self.is_durable = true;
        Ok(())
    }

    /// Rows from a fingerprint on, at most `max`.
    pub(super) fn rows(
        &mut self,
        from: Fingerprint,
        max: usize,
    ) -> Result<Vec<(Fingerprint, Row)>> {
        let mut rows = Vec::new();
        let mut from = Some(from);
        while let Some(first) = from.filter(|_| rows.len() < max) {
            let mut merged = Vec::new();
            let last = self.merged_from(first, max - rows.len(), &mut merged)?;
            let wanted = merged.iter().take(max - rows.len());
            let wanted = wanted.map(Entry::from_bytes);
            rows.extend(wanted.filter_map(|entry| Some((entry.fingerprint, entry.row.row()?))));
            from = match last {
                Some(last) => last.successor(),
                None => self.first_behind(first),
            };
        }
        Ok(rows)
    }

    /// The first fingerprint of the segment behind the one that has this one.
    fn first_behind(&self, fingerprint: Fingerprint) -> Option<Fingerprint> {
        let directory = self.shared.directory();
        let behind = directory.at(fingerprint) + 1;
        directory
            .segments()
            .get(behind)
            .map(|segment| segment.first)
    }

    /// Appends rows of a segment from a fingerprint on, about `max` rows from as many leaves of its
    /// run as that takes. Returns the last fingerprint that was read, if there are more.
    fn merged_from(
        &mut self,
        from: Fingerprint,
        max: usize,
        into: &mut Vec<EntryBytes>,
    ) -> Result<Option<Fingerprint>> {
        self.allot_signatures();
        self.shared.load(from, Blocking::Yes)?;
        let (run, first, changes) = {
            let directory = self.shared.directory();
            let segment = &directory.segments()[directory.at(from)];
            let first = segment.fence_before(from);
            (segment.run, first, segment.changes_from(from))
        };
        let (mut entries, mut last) = (Vec::new(), None);
        if let Some(run) = run {
            let behind =
                (first + max.div_ceil(segment::ROWS_PER_LEAF) as u64 + 1).min(run.leaves());
            segment::read_leaves(
                &*self.disk,
                self.pool,
                run,
                first..behind,
                &mut Vec::new(),
                &mut entries,
            )?;
            if behind < run.leaves() {
                last = entries.last().map(fingerprint_of);
            }
        }
        let is_read = |entry: &Entry| last.is_none_or(|last| entry.fingerprint <= last);
        let changes = changes.into_iter().take_while(is_read);
        let before = entries.partition_point(|entry| fingerprint_of(entry) < from);
        merge(&entries[before..], changes, into);
        Ok(last)
    }

    /// Writes a checkpoint. It may refer to runs that are not durable yet: they are before a slot
    /// points to it.
    fn begin_checkpoint(&mut self) -> Result<()> {
        let log = self.log.start_for(self.needed());
        let segments = {
            let directory = self.shared.directory();
            directory.segments().iter().map(Segment::record).collect()
        };
        let checkpoint = Checkpoint {
            life: self.log.life(),
            next_generation: self.next_generation,
            last: self.log.last(),
            counts: self.counts,
            cursor: self.cursor,
            log,
            segments,
            streams: self.streams.clone(),
            beside: self.beside.clone(),
        };
        let mut bytes = checkpoint.encode();
        let extent = self.space.take(pages_for(bytes.len()));
        let number = self.root.map_or(1, |slot| slot.number + 1);
        let slot = Slot::of(number, extent.start, &bytes);
        bytes.resize(extent.bytes() as usize, 0);
        if let Err(error) = self.disk.write_at(&bytes, extent.offset()) {
            self.space.give(extent);
            return Err(IndexError::of_write(error));
        }
        self.checkpointed = self.log.last();
        self.checkpoint = Some(Pending {
            slot,
            log_start: log.sequence,
            slots_written: 0,
        });
        Ok(())
    }

    /// Does the next step of a checkpoint, after a sync.
    fn go_on_with_checkpoint(&mut self) -> Result<()> {
        let Some(pending) = &mut self.checkpoint else {
            return Ok(());
        };
        if pending.slots_written < SLOT_PAGES {
            pending
                .slot
                .write(&*self.disk, self.pool, pending.slots_written)?;
            pending.slots_written += 1;
            return Ok(());
        }
        let mut unneeded = self.log.forget_before(pending.log_start);
        let older = self.root.replace(pending.slot);
        unneeded.extend(older.and_then(|slot| slot.extent()));
        self.checkpoint = None;
        self.free(unneeded)
    }
}

impl Searchable for Table {
    type Reader = Arc<Shared>;

    fn reader(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

/// The space that these leave free; `None` if two of them overlap.
fn space_beside(directory: &Directory, log: &Log, slot: Slot) -> Option<Space> {
    let mut space = Space::behind(SLOT_PAGES);
    let runs = directory
        .segments()
        .iter()
        .filter_map(|segment| segment.run);
    let mut used = runs
        .map(Run::extent)
        .chain(log.extents())
        .chain(slot.extent());
    used.all(|extent| space.take_at(extent)).then_some(space)
}

/// Postpones work that found no room.
fn put_off(done: Result<()>) -> Result<()> {
    match done {
        Err(IndexError::NoRoom(_)) => Ok(()),
        done => done,
    }
}

/// The segments of two records that a change must agree with.
impl Change {
    /// Applies the change to the records of all segments; `None` if it was made to others.
    fn apply(&self, records: &mut Vec<SegmentRecord>) -> Option<()> {
        let at = records
            .binary_search_by_key(&self.first, |record| record.first)
            .ok()?;
        let end = at.checked_add(self.replaced as usize)?;
        if self.replaced == 0 || end > records.len() || self.segments.is_empty() {
            return None;
        }
        records.splice(at..end, self.segments.iter().copied());
        Some(())
    }
}
