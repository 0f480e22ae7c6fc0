//! The space that each volume and snapshot holds alone, and that would be free without it.
//!
//! A volume, or a snapshot, is a layer, and an entry belongs to one layer. A block is *exclusive*
//! to a layer if no other layer's entries refer to it, however many of its own do. The layers above
//! a deleted layer decide what happens to its entries: with none above, they are released; one
//! hides some, and the others move there; with several, all stay. So a block is freed by it if no
//! other layer refers to it, and none of the entries that move or stay does. An unnamed layer that
//! stays for this one and another may then go, too; blocks freed by that are not counted.
//!
//! Deleting a volume *with its snapshots* frees the blocks that no entry of another volume refers to, except
//! blocks of layers that a clone stands on.
//!
//! The maps are read from a checkpoint, one layer after the other, for one window of the pool's
//! blocks after the other, as large as memory allows. The first window reads all pages, and notes
//! for groups of them which parts of the pool they refer to; later ones skip groups that refer to
//! nothing there. References that wait for the collector do not count: they will soon be released.
//!
//! The pages of a checkpoint cannot be reused while it is held, so it is held for a window only,
//! and for less under heavy writes: then the scan continues in a newer one. So the figures describe
//! one moment if nothing changes during the scan; otherwise they mix states of its whole duration.

use std::ops::{ControlFlow, Range};

use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::node::Pointer;
use onefold_format::units::{BLOCKS_PER_SEGMENT, VOLUME_BLOCKS_MAX};
use onefold_format::{Entry, LayerId, Pba, SegmentIndex, VolumeId, VolumeRecord};
use onefold_journal::{CheckpointReader, HELD_BACK_MAX, PAGES_AT_ONCE};
use onefold_metadata::sync::lock;
use onefold_metadata::{Result, VOLUMES_MAX};
use rustc_hash::FxHashMap;

use super::usage::{Usage, Usages};
use super::{Accounting, data};
use crate::pool::Pool;

/// Bytes of memory for a block of the window: the last layer that refers to it, and flags.
const BYTES_PER_BLOCK: usize = 3;

/// Parts of the pool whose referring pages are noted.
const PARTS: usize = 256;

/// Bytes of memory that a group of pages takes, with the room that a hash table leaves.
const BYTES_PER_GROUP: usize = 112;

/// Segments of the largest volume.
const SEGMENTS_MAX: u64 = VOLUME_BLOCKS_MAX / BLOCKS_PER_SEGMENT;

/// A number that no layer has.
const NOBODY: u16 = u16::MAX;

/// Entries of several layers refer to the block.
const SEVERAL: u8 = 1;

/// An entry refers to the block that is still there when its layer is deleted.
const STAYS: u8 = 2;

/// Entries of layers of several volumes refer to the block.
const SEVERAL_VOLUMES: u8 = 4;

/// An entry refers to the block that may be there when its volume is deleted with its snapshots.
const NEEDED: u8 = 8;

const _: () = assert!(VOLUMES_MAX <= NOBODY as u64, "layers are numbered");

