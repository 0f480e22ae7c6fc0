//! The one function that changes a map ([step 7 apply]).
//!
//! Writes, trims, deletion and recovery all make a record and call this, so what a record does is
//! the same whether it was just logged or is read back after a crash. A record that does not fit
//! what it is applied to is a defect or damage, never ignored.

use std::sync::Arc;

use onefold_format::{Entry, LayerId, Lba, Record, TreeRoot, UnmapTo};

use crate::Wait;
use crate::catalogue::Catalogue;
use crate::error::{Result, StoreError};
use crate::map::{Layer, Maps};
use crate::space::{PbaRun, PbaRuns, Space};

/// What records change, besides the maps.
pub(crate) struct Books {
    pub(crate) space: Space,
    pub(crate) catalogue: Catalogue,
    /// Trees of layers that are gone: the next checkpoint gives their pages up.
    pub(crate) gone: Vec<Arc<Layer>>,
}

/// Changes maps, free space and catalogue as `record` says, and adds to `given_up` the blocks that
/// no entry names any more: they are in between until the caller knows that the record is durable
/// and all readers have drained.
///
/// Blocks that the record names must be in between; they are the maps' afterwards.
pub(crate) fn apply(
    record: &Record,
    maps: &Maps,
    books: &mut Books,
    given_up: &mut PbaRuns,
) -> Result<()> {
    match record {
        Record::Map {
            layer,
            lba,
            count,
            old,
            new,
        } => apply_map(maps, books, given_up, (*layer, *lba, *count), *old, *new),
        Record::Unmap {
            layer,
            lba,
            count,
            to,
        } => apply_unmap(maps, books, given_up, (*layer, *lba, *count), *to),
        Record::VolumePut { slot, volume } => {
            let is_new = books.catalogue.by_id(volume.id).is_none();
            books.catalogue.put(*slot, volume.clone())?;
            if is_new {
                maps.add_layer(volume.layer, TreeRoot::default(), 0);
            }
            Ok(())
        }
        Record::VolumeGone {
            slot,
            volume,
            layer,
        } => {
            books.catalogue.remove(*slot, *volume)?;
            if let Some(removed) = maps.remove_layer(*layer) {
                let left = removed.private_blocks();
                if left != 0 {
                    let message = format!("layer {layer} went with {left} blocks still mapped");
                    return Err(StoreError::damaged(message));
                }
                books.gone.push(removed);
            }
            Ok(())
        }
    }
}

fn apply_map(
    maps: &Maps,
    books: &mut Books,
    given_up: &mut PbaRuns,
    (layer, lba, count): (LayerId, Lba, u32),
    old: Entry,
    new: Entry,
) -> Result<()> {
    let count = u64::from(count);
    let layer = maps.layer(layer)?;
    let leaf = maps.leaf(&layer, lba.segment(), Wait::Yes)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    let fits = leaf.with(|entries| {
        let run = entries[slots.clone()].iter().zip(0..);
        run.into_iter().all(|(entry, n)| *entry == old.successor(n))
    });
    if !fits {
        let message = format!("a record of layer {} does not fit block {lba}", layer.id);
        return Err(StoreError::damaged(message));
    }
    if let Some(start) = new.pba() {
        books.space.name(PbaRun { start, count })?;
    }
    if let Some(start) = old.pba() {
        give_up(books, given_up, PbaRun { start, count })?;
    }
    let added = [(new, count as i64), (old, -(count as i64))];
    let added = added
        .iter()
        .filter(|(entry, _)| entry.pba().is_some())
        .map(|(_, n)| n)
        .sum();
    maps.change(&layer, lba.segment(), &leaf, added, |entries| {
        for (entry, n) in entries[slots].iter_mut().zip(0..) {
            *entry = new.successor(n);
        }
    });
    Ok(())
}

fn apply_unmap(
    maps: &Maps,
    books: &mut Books,
    given_up: &mut PbaRuns,
    (layer, lba, count): (LayerId, Lba, u32),
    to: UnmapTo,
) -> Result<()> {
    let layer = maps.layer(layer)?;
    let leaf = maps.leaf(&layer, lba.segment(), Wait::Yes)?;
    let slots = lba.slot()..lba.slot() + count as usize;
    let to = match to {
        UnmapTo::Absent => Entry::ABSENT,
        UnmapTo::Zero => Entry::ZERO,
    };
    let runs = leaf.with(|entries| mapped_runs(&entries[slots.clone()]));
    let mut given_up_count = 0;
    for run in &runs {
        give_up(books, given_up, *run)?;
        given_up_count += run.count as i64;
    }
    maps.change(&layer, lba.segment(), &leaf, -given_up_count, |entries| {
        entries[slots].fill(to);
    });
    Ok(())
}

fn give_up(books: &mut Books, given_up: &mut PbaRuns, run: PbaRun) -> Result<()> {
    books.space.unname(run)?;
    given_up.push(run);
    Ok(())
}

/// The blocks that these entries own, as runs.
pub(crate) fn mapped_runs(entries: &[Entry]) -> PbaRuns {
    let mut runs = PbaRuns::new();
    for pba in entries.iter().filter_map(|entry| entry.pba()) {
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
