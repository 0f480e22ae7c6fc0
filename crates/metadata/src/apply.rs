//! The one function that changes a map ([step 8 apply]).
//!
//! Writes, trims, deletion and recovery all make a record and call this, so the effect of a record
//! is the same whether it was just logged or is read back after a crash. A record that does not fit
//! the present state is a defect or damage, never ignored.

use std::sync::Arc;

use onefold_engine::Blocking;
use onefold_format::batch_page::BatchItem;
use onefold_format::entry::State;
use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::{
    BatchKind, Entry, GivenRun, LayerId, Lba, Outcome, Pba, PublishRun, Record, Release,
    SegmentIndex, SpaceExtent, UnmapTo, VolumeState,
};

use super::map::{Layer, Leaf, LeafOf, Maps};
use super::run::{BlockRange, PbaRun, PbaRuns};
use super::space::SpaceOf;
use super::state::MetadataState;
use crate::error::{Result, StoreError};
use crate::guard::Guard;

/// The error of a record that could not be applied.
pub enum Failed {
    /// Nothing was changed: the record does not fit, or the state to change could not be read.
    Before(StoreError),
    /// The record may have been applied in part.
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

/// The state that records change; only the journal has it. Records add to `released` the blocks that
/// nothing refers to any more. These are in flight until the caller knows that the record is durable and
/// all readers have drained. The fields are public because the journal owns each of these.
pub struct Target<'a> {
    /// The maps.
    pub maps: &'a Maps,
    /// The metadata besides the maps.
    pub metadata: &'a mut MetadataState,
    /// Blocks that the records have released.
    pub released: &'a mut PbaRuns,
}

