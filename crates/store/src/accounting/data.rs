//! The amount of data that a reader of a volume or snapshot finds, over all layers, and in how many
//! pieces it is in the pool.
//!
//! A layer counts its own entries only, and whether an entry hides one below is not known without
//! reading both. So the data that a reader finds is counted from the maps: at once if that takes
//! little reading, and for all volumes together in each [`Accounting::scan`].

use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_format::map_page::{EMPTY_SEGMENT, Segment};
use onefold_format::node::Pointer;
use onefold_format::{Entry, LayerId, Pba, SegmentIndex, VolumeId};
use onefold_journal::{CheckpointReader, HELD_BACK_MAX, PAGES_AT_ONCE};
use onefold_metadata::{Blocking, Layer, Maps, Result, Segments, fill_absent};
use rustc_hash::FxHashMap;

use super::Accounting;
use crate::volume::Volume;

/// Data that a reader finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// Blocks that hold data.
    pub blocks: u64,
    /// When it was counted, in seconds since the Unix epoch; nothing if it was counted just now.
    pub as_of_unix_seconds: Option<u64>,
}

/// Where the data that a reader finds is in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locality {
    /// Blocks that hold data.
    pub blocks: u64,
    /// Runs of such blocks, consecutive in the volume and in the pool: reading all of them in order takes one
    /// read for each.
    pub runs: u64,
    /// When it was counted, in seconds since the Unix epoch; nothing if it was counted just now.
    pub as_of_unix_seconds: Option<u64>,
}

impl Accounting {
    /// The data that a reader of this volume or snapshot finds: counted now, if that takes reading
    /// at most `segments_max` segments of maps; otherwise the last result of [`Accounting::scan`], if
    /// there is one.
    ///
    /// # Errors
    ///
    /// `Damaged` if a map cannot be read; I/O errors.
    pub fn data(&self, volume: &Volume, segments_max: u64) -> Result<Option<Data>> {
        if let Some(blocks) = data_blocks(volume, segments_max)? {
            let as_of_unix_seconds = None;
            return Ok(Some(Data {
                blocks,
                as_of_unix_seconds,
            }));
        }
        Ok(self.usage(volume.id).map(|usage| Data {
            blocks: usage.data_blocks,
            as_of_unix_seconds: Some(usage.as_of_unix_seconds),
        }))
    }

    /// Where the data of this volume or snapshot is in the pool. Counted under the same conditions as
    /// [`Accounting::data`], but counting also reads the lowest layer.
    ///
    /// # Errors
    ///
    /// As [`Accounting::data`].
    pub fn locality(&self, volume: &Volume, segments_max: u64) -> Result<Option<Locality>> {
        if let Some(found) = locality(volume, segments_max)? {
            return Ok(Some(Locality {
                blocks: found.blocks,
                runs: found.runs,
                as_of_unix_seconds: None,
            }));
        }
        Ok(self.usage(volume.id).map(|usage| Locality {
            blocks: usage.data_blocks,
            runs: usage.data_runs,
            as_of_unix_seconds: Some(usage.as_of_unix_seconds),
        }))
    }
}

/// Counts the data and its runs; nothing if more than `segments_max` segments have to be read.
fn locality(volume: &Volume, segments_max: u64) -> Result<Option<Found>> {
    let (maps, layer) = (&volume.pool().maps(), volume.layer());
    let mut segments = Segments::under(&layer);
    let (mut found, mut from) = (Found::default(), SegmentIndex(0));
    for _ in 0..segments_max {
        let Some(segment) = segments.next(maps, from)? else {
            return Ok(Some(found));
        };
        let entries = maps.peek_resolved(&layer, segment)?;
        found.add(segment, InSegment::of(&entries[..]));
        from = segment + 1;
    }
    Ok(segments.next(maps, from)?.is_none().then_some(found))
}

