//! The image: everything that the log describes and a checkpoint holds. [`Image::apply`] is the only function that
//! changes it, for guests, finder, collector, layers and recovery alike.
//!
//! Invariant: an image is a function of the records applied to it. It excludes all state that exists in memory only
//! (leases, locks, readers, phases of jobs).

use crate::bits::Bits;
use crate::guards::{Guard, Guards};

/// A block of the pool (a PBA).
pub type Block = u8;
/// A block of a volume.
pub type Lba = u8;
/// A layer.
pub type LayerId = u8;
/// A volume.
pub type Volume = u8;
/// The content of a block. 0 is zeros and is never stored.
pub type Content = u8;
/// A fingerprint of a content.
pub type Fingerprint = u8;
/// A number in the pool's stream of batches.
pub type BatchNumber = u8;

/// LBAs that the maps have room for.
pub const LBAS: usize = 2;
/// Volumes that the catalogue has room for.
pub const VOLUMES: usize = 2;
/// Layers that the catalogue has room for.
pub const LAYERS: usize = 5;
/// Blocks that the pool has room for.
pub const BLOCKS: usize = 5;

/// The state of an LBA in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Look in the layer below; zeros below the last layer.
    #[default]
    Absent,
    /// Zeros.
    Zero,
    /// This entry alone owns the block.
    Private(Block),
    /// Private, and ignored by the finder: its fingerprint collides with another content.
    Kept(Block),
    /// Marked by the finder, or published in the index. Immutable.
    Shared(Block),
}

impl Entry {
    /// The block that the entry names.
    pub fn block(self) -> Option<Block> {
        match self {
            Entry::Absent | Entry::Zero => None,
            Entry::Private(block) | Entry::Kept(block) | Entry::Shared(block) => Some(block),
        }
    }
}

/// A layer's map from LBA to block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// The entries.
    pub map: [Entry; LBAS],
    /// The layer that absent entries refer to.
    pub below: Option<LayerId>,
    /// Whether the layer is a snapshot.
    pub frozen: bool,
    /// Whether the layer is being merged away.
    pub deleting: bool,
}

impl Layer {
    fn new(below: Option<LayerId>) -> Layer {
        Layer {
            map: [Entry::Absent; LBAS],
            below,
            frozen: false,
            deleting: false,
        }
    }
}

/// The job that announced a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// The finder, for entries of this layer.
    Finder(LayerId),
    /// The collector.
    Collector,
    /// Counting, for claims.
    Counting,
}

/// A block of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The LBA that named the block when it was announced; 0 for collector and counting.
    pub lba: Lba,
    /// The block.
    pub block: Block,
    /// Whether the LBA names another block by now.
    pub moved: bool,
}

/// A batch that was announced and is not completely settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenBatch {
    /// The batch's number in the pool's stream.
    pub number: BatchNumber,
    /// The job that the batch belongs to.
    pub kind: BatchKind,
    /// The items that were announced.
    pub items: Vec<Item>,
    /// The number of settled items, which are the first ones.
    pub done: u8,
}

impl OpenBatch {
    /// The items that no record has settled.
    pub fn unsettled(&self) -> &[Item] {
        &self.items[usize::from(self.done)..]
    }

    /// Whether an item at `lba` of `layer` is unsettled, whatever its entry names now.
    pub fn has_announced(&self, layer: LayerId, lba: Lba) -> bool {
        let mut unsettled = self.unsettled().iter();
        self.kind == BatchKind::Finder(layer) && unsettled.any(|item| item.lba == lba)
    }

    /// Whether the item at `lba` of `layer`, whose entry names `block`, is unsettled.
    pub fn has_unsettled(&self, layer: LayerId, lba: Lba, block: Block) -> bool {
        let mut unsettled = self.unsettled().iter();
        self.kind == BatchKind::Finder(layer)
            && unsettled.any(|item| (item.lba, item.block, item.moved) == (lba, block, false))
    }
}

/// The outcome for one entry of a finder batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The index now names the entry's block.
    Inserted,
    /// The entry names the indexed block; its old one is free.
    Aliased(Block),
    /// The LBA names another block by now. The reference to the indexed block is dropped, and the entry's old block is
    /// freed if that is a different one.
    Dangling(Block),
    /// The bytes differ; the reference is dropped and the entry is private for good.
    Rejected(Block),
    /// The index is full; the entry is private again, or its block free if the LBA moved on.
    Declined,
}

