//! Giving a volume blocks of its own again, so that it is read in longer runs: all that are shared
//! (*unshare*), or those in short runs (*defrag*).
//!
//! Blocks are copied next to most others of their segment (`moving.rs`), in every layer that a read of
//! the volume sees. A copy is *unshareable*: the finder leaves it alone, or it would find the duplicate
//! that was just made. A run is measured inside a segment of one layer.
//!
//! There is no state on disk: copied blocks are no longer shared, so a new start after a crash copies
//! only the rest.

use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_format::entry::State;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::{Entry, Pba, SegmentIndex};
use onefold_journal::Purpose;
use onefold_metadata::{Layer, Maps, Result};

use crate::moving::{Chosen, Mover, Moving, next_segment_of, segment_of};
use crate::pool::Pool;
use crate::volume::Volume;

/// Segments of maps that one step examines: some milliseconds if there is nothing to copy.
const STEP_SEGMENTS_MAX: u32 = 256;

/// Passes over the layers at most. Layers that were added, deleted or merged make another pass necessary; a
/// schedule of snapshots could do so for ever.
const PASSES_MAX: u32 = 4;

/// The cost of calling [`Unsharing::step`] to the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnsharePlan {
    /// Entries that get a copy of their block; each takes a new block.
    pub copied_blocks: u64,
    /// All shared entries of the volume's layers.
    pub shared_blocks: u64,
    /// Blocks in which a reader finds data.
    pub data_blocks: u64,
    /// Runs of the pool in which the data is now.
    pub runs_before: u64,
    /// Runs of the pool in which the data will be, if neighbours find room next to each other.
    pub runs_after: u64,
    /// Free blocks that the volume may take.
    pub available_blocks: u64,
}

/// The progress of an unshare or a defrag.
pub struct Unsharing {
    volume: Arc<Volume>,
    min_run: Option<u16>,
    /// The volume's layers when this pass began.
    layers: Vec<Arc<Layer>>,
    /// The layer that is next, and its next segment.
    layer: usize,
    segment: SegmentIndex,
    passes: u32,
    copied_blocks: u64,
}

impl Unsharing {
    /// Begins to give a volume or snapshot blocks of its own: see [`UnsharePlan::of`].
    #[must_use]
    pub fn new(volume: Arc<Volume>, min_run: Option<u16>) -> Self {
        Self {
            layers: Maps::lineage(&volume.layer()),
            volume,
            min_run,
            layer: 0,
            segment: SegmentIndex(0),
            passes: 1,
            copied_blocks: 0,
        }
    }

    /// Blocks that were copied so far.
    #[must_use]
    pub fn copied_blocks(&self) -> u64 {
        self.copied_blocks
    }

    /// Copies blocks of one segment at most. Returns whether something may be left.
    ///
    /// # Errors
    ///
    /// `NoSpace` where the volume may take no more free blocks; `Gone` if it is deleted; `Io` where a
    /// block cannot be copied; I/O errors. Blocks copied before the error stay copied.
    pub fn step(&mut self) -> Result<bool> {
        let volume = Arc::clone(&self.volume);
        let pool = volume.pool();
        pool.journal().check_writable()?;
        volume.check_in_use()?;
        for _ in 0..STEP_SEGMENTS_MAX {
            let Some(layer) = self.layers.get(self.layer) else {
                return Ok(self.begin_again());
            };
            let Some(segment) = next_segment_of(pool, layer, self.segment)? else {
                self.layer += 1;
                self.segment = SegmentIndex(0);
                continue;
            };
            let rule = Unshare {
                pool,
                min_run: self.min_run,
            };
            let mut copied = 0;
            let mut count = |blocks| {
                copied += blocks;
                ControlFlow::Continue(())
            };
            let moved = Mover::new(pool, &rule).move_segment(layer, segment, &mut count);
            self.copied_blocks += copied;
            let _never_broken_off = moved?;
            self.segment = segment + 1;
            if copied > 0 {
                break;
            }
        }
        Ok(true)
    }

    /// Begins another pass if the layers have changed: a merge may have moved entries to a layer that was done, and
    /// a snapshot puts a new layer on top.
    fn begin_again(&mut self) -> bool {
        let layers = Maps::lineage(&self.volume.layer());
        let ids = |layers: &[Arc<Layer>]| layers.iter().map(|layer| layer.id).collect::<Vec<_>>();
        if ids(&layers) == ids(&self.layers) || self.passes == PASSES_MAX {
            return false;
        }
        self.layers = layers;
        (self.layer, self.segment) = (0, SegmentIndex(0));
        self.passes += 1;
        true
    }
}

/// Copies the shared blocks in short runs, or all of them.
struct Unshare<'a> {
    pool: &'a Pool,
    min_run: Option<u16>,
}

