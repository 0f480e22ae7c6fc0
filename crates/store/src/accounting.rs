//! What each volume and each snapshot holds alone, and what would be free without it.
//!
//! A volume, or a snapshot, is a layer, and an entry belongs to one layer. A block is *exclusive* to a
//! layer if no other layer's entries name it, however many of its own do. What becomes of a deleted
//! layer's entries depends on those above it: without one they are given up; one hides some, and the
//! others move there; because of several all stay. So a block is freed by it if no other layer names it,
//! and none of the entries that move or stay. A layer without a name that stays for this one and another
//! may then go, too; what that frees is not counted.
//!
//! The maps are read as a checkpoint has them, a layer after the other, once for each window of the
//! pool's blocks for which there is memory. References that wait for the collector do not count: they
//! are gone before long.

use std::ops::{ControlFlow, Range};

use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::node::Pointer;
use onefold_format::{Entry, LayerId, Pba, SegmentIndex, VolumeId, VolumeRecord};
use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::limits::VOLUMES_MAX;
use crate::references::Snapshot;
use crate::store::Store;
use crate::sync::lock;
use crate::tree;

/// Bytes of memory for a block of the window: the last layer that names it, and flags.
const BYTES_PER_BLOCK: usize = 3;

/// Pages of a map between two calls of `pace`, which is called at its end in any case.
const PAGES_AT_ONCE: u64 = 16;

/// No layer has this number.
const NOBODY: u16 = u16::MAX;

/// Entries of several layers name the block.
const SEVERAL: u8 = 1;

/// An entry names the block that is still there when its layer is deleted.
const STAYS: u8 = 2;

const _: () = assert!(VOLUMES_MAX <= NOBODY as u64, "layers are numbered");

/// What a volume or a snapshot held when its pool was last gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// When that was, in seconds since the Unix epoch.
    pub as_of_unix_seconds: u64,
    /// Blocks of the pool that nothing but its own entries names.
    pub exclusive_blocks: u64,
    /// Blocks of the pool that its own entries name, and those of other volumes or snapshots.
    pub shared_blocks: u64,
    /// Blocks that become free when it is deleted, and nothing else.
    pub freed_if_deleted_blocks: u64,
}

/// What is known of all volumes and snapshots.
pub(crate) type Usages = FxHashMap<VolumeId, Usage>;

