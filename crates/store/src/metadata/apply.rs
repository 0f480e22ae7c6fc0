//! The one function that changes a map ([step 7 apply]).
//!
//! Writes, trims, deletion and recovery all make a record and call this, so what a record does is
//! the same whether it was just logged or is read back after a crash. A record that does not fit
//! what it is applied to is a defect or damage, never ignored.

use std::sync::Arc;

use onefold_format::batch_page::BatchItem;
use onefold_format::entry::State;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::{
    BatchKind, Entry, LayerId, Lba, Outcome, Pba, PublishRun, Record, Release, SegmentIndex,
    UnmapTo, VolumeState,
};

use super::map::{Layer, Leaf, Maps};
use super::run::{PbaRun, PbaRuns};
use super::state::MetadataState;
use crate::blocking::Blocking;
use crate::error::{Result, StoreError};

/// Why a record could not be applied.
pub(crate) enum Failed {
    /// Nothing was changed: the record does not fit, or what it changes could not be read.
    Before(StoreError),
    /// It may have been applied in part.
    During(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::During(error)
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Before(error) | Failed::During(error) => error,
        }
    }
}

/// Changes maps and metadata as `record` says, and adds to `released` the blocks that nobody names any
/// more: they are in between until the caller knows that the record is durable and all readers
/// have drained.
///
/// Blocks that a [`Record::Map`] names anew must be in between; they are the maps' afterwards.
pub(crate) fn apply(
    record: &Record,
    maps: &Maps,
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
) -> std::result::Result<(), Failed> {
    match record {
        Record::Map {
            layer,
            lba,
            count,
            old,
            new,
        } => apply_map(maps, metadata, released, (*layer, *lba, *count), *old, *new),
        Record::Unmap {
            layer,
            lba,
            count,
            to,
        } => Ok(apply_unmap(
            maps,
            metadata,
            released,
            (*layer, *lba, *count),
            *to,
        )?),
        Record::VolumePut { slot, volume } => {
            let is_new = metadata.catalogue.by_id(volume.id).is_none();
            metadata.catalogue.put(*slot, volume.clone())?;
            if is_new {
                maps.put_above(&maps.add_layer(volume), volume.below)?;
            } else {
                maps.space_limits_table.of(volume);
            }
            Ok(())
        }
        Record::Freeze {
            slot,
            snapshot,
            live,
            below,
        } => {
            let volume = metadata
                .catalogue
                .freeze(*slot, snapshot, (*live, *below))?;
            Ok(maps.put_above(&maps.add_layer(&volume), volume.below)?)
        }
        Record::Merge {
            layer,
            above,
            segment,
        } => apply_merge(maps, metadata, released, (*layer, *above), *segment),
        Record::VolumeGone {
            slot,
            volume,
            layer,
        } => {
            let mut record = metadata.catalogue.remove(*slot, *volume)?;
            // One that was being imported until now still had its reservation.
            record.state = VolumeState::Deleting;
            maps.space_limits_table.of(&record);
            if let Some(removed) = maps.remove_layer(*layer)? {
                let left = removed.logical_blocks();
                if left != 0 {
                    let message = format!("layer {layer} went with {left} blocks still mapped");
                    return Err(StoreError::damaged(message).into());
                }
                metadata.gone.push(removed);
            }
            Ok(())
        }
        Record::Publish {
            layer,
            number,
            runs,
        } => apply_publish(maps, metadata, *layer, *number, runs),
        Record::Outcome {
            number,
            position,
            count,
            outcome,
            ..
        } => {
            let (kind, items) = metadata.batches.settle(*number, *position, *count)?;
            let BatchKind::Finder(layer) = kind else {
                return Err(StoreError::damaged("an outcome of a collector's batch").into());
            };
            Ok(apply_outcome(
                maps, metadata, released, layer, &items, *outcome,
            )?)
        }
        Record::Collect { number, elements } => {
            let taken = metadata.queue.take(u64::from(*elements))?;
            Ok(metadata.batches.collect(*number, &taken)?)
        }
        Record::Release {
            number,
            position,
            count,
            release,
        } => {
            let (_, items) = metadata.batches.settle(*number, *position, *count)?;
            if *release == Release::Freed {
                for item in items {
                    free(metadata, released, item.pba)?;
                }
            }
            Ok(())
        }
    }
}

