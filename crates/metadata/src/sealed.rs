//! The metadata as it was when a checkpoint was sealed, and writing it to pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use onefold_format::node::Pointer;
use onefold_format::page::{BATCH_OWNER, CATALOGUE_OWNER, PageBytes, PageKind, SPACE_OWNER};
use onefold_format::{LayerCounts, LayerId, Root, TreeRoot};
use onefold_format::{batch_page, map_page, space_page};

use super::batch::{self, OpenBatch};
use super::catalogue::SealedCatalogue;
use super::map::{Layer, Maps, SealedLeaf};
use super::pages::PageWriter;
use super::queue::{self, SealedQueue};
use super::space::{SealedSpacePage, Space, SpaceOf};
use super::state::MetadataState;
use super::tree::{self, Change};
use crate::error::Result;
use crate::guard::Guard;

/// Everything that a checkpoint writes, as it was when it was sealed.
pub struct Sealed {
    leaves: Vec<SealedLeaf>,
    space: Vec<SealedSpacePage>,
    space_of: SpaceOf,
    space_root: TreeRoot,
    /// The pool's new end, if it was shrinking and nothing is beyond it any more.
    cut: Option<u64>,
    catalogue: SealedCatalogue,
    catalogue_root: TreeRoot,
    queue: SealedQueue,
    claims: SealedQueue,
    batch: Option<OpenBatch>,
    batch_root: TreeRoot,
    next_batch: u64,
    exchanged: u64,
    /// Counts of the entries of the changed layers.
    counts: BTreeMap<LayerId, LayerCounts>,
    gone: Vec<Arc<Layer>>,
}

/// The trees of a checkpoint whose pages are written.
pub struct Trees {
    layers: BTreeMap<LayerId, TreeRoot>,
    space: TreeRoot,
    catalogue: TreeRoot,
    queue: TreeRoot,
    claims: TreeRoot,
    batch: TreeRoot,
}

impl MetadataState {
    /// Takes everything that changed, with the state after the records up to now; later changes
    /// belong to the next checkpoint.
    pub fn seal(&mut self, maps: &Maps) -> Result<Sealed> {
        let leaves = maps.seal();
        let counts = leaves
            .iter()
            .map(|leaf| (leaf.dirty.layer.id, leaf.dirty.layer.counts()));
        let counts: BTreeMap<LayerId, LayerCounts> = counts.collect();
        let changed: Vec<LayerId> = counts.keys().copied().collect();
        Ok(Sealed {
            counts,
            leaves,
            queue: self.queue.seal(),
            claims: self.claims.seal(),
            batch: self.batches.open.clone(),
            batch_root: self.batches.root,
            next_batch: self.batches.next_number,
            cut: cut_now(self),
            space: self.space.seal()?,
            space_of: self.space.of(),
            space_root: self.space.root(),
            exchanged: self.exchanged,
            catalogue: self.catalogue.seal(changed.into_iter()),
            catalogue_root: self.catalogue.root,
            gone: std::mem::take(&mut self.gone),
        })
    }

    /// Marks the changes of a failed checkpoint as dirty again.
    pub fn unseal(&mut self, maps: &Maps, sealed: Sealed) -> Result<()> {
        maps.unseal(sealed.leaves);
        self.space.unseal(sealed.space)?;
        self.catalogue.unseal(sealed.catalogue);
        self.queue.unseal(sealed.queue);
        self.claims.unseal(sealed.claims);
        self.gone.extend(sealed.gone);
        Ok(())
    }

    /// Makes the trees, whose root is durable, the trees on disk.
    pub fn publish(&mut self, sealed: &Sealed, trees: &Trees) -> Result<()> {
        let pages = sealed.catalogue.pages.iter();
        for volume in pages.flat_map(|(_, records)| records.iter().flatten()) {
            if let Some(root) = trees.layers.get(&volume.layer) {
                let counts = sealed.counts.get(&volume.layer).copied();
                self.catalogue
                    .set_map(volume.layer, *root, counts.unwrap_or_default());
            }
        }
        self.queue.publish(trees.queue, &sealed.queue);
        self.claims.publish(trees.claims, &sealed.claims);
        self.batches.root = trees.batch;
        self.catalogue.root = trees.catalogue;
        self.space.set_root(trees.space);
        match sealed.cut {
            Some(_) => self.space.cut(),
            None => Ok(()),
        }
    }
}