impl Store {
    /// Goes through all maps, and keeps for [`Store::stat`] and [`Store::volume_stat`] what each
    /// volume and each snapshot holds. Requests go on meanwhile, and so does all other work. `pace` is
    /// told every few pages how many layers are done, and how many there are in all; it may wait, or
    /// end the work, which then leaves what was known before. Returns whether it came to its end.
    ///
    /// # Errors
    ///
    /// `Damaged` where a map cannot be read; those of the disk.
    pub fn account(&self, pace: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<bool> {
        let snapshot = Snapshot::take(&self.pool)?;
        let as_of_unix_seconds = self.engine.unix_seconds();
        let mut scan = Scan {
            usages: vec![Usage::default(); snapshot.volumes.len()],
            above: layers_above(&snapshot),
            snapshot: &snapshot,
            pages: 0,
            layers_done: 0,
            layers_all: 0,
            pace,
        };
        if scan.run()?.is_break() {
            return Ok(false);
        }
        let ids = snapshot.volumes.iter().map(|volume| volume.id);
        let usages = ids.zip(scan.usages).map(|(id, usage)| {
            let as_of = Usage {
                as_of_unix_seconds,
                ..usage
            };
            (id, as_of)
        });
        *lock(&self.usages) = usages.collect();
        Ok(true)
    }

    /// What was found of a volume or snapshot; nothing if it was made since, or nobody looked yet.
    pub(crate) fn usage(&self, id: VolumeId) -> Option<Usage> {
        lock(&self.usages).get(&id).copied()
    }
}

/// For each layer that has any above it the only one, by number, or nothing where there are several.
fn layers_above(snapshot: &Snapshot<'_>) -> FxHashMap<LayerId, Option<usize>> {
    let mut above = FxHashMap::default();
    for (number, volume) in snapshot.volumes.iter().enumerate() {
        if let Some(below) = volume.below {
            let only = above.entry(below).and_modify(|only| *only = None);
            only.or_insert(Some(number));
        }
    }
    above
}

struct Scan<'a> {
    snapshot: &'a Snapshot<'a>,
    above: FxHashMap<LayerId, Option<usize>>,
    /// By the layers' numbers: their order in the snapshot.
    usages: Vec<Usage>,
    pages: u64,
    layers_done: u64,
    layers_all: u64,
    pace: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<ControlFlow<()>> {
        let pool = self.snapshot.pool;
        let pool_blocks = self.snapshot.root.pool_blocks;
        let step = ((pool.limits.check_bytes / BYTES_PER_BLOCK) as u64).min(pool_blocks);
        let layers = self.snapshot.volumes.len() as u64;
        self.layers_all = layers * pool_blocks.div_ceil(step);
        for start in (0..pool_blocks).step_by(step as usize) {
            // Other scans have the same memory: one window at a time.
            let _memory = lock(&pool.scan_memory);
            let mut window = Window::new(start..(start + step).min(pool_blocks));
            for number in 0..self.snapshot.volumes.len() {
                let counted = self.count_layer(number, &mut window)?;
                self.layers_done += 1;
                if counted.is_break() || self.pace().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            window.add_exclusive(&mut self.usages);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn pace(&mut self) -> ControlFlow<()> {
        (self.pace)(self.layers_done, self.layers_all)
    }

    fn count_layer(&mut self, number: usize, window: &mut Window) -> Result<ControlFlow<()>> {
        let snapshot = self.snapshot;
        let volume = &snapshot.volumes[number];
        let mut from = SegmentIndex(0);
        while let Some((segment, pointer)) = snapshot.next_map_page(volume, from)? {
            self.count_page(number, segment, pointer, window)?;
            self.pages += 1;
            if self.pages.is_multiple_of(PAGES_AT_ONCE) && self.pace().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            from = segment + 1;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn count_page(
        &mut self,
        number: usize,
        segment: SegmentIndex,
        pointer: Pointer,
        window: &mut Window,
    ) -> Result<()> {
        let volume = &self.snapshot.volumes[number];
        let entries = self.snapshot.entries(volume, segment, pointer)?;
        let is_inside = |entry: &Entry| entry.pba().is_some_and(|pba| window.has(pba));
        if !entries.iter().any(is_inside) {
            return Ok(());
        }
        let hides = self.hides(volume, segment)?;
        for (entry, above) in entries.iter().zip(hides.iter()) {
            if let Some(pba) = entry.pba().filter(|pba| window.has(*pba)) {
                let stays = *above == Entry::ABSENT;
                let is_new = window.name(number as u16, pba, stays);
                self.usages[number].shared_blocks += u64::from(is_new);
            }
        }
        Ok(())
    }

    /// What is above a segment once its layer is deleted: every entry that is not absent takes the
    /// place of what the layer has.
    fn hides(&self, volume: &VolumeRecord, segment: SegmentIndex) -> Result<Box<Segment>> {
        let above = match self.above.get(&volume.layer) {
            // Nothing takes over what it has.
            None => return Ok(Box::new([Entry::ZERO; EMPTY_SEGMENT.len()])),
            Some(None) => return Ok(Box::new(EMPTY_SEGMENT)),
            Some(Some(above)) => &self.snapshot.volumes[*above],
        };
        let pages = &self.snapshot.pool.pages;
        match tree::lookup(pages, above.layer.0, above.map, segment.0)? {
            Some(pointer) => self.snapshot.entries(above, segment, pointer),
            None => Ok(Box::new(EMPTY_SEGMENT)),
        }
    }
}

/// What is known of some consecutive blocks of the pool.
struct Window {
    blocks: Range<u64>,
    /// The layer that was last found to name the block.
    last: Vec<u16>,
    flags: Vec<u8>,
}

impl Window {
    fn new(blocks: Range<u64>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        Self {
            blocks,
            last: vec![NOBODY; count],
            flags: vec![0; count],
        }
    }

    fn has(&self, pba: Pba) -> bool {
        self.blocks.contains(&pba.0)
    }

    /// Notes an entry of a layer; the layers come one after the other. Returns whether it is the
    /// layer's first that names this block.
    fn name(&mut self, layer: u16, pba: Pba, stays: bool) -> bool {
        let at = (pba.0 - self.blocks.start) as usize;
        let last = std::mem::replace(&mut self.last[at], layer);
        if last != layer && last != NOBODY {
            self.flags[at] |= SEVERAL;
        }
        if stays {
            self.flags[at] |= STAYS;
        }
        last != layer
    }

    /// Blocks that only one layer names were counted as if others did.
    fn add_exclusive(&self, usages: &mut [Usage]) {
        for (layer, flags) in self.last.iter().zip(&self.flags) {
            if *layer != NOBODY && flags & SEVERAL == 0 {
                let usage = &mut usages[usize::from(*layer)];
                usage.shared_blocks -= 1;
                usage.exclusive_blocks += 1;
                usage.freed_if_deleted_blocks += u64::from(flags & STAYS == 0);
            }
        }
    }
}