/// The outcome for a reference that the collector released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// Other references to the block remain.
    Remaining,
    /// The last reference was released, so the block is free.
    Freed,
    /// The index contradicts the queue; the block is set aside for `check`.
    Quarantined,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "variants and fields are the words of docs/model.md"
)]
pub enum Record {
    /// With a shared `new`, the write is a hit and makes a claim.
    Write {
        layer: LayerId,
        lba: Lba,
        old: Entry,
        new: Entry,
    },
    Publish {
        layer: LayerId,
        number: BatchNumber,
        items: Vec<(Lba, Block)>,
    },
    Outcome {
        number: BatchNumber,
        position: u8,
        outcome: Outcome,
    },
    Collect {
        number: BatchNumber,
        elements: u8,
    },
    Release {
        number: BatchNumber,
        position: u8,
        release: Release,
    },
    Count {
        number: BatchNumber,
        elements: u8,
    },
    Counted {
        number: BatchNumber,
        position: u8,
        quarantined: bool,
    },
    /// A claim that is logged without its entry, which happens only with a guard off.
    Claim {
        block: Block,
    },
    Snapshot {
        volume: Volume,
        live: LayerId,
    },
    Clone {
        volume: Volume,
        below: LayerId,
        live: LayerId,
    },
    DeleteStart {
        layer: LayerId,
    },
    MergeStep {
        layer: LayerId,
        into: Option<LayerId>,
        lba: Lba,
    },
    LayerDropped {
        layer: LayerId,
    },
}

/// A record does not fit the image: the log contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction;

/// The state that the log's records produce.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// The catalogue of layers, by id.
    pub layers: [Option<Layer>; LAYERS],
    /// The live layer of each volume.
    pub live: [Option<LayerId>; VOLUMES],
    /// The id that the next layer gets.
    pub next_layer: LayerId,
    /// The free-space bitmap, maintained record by record.
    pub allocated: Bits,
    /// Blocks that only `check` may free.
    pub quarantined: Bits,
    /// References dropped by all layers, first in, first out; one element per reference.
    pub queue: Vec<Block>,
    /// References that entries have and the index has not counted yet, in the order of their records.
    pub claims: Vec<Block>,
    /// The number that the next batch gets.
    pub next_number: BatchNumber,
    /// The open batch. There is more than one only with a guard off.
    pub open: Vec<OpenBatch>,
}

impl Image {
    /// A pool with `volumes` empty volumes.
    pub fn new(volumes: u8) -> Image {
        let mut image = Image {
            layers: Default::default(),
            live: [None; VOLUMES],
            next_layer: volumes,
            allocated: Bits::NONE,
            quarantined: Bits::NONE,
            queue: Vec::new(),
            claims: Vec::new(),
            next_number: 1,
            open: Vec::new(),
        };
        for volume in 0..volumes {
            image.layers[usize::from(volume)] = Some(Layer::new(None));
            image.live[usize::from(volume)] = Some(volume);
        }
        image
    }

    /// The layer `id`, if it exists.
    pub fn layer(&self, id: LayerId) -> Option<&Layer> {
        self.layers.get(usize::from(id)).and_then(Option::as_ref)
    }

    fn layer_mut(&mut self, id: LayerId) -> Result<&mut Layer, Contradiction> {
        self.layers
            .get_mut(usize::from(id))
            .and_then(Option::as_mut)
            .ok_or(Contradiction)
    }

    /// The layers that exist, with their ids.
    pub fn each_layer(&self) -> impl Iterator<Item = (LayerId, &Layer)> {
        (0..)
            .zip(&self.layers)
            .filter_map(|(id, layer)| layer.as_ref().map(|l| (id, l)))
    }

    /// All entries, with layer and LBA.
    pub fn entries(&self) -> impl Iterator<Item = (LayerId, Lba, Entry)> {
        self.each_layer()
            .flat_map(|(id, layer)| (0..).zip(layer.map).map(move |(lba, e)| (id, lba, e)))
    }

    /// The layers directly on top of `id`.
    pub fn children(&self, id: LayerId) -> impl Iterator<Item = LayerId> {
        self.each_layer()
            .filter(move |(_, l)| l.below == Some(id))
            .map(|(child, _)| child)
    }