impl Moving for Unshare<'_> {
    fn choose(&self, entries: &Segment) -> Result<Chosen> {
        let mut chosen = [false; EMPTY_SEGMENT.len()];
        let mut at = 0;
        for run in entries.chunk_by(|one, next| one.successor(1) == *next) {
            let is_shared = matches!(run[0].state(), State::Shared(_));
            let is_short = |min: u16| run.len() < usize::from(min);
            if is_shared && self.min_run.is_none_or(is_short) {
                chosen[at..at + run.len()].fill(true);
            }
            at += run.len();
        }
        // As long as a bad block is shared the finder can repair it.
        if self.pool.bad().is_any() {
            for (is_chosen, entry) in chosen.iter_mut().zip(entries) {
                let bad = entry.pba().and_then(|pba| self.pool.bad().get(pba));
                *is_chosen &= bad.is_none();
            }
        }
        Ok(chosen)
    }

    fn copied(&self, _old: Entry, copy: Pba) -> Entry {
        Entry::unshareable(copy)
    }

    fn is_beside(&self) -> bool {
        true
    }

    fn purpose(&self) -> Purpose {
        Purpose::New
    }
}

/// Free blocks that a layer's volume may take for new data.
fn available_to(pool: &Pool, layer: &Layer) -> Result<u64> {
    let others = pool.maps().unused_reservations();
    let others = others.saturating_sub(layer.space_limits.unused_reservation());
    let metadata = pool.journal().metadata()?;
    let kept = others + pool.journal().free_space().reserve_blocks(&metadata);
    Ok(metadata.space().free_blocks().saturating_sub(kept))
}

impl UnsharePlan {
    /// The cost of giving a volume or snapshot blocks of its own: with `min_run`, where it shares fewer
    /// consecutive ones. Reads its maps.
    ///
    /// # Errors
    ///
    /// `Damaged` if a map cannot be read; I/O errors.
    pub fn of(volume: &Volume, min_run: Option<u16>) -> Result<Self> {
        let pool = volume.pool();
        let rule = Unshare { pool, min_run };
        let layer = volume.layer();
        let mut plan = Self {
            available_blocks: available_to(pool, &layer)?,
            ..Self::default()
        };
        let mut ahead = Vec::new();
        for layer in Maps::lineage(&layer) {
            let next = next_segment_of(pool, &layer, SegmentIndex(0))?;
            ahead.push((layer, next));
        }
        let mut last = None;
        while let Some(segment) = ahead.iter().filter_map(|(_, next)| *next).min() {
            let mut found = [None; EMPTY_SEGMENT.len()];
            for (depth, (layer, next)) in ahead.iter_mut().enumerate() {
                if *next != Some(segment) {
                    continue;
                }
                let entries = segment_of(pool, layer, segment)?;
                let chosen = rule.choose(&entries)?;
                plan.note(depth, &entries, &chosen, &mut found);
                *next = next_segment_of(pool, layer, segment + 1)?;
            }
            for (place, lba) in found.iter().zip(segment.first().0..) {
                let place = place.as_ref().and_then(Seen::place);
                if let Some(place) = place {
                    plan.data_blocks += 1;
                    let before = last
                        .filter(|(next, _)| *next == lba)
                        .map(|(_, place)| place);
                    plan.runs_before +=
                        u64::from(!before.is_some_and(|before| place.follows(before)));
                    plan.runs_after +=
                        u64::from(!before.is_some_and(|before| place.will_follow(before)));
                    last = Some((lba + 1, place));
                }
            }
        }
        Ok(plan)
    }

    /// Counts the entries of one layer; notes in `found` those that no layer above hides.
    fn note(
        &mut self,
        depth: usize,
        entries: &Segment,
        chosen: &Chosen,
        found: &mut [Option<Seen>; EMPTY_SEGMENT.len()],
    ) {
        for ((entry, is_chosen), found) in entries.iter().zip(chosen).zip(found) {
            let is_shared = matches!(entry.state(), State::Shared(_));
            self.shared_blocks += u64::from(is_shared);
            self.copied_blocks += u64::from(*is_chosen);
            if found.is_none() && *entry != Entry::ABSENT {
                *found = Some(Seen {
                    entry: *entry,
                    copied_in: is_chosen.then_some(depth),
                });
            }
        }
    }
}

/// An entry that a reader finds, and the layer in which its block will be copied.
#[derive(Clone, Copy)]
struct Seen {
    entry: Entry,
    copied_in: Option<usize>,
}

impl Seen {
    fn place(&self) -> Option<Place> {
        Some(Place {
            pba: self.entry.pba()?,
            copied_in: self.copied_in,
        })
    }
}

/// Where a block is, and the layer in which it will be copied.
#[derive(Clone, Copy)]
struct Place {
    pba: Pba,
    copied_in: Option<usize>,
}

impl Place {
    fn follows(self, before: Self) -> bool {
        before.pba + 1 == self.pba
    }

    /// Whether the block will follow `before` after the copying: copies made in one layer lie next to each other.
    fn will_follow(self, before: Self) -> bool {
        match (before.copied_in, self.copied_in) {
            (None, None) => self.follows(before),
            (before, own) => before == own,
        }
    }
}
