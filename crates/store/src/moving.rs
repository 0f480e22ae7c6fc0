//! Moving the blocks of entries: to before a shrinking pool's new end, or to copies that no other entry shares.
//!
//! Every chosen block is copied to a new one under its entry's lock, and a *map* record makes the entry
//! refer to the copy: for map, log, recovery, free space and queue that is a guest's write. An entry that
//! shared its block owns the copy, and drops its reference. The job lock keeps merges from moving the entries
//! until then, and the blocks' locks keep requests from changing them.
//!
//! A crash leaves each piece moved, or as it was.

use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_format::entry::State;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::tail::block_sum;
use onefold_format::{Entry, Lba, Pba, Record, SegmentIndex};
use onefold_journal::Purpose;
use onefold_metadata::{
    BlockRange, Blocking, Layer, PbaRun, PbaRuns, Placement, PlacementOffset, Result, StoreError,
    StoreErrorKind, Wanted,
};

use crate::pool::Pool;

/// Blocks moved under one hold of their locks: a guest that needs one of them waits for this many.
const PIECE_BLOCKS: usize = 64;

/// Marks the entries of a segment whose blocks are moved.
pub(crate) type Chosen = [bool; EMPTY_SEGMENT.len()];

/// Decides which blocks are moved, where the copies go, and which entries refer to them.
pub(crate) trait Moving {
    /// Chooses the entries of one layer's segment to move. Called first without locks, since most segments
    /// have nothing to move, and then again with the locks of a piece held.
    fn choose(&self, entries: &Segment) -> Result<Chosen>;

    /// The entry of a copy.
    fn copied(&self, old: Entry, copy: Pba) -> Entry;

    /// Whether copies go next to the blocks of their segment that stay.
    fn is_beside(&self) -> bool;

    /// The purpose of the allocation, which decides how many of the free blocks the copies may take.
    fn purpose(&self) -> Purpose;
}

/// Consecutive entries of consecutive blocks, of which the first is `old`.
struct Run {
    blocks: BlockRange,
    old: Entry,
}

