//! The image: everything that the log describes and a checkpoint holds, and [`Image::apply`], the
//! one function that changes it, for guests, finder, collector, layers and recovery alike.
//!
//! Invariant: an image is a function of the records applied to it. What is in memory only
//! (leases, locks, readers, phases of jobs) is not in it.

use crate::bits::Bits;

/// A block of the pool (a PBA).
pub type Block = u8;
/// A block of a volume.
pub type Lba = u8;
/// A layer; also the name of its stream in the index.
pub type LayerId = u8;
/// A volume.
pub type Volume = u8;
/// What a block holds. 0 is zeros and is never stored.
pub type Content = u8;
/// A fingerprint of a content.
pub type Fingerprint = u8;
/// A number in a layer's stream of index changes.
pub type StreamNumber = u8;

/// LBAs that the maps have room for.
pub const LBAS: usize = 2;
/// Volumes that the catalogue has room for.
pub const VOLUMES: usize = 2;
/// Layers that the catalogue has room for.
pub const LAYERS: usize = 5;
/// Blocks that the pool has room for.
pub const BLOCKS: usize = 5;

/// What a layer says of an LBA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Look in the layer below; zeros under the last.
    #[default]
    Absent,
    /// Zeros.
    Zero,
    /// This entry alone owns the block.
    Private(Block),
    /// Private, and the finder leaves it alone: its fingerprint collides with another content.
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

/// A job's promise to call the index, durable before the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// The entries are marked; the index is to count them. Items leave as outcomes are logged.
    Find {
        /// The batch's number in the layer's stream.
        number: StreamNumber,
        /// LBAs and the blocks that their entries named when they were marked.
        items: Vec<(Lba, Block)>,
    },
    /// One reference to the block is to be released.
    Collect {
        /// The batch's number in the layer's stream.
        number: StreamNumber,
        /// The block as it was given up.
        block: Block,
        /// The fingerprint of its content, needed when the block may already be another's.
        fingerprint: Fingerprint,
        /// The count reached zero and the block is free; the tombstone is still to be forgotten.
        freed: bool,
    },
}

impl Intent {
    /// The intent's number in the layer's stream.
    pub fn number(&self) -> StreamNumber {
        match self {
            Intent::Find { number, .. } | Intent::Collect { number, .. } => *number,
        }
    }
}

/// One map from LBA to block, and the layer's jobs.
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
    /// The next number in the layer's stream.
    pub next: StreamNumber,
    /// Shared blocks given up, one item a reference, sorted.
    pub given_up: Vec<Block>,
    /// Open intents, by number.
    pub intents: Vec<Intent>,
}

impl Layer {
    fn new(below: Option<LayerId>) -> Layer {
        Layer {
            map: [Entry::Absent; LBAS],
            below,
            frozen: false,
            deleting: false,
            next: 1,
            given_up: Vec::new(),
            intents: Vec::new(),
        }
    }

    fn give_up(&mut self, block: Block) {
        self.given_up.push(block);
        self.given_up.sort_unstable();
    }

    fn take_given_up(&mut self, block: Block) -> Result<(), Contradiction> {
        let at = self
            .given_up
            .iter()
            .position(|b| *b == block)
            .ok_or(Contradiction)?;
        self.given_up.remove(at);
        Ok(())
    }
}

/// What became of one entry of a finder batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The index now names the entry's block.
    Inserted,
    /// The entry names the indexed block; its old one is given up.
    Aliased(Block),
    /// The LBA moved on; the reference to the indexed block is given up, and so is the old block.
    Dangling(Block),
    /// The bytes differ; the reference is given up and the entry is private for good.
    Rejected(Block),
}