    /// The layer that determines `lba` of `layer`, and its entry.
    pub fn resolve(&self, layer: LayerId, lba: Lba) -> (LayerId, Entry) {
        let mut at = layer;
        loop {
            let Some(found) = self.layer(at) else {
                return (at, Entry::Absent);
            };
            match (found.map[usize::from(lba)], found.below) {
                (Entry::Absent, Some(below)) => at = below,
                (entry, _) => return (at, entry),
            }
        }
    }

    /// The id that a new layer gets, if the catalogue has room.
    pub fn new_layer_id(&self) -> Option<LayerId> {
        Some(self.next_layer).filter(|id| usize::from(*id) < LAYERS)
    }

    /// The open batch with this number.
    pub fn batch(&self, number: BatchNumber) -> Option<&OpenBatch> {
        self.open.iter().find(|batch| batch.number == number)
    }

    /// Applies one record and returns the blocks that it frees.
    ///
    /// # Errors
    /// The record contradicts the image.
    pub fn apply(&mut self, guards: Guards, record: &Record) -> Result<Bits, Contradiction> {
        let mut freed = Bits::NONE;
        match *record {
            Record::Write {
                layer,
                lba,
                old,
                new,
            } => {
                self.apply_write(guards, (layer, lba), old, new, &mut freed)?;
            }
            Record::Publish {
                layer,
                number,
                ref items,
            } => self.apply_publish(guards, layer, number, items)?,
            Record::Outcome {
                number,
                position,
                outcome,
            } => {
                let (kind, item) = self.settle(number, position)?;
                let BatchKind::Finder(layer) = kind else {
                    return Err(Contradiction);
                };
                self.apply_outcome(guards, layer, item, outcome, &mut freed)?;
            }
            Record::Collect { number, elements } => {
                self.apply_taken(guards, number, BatchKind::Collector, elements)?;
            }
            Record::Release {
                number,
                position,
                release,
            } => {
                let item = self.settle_taken(number, position, BatchKind::Collector)?;
                match release {
                    Release::Remaining => {}
                    Release::Freed => self.free(item.block, &mut freed)?,
                    Release::Quarantined => self.quarantined.insert(item.block),
                }
            }
            Record::Count { number, elements } => {
                self.apply_taken(guards, number, BatchKind::Counting, elements)?;
            }
            Record::Counted {
                number,
                position,
                quarantined,
            } => {
                let item = self.settle_taken(number, position, BatchKind::Counting)?;
                if quarantined {
                    self.quarantined.insert(item.block);
                }
            }
            Record::Claim { block } => self.claims.push(block),
            Record::MergeStep { layer, into, lba } => {
                self.apply_merge_step(guards, layer, into, lba, &mut freed)?;
            }
            ref layers => self.apply_to_layers(layers)?,
        }
        Ok(freed)
    }

    fn apply_write(
        &mut self,
        guards: Guards,
        (layer, lba): (LayerId, Lba),
        old: Entry,
        new: Entry,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let found = self.layer_mut(layer)?;
        if found.map[usize::from(lba)] != old {
            return Err(Contradiction);
        }
        found.map[usize::from(lba)] = new;
        match new {
            Entry::Shared(block) => self.claim(guards, block)?,
            _ => new.block().map_or(Ok(()), |block| self.allocate(block))?,
        }
        self.give_up_entry(guards, (layer, lba), old, freed)
    }

    /// Gives up an entry. A private block is freed at once. For a shared block that the open batch still has to settle,
    /// the batch decides; otherwise the reference waits for the collector.
    fn give_up_entry(
        &mut self,
        guards: Guards,
        (layer, lba): (LayerId, Lba),
        entry: Entry,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        match entry {
            Entry::Absent | Entry::Zero => Ok(()),
            Entry::Private(block) | Entry::Kept(block) => self.free(block, freed),
            Entry::Shared(block) => {
                let is_unsettled = self.note_moved(layer, lba, block);
                if !is_unsettled || !guards.on(Guard::MovedNotQueued) {
                    self.queue.push(block);
                }
                Ok(())
            }
        }
    }

    fn note_moved(&mut self, layer: LayerId, lba: Lba, block: Block) -> bool {
        let mut open = self.open.iter_mut();
        let Some(batch) = open.find(|batch| batch.has_unsettled(layer, lba, block)) else {
            return false;
        };
        let mut unsettled = batch.items.iter_mut().skip(usize::from(batch.done));
        let item = unsettled.find(|item| (item.lba, item.block) == (lba, block));
        item.into_iter().for_each(|item| item.moved = true);
        true
    }