fn apply_map(
    maps: &Maps,
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
    (layer, lba, count): (LayerId, Lba, u32),
    old: Entry,
    new: Entry,
) -> std::result::Result<(), Failed> {
    let count = u64::from(count);
    let layer = maps.layer(layer).map_err(Failed::Before)?;
    let leaf = fitting_leaf(maps, &layer, (lba, count), old).map_err(Failed::Before)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    if let Some(start) = new.pba() {
        metadata.space.name(PbaRun { start, count })?;
    }
    give_up(metadata, released, &layer, (lba, count), old)?;
    maps.change(&layer, lba.segment(), &leaf, slots, |entries| {
        for (entry, n) in entries.iter_mut().zip(0..) {
            *entry = new.successor(n);
        }
    });
    Ok(())
}

fn apply_unmap(
    maps: &Maps,
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
    (layer, lba, count): (LayerId, Lba, u32),
    to: UnmapTo,
) -> Result<()> {
    let layer = maps.layer(layer)?;
    let leaf = maps.leaf(&layer, lba.segment(), Blocking::Yes)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    let to = match to {
        UnmapTo::Absent => Entry::ABSENT,
        UnmapTo::Zero => Entry::ZERO,
    };
    let before = leaf.with(|entries| entries[slots.clone()].to_vec());
    for (start, count, entry) in entry_runs(lba, &before) {
        give_up(metadata, released, &layer, (start, count), entry)?;
    }
    maps.change(&layer, lba.segment(), &leaf, slots, |entries| {
        entries.fill(to);
    });
    Ok(())
}

/// What a frozen layer has goes to the layer above where that has nothing, and is given up
/// elsewhere.
fn apply_merge(
    maps: &Maps,
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
    (layer, above): (LayerId, LayerId),
    segment: SegmentIndex,
) -> std::result::Result<(), Failed> {
    let found = |id| maps.layer(id).map_err(Failed::Before);
    let (layer, above) = (found(layer)?, found(above)?);
    let is_below = above.below().is_some_and(|below| below.id == layer.id);
    if !is_below || layer.above().len() != 1 {
        return Err(Failed::Before(misfit(layer.id, segment.first())));
    }
    let leaf = |layer: &Layer| maps.leaf(layer, segment, Blocking::Yes);
    let lower = leaf(&layer).map_err(Failed::Before)?;
    let upper = leaf(&above).map_err(Failed::Before)?;
    let mut moved = lower.with(Segment::clone);
    let mut lost = EMPTY_SEGMENT;
    let hides = layer.below().is_some();
    upper.with(|own| {
        for ((moved, lost), own) in moved.iter_mut().zip(&mut lost).zip(own) {
            if *own != Entry::ABSENT {
                *lost = std::mem::take(moved);
            } else if *moved == Entry::ZERO && !hides {
                *moved = Entry::ABSENT;
            }
        }
    });
    for (start, count, entry) in entry_runs(segment.first(), &lost) {
        give_up(metadata, released, &layer, (start, count), entry)?;
    }
    maps.merge(segment, (&layer, &lower), (&above, &upper), &moved);
    Ok(())
}

/// Gives up what a run of entries, of which the first is `entry`, had: its own blocks, or
/// references to shared ones.
fn give_up(
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
    layer: &Layer,
    (lba, count): (Lba, u64),
    entry: Entry,
) -> Result<()> {
    match entry.state() {
        State::Absent | State::Zero => Ok(()),
        State::Private(start) | State::Unshareable(start) => {
            let run = PbaRun { start, count };
            metadata.space.unname(run)?;
            released.push(run);
            Ok(())
        }
        State::Shared(start) => {
            for n in 0..count {
                let pba = start + n;
                let open = metadata.batches.open.as_mut();
                let is_unsettled =
                    open.is_some_and(|batch| batch.note_moved(layer.id, lba + n, pba));
                if !is_unsettled {
                    let run = PbaRun {
                        start: pba,
                        count: 1,
                    };
                    metadata.queue.push(run, layer.domain);
                }
            }
            Ok(())
        }
    }
}

/// The blocks' entries become shared before anybody is told of them: from here on no write goes to
/// them (P1), so what is fingerprinted later is what the entries name.
fn apply_publish(
    maps: &Maps,
    metadata: &mut MetadataState,
    layer: LayerId,
    number: u64,
    runs: &[PublishRun],
) -> std::result::Result<(), Failed> {
    let layer = maps.layer(layer).map_err(Failed::Before)?;
    for run in runs {
        let blocks = (run.lba, u64::from(run.count));
        fitting_leaf(maps, &layer, blocks, Entry::private(run.pba)).map_err(Failed::Before)?;
    }
    metadata
        .batches
        .announce(layer.id, layer.domain, number, runs)?;
    for run in runs {
        let (old, new) = (Entry::private(run.pba), Entry::shared(run.pba));
        change_run(maps, &layer, (run.lba, u64::from(run.count)), old, new)?;
    }
    Ok(())
}