impl Target<'_> {
    /// Changes maps and metadata according to `record`.
    ///
    /// The new blocks of a [`Record::Map`] must be in flight, or published if its entries become shared;
    /// they are mapped afterwards.
    pub fn apply(&mut self, record: &Record) -> std::result::Result<(), Failed> {
        match record {
            Record::Map {
                layer,
                lba,
                count,
                old,
                new,
            } => self.map(*layer, BlockRange::new(*lba, u64::from(*count)), *old, *new),
            Record::Unmap {
                layer,
                lba,
                count,
                to,
            } => Ok(self.unmap(*layer, BlockRange::new(*lba, u64::from(*count)), *to)?),
            Record::VolumePut { slot, volume } => {
                let is_new = self.metadata.catalogue.by_id(volume.id).is_none();
                self.metadata.catalogue.put(*slot, volume.clone())?;
                if is_new {
                    self.maps
                        .put_above(&self.maps.add_layer(volume), volume.below)?;
                } else {
                    self.maps.space_limits_table.of(volume);
                }
                Ok(())
            }
            Record::Freeze {
                slot,
                snapshot,
                live,
                below,
            } => {
                let volume = self
                    .metadata
                    .catalogue
                    .freeze(*slot, snapshot, *live, *below)?;
                Ok(self
                    .maps
                    .put_above(&self.maps.add_layer(&volume), volume.below)?)
            }
            Record::Merge {
                layer,
                above,
                segment,
            } => self.merge(*layer, *above, *segment),
            Record::VolumeGone {
                slot,
                volume,
                layer,
            } => {
                let mut record = self.metadata.catalogue.remove(*slot, *volume)?;
                // A volume that was being imported until now still had its reservation.
                record.state = VolumeState::Deleting;
                self.maps.space_limits_table.of(&record);
                if let Some(removed) = self.maps.remove_layer(*layer)? {
                    let left = removed.logical_blocks();
                    if left != 0 {
                        let message = format!("layer {layer} went with {left} blocks still mapped");
                        return Err(StoreError::damaged(message).into());
                    }
                    self.metadata.gone.push(removed);
                }
                Ok(())
            }
            Record::Publish {
                layer,
                number,
                runs,
            } => self.publish(*layer, *number, runs),
            Record::Outcome {
                number,
                position,
                count,
                outcome,
                ..
            } => {
                let (kind, items) = self.metadata.batches.settle(*number, *position, *count)?;
                let BatchKind::Finder(layer) = kind else {
                    return Err(StoreError::damaged("an outcome of a collector's batch").into());
                };
                Ok(self.outcome(layer, &items, *outcome)?)
            }
            Record::Collect { number, elements } => {
                let taken = self.metadata.queue.take(u64::from(*elements))?;
                let batches = &mut self.metadata.batches;
                Ok(batches.begin_with(*number, BatchKind::Collector, &taken)?)
            }
            Record::Count { number, elements } => {
                let taken = self.metadata.claims.take(u64::from(*elements))?;
                let batches = &mut self.metadata.batches;
                Ok(batches.begin_with(*number, BatchKind::Counting, &taken)?)
            }
            // The entry had the reference before.
            Record::Counted {
                number,
                position,
                count,
                ..
            } => {
                let (kind, _) = self.metadata.batches.settle(*number, *position, *count)?;
                match kind {
                    BatchKind::Counting => Ok(()),
                    _ => Err(StoreError::damaged("claims counted by another's batch").into()),
                }
            }
            Record::Release {
                number,
                position,
                count,
                release,
            } => {
                let (_, items) = self.metadata.batches.settle(*number, *position, *count)?;
                match release {
                    Release::Freed => {
                        self.metadata.lookup_version.raise();
                        for item in items {
                            self.free(item.pba)?;
                        }
                    }
                    Release::Held => items.iter().for_each(|item| self.queue_one(item.pba, item)),
                    Release::Remaining | Release::Quarantined => {}
                }
                Ok(())
            }
            Record::Exchange {
                number,
                given,
                taken,
            } => Ok(self.exchange(*number, given, taken)?),
        }
    }

    fn map(
        &mut self,
        layer: LayerId,
        blocks: BlockRange,
        old: Entry,
        new: Entry,
    ) -> std::result::Result<(), Failed> {
        let layer = self.maps.layer(layer).map_err(Failed::Before)?;
        let leaf = fitting_leaf(self.maps, &layer, blocks, old).map_err(Failed::Before)?;
        let slots = blocks.slots();
        if let Some(start) = new.pba() {
            let run = PbaRun {
                start,
                count: blocks.count,
            };
            match new.state() {
                State::Shared(_) => self.claim(&layer, run),
                _ => self.metadata.space.name(run)?,
            }
        }
        self.give_up(&layer, blocks, old)?;
        self.maps
            .change(&layer, blocks.segment(), &leaf, slots, |entries| {
                for (entry, n) in entries.iter_mut().zip(0..) {
                    *entry = new.successor(n);
                }
            });
        Ok(())
    }

    /// Entries refer to these published blocks from now on, and the index does not count that yet.
    fn claim(&mut self, layer: &Layer, run: PbaRun) {
        // A claim that is not part of its entry's record is lost in a crash.
        if Guard::ClaimWithEntry.holds() || self.metadata.is_recovered {
            self.metadata.claims.push(run, layer.domain);
        }
    }

    fn unmap(&mut self, layer: LayerId, blocks: BlockRange, to: UnmapTo) -> Result<()> {
        let layer = self.maps.layer(layer)?;
        let leaf = self.maps.leaf(&layer, blocks.segment(), Blocking::Yes)?;
        let slots = blocks.slots();
        let to = match to {
            UnmapTo::Absent => Entry::ABSENT,
            UnmapTo::Zero => Entry::ZERO,
        };
        let before = leaf.with(|entries| entries[slots.clone()].to_vec());
        for run in entry_runs(blocks.first, &before) {
            self.give_up(&layer, run.blocks, run.first)?;
        }
        self.maps
            .change(&layer, blocks.segment(), &leaf, slots, |entries| {
                entries.fill(to);
            });
        Ok(())
    }

    /// Moves the entries of a frozen layer to the layer above wherever that has none, and releases
    /// the others.
    fn merge(
        &mut self,
        layer: LayerId,
        above: LayerId,
        segment: SegmentIndex,
    ) -> std::result::Result<(), Failed> {
        let found = |id| self.maps.layer(id).map_err(Failed::Before);
        let (layer, above) = (found(layer)?, found(above)?);
        let is_below = above.below().is_some_and(|below| below.id == layer.id);
        if !is_below || layer.above().len() != 1 {
            return Err(Failed::Before(misfit(layer.id, segment.first())));
        }
        let leaf = |layer: &Layer| self.maps.leaf(layer, segment, Blocking::Yes);
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
        for run in entry_runs(segment.first(), &lost) {
            self.give_up(&layer, run.blocks, run.first)?;
        }
        self.maps.merge(
            segment,
            LeafOf {
                layer: &layer,
                leaf: &lower,
            },
            LeafOf {
                layer: &above,
                leaf: &upper,
            },
            &moved,
        );
        Ok(())
    }

    /// Passes blocks to the pool, and takes space extents from it.
    fn exchange(&mut self, number: u64, given: &[GivenRun], taken: &[SpaceExtent]) -> Result<()> {
        let metadata = &mut *self.metadata;
        let is_repeated = number <= metadata.exchanged && Guard::ExtentNumberRecorded.holds();
        if metadata.space.of() == SpaceOf::Pool || is_repeated {
            return Err(StoreError::damaged(format!(
                "exchange {number} of space extents follows {}",
                metadata.exchanged
            )));
        }
        metadata.exchanged = number;
        given.iter().try_for_each(|run| metadata.space.give(*run))?;
        taken
            .iter()
            .try_for_each(|extent| metadata.space.lease(*extent))
    }

    /// Releases the blocks of a run of entries, of which the first is `entry`: its own blocks, or
    /// references to shared ones.
    fn give_up(&mut self, layer: &Layer, blocks: BlockRange, entry: Entry) -> Result<()> {
        match entry.state() {
            State::Absent | State::Zero => Ok(()),
            State::Private(start) | State::Unshareable(start) => {
                let run = PbaRun {
                    start,
                    count: blocks.count,
                };
                self.metadata.space.unname(run)?;
                self.released.push(run);
                Ok(())
            }
            State::Shared(start) => {
                for n in 0..blocks.count {
                    let pba = start + n;
                    let open = self.metadata.batches.open.as_mut();
                    let is_unsettled =
                        open.is_some_and(|batch| batch.note_moved(layer.id, blocks.first + n, pba));
                    if !is_unsettled {
                        let run = PbaRun {
                            start: pba,
                            count: 1,
                        };
                        self.metadata.queue.push(run, layer.domain);
                    }
                }
                Ok(())
            }
        }
    }

    /// Makes the blocks' entries shared before anything else uses the blocks: from here on no write
    /// goes to them (P1), so the content fingerprinted later is the content of the entries.
    fn publish(
        &mut self,
        layer: LayerId,
        number: u64,
        runs: &[PublishRun],
    ) -> std::result::Result<(), Failed> {
        let layer = self.maps.layer(layer).map_err(Failed::Before)?;
        for run in runs {
            let blocks = BlockRange::new(run.lba, u64::from(run.count));
            fitting_leaf(self.maps, &layer, blocks, Entry::private(run.pba))
                .map_err(Failed::Before)?;
        }
        self.metadata
            .batches
            .announce(layer.id, layer.domain, number, runs)?;
        for run in runs {
            let (old, new) = (Entry::private(run.pba), Entry::shared(run.pba));
            self.change_run(
                &layer,
                BlockRange::new(run.lba, u64::from(run.count)),
                old,
                new,
            )?;
        }
        Ok(())
    }

    fn outcome(&mut self, layer: LayerId, items: &[BatchItem], outcome: Outcome) -> Result<()> {
        for (item, n) in items.iter().zip(0..) {
            let shared = Entry::shared(item.pba);
            let becomes = |new: Entry| {
                let layer = self.maps.layer(layer)?;
                self.change_run(&layer, BlockRange::new(item.lba, 1), shared, new)
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
                    self.free(item.pba)?;
                }
                Outcome::Dangling(indexed) => {
                    if indexed + n != item.pba {
                        self.free(item.pba)?;
                    }
                    self.queue_one(indexed + n, item);
                }
                Outcome::Rejected(indexed) => {
                    becomes(Entry::unshareable(item.pba))?;
                    self.queue_one(indexed + n, item);
                }
                Outcome::Declined if item.moved => self.free(item.pba)?,
                Outcome::Declined => becomes(Entry::private(item.pba))?,
            }
        }
        Ok(())
    }

    fn queue_one(&mut self, pba: Pba, item: &BatchItem) {
        let run = PbaRun {
            start: pba,
            count: 1,
        };
        self.metadata.queue.push(run, item.domain);
    }

    /// Frees a block that nothing refers to any more.
    fn free(&mut self, pba: Pba) -> Result<()> {
        let run = PbaRun {
            start: pba,
            count: 1,
        };
        self.metadata.space.unname(run)?;
        match self.released.last_mut() {
            Some(last) if last.start.0 + last.count == pba.0 => last.count += 1,
            _ => self.released.push(run),
        }
        Ok(())
    }

    /// Replaces a run of entries in one segment, which must be `old` and its successors, by `new` and
    /// its successors. Blocks stay where they are.
    fn change_run(
        &self,
        layer: &Arc<Layer>,
        blocks: BlockRange,
        old: Entry,
        new: Entry,
    ) -> Result<()> {
        let leaf = fitting_leaf(self.maps, layer, blocks, old)?;
        let slots = blocks.slots();
        self.maps
            .change(layer, blocks.segment(), &leaf, slots, |entries| {
                for (entry, n) in entries.iter_mut().zip(0..) {
                    *entry = new.successor(n);
                }
            });
        Ok(())
    }
}