    fn apply_publish(
        &mut self,
        guards: Guards,
        layer: LayerId,
        number: BatchNumber,
        items: &[(Lba, Block)],
    ) -> Result<(), Contradiction> {
        let found = self.layer_mut(layer)?;
        for (lba, block) in items {
            let entry = &mut found.map[usize::from(*lba)];
            if *entry != Entry::Private(*block) {
                return Err(Contradiction);
            }
            *entry = Entry::Shared(*block);
        }
        let batch = self.begin_or_continue(guards, number, BatchKind::Finder(layer))?;
        batch.items.extend(items.iter().map(|(lba, block)| Item {
            lba: *lba,
            block: *block,
            moved: false,
        }));
        Ok(())
    }

    /// Takes elements off the head of the queue, or of the claims, into a batch.
    fn apply_taken(
        &mut self,
        guards: Guards,
        number: BatchNumber,
        kind: BatchKind,
        elements: u8,
    ) -> Result<(), Contradiction> {
        let elements = usize::from(elements);
        let from = match kind {
            BatchKind::Counting => &mut self.claims,
            _ => &mut self.queue,
        };
        if elements > from.len() {
            return Err(Contradiction);
        }
        let taken: Vec<Block> = from.drain(..elements).collect();
        if self.batch(number).is_some() {
            return Err(Contradiction);
        }
        let batch = self.begin_or_continue(guards, number, kind)?;
        batch.items = taken
            .into_iter()
            .map(|block| Item {
                lba: 0,
                block,
                moved: false,
            })
            .collect();
        Ok(())
    }

    /// Settles the next item of a batch of the collector or of counting.
    fn settle_taken(
        &mut self,
        number: BatchNumber,
        position: u8,
        kind: BatchKind,
    ) -> Result<Item, Contradiction> {
        let (found, item) = self.settle(number, position)?;
        if found == kind {
            Ok(item)
        } else {
            Err(Contradiction)
        }
    }

    fn begin_or_continue(
        &mut self,
        guards: Guards,
        number: BatchNumber,
        kind: BatchKind,
    ) -> Result<&mut OpenBatch, Contradiction> {
        let same = |b: &OpenBatch| (b.number, b.kind, b.done) == (number, kind, 0);
        if let Some(at) = self.open.iter().position(same) {
            return Ok(&mut self.open[at]);
        }
        let alone = self.open.is_empty() || !guards.on(Guard::OneBatch);
        let is_next = number == self.next_number || !guards.on(Guard::NumbersNeverReused);
        if !alone || !is_next {
            return Err(Contradiction);
        }
        self.next_number = self.next_number.max(number + 1);
        self.open.push(OpenBatch {
            number,
            kind,
            items: Vec::new(),
            done: 0,
        });
        self.open.last_mut().ok_or(Contradiction)
    }

    /// Settles the next item of batch `number`.
    fn settle(
        &mut self,
        number: BatchNumber,
        position: u8,
    ) -> Result<(BatchKind, Item), Contradiction> {
        let mut open = self.open.iter_mut();
        let batch = open.find(|b| b.number == number).ok_or(Contradiction)?;
        let next = batch.unsettled().first().ok_or(Contradiction)?;
        let found = (batch.kind, *next);
        if batch.done != position {
            return Err(Contradiction);
        }
        batch.done += 1;
        self.open.retain(|batch| !batch.unsettled().is_empty());
        Ok(found)
    }

    fn apply_outcome(
        &mut self,
        guards: Guards,
        layer: LayerId,
        item: Item,
        outcome: Outcome,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let fits = match outcome {
            Outcome::Dangling(_) => item.moved,
            Outcome::Declined => true,
            Outcome::Inserted | Outcome::Aliased(_) | Outcome::Rejected(_) => !item.moved,
        };
        if !fits && guards.on(Guard::AliasOnlyIfUnmoved) {
            return Err(Contradiction);
        }
        let own = item.block;
        match outcome {
            Outcome::Inserted => {}
            Outcome::Aliased(indexed) => {
                self.set_published(guards, layer, item, Entry::Shared(indexed))?;
                self.free(own, freed)?;
            }
            Outcome::Dangling(indexed) => {
                if indexed != own || !guards.on(Guard::DanglingKeepsInserted) {
                    self.free(own, freed)?;
                }
                self.queue.push(indexed);
            }
            Outcome::Rejected(indexed) => {
                self.set_published(guards, layer, item, Entry::Kept(own))?;
                self.queue.push(indexed);
            }
            Outcome::Declined if item.moved => {
                if guards.on(Guard::DeclinedFreesMoved) {
                    self.free(own, freed)?;
                }
            }
            Outcome::Declined => {
                self.set_published(guards, layer, item, Entry::Private(own))?;
            }
        }
        Ok(())
    }

