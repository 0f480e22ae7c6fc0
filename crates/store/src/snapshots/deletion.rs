//! Deleting volumes and snapshots: invisible at once, and released step by step.
//!
//! A deleted volume or snapshot is a layer, and the layers above it decide what happens to its
//! entries:
//!
//! | above it | then |
//! | --- | --- |
//! | none | its entries are released |
//! | one | they move there, a record for each segment; those that are hidden there are released |
//! | several | it stays, unnamed, until one or none is above: a clone or a rolled-back volume needs its entries |
//!
//! The record in the catalogue says *deleting* until nothing is left, so a crash only interrupts.
//!
//! A layer whose only one above is on its way out as well waits for that one. So no entry moves twice,
//! and none arrives in a layer that is being emptied.

use std::sync::{Arc, PoisonError};

use onefold_format::map_page::EMPTY_SEGMENT;
use onefold_format::units::{BLOCKS_PER_SEGMENT, VOLUME_BLOCKS_MAX};
use onefold_format::{Entry, Record, SegmentIndex, UnmapTo};
use onefold_metadata::sync::{Mutex, MutexGuard, lock};
use onefold_metadata::{Blocking, Guard, Layer, Result, StoreError, Wanted, owned_runs};

use super::deletion_list::{Deletion, DeletionList};
use crate::batches::lock_hurrying;
use crate::catalogue::CatalogueWriter;
use crate::pool::Pool;
use crate::volume::Volume;

/// A deletion that is not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletionStat {
    /// Name before the deletion.
    pub name: String,
    /// Blocks that the deleted volume or snapshot still holds.
    pub own_blocks: u64,
    /// Volumes and snapshots that need the blocks. The deletion waits while there are several.
    pub needed_by: Vec<String>,
    /// Why the deletion cannot continue for now.
    pub failure: Option<String>,
}

/// Volumes and snapshots that were deleted and still hold something: see [`Store::deletions`](crate::Store::deletions).
pub struct Deletions {
    pool: Arc<Pool>,
    catalogue: Arc<CatalogueWriter>,
    list: DeletionList,
    /// Held by a step of a deletion, and by operations that exclude one. Taken before the job lock and the turn to
    /// change the catalogue.
    turn: Mutex<()>,
}

impl Deletions {
    pub(crate) fn new(
        pool: Arc<Pool>,
        catalogue: Arc<CatalogueWriter>,
        deleting: Vec<Deletion>,
    ) -> Self {
        Self {
            pool,
            catalogue,
            list: DeletionList::new(deleting),
            turn: Mutex::default(),
        }
    }

    /// Keeps deletions from continuing. The holder, which may be waiting for an idle processor, is hurried while
    /// the caller waits.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        let turn = lock_hurrying(self.pool.background(), &self.turn);
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses further requests to a volume whose record says *deleting*, and adds it to the deletions.
    pub(crate) fn leave(&self, volume: Arc<Volume>) {
        let deletion = Deletion::new(volume);
        // A request that was admitted before may still change the map, until this has its blocks.
        let layer = deletion.volume.layer();
        drop(layer.locks.lock(0..VOLUME_BLOCKS_MAX, Blocking::Yes));
        self.list.add(deletion);
    }

    /// Does a step of the pending deletions: one segment, some fifty microseconds, in which writers wait.
    /// The caller rests between steps. Returns how many blocks were handled, or nothing if
    /// there is nothing to do for now. A deletion whose step failed comes after all that have
    /// failed less often, so it does not delay them.
    ///
    /// # Errors
    ///
    /// `Busy` if a batch is open that cannot be settled; `Damaged` if a map cannot be read; I/O
    /// errors. The next step takes another deletion, or continues this one.
    pub fn step(&self) -> Result<Option<u64>> {
        let _turn = lock(&self.turn);
        let Some(Deletion { volume, cursor, .. }) = self.list.next() else {
            return Ok(None);
        };
        let layer = volume.layer();
        let before = layer.logical_blocks();
        let maps = self.pool.maps();
        let next = maps.next_segment(&layer, cursor, Wanted::Mapped);
        let done = next.and_then(|segment| {
            match (segment, &layer.above()[..]) {
                (None, _) => self.end_deletion(&volume)?,
                (Some(segment), []) => clear_segment(&self.pool, &layer, segment)?,
                (Some(segment), _) => self.merge_segment(&layer, segment)?,
            }
            Ok(segment.map_or(cursor, |done| done + 1))
        });
        let done = done.map_err(|error| error.during(format_args!("deleting '{}'", volume.name())));
        self.list.note_step(volume.id, &done);
        done.map(|_| Some(before - layer.logical_blocks()))
    }

    /// How often in a row the next deletion has failed; nothing if no deletion has anything to do.
    #[must_use]
    pub fn next_failures(&self) -> Option<u32> {
        self.list.next().map(|next| next.failures)
    }