impl Sealed {
    /// Writes everything to places that no durable root reaches. A failed write fails this
    /// checkpoint, not the pool.
    pub fn write(&self, writer: &mut PageWriter<'_>) -> Result<Trees> {
        let layers = write_maps(writer, &self.leaves)?;
        for layer in &self.gone {
            tree::discard(writer, layer.id.0, layer.root())?;
        }
        let trees = Trees {
            space: write_space(writer, self)?,
            catalogue: write_catalogue(writer, self, &layers)?,
            queue: write_queue(writer, &self.queue)?,
            claims: write_queue(writer, &self.claims)?,
            batch: write_batch(writer, self)?,
            layers,
        };
        writer.flush()?;
        Ok(trees)
    }

    /// The metadata fields of a root; the other fields are taken from `current`.
    pub fn root(&self, trees: &Trees, current: &Root) -> Root {
        Root {
            next_volume_id: self.catalogue.next_volume_id,
            next_layer_id: self.catalogue.next_layer_id,
            next_domain_id: self.catalogue.next_domain_id,
            catalogue: trees.catalogue,
            space: trees.space,
            queue: trees.queue,
            queue_head: self.queue.head,
            queue_end: self.queue.end,
            claims: trees.claims,
            claims_head: self.claims.head,
            claims_end: self.claims.end,
            batch: trees.batch,
            open_batch: self.batch.as_ref().map(OpenBatch::head),
            next_batch: self.next_batch,
            exchanged: self.exchanged,
            pool_blocks: self.cut.unwrap_or(current.pool_blocks),
            shrink_to: current.shrink_to.filter(|_| self.cut.is_none()),
            ..*current
        }
    }

    /// Makes the maps' trees, whose root is durable, the trees on disk. This waits until the old
    /// ones have no readers, so call it before taking the uncommitted state.
    pub fn publish_maps(&self, maps: &Maps, trees: &Trees) {
        for leaves in self
            .leaves
            .chunk_by(|a, b| a.dirty.layer.id == b.dirty.layer.id)
        {
            let Some(first) = leaves.first() else {
                continue;
            };
            if let Some(root) = trees.layers.get(&first.dirty.layer.id) {
                maps.publish(&first.dirty.layer, *root, leaves);
            }
        }
        for layer in &self.gone {
            maps.publish(layer, TreeRoot::default(), &[]);
        }
    }
}

/// The end at which this checkpoint can cut the pool, if any. No record before the log position
/// leaves anything beyond the new end, and none after it can. While an opening replays, later
/// records can, because they were written before the shrink began.
fn cut_now(metadata: &MetadataState) -> Option<u64> {
    let space = metadata.space();
    let is_empty = space.busy_beyond() == 0 || !Guard::CutWhenEmpty.holds();
    let is_recovered = metadata.is_recovered || !Guard::CutAfterRecovery.holds();
    (space.end() < space.blocks() && is_empty && is_recovered).then(|| space.end())
}

fn write_maps(
    writer: &mut PageWriter<'_>,
    sealed: &[SealedLeaf],
) -> Result<BTreeMap<LayerId, TreeRoot>> {
    let mut roots = BTreeMap::new();
    for leaves in sealed.chunk_by(|a, b| a.dirty.layer.id == b.dirty.layer.id) {
        let mut changes: Vec<Change> = Vec::with_capacity(leaves.len());
        let mut layer = None;
        for SealedLeaf { dirty, entries } in leaves {
            let owner = dirty.layer.id.0;
            let pointer = if map_page::mapped(entries) == 0 {
                None
            } else {
                let (kind, index) = (PageKind::Map, dirty.segment.0);
                let info = map_page::publishable(entries);
                let fill = |page: &mut PageBytes| map_page::encode(entries, page);
                Some(writer.write(kind, 0, owner, index, info, fill)?)
            };
            changes.push((dirty.segment.0, pointer));
            layer = Some(&dirty.layer);
        }
        if let Some(layer) = layer {
            let root = tree::rewrite(writer, layer.id.0, layer.root(), &changes)?;
            roots.insert(layer.id, root);
        }
    }
    Ok(roots)
}