impl Accounting {
    /// Scans all maps, and keeps the usage of each volume and each snapshot for [`Store::stat`](crate::Store::stat) and
    /// [`Store::volume_stat`](crate::Store::volume_stat). Requests and all other work continue. Every few pages `pace` gets the
    /// number of layers done, and of all layers; it may wait, or cancel, which leaves the earlier
    /// results. Returns whether the scan was completed.
    ///
    /// # Errors
    ///
    /// `Damaged` if a map cannot be read; I/O errors.
    pub fn scan(&self, pace: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<bool> {
        let as_of_unix_seconds = self.engine.unix_seconds();
        let snapshot = CheckpointReader::take(self.pool.journal())?;
        let mut scan = Scan::new(&self.pool, snapshot, pace);
        if scan.run()?.is_break() {
            return Ok(false);
        }
        let Some(data) = scan.count_data()? else {
            return Ok(false);
        };
        let usages = scan.usages.into_iter().map(|(id, usage)| {
            let found = data.get(&id).copied().unwrap_or_default();
            let as_of = Usage {
                as_of_unix_seconds,
                data_blocks: found.blocks,
                data_runs: found.runs,
                ..usage
            };
            (id, as_of)
        });
        *lock(&self.usages) = usages.collect();
        Ok(true)
    }

    /// The usage of a volume or snapshot; nothing if it was made since, or before the first scan.
    pub(super) fn usage(&self, id: VolumeId) -> Option<Usage> {
        lock(&self.usages).get(&id).copied()
    }
}

/// For each layer that has any above it the only one, by number, or nothing where there are several.
fn layers_above(snapshot: &CheckpointReader<'_>) -> FxHashMap<LayerId, Option<usize>> {
    let mut above = FxHashMap::default();
    for (number, volume) in snapshot.volumes.iter().enumerate() {
        if let Some(below) = volume.below {
            let only = above.entry(below).and_modify(|only| *only = None);
            only.or_insert(Some(number));
        }
    }
    above
}

/// The place of a layer among all others.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The number of the volume's layer; a snapshot has the number of its volume.
    volume: u16,
    /// A layer of another volume stands on it.
    is_needed: bool,
}

fn places(volumes: &[VolumeRecord]) -> Vec<Place> {
    let numbered = || volumes.iter().zip(0..);
    let by_id: FxHashMap<VolumeId, u16> = numbered()
        .map(|(record, number)| (record.id, number))
        .collect();
    let mut places: Vec<Place> = numbered()
        .map(|(record, number)| {
            let volume = record.snapshot_of.and_then(|of| by_id.get(&of).copied());
            Place {
                volume: volume.unwrap_or(number),
                is_needed: false,
            }
        })
        .collect();
    let by_layer: FxHashMap<LayerId, usize> = (0..volumes.len())
        .map(|number| (volumes[number].layer, number))
        .collect();
    for (number, record) in volumes.iter().enumerate() {
        let mut below = record.below;
        while let Some(under) = below.and_then(|layer| by_layer.get(&layer)) {
            places[*under].is_needed |= places[*under].volume != places[number].volume;
            below = volumes[*under].below;
        }
    }
    places
}

/// A layer being counted in a window.
struct LayerCount<'a> {
    number: u16,
    layer: LayerId,
    window: &'a mut Window,
    usage: &'a mut Usage,
}

struct Scan<'a> {
    pool: &'a Pool,
    /// The checkpoint that is being scanned.
    held: Held<'a>,
    touched: Touched,
    /// The usage of each volume, summed over the windows scanned so far.
    usages: Usages,
    pages: u64,
    layers_done: u64,
    layers_all: u64,
    pace: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

/// A checkpoint, and where to find layers in it.
struct Held<'a> {
    snapshot: CheckpointReader<'a>,
    above: FxHashMap<LayerId, Option<usize>>,
    /// Each layer's number: its place in the snapshot.
    numbers: FxHashMap<LayerId, usize>,
}

impl<'a> Held<'a> {
    fn new(snapshot: CheckpointReader<'a>) -> Self {
        let layers = snapshot.volumes.iter().enumerate();
        Self {
            above: layers_above(&snapshot),
            numbers: layers.map(|(n, volume)| (volume.layer, n)).collect(),
            snapshot,
        }
    }

    fn volume(&self, layer: LayerId) -> Option<&VolumeRecord> {
        let number = self.numbers.get(&layer);
        number.map(|number| &self.snapshot.volumes[*number])
    }
}