fn apply_outcome(
    maps: &Maps,
    metadata: &mut MetadataState,
    released: &mut PbaRuns,
    layer: LayerId,
    items: &[BatchItem],
    outcome: Outcome,
) -> Result<()> {
    for (item, n) in items.iter().zip(0..) {
        let shared = Entry::shared(item.pba);
        let becomes = |new: Entry| {
            let layer = maps.layer(layer)?;
            change_run(maps, &layer, (item.lba, 1), shared, new)
        };
        let fits = match outcome {
            Outcome::Dangling(_) => item.moved,
            Outcome::Declined => true,
            Outcome::Inserted | Outcome::Aliased(_) | Outcome::Rejected(_) => !item.moved,
        };
        if !fits {
            return Err(misfit(layer, item.lba));
        }
        match outcome {
            Outcome::Inserted => {}
            Outcome::Aliased(indexed) => {
                becomes(Entry::shared(indexed + n))?;
                free(metadata, released, item.pba)?;
            }
            Outcome::Dangling(indexed) => {
                if indexed + n != item.pba {
                    free(metadata, released, item.pba)?;
                }
                queue_one(metadata, indexed + n, item);
            }
            Outcome::Rejected(indexed) => {
                becomes(Entry::unshareable(item.pba))?;
                queue_one(metadata, indexed + n, item);
            }
            Outcome::Declined if item.moved => free(metadata, released, item.pba)?,
            Outcome::Declined => becomes(Entry::private(item.pba))?,
        }
    }
    Ok(())
}

fn queue_one(metadata: &mut MetadataState, pba: Pba, item: &BatchItem) {
    let run = PbaRun {
        start: pba,
        count: 1,
    };
    metadata.queue.push(run, item.domain);
}

/// Nobody names this block any more.
fn free(metadata: &mut MetadataState, released: &mut PbaRuns, pba: Pba) -> Result<()> {
    let run = PbaRun {
        start: pba,
        count: 1,
    };
    metadata.space.unname(run)?;
    match released.last_mut() {
        Some(last) if last.start.0 + last.count == pba.0 => last.count += 1,
        _ => released.push(run),
    }
    Ok(())
}

/// A run of entries in one segment, which must be `old` and its successors, becomes `new` and its
/// successors. Blocks stay where they are.
fn change_run(
    maps: &Maps,
    layer: &Arc<Layer>,
    (lba, count): (Lba, u64),
    old: Entry,
    new: Entry,
) -> Result<()> {
    let leaf = fitting_leaf(maps, layer, (lba, count), old)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    maps.change(layer, lba.segment(), &leaf, slots, |entries| {
        for (entry, n) in entries.iter_mut().zip(0..) {
            *entry = new.successor(n);
        }
    });
    Ok(())
}

/// The segment of a run of entries, which must be `old` and its successors.
fn fitting_leaf(
    maps: &Maps,
    layer: &Arc<Layer>,
    (lba, count): (Lba, u64),
    old: Entry,
) -> Result<Arc<Leaf>> {
    let leaf = maps.leaf(layer, lba.segment(), Blocking::Yes)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    let fits = leaf.with(|entries| {
        let run = entries[slots].iter().zip(0..);
        run.into_iter().all(|(entry, n)| *entry == old.successor(n))
    });
    match fits {
        true => Ok(leaf),
        false => Err(misfit(layer.id, lba)),
    }
}

fn misfit(layer: LayerId, lba: Lba) -> StoreError {
    StoreError::damaged(format!(
        "a record of layer {layer} does not fit block {lba}"
    ))
}

/// Entries as runs: first block, count, first entry.
fn entry_runs(first: Lba, entries: &[Entry]) -> Vec<(Lba, u64, Entry)> {
    let mut runs: Vec<(Lba, u64, Entry)> = Vec::new();
    for (entry, lba) in entries.iter().zip(first.0..) {
        match runs.last_mut() {
            Some((_, count, start)) if start.successor(*count) == *entry => *count += 1,
            _ => runs.push((Lba(lba), 1, *entry)),
        }
    }
    runs
}

/// The blocks that these entries own, as runs.
pub(crate) fn owned_runs(entries: &[Entry]) -> PbaRuns {
    let mut runs = PbaRuns::new();
    for pba in entries.iter().filter_map(|entry| entry.own_pba()) {
        match runs.last_mut() {
            Some(run) if run.start.0 + run.count == pba.0 => run.count += 1,
            _ => runs.push(PbaRun {
                start: pba,
                count: 1,
            }),
        }
    }
    runs
}