/// Counts the data; nothing if more than `segments_max` segments have to be read.
fn data_blocks(volume: &Volume, segments_max: u64) -> Result<Option<u64>> {
    let maps = &volume.pool().maps();
    let changes = maps.frozen_changes();
    let layer = volume.layer();
    let lineage = Maps::lineage(&layer);
    let Some((base, above)) = lineage.split_last().filter(|(_, above)| !above.is_empty()) else {
        return Ok(Some(layer.logical_blocks()));
    };
    // All entries of the lowest layer count, except where those above have entries.
    let before = base.logical_blocks();
    let counted = count(
        maps,
        &layer,
        Segments::of(above.iter().rev()),
        Some(base),
        segments_max,
    )?;
    let is_still = changes.is_multiple_of(2) && maps.frozen_changes() == changes;
    if is_still {
        return Ok(counted.map(|(found, hidden)| (before + found).saturating_sub(hidden)));
    }
    // While layers are being merged each segment is right by itself, but their sum is not.
    let counted = count(maps, &layer, Segments::under(&layer), None, segments_max)?;
    Ok(counted.map(|(found, _)| found))
}

/// The data that a reader finds in these segments, and the lowest layer's own part of it.
fn count(
    maps: &Maps,
    layer: &Arc<Layer>,
    mut segments: Segments,
    base: Option<&Arc<Layer>>,
    segments_max: u64,
) -> Result<Option<(u64, u64)>> {
    let (mut found, mut hidden, mut from) = (0, 0, SegmentIndex(0));
    for _ in 0..segments_max {
        let Some(segment) = segments.next(maps, from)? else {
            return Ok(Some((found, hidden)));
        };
        found += with_data(&maps.peek_resolved(layer, segment)?[..]);
        if let Some(base) = base {
            hidden += with_data(&maps.peek(base, segment, Blocking::Yes)?[..]);
        }
        from = segment + 1;
    }
    Ok(segments
        .next(maps, from)?
        .is_none()
        .then_some((found, hidden)))
}

fn with_data(entries: &[Entry]) -> u64 {
    entries.iter().filter(|entry| entry.pba().is_some()).count() as u64
}

/// The data that a reader finds in one segment.
#[derive(Debug, Clone, Copy, Default)]
struct InSegment {
    blocks: u64,
    runs: u64,
    /// The block of the first entry, if it has one; `last` has the block of the last entry.
    first: Option<Pba>,
    last: Option<Pba>,
}

impl InSegment {
    fn of(entries: &[Entry]) -> Self {
        let mut found = Self {
            first: entries.first().and_then(|entry| entry.pba()),
            ..Self::default()
        };
        for entry in entries {
            let pba = entry.pba();
            found.blocks += u64::from(pba.is_some());
            found.runs += u64::from(pba.is_some() && !continues(found.last, pba));
            found.last = pba;
        }
        found
    }
}

fn continues(before: Option<Pba>, pba: Option<Pba>) -> bool {
    before.is_some_and(|before| pba == Some(before + 1))
}

/// The data that a reader finds in some segments, in their order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) blocks: u64,
    /// Runs of blocks that are consecutive in the volume and in the pool.
    pub(super) runs: u64,
    /// If the last segment ends with a stored block: the segment after it, and that block.
    end: Option<(SegmentIndex, Pba)>,
}

impl Found {
    fn add(&mut self, segment: SegmentIndex, found: InSegment) {
        let before = self.end.filter(|(next, _)| *next == segment);
        let goes_on = continues(before.map(|(_, pba)| pba), found.first);
        self.blocks += found.blocks;
        self.runs += found.runs - u64::from(goes_on);
        self.end = found.last.map(|pba| (segment + 1, pba));
    }
}