/// The segment of a run of entries, which must be `old` and its successors.
fn fitting_leaf(
    maps: &Maps,
    layer: &Arc<Layer>,
    blocks: BlockRange,
    old: Entry,
) -> Result<Arc<Leaf>> {
    let leaf = maps.leaf(layer, blocks.segment(), Blocking::Yes)?;
    let slots = blocks.slots();
    let fits = leaf.with(|entries| {
        let run = entries[slots].iter().zip(0..);
        run.into_iter().all(|(entry, n)| *entry == old.successor(n))
    });
    if fits {
        Ok(leaf)
    } else {
        Err(misfit(layer.id, blocks.first))
    }
}

fn misfit(layer: LayerId, lba: Lba) -> StoreError {
    StoreError::damaged(format!(
        "a record of layer {layer} does not fit block {lba}"
    ))
}

/// Consecutive entries, each the successor of the one before.
struct EntryRun {
    blocks: BlockRange,
    first: Entry,
}

/// Groups entries into runs.
fn entry_runs(first: Lba, entries: &[Entry]) -> Vec<EntryRun> {
    let mut runs: Vec<EntryRun> = Vec::new();
    for (entry, lba) in entries.iter().zip(first.0..) {
        match runs.last_mut() {
            Some(run) if run.first.successor(run.blocks.count) == *entry => run.blocks.count += 1,
            _ => runs.push(EntryRun {
                blocks: BlockRange::new(Lba(lba), 1),
                first: *entry,
            }),
        }
    }
    runs
}

/// The blocks that these entries own, as runs.
pub fn owned_runs(entries: &[Entry]) -> PbaRuns {
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