impl<'a> Scan<'a> {
    fn new(
        pool: &'a Pool,
        snapshot: CheckpointReader<'a>,
        pace: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Self {
        Self {
            pool,
            touched: Touched::new(pool.limits().check_bytes / 2),
            held: Held::new(snapshot),
            usages: Usages::default(),
            pages: 0,
            layers_done: 0,
            layers_all: 0,
            pace,
        }
    }

    fn run(&mut self) -> Result<ControlFlow<()>> {
        let pool = self.pool;
        // The other half is for notes on the maps' pages.
        let step = (pool.limits().check_bytes / 2 / BYTES_PER_BLOCK) as u64;
        // The first window's pass reads all maps, and finds the end of the blocks that they refer to.
        let pool_blocks = self.held.snapshot.root.pool_blocks;
        let mut end = step.min(pool_blocks);
        let mut start = 0;
        while start < end {
            if start > 0 {
                self.renew()?;
            }
            // Other scans have the same memory: one window at a time.
            let _memory = pool.scan_memory();
            let volumes = &self.held.snapshot.volumes;
            let blocks = start..(start + step).min(end);
            let mut window = Window::new(blocks, places(volumes));
            let volumes = volumes.iter();
            let order: Vec<_> = volumes.map(|volume| (volume.id, volume.layer)).collect();
            let windows = (end - start).div_ceil(step);
            self.layers_all = self.layers_done + order.len() as u64 * windows;
            let mut usages = vec![Usage::default(); order.len()];
            for (number, (_, layer)) in order.iter().enumerate() {
                let counted = self.count_layer(&mut LayerCount {
                    number: number as u16,
                    layer: *layer,
                    window: &mut window,
                    usage: &mut usages[number],
                })?;
                self.layers_done += 1;
                if counted.is_break() || self.pace().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            window.add_exclusive(&mut usages);
            for ((id, _), found) in order.iter().zip(usages) {
                let usage = self.usages.entry(*id).or_default();
                usage.exclusive_blocks += found.exclusive_blocks;
                usage.shared_blocks += found.shared_blocks;
                usage.freed_if_deleted_blocks += found.freed_if_deleted_blocks;
                usage.freed_with_snapshots_blocks += found.freed_with_snapshots_blocks;
            }
            start += step;
            // A damaged entry may refer to a block that the pool does not have.
            end = self.touched.end.min(pool_blocks);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn count_data(&mut self) -> Result<Option<FxHashMap<VolumeId, data::Found>>> {
        self.renew()?;
        let progress = (self.layers_done, self.layers_all);
        let pace = &mut self.pace;
        data::count_all(&mut self.held.snapshot, &mut || {
            pace(progress.0, progress.1)
        })
    }

    fn pace(&mut self) -> ControlFlow<()> {
        (self.pace)(self.layers_done, self.layers_all)
    }

    /// Continues in a newer checkpoint. The old one's pages can be reused before the new one is
    /// written.
    fn renew(&mut self) -> Result<()> {
        self.held.snapshot.renew()?;
        let layers = self.held.snapshot.volumes.iter().enumerate();
        self.held.numbers = layers.map(|(n, volume)| (volume.layer, n)).collect();
        self.held.above = layers_above(&self.held.snapshot);
        Ok(())
    }

    fn count_layer(&mut self, count: &mut LayerCount<'_>) -> Result<ControlFlow<()>> {
        let layer = count.layer;
        let mut from = SegmentIndex(0);
        // It may be gone by now.
        while let Some(volume) = self.held.volume(layer) {
            from = self.touched.next(layer, from, &count.window.blocks);
            let Some((segment, pointer)) = self.held.snapshot.next_map_page(volume, from)? else {
                break;
            };
            from = self.touched.next(layer, segment, &count.window.blocks);
            if from > segment {
                continue;
            }
            self.count_page(count, segment, pointer)?;
            self.pages += 1;
            if self.pages.is_multiple_of(PAGES_AT_ONCE) {
                if self.pace().is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                if self.held.snapshot.held_back_count() > HELD_BACK_MAX {
                    self.renew()?;
                }
            }
            from = segment + 1;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn count_page(
        &mut self,
        count: &mut LayerCount<'_>,
        segment: SegmentIndex,
        pointer: Pointer,
    ) -> Result<()> {
        let LayerCount {
            number,
            layer,
            ref mut window,
            ref mut usage,
        } = *count;
        let Some(volume) = self.held.volume(layer) else {
            return Ok(());
        };
        let entries = self.held.snapshot.entries(volume, segment, pointer)?;
        let named = entries.iter().filter_map(|entry| entry.pba());
        if window.blocks.start == 0 {
            self.touched.note(layer, segment, named.clone());
        }
        if !named.clone().any(|pba| window.has(pba)) {
            return Ok(());
        }
        let hides = self.held.hides(layer, segment)?;
        for (entry, above) in entries.iter().zip(hides.iter()) {
            if let Some(pba) = entry.pba().filter(|pba| window.has(*pba)) {
                let stays = *above == Entry::ABSENT;
                let is_new = window.name(number, pba, stays);
                usage.shared_blocks += u64::from(is_new);
            }
        }
        Ok(())
    }
}

impl Held<'_> {
    /// The layer above a segment once its layer is deleted: every entry there that is not absent
    /// hides the layer's.
    fn hides(&self, layer: LayerId, segment: SegmentIndex) -> Result<Box<Segment>> {
        let above = match self.above.get(&layer) {
            // No layer takes over its entries.
            None => return Ok(Box::new([Entry::ZERO; EMPTY_SEGMENT.len()])),
            Some(None) => return Ok(Box::new(EMPTY_SEGMENT)),
            Some(Some(above)) => &self.snapshot.volumes[*above],
        };
        match self.snapshot.map_page(above, segment)? {
            Some(pointer) => self.snapshot.entries(above, segment, pointer),
            None => Ok(Box::new(EMPTY_SEGMENT)),
        }
    }
}

/// The parts of the pool that map pages refer to, for groups of pages. A group covers consecutive
/// segments of a layer.
struct Touched {
    /// For each group, a bitmap of the parts of the pool.
    groups: FxHashMap<(LayerId, u64), [u64; PARTS / 64]>,
    groups_max: usize,
    /// Segments of a group: twice as many whenever there are too many groups.
    group_segments: u64,
    /// Blocks of a part: twice as many whenever a block is beyond the last part.
    part_blocks: u64,
    /// The end of the blocks that were noted.
    end: u64,
}

impl Touched {
    fn new(bytes: usize) -> Self {
        Self {
            groups: FxHashMap::default(),
            groups_max: (bytes / BYTES_PER_GROUP).max(1),
            group_segments: 1,
            part_blocks: 1,
            end: 0,
        }
    }

    /// Notes the blocks that a page refers to.
    fn note(
        &mut self,
        layer: LayerId,
        segment: SegmentIndex,
        named: impl Iterator<Item = Pba> + Clone,
    ) {
        if let Some(last) = named.clone().max() {
            self.end = self.end.max(last.0 + 1);
            self.cover(last);
        }
        let group = segment.0 / self.group_segments;
        let parts = self.groups.entry((layer, group)).or_default();
        for pba in named {
            let part = (pba.0 / self.part_blocks) as usize;
            parts[part / 64] |= 1 << (part % 64);
        }
        while self.groups.len() > self.groups_max {
            self.group_segments *= 2;
            for ((layer, group), parts) in std::mem::take(&mut self.groups) {
                let merged = self.groups.entry((layer, group / 2)).or_default();
                merged
                    .iter_mut()
                    .zip(parts)
                    .for_each(|(to, from)| *to |= from);
            }
            if self.group_segments >= SEGMENTS_MAX {
                break;
            }
        }
    }

    /// Enlarges the parts until one of them has this block.
    fn cover(&mut self, pba: Pba) {
        while pba.0 / self.part_blocks >= PARTS as u64 {
            self.part_blocks *= 2;
            for parts in self.groups.values_mut() {
                let mut merged = [0; PARTS / 64];
                let is_named = |part: &usize| parts[part / 64] & 1 << (part % 64) != 0;
                for part in (0..PARTS).filter(is_named) {
                    merged[part / 2 / 64] |= 1 << (part / 2 % 64);
                }
                *parts = merged;
            }
        }
    }

    /// The first segment at or after this one whose page may refer to some of these blocks. All
    /// pages are read once.
    fn next(&self, layer: LayerId, from: SegmentIndex, blocks: &Range<u64>) -> SegmentIndex {
        let mut segment = from;
        while blocks.start > 0
            && let group = segment.0 / self.group_segments
            && let Some(parts) = self.groups.get(&(layer, group))
        {
            let first = (blocks.start / self.part_blocks) as usize;
            let last = ((blocks.end - 1) / self.part_blocks) as usize;
            let is_named = |part: usize| parts[part / 64] & 1 << (part % 64) != 0;
            if (first..=last.min(PARTS - 1)).any(is_named) {
                break;
            }
            segment = SegmentIndex((group + 1) * self.group_segments);
        }
        segment
    }
}

/// The results for a window of the pool's blocks.
struct Window {
    blocks: Range<u64>,
    /// The places of the layers, by their numbers.
    places: Vec<Place>,
    /// The last layer that was found to refer to the block.
    last: Vec<u16>,
    flags: Vec<u8>,
}

impl Window {
    fn new(blocks: Range<u64>, places: Vec<Place>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        Self {
            blocks,
            places,
            last: vec![NOBODY; count],
            flags: vec![0; count],
        }
    }

    fn has(&self, pba: Pba) -> bool {
        self.blocks.contains(&pba.0)
    }

    /// Notes an entry of a layer; the layers come one after the other. Returns whether it is the
    /// layer's first that refers to this block.
    fn name(&mut self, layer: u16, pba: Pba, stays: bool) -> bool {
        let at = (pba.0 - self.blocks.start) as usize;
        let last = std::mem::replace(&mut self.last[at], layer);
        let place = self.places[usize::from(layer)];
        if last != layer && last != NOBODY {
            self.flags[at] |= SEVERAL;
            if self.places[usize::from(last)].volume != place.volume {
                self.flags[at] |= SEVERAL_VOLUMES;
            }
        }
        if stays {
            self.flags[at] |= STAYS;
        }
        if place.is_needed {
            self.flags[at] |= NEEDED;
        }
        last != layer
    }

    /// Corrects the counts of blocks to which only one layer refers: they were counted as shared.
    fn add_exclusive(&self, usages: &mut [Usage]) {
        let named = self.last.iter().zip(&self.flags);
        for (layer, flags) in named.filter(|(layer, _)| **layer != NOBODY) {
            let layer = usize::from(*layer);
            if flags & SEVERAL == 0 {
                let usage = &mut usages[layer];
                usage.shared_blocks -= 1;
                usage.exclusive_blocks += 1;
                usage.freed_if_deleted_blocks += u64::from(flags & STAYS == 0);
            }
            if flags & (SEVERAL_VOLUMES | NEEDED) == 0 {
                usages[usize::from(self.places[layer].volume)].freed_with_snapshots_blocks += 1;
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::{BYTES_PER_GROUP, PARTS, Touched};
    use onefold_format::{LayerId, Pba, SegmentIndex};

    #[test]
    fn pages_that_name_nothing_of_a_window_are_passed_over_and_no_others() {
        // There is memory for eight groups.
        let pool_blocks = 4 * PARTS as u64;
        for segments in [6, 8, 30, 200] {
            let mut touched = Touched::new(8 * BYTES_PER_GROUP);
            let named = |segment: u64| Pba(segment * 37 % pool_blocks);
            for segment in 0..segments {
                touched.note(
                    LayerId(1),
                    SegmentIndex(segment),
                    [named(segment)].into_iter(),
                );
            }
            assert!(touched.groups.len() <= 8, "{segments}");
            let mut passed_over = 0;
            for start in (4..pool_blocks).step_by(4) {
                let window = start..start + 4;
                for segment in 0..segments {
                    let next = touched.next(LayerId(1), SegmentIndex(segment), &window);
                    assert!(next.0 >= segment);
                    let skipped = (segment..next.0).filter(|skipped| *skipped < segments);
                    let mut skipped = skipped.map(named);
                    assert!(!skipped.any(|pba| window.contains(&pba.0)), "{segment}");
                    passed_over += u64::from(next.0 > segment);
                }
            }
            assert!(passed_over > 0, "{segments}");
            // The first window reads all pages; so does every window of a layer without notes.
            let first = touched.next(LayerId(1), SegmentIndex(0), &(0..4));
            let other = touched.next(LayerId(2), SegmentIndex(0), &(4..8));
            assert_eq!((first.0, other.0), (0, 0));
        }
    }
}