/// Counts for all volumes and snapshots at once, so that each page is read once. Nothing if `pace`
/// cancels.
pub(super) fn count_all(
    snapshot: &mut CheckpointReader<'_>,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Option<FxHashMap<VolumeId, Found>>> {
    let ids = snapshot.volumes.iter().map(|volume| volume.id);
    let mut data: FxHashMap<VolumeId, Found> = ids.map(|id| (id, Found::default())).collect();
    let mut forest = Forest::new(snapshot, SegmentIndex(0))?;
    let mut pages = 0;
    while let Some(segment) = forest.next() {
        pages += forest.count(snapshot, segment, &mut data)?;
        if pages >= PAGES_AT_ONCE {
            pages = 0;
            if pace().is_break() {
                return Ok(None);
            }
            if snapshot.held_back_count() > HELD_BACK_MAX {
                snapshot.renew()?;
                forest = Forest::new(snapshot, segment + 1)?;
            }
        }
    }
    Ok(Some(data))
}

/// All layers, each after the one below it.
struct Forest {
    trees: Vec<Vec<Node>>,
}

/// A layer.
struct Node {
    /// The layer's place in the checkpoint's list of volumes.
    number: usize,
    /// Layers below it.
    depth: usize,
    /// The first page of the layer that is not counted yet.
    next: Option<(SegmentIndex, Pointer)>,
}

impl Forest {
    fn new(snapshot: &CheckpointReader<'_>, from: SegmentIndex) -> Result<Self> {
        let mut above: FxHashMap<Option<LayerId>, Vec<usize>> = FxHashMap::default();
        for (number, volume) in snapshot.volumes.iter().enumerate() {
            above.entry(volume.below).or_default().push(number);
        }
        let mut trees = Vec::new();
        for root in above.get(&None).into_iter().flatten() {
            let (mut tree, mut waiting) = (Vec::new(), vec![(*root, 0)]);
            while let Some((number, depth)) = waiting.pop() {
                let volume = &snapshot.volumes[number];
                let next = snapshot.next_map_page(volume, from)?;
                tree.push(Node {
                    number,
                    depth,
                    next,
                });
                let above = above.get(&Some(volume.layer)).into_iter().flatten();
                waiting.extend(above.map(|number| (*number, depth + 1)));
            }
            trees.push(tree);
        }
        Ok(Self { trees })
    }

    /// The first segment of which some layer has entries.
    fn next(&self) -> Option<SegmentIndex> {
        let nodes = self.trees.iter().flatten();
        nodes.filter_map(|node| Some(node.next?.0)).min()
    }

    /// Adds the data of this segment, and returns how many pages were read for it.
    fn count(
        &mut self,
        snapshot: &CheckpointReader<'_>,
        segment: SegmentIndex,
        data: &mut FxHashMap<VolumeId, Found>,
    ) -> Result<u64> {
        let mut pages = 0;
        let empty = Arc::new(EMPTY_SEGMENT);
        for tree in &mut self.trees {
            let is_next = |node: &Node| node.next.is_some_and(|(next, _)| next == segment);
            if !tree.iter().any(is_next) {
                continue;
            }
            // The combined entries of the layers on the way to a node, and the data in them. A node
            // without entries of its own shares the entries of the node below.
            let mut found: Vec<(Arc<Segment>, InSegment)> = Vec::new();
            for node in tree {
                let volume = &snapshot.volumes[node.number];
                let below = node.depth.checked_sub(1).map(|depth| found[depth].clone());
                let below = below.unwrap_or_else(|| (Arc::clone(&empty), InSegment::default()));
                let resolved = match node.next {
                    Some((next, pointer)) if next == segment => {
                        let mut entries = snapshot.entries(volume, segment, pointer)?;
                        fill_absent(&mut entries[..], &below.0[..]);
                        pages += 1;
                        node.next = snapshot.next_map_page(volume, segment + 1)?;
                        let count = InSegment::of(&entries[..]);
                        (Arc::from(entries), count)
                    }
                    _ => below,
                };
                if let Some(data) = data.get_mut(&volume.id) {
                    data.add(segment, resolved.1);
                }
                found.truncate(node.depth);
                found.push(resolved);
            }
        }
        Ok(pages)
    }
}