/// Moves blocks as `moving` decides.
pub(crate) struct Mover<'a> {
    pool: &'a Pool,
    moving: &'a dyn Moving,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(pool: &'a Pool, moving: &'a dyn Moving) -> Self {
        Self { pool, moving }
    }

    /// Moves the chosen blocks of a layer. The callback gets the number of blocks of each piece, and can
    /// cancel the move after it.
    pub(crate) fn move_layer(
        &self,
        layer: &Arc<Layer>,
        told: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut from = SegmentIndex(0);
        while let Some(segment) = next_segment_of(self.pool, layer, from)? {
            if self.move_segment(layer, segment, told)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            from = segment + 1;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Moves the chosen blocks of one segment, as [`Mover::move_layer`] does for a whole layer.
    pub(crate) fn move_segment(
        &self,
        layer: &Arc<Layer>,
        segment: SegmentIndex,
        told: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let chosen = self
            .moving
            .choose(&segment_of(self.pool, layer, segment)?)?;
        for (piece, n) in chosen.chunks(PIECE_BLOCKS).zip(0..) {
            if !piece.contains(&true) {
                continue;
            }
            let first = segment.first() + n * PIECE_BLOCKS as u64;
            if told(self.move_piece(layer, first)?).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Moves the chosen blocks of these entries.
    fn move_piece(&self, layer: &Arc<Layer>, first: Lba) -> Result<u64> {
        let _job = self.pool.batches().job()?;
        let blocks = first.0..first.0 + PIECE_BLOCKS as u64;
        let _locked = layer.locks.lock(blocks, Blocking::Yes);
        if self.pool.maps().layer(layer.id).is_err() {
            return Ok(0);
        }
        let entries = segment_of(self.pool, layer, first.segment())?;
        let chosen = self.moving.choose(&entries)?;
        let slots = first.slot()..first.slot() + PIECE_BLOCKS;
        let runs = runs(first, &entries[slots.clone()], &chosen[slots]);
        let beside = if self.moving.is_beside() {
            place_of_most(first.segment().first(), &entries, &chosen)
        } else {
            None
        };
        if runs.is_empty() {
            Ok(0)
        } else {
            self.move_runs(layer, &runs, beside)
        }
    }

    /// Copies runs of blocks, and makes their entries, which are locked, refer to the copies.
    fn move_runs(
        &self,
        layer: &Layer,
        runs: &[Run],
        beside: Option<PlacementOffset>,
    ) -> Result<u64> {
        let placement = Placement {
            layer: layer.id,
            beside,
            runs: runs.iter().map(|run| run.blocks).collect(),
        };
        let purpose = self.moving.purpose();
        let new = self.pool.journal().allocate(
            &placement,
            &layer.space_limits,
            purpose,
            Blocking::Yes,
        )?;
        let mut sums = Vec::new();
        let copied = self.copy_runs(layer, runs, &new, &mut sums);
        if let Some(cache) = layer.hash_cache() {
            runs.iter().for_each(|run| cache.forget(run.blocks));
        }
        let released: PbaRuns = runs.iter().filter_map(Run::owned).collect();
        copied
            .and_then(|records| {
                self.pool
                    .journal()
                    .append_new(&records, &sums, &released, Blocking::Yes, None)
            })
            .or_else(|error| {
                if self.pool.journal().check_writable().is_ok() {
                    self.pool.journal().take_back(&new)?;
                }
                Err(error)
            })?;
        Ok(placement.blocks())
    }

    /// Copies all of these runs, in their order, to the new blocks. Returns what to record then, and adds
    /// a checksum of each copy to `sums`.
    fn copy_runs(
        &self,
        layer: &Layer,
        runs: &[Run],
        new: &[PbaRun],
        sums: &mut Vec<u32>,
    ) -> Result<Vec<Record>> {
        let mut records = Vec::with_capacity(runs.len());
        let mut free = new.iter().copied();
        let mut next = PbaRun {
            start: Pba(0),
            count: 0,
        };
        for run in runs {
            let mut done = 0;
            while done < run.blocks.count {
                if next.count == 0 {
                    let Some(run) = free.next() else { break };
                    next = run;
                }
                let to = PbaRun {
                    start: next.start,
                    count: next.count.min(run.blocks.count - done),
                };
                let old = run.old.successor(done);
                if let Some(start) = old.pba() {
                    let count = to.count;
                    self.copy(layer, PbaRun { start, count }, to, sums)?;
                }
                records.push(Record::Map {
                    layer: layer.id,
                    lba: run.blocks.first + done,
                    count: to.count as u32,
                    old,
                    new: self.moving.copied(old, to.start),
                });
                next.start.0 += to.count;
                next.count -= to.count;
                done += to.count;
            }
        }
        Ok(records)
    }

    /// Copies the content of blocks, which nothing writes during the copy. Refuses a block that is known
    /// to be bad: its copy would not be known to be bad (P8).
    fn copy(&self, layer: &Layer, from: PbaRun, to: PbaRun, sums: &mut Vec<u32>) -> Result<()> {
        let block_size = self.pool.block_size();
        let mut bytes = vec![0; (from.count * block_size) as usize];
        let failed = |doing: &str, pba| {
            let what = format!("{doing} block {pba} of the pool, which is being moved");
            move |error| StoreError::io(what, error)
        };
        let read = self
            .pool
            .data()
            .read_at(&mut bytes, from.start.0 * block_size);
        read.map_err(failed("reading", from.start))?;
        let listed = if self.pool.bad().is_any() {
            self.pool
                .bad()
                .within(from.start.0..from.start.0 + from.count)
        } else {
            Vec::new()
        };
        for bad in listed.iter().filter(|bad| bad.fingerprint.is_some()) {
            let at = ((bad.pba.0 - from.start.0) * block_size) as usize;
            let block = &bytes[at..at + block_size as usize];
            if !self.pool.blocks().is_as_stored(block, layer.domain, bad) {
                return Err(StoreError::new(
                    StoreErrorKind::Io,
                    format!(
                        "block {} of the pool cannot be moved, for it differs from the stored data: repair \
                         it, or delete what uses it; `pool scrub --list` says what does",
                        bad.pba
                    ),
                ));
            }
        }
        let written = self.pool.data().write_at(&bytes, to.start.0 * block_size);
        written.map_err(failed("writing", to.start))?;
        sums.extend(bytes.chunks_exact(block_size as usize).map(block_sum));
        Ok(())
    }
}

/// The first segment at or after this one. A layer may be deleted and lose its pages, which takes the job
/// lock.
pub(crate) fn next_segment_of(
    pool: &Pool,
    layer: &Layer,
    from: SegmentIndex,
) -> Result<Option<SegmentIndex>> {
    let _job = pool.batches().job()?;
    match pool.maps().layer(layer.id) {
        Ok(_) => pool.maps().next_segment(layer, from, Wanted::Mapped),
        Err(_) => Ok(None),
    }
}

pub(crate) fn segment_of(pool: &Pool, layer: &Layer, segment: SegmentIndex) -> Result<Segment> {
    Ok(*pool.maps().peek(layer, segment, Blocking::Yes)?)
}

impl Run {
    /// The blocks that its entries own.
    fn owned(&self) -> Option<PbaRun> {
        self.old.own_pba().map(|start| PbaRun {
            start,
            count: self.blocks.count,
        })
    }
}

/// The place of most of the blocks in a segment that stay. Shared ones count, too: blocks that were written
/// together and published since also have the gaps between them.
fn place_of_most(first: Lba, entries: &Segment, chosen: &Chosen) -> Option<PlacementOffset> {
    let mut places: Vec<(PlacementOffset, usize)> = Vec::new();
    for ((entry, is_chosen), n) in entries.iter().zip(chosen).zip(0..) {
        let Some(pba) = entry.pba().filter(|_| !is_chosen) else {
            continue;
        };
        let place = PlacementOffset::between(first + n, pba);
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, count)) => *count += 1,
            None => places.push((place, 1)),
        }
    }
    let most = places.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(place, _)| place)
}

/// The chosen ones of these entries that have blocks.
fn runs(first: Lba, entries: &[Entry], chosen: &[bool]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for ((entry, is_chosen), n) in entries.iter().zip(chosen).zip(0..) {
        if !is_chosen || matches!(entry.state(), State::Absent | State::Zero) {
            continue;
        }
        let lba = first + n;
        match runs.last_mut() {
            Some(run)
                if run.blocks.first + run.blocks.count == lba
                    && run.old.successor(run.blocks.count) == *entry =>
            {
                run.blocks.count += 1;
            }
            _ => runs.push(Run {
                blocks: BlockRange::new(lba, 1),
                old: *entry,
            }),
        }
    }
    runs
}