/// What became of a reference that the collector released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// Others still hold the block.
    Remaining,
    /// It was the last one; the intent stays open until the index has forgotten the tombstone.
    Freed,
    /// It was the last one, and the index left no tombstone.
    FreedAndDone,
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
    Write {
        layer: LayerId,
        lba: Lba,
        old: Entry,
        new: Entry,
    },
    FindIntent {
        layer: LayerId,
        number: StreamNumber,
        items: Vec<(Lba, Block)>,
    },
    FindOutcome {
        layer: LayerId,
        number: StreamNumber,
        lba: Lba,
        old: Block,
        outcome: Outcome,
        /// A block of another layer that goes too: only ever set with a guard off.
        also_freed: Option<Block>,
    },
    CollectIntent {
        layer: LayerId,
        number: StreamNumber,
        block: Block,
        fingerprint: Fingerprint,
    },
    CollectOutcome {
        layer: LayerId,
        number: StreamNumber,
        release: Release,
    },
    CollectDone {
        layer: LayerId,
        number: StreamNumber,
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

/// The state that the log's records make.
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
    /// Blocks that nothing may free but `check`.
    pub quarantined: Bits,
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

    /// The layers directly on top of `id`.
    pub fn children(&self, id: LayerId) -> impl Iterator<Item = LayerId> {
        self.each_layer()
            .filter(move |(_, l)| l.below == Some(id))
            .map(|(child, _)| child)
    }

    /// The layer that decides what `lba` is in `layer`, and its entry.
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

    /// The free layer id that a new layer gets, if the catalogue has room.
    pub fn new_layer_id(&self, never_reused: bool) -> Option<LayerId> {
        let lowest = self
            .layers
            .iter()
            .position(Option::is_none)
            .map(|i| i as LayerId);
        let id = if never_reused {
            Some(self.next_layer)
        } else {
            lowest
        };
        id.filter(|id| usize::from(*id) < LAYERS)
    }

    /// Applies one record and returns the blocks that it frees.
    ///
    /// # Errors
    /// The record contradicts the image.
    pub fn apply(&mut self, record: &Record) -> Result<Bits, Contradiction> {
        let mut freed = Bits::NONE;
        match *record {
            Record::Write {
                layer,
                lba,
                old,
                new,
            } => {
                self.apply_write(layer, lba, old, new, &mut freed)?;
            }
            Record::FindIntent {
                layer,
                number,
                ref items,
            } => {
                self.apply_find_intent(layer, number, items)?;
            }
            Record::FindOutcome {
                layer,
                number,
                lba,
                old,
                outcome,
                also_freed,
            } => {
                self.apply_find_outcome(layer, number, lba, old, outcome, &mut freed)?;
                if let Some(block) = also_freed {
                    self.free(block, &mut freed)?;
                }
            }
            Record::CollectIntent {
                layer,
                number,
                block,
                fingerprint,
            } => {
                let found = self.layer_mut(layer)?;
                found.take_given_up(block)?;
                found.next = number + 1;
                let freed = false;
                found.intents.push(Intent::Collect {
                    number,
                    block,
                    fingerprint,
                    freed,
                });
            }
            Record::CollectOutcome {
                layer,
                number,
                release,
            } => {
                self.apply_collect_outcome(layer, number, release, &mut freed)?;
            }
            Record::CollectDone { layer, number } => {
                self.take_intent(layer, number)?;
            }
            Record::Snapshot { volume, live } => {
                let below = self.live[usize::from(volume)].ok_or(Contradiction)?;
                self.layer_mut(below)?.frozen = true;
                self.start_live_layer(volume, below, live)?;
            }
            Record::Clone {
                volume,
                below,
                live,
            } => self.start_live_layer(volume, below, live)?,
            Record::DeleteStart { layer } => self.layer_mut(layer)?.deleting = true,
            Record::MergeStep { layer, into, lba } => {
                self.apply_merge_step(layer, into, lba, &mut freed)?;
            }
            Record::LayerDropped { layer } => self.apply_layer_dropped(layer)?,
        }
        Ok(freed)
    }

    fn apply_write(
        &mut self,
        layer: LayerId,
        lba: Lba,
        old: Entry,
        new: Entry,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let found = self.layer_mut(layer)?;
        if found.map[usize::from(lba)] != old {
            return Err(Contradiction);
        }
        found.map[usize::from(lba)] = new;
        if let Some(block) = new.block() {
            self.allocate(block)?;
        }
        self.give_up_entry(layer, old, freed)
    }

    /// A private block is free at once, a shared one waits for the collector.
    fn give_up_entry(
        &mut self,
        layer: LayerId,
        entry: Entry,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        match entry {
            Entry::Absent | Entry::Zero => Ok(()),
            Entry::Private(block) | Entry::Kept(block) => self.free(block, freed),
            Entry::Shared(block) => {
                self.layer_mut(layer)?.give_up(block);
                Ok(())
            }
        }
    }

    fn apply_find_intent(
        &mut self,
        layer: LayerId,
        number: StreamNumber,
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
        found.next = number + 1;
        found.intents.push(Intent::Find {
            number,
            items: items.to_vec(),
        });
        Ok(())
    }

    fn apply_find_outcome(
        &mut self,
        layer: LayerId,
        number: StreamNumber,
        lba: Lba,
        old: Block,
        outcome: Outcome,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        self.take_find_item(layer, number, (lba, old))?;
        let found = self.layer_mut(layer)?;
        let entry = &mut found.map[usize::from(lba)];
        match outcome {
            Outcome::Inserted => {}
            Outcome::Aliased(block) => {
                *entry = Entry::Shared(block);
                self.free(old, freed)?;
            }
            Outcome::Dangling(block) => {
                // The old block was queued for the collector when its LBA moved on, but it was
                // never published: only the reference to the indexed block is to be released.
                found.take_given_up(old)?;
                found.give_up(block);
                self.free(old, freed)?;
            }
            Outcome::Rejected(block) => {
                if *entry != Entry::Shared(old) {
                    return Err(Contradiction);
                }
                *entry = Entry::Kept(old);
                found.give_up(block);
            }
        }
        Ok(())
    }

    fn take_find_item(
        &mut self,
        layer: LayerId,
        number: StreamNumber,
        item: (Lba, Block),
    ) -> Result<(), Contradiction> {
        let intents = &mut self.layer_mut(layer)?.intents;
        let open = intents
            .iter_mut()
            .find(|i| i.number() == number)
            .ok_or(Contradiction)?;
        let Intent::Find { items, .. } = open else {
            return Err(Contradiction);
        };
        let at = items.iter().position(|i| *i == item).ok_or(Contradiction)?;
        items.remove(at);
        if items.is_empty() {
            self.take_intent(layer, number)?;
        }
        Ok(())
    }

    fn take_intent(&mut self, layer: LayerId, number: StreamNumber) -> Result<(), Contradiction> {
        let intents = &mut self.layer_mut(layer)?.intents;
        let at = intents
            .iter()
            .position(|i| i.number() == number)
            .ok_or(Contradiction)?;
        intents.remove(at);
        Ok(())
    }

    fn apply_collect_outcome(
        &mut self,
        layer: LayerId,
        number: StreamNumber,
        release: Release,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let intents = &mut self.layer_mut(layer)?.intents;
        let open = intents
            .iter_mut()
            .find(|i| i.number() == number)
            .ok_or(Contradiction)?;
        let Intent::Collect {
            block,
            freed: is_freed,
            ..
        } = open
        else {
            return Err(Contradiction);
        };
        let block = *block;
        match release {
            Release::Freed => {
                *is_freed = true;
                self.free(block, freed)
            }
            Release::FreedAndDone => {
                self.take_intent(layer, number)?;
                self.free(block, freed)
            }
            Release::Remaining => self.take_intent(layer, number),
            Release::Quarantined => {
                self.quarantined.insert(block);
                self.take_intent(layer, number)
            }
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

    /// One LBA of a layer that goes: its entry moves up where the child has none, else it is
    /// given up. The reference moves with the entry; the index is not told.
    fn apply_merge_step(
        &mut self,
        layer: LayerId,
        into: Option<LayerId>,
        lba: Lba,
        freed: &mut Bits,
    ) -> Result<(), Contradiction> {
        let lba = usize::from(lba);
        let entry = std::mem::take(&mut self.layer_mut(layer)?.map[lba]);
        if let Some(child) = into {
            let above = &mut self.layer_mut(child)?.map[lba];
            if *above == Entry::Absent {
                *above = entry;
                return Ok(());
            }
        }
        self.give_up_entry(layer, entry, freed)
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