    /// Changes the entry of an item, which must name its block as shared.
    fn set_published(
        &mut self,
        guards: Guards,
        layer: LayerId,
        item: Item,
        new: Entry,
    ) -> Result<(), Contradiction> {
        let entry = &mut self.layer_mut(layer)?.map[usize::from(item.lba)];
        if *entry != Entry::Shared(item.block) && guards.on(Guard::AliasOnlyIfUnmoved) {
            return Err(Contradiction);
        }
        *entry = new;
        Ok(())
    }

    /// Applies the records that change the layers themselves, and release nothing.
    fn apply_to_layers(&mut self, record: &Record) -> Result<(), Contradiction> {
        match *record {
            Record::Snapshot { volume, live } => {
                let below = self.live[usize::from(volume)].ok_or(Contradiction)?;
                self.layer_mut(below)?.frozen = true;
                self.start_live_layer(volume, below, live)
            }
            Record::Clone {
                volume,
                below,
                live,
            } => self.start_live_layer(volume, below, live),
            Record::DeleteStart { layer } => {
                self.layer_mut(layer)?.deleting = true;
                Ok(())
            }
            Record::LayerDropped { layer } => self.apply_layer_dropped(layer),
            _ => Err(Contradiction),
        }
    }

    fn start_live_layer(
        &mut self,
        volume: Volume,
        below: LayerId,
        live: LayerId,
    ) -> Result<(), Contradiction> {
        let slot = self
            .layers
            .get_mut(usize::from(live))
            .ok_or(Contradiction)?;
        if slot.is_some() {
            return Err(Contradiction);
        }
        *slot = Some(Layer::new(Some(below)));
        self.live[usize::from(volume)] = Some(live);
        self.next_layer = self.next_layer.max(live + 1);
        Ok(())
    }

    /// Merges an LBA of a deleted layer: its entry moves up if the child has none there, otherwise it is released. The
    /// reference moves with the entry, so the index does not change.
    fn apply_merge_step(
        &mut self,
        guards: Guards,
        layer: LayerId,
        into: Option<LayerId>,
        lba: Lba,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let at = usize::from(lba);
        let entry = std::mem::take(&mut self.layer_mut(layer)?.map[at]);
        if let Some(child) = into {
            let above = &mut self.layer_mut(child)?.map[at];
            if *above == Entry::Absent {
                *above = entry;
                return Ok(());
            }
        }
        self.give_up_entry(guards, (layer, lba), entry, freed)
    }

    fn apply_layer_dropped(&mut self, layer: LayerId) -> Result<(), Contradiction> {
        let below = self.layer(layer).ok_or(Contradiction)?.below;
        let children: Vec<LayerId> = self.children(layer).collect();
        for child in children {
            self.layer_mut(child)?.below = below;
        }
        self.layers[usize::from(layer)] = None;
        Ok(())
    }

    /// Notes that a new entry refers to a published block and that the index has not counted it.
    fn claim(&mut self, guards: Guards, block: Block) -> Result<(), Contradiction> {
        if !self.allocated.has(block) {
            return Err(Contradiction);
        }
        if guards.on(Guard::ClaimWithEntry) {
            self.claims.push(block);
        }
        Ok(())
    }

    fn allocate(&mut self, block: Block) -> Result<(), Contradiction> {
        if self.allocated.has(block) {
            return Err(Contradiction);
        }
        self.allocated.insert(block);
        Ok(())
    }

    fn free(&mut self, block: Block, freed: &mut Bits) -> Result<(), Contradiction> {
        if !self.allocated.has(block) {
            return Err(Contradiction);
        }
        self.allocated.remove(block);
        freed.insert(block);
        Ok(())
    }
}