fn write_space(writer: &mut PageWriter<'_>, sealed: &Sealed) -> Result<TreeRoot> {
    let mut changes: Vec<Change> = Vec::with_capacity(sealed.space.len());
    for SealedSpacePage { index, named } in &sealed.space {
        let (index, in_use) = (u64::from(*index), space_page::allocated(named));
        let fill = |page: &mut PageBytes| space_page::encode(named, page);
        let pointer = if Space::is_stored(sealed.space_of, index, named) {
            let kind = PageKind::Space;
            Some(writer.write(kind, 0, SPACE_OWNER, index, in_use, fill)?)
        } else {
            None
        };
        changes.push((index, pointer));
    }
    tree::rewrite(writer, SPACE_OWNER, sealed.space_root, &changes)
}

fn write_catalogue(
    writer: &mut PageWriter<'_>,
    sealed: &Sealed,
    layers: &BTreeMap<LayerId, TreeRoot>,
) -> Result<TreeRoot> {
    let mut changes: Vec<Change> = Vec::with_capacity(sealed.catalogue.pages.len());
    for (index, records) in &sealed.catalogue.pages {
        let (index, mut records) = (*index, records.clone());
        for volume in records.iter_mut().flatten() {
            if let Some(root) = layers.get(&volume.layer) {
                volume.map = *root;
                volume.counts = sealed
                    .counts
                    .get(&volume.layer)
                    .copied()
                    .unwrap_or_default();
            }
        }
        let in_use = records.iter().flatten().count() as u16;
        let kind = PageKind::Catalogue;
        let pointer = write_leaf(writer, kind, CATALOGUE_OWNER, index, in_use, |page| {
            onefold_format::catalogue_page::encode(&records, page);
        })?;
        changes.push((index, pointer));
    }
    tree::rewrite(writer, CATALOGUE_OWNER, sealed.catalogue_root, &changes)
}

fn write_queue(writer: &mut PageWriter<'_>, sealed: &SealedQueue) -> Result<TreeRoot> {
    let owner = sealed.kind.owner();
    let mut changes: Vec<Change> = sealed.gone.clone().map(|index| (index, None)).collect();
    for (index, elements) in &sealed.pages {
        let fill = |page: &mut PageBytes| queue::encode(elements, page);
        let pointer = writer.write(PageKind::Queue, 0, owner, *index, 0, fill)?;
        changes.push((*index, Some(pointer)));
    }
    tree::rewrite(writer, owner, sealed.root, &changes)
}

/// Rewrites the whole batch, which is small and soon settled.
fn write_batch(writer: &mut PageWriter<'_>, sealed: &Sealed) -> Result<TreeRoot> {
    tree::discard(writer, BATCH_OWNER, sealed.batch_root)?;
    let mut changes: Vec<Change> = Vec::new();
    for (index, items) in sealed.batch.iter().flat_map(batch::page_slices) {
        let fill = |page: &mut PageBytes| batch_page::encode(items, page);
        let pointer = writer.write(PageKind::Batch, 0, BATCH_OWNER, index, 0, fill)?;
        changes.push((index, Some(pointer)));
    }
    tree::rewrite(writer, BATCH_OWNER, TreeRoot::default(), &changes)
}

/// Writes a leaf, unless it is empty: an absent leaf means the same.
fn write_leaf(
    writer: &mut PageWriter<'_>,
    kind: PageKind,
    owner: u64,
    index: u64,
    info: u16,
    fill: impl FnOnce(&mut PageBytes),
) -> Result<Option<Pointer>> {
    if info == 0 {
        return Ok(None);
    }
    writer.write(kind, 0, owner, index, info, fill).map(Some)
}