    /// Finishes all pending deletions. `progress` gets the number of blocks done and of all.
    /// Returns whether there was anything to do.
    ///
    /// # Errors
    ///
    /// As [`Deletions::step`]: the first error, once each deletion that can be done is done.
    pub fn finish(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        let _hurry = self.pool.background().hurry();
        let waiting = self.unfinished()?;
        let waiting = waiting
            .iter()
            .filter(|deletion| deletion.needed_by.is_empty());
        let all: u64 = waiting.map(|deletion| deletion.own_blocks).sum();
        // Each is tried at least once, even if it failed before.
        self.list.forget_failures();
        let (mut done, mut is_any, mut failed) = (0, false, None);
        while self.next_failures() == Some(0) {
            match self.step() {
                Ok(Some(blocks)) => {
                    is_any = true;
                    done += blocks;
                    progress(done.min(all), all);
                }
                Ok(None) => break,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(is_any), Err)
    }

    /// Unfinished deletions.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn unfinished(&self) -> Result<Vec<DeletionStat>> {
        let deleting = self.list.all();
        let metadata = self.pool.journal().metadata()?;
        let catalogue = &metadata.catalogue();
        let stat = |deletion: &Deletion| {
            let layer = deletion.volume.layer();
            let above = catalogue.above(layer.id);
            let mut needed_by: Vec<String> =
                above.map(|record| catalogue.name_of(record)).collect();
            if needed_by.len() < 2 {
                needed_by.clear();
            }
            needed_by.sort();
            let record = catalogue.by_id(deletion.volume.id);
            DeletionStat {
                name: record.map_or_else(
                    || deletion.volume.name(),
                    |(_, record)| catalogue.name_of(record),
                ),
                own_blocks: layer.logical_blocks(),
                needed_by,
                failure: deletion.failure.clone(),
            }
        };
        Ok(deleting.iter().map(stat).collect())
    }

    /// Deleted layers that stay because several others need them: they cannot be opened, but their
    /// blocks may be shared like all others.
    pub(crate) fn that_stay(&self) -> Vec<Arc<Volume>> {
        let stay = self.list.all().into_iter();
        let stay = stay.filter(|deletion| deletion.volume.layer().above().len() > 1);
        stay.map(|deletion| deletion.volume).collect()
    }

    fn merge_segment(&self, layer: &Arc<Layer>, segment: SegmentIndex) -> Result<()> {
        let pool = &self.pool;
        // No batch is open about the entries that move.
        let _job = pool.batches().job_in_background()?;
        if Guard::SettledBeforeMerge.holds() {
            pool.batches().settle_open_batch()?;
        }
        let maps = &pool.maps();
        let [above] = layer.above()[..] else {
            return Err(StoreError::damaged(format!(
                "frozen layer {} has not one layer above it",
                layer.id
            )));
        };
        let above = maps.layer(above)?;
        let first = segment.first().0;
        let blocks = first..first + BLOCKS_PER_SEGMENT;
        let _locked = above.locks.lock(blocks, Blocking::Yes);
        let lower = maps.leaf(layer, segment, Blocking::Yes)?;
        if lower.with(|entries| *entries == EMPTY_SEGMENT) {
            return Ok(());
        }
        let owned = lower.with(|entries| owned_runs(entries));
        let merge = Record::Merge {
            layer: layer.id,
            above: above.id,
            segment,
        };
        pool.journal().append(&[merge], &owned, Blocking::Yes, None)
    }

    /// Ends the deletion of a volume in which nothing is left.
    fn end_deletion(&self, volume: &Volume) -> Result<()> {
        // The finder publishes blocks of a layer only while this is not held.
        let _job = self.pool.batches().job_in_background()?;
        let _changing = self.catalogue.turn();
        self.catalogue.remove_record(volume.id, volume.layer().id)?;
        self.list.remove(volume.id);
        Ok(())
    }
}

/// Releases the blocks that a layer maps there; the layer is no longer used.
pub(crate) fn clear_segment(pool: &Pool, layer: &Arc<Layer>, segment: SegmentIndex) -> Result<()> {
    let first = segment.first().0;
    let _locked = layer
        .locks
        .lock(first..first + BLOCKS_PER_SEGMENT, Blocking::Yes);
    let leaf = pool.maps().leaf(layer, segment, Blocking::Yes)?;
    let entries = leaf.with(|entries| entries.to_vec());
    if entries.iter().all(|entry| *entry == Entry::ABSENT) {
        return Ok(());
    }
    let record = Record::Unmap {
        layer: layer.id,
        lba: segment.first(),
        count: BLOCKS_PER_SEGMENT as u32,
        to: UnmapTo::Absent,
    };
    pool.journal()
        .append(&[record], &owned_runs(&entries), Blocking::Yes, None)
}
