//! The checkpoint: what the maps say, written beside what they said before, and one root that
//! switches over.
//!
//! 1. seal under the uncommitted state, in one commit: every changed segment, free-space page and catalogue
//!    page as they are after exactly the records before the log position (a *sharp* checkpoint, so
//!    that replay can compare each record with the map it changes)
//! 2. write them to places that no durable root reaches, and the trees above them
//! 3. sync the pages (P2), then write and sync the root
//! 4. only now are the old pages and the log before the position given up
//!
//! Requests go on meanwhile: they change copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use onefold_format::node::Pointer;
use onefold_format::page::{
    BATCH_OWNER, CATALOGUE_OWNER, PAGE_BYTES, PageBytes, PageKind, QUEUE_OWNER, SPACE_OWNER,
};
use onefold_format::{LayerCounts, LayerId, Root, TreeRoot};
use onefold_format::{batch_page, map_page, space_page};

use super::failure::StopsOnPanic;
use super::log::LogMark;
use super::{Journal, Uncommitted};
use crate::apply::MetadataState;
use crate::batch::{self, OpenBatch};
use crate::catalogue::SealedCatalogue;
use crate::error::{Result, StoreError};
use crate::guard::Guard;
use crate::map::{Layer, SealedLeaf};
use crate::pages::PageWriter;
use crate::queue::{self, SealedQueue};
use crate::space::SealedSpacePage;
use crate::tree::{self, Change};

/// Everything that a checkpoint writes, as it was when it was sealed.
struct Sealed {
    leaves: Vec<SealedLeaf>,
    space: Vec<SealedSpacePage>,
    space_root: TreeRoot,
    /// Where the pool ends from now on: it was shrinking, and nothing is beyond any more.
    cut: Option<u64>,
    catalogue: SealedCatalogue,
    catalogue_root: TreeRoot,
    queue: SealedQueue,
    batch: Option<OpenBatch>,
    batch_root: TreeRoot,
    next_batch: u64,
    /// What the entries of the changed layers are.
    counts: BTreeMap<LayerId, LayerCounts>,
    gone: Vec<Arc<Layer>>,
}

/// The trees of a checkpoint whose pages are written.
struct Written {
    root: Root,
    layers: BTreeMap<LayerId, TreeRoot>,
}

impl Journal {
    /// Writes a checkpoint that holds everything up to some moment after this call.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoints.run(|root| self.write_checkpoint(root))
    }

    fn write_checkpoint(&self, current: &mut Root) -> Result<()> {
        // Its first step empties the list of what has changed.
        let _stops = StopsOnPanic::new(&self.failure, "a checkpoint");
        let mut log = self.commits.lock();
        let sealed = self.seal_and_commit(&mut log, |uncommitted| self.seal(uncommitted))?;
        let mark = log.end;
        drop(log);
        if !Guard::LogPrunedAfterRoot.holds() {
            self.log_span.set_start(mark.position);
        }
        let mut writer = PageWriter::new(&self.pages, current.sequence + 1);
        let written = match self.write_pages(&mut writer, &sealed, current, mark) {
            Ok(written) => written,
            Err(error) => {
                writer.abandon();
                self.unseal(sealed)?;
                return Err(error.during("writing a checkpoint"));
            }
        };
        self.switch_root(&mut writer, &written.root)
            .inspect_err(|error| self.fail_sync(error))?;
        self.publish(&written, &sealed)?;
        writer.complete();
        *current = written.root;
        Ok(())
    }

    fn seal(&self, uncommitted: &mut Uncommitted) -> Result<Sealed> {
        let metadata = &mut uncommitted.metadata;
        let leaves = self.maps.seal();
        let counts = leaves
            .iter()
            .map(|leaf| (leaf.dirty.layer.id, leaf.dirty.layer.counts()));
        let counts: BTreeMap<LayerId, LayerCounts> = counts.collect();
        let changed: Vec<LayerId> = counts.keys().copied().collect();
        Ok(Sealed {
            counts,
            leaves,
            queue: metadata.queue.seal(),
            batch: metadata.batches.open.clone(),
            batch_root: metadata.batches.root,
            next_batch: metadata.batches.next_number,
            cut: cut_now(metadata),
            space: metadata.space.seal()?,
            space_root: metadata.space.root(),
            catalogue: metadata.catalogue.seal(changed.into_iter()),
            catalogue_root: metadata.catalogue.root,
            gone: std::mem::take(&mut metadata.gone),
        })
    }

    fn unseal(&self, sealed: Sealed) -> Result<()> {
        let mut uncommitted = self.uncommitted()?;
        self.maps.unseal(sealed.leaves);
        uncommitted.metadata.space.unseal(sealed.space)?;
        uncommitted.metadata.catalogue.unseal(sealed.catalogue);
        uncommitted.metadata.queue.unseal(sealed.queue);
        uncommitted.metadata.gone.extend(sealed.gone);
        Ok(())
    }

    fn write_pages(
        &self,
        writer: &mut PageWriter<'_>,
        sealed: &Sealed,
        current: &Root,
        mark: LogMark,
    ) -> Result<Written> {
        let layers = write_maps(writer, &sealed.leaves)?;
        for layer in &sealed.gone {
            tree::discard(writer, layer.id.0, layer.root())?;
        }
        let space = write_space(writer, sealed)?;
        let catalogue = write_catalogue(writer, sealed, &layers)?;
        let queue = write_queue(writer, &sealed.queue)?;
        let batch = write_batch(writer, sealed)?;
        // A page that cannot be written fails this checkpoint, not the pool.
        writer.flush()?;
        let mark = if Guard::CheckpointIsSharp.holds() {
            mark
        } else {
            self.commits.lock().end
        };
        let root = Root {
            sequence: current.sequence + 1,
            log_position: mark.position,
            commit: mark.commit,
            frame_checksum: mark.checksum,
            next_volume_id: sealed.catalogue.next_volume_id,
            next_layer_id: sealed.catalogue.next_layer_id,
            next_domain_id: sealed.catalogue.next_domain_id,
            catalogue,
            space,
            queue,
            queue_head: sealed.queue.head,
            queue_end: sealed.queue.end,
            batch,
            open_batch: sealed.batch.as_ref().map(OpenBatch::head),
            next_batch: sealed.next_batch,
            pool_blocks: sealed.cut.unwrap_or(current.pool_blocks),
            shrink_to: current.shrink_to.filter(|_| sealed.cut.is_none()),
            when_full: self.when_full(),
            ..*current
        };
        Ok(Written { root, layers })
    }

    fn switch_root(&self, writer: &mut PageWriter<'_>, root: &Root) -> Result<()> {
        if Guard::PagesSyncedBeforeRoot.holds() {
            writer.sync()?;
        }
        self.write_root(root)
    }

    /// Writes a root to its slot and makes it durable.
    pub(super) fn write_root(&self, root: &Root) -> Result<()> {
        let page = root.encode(self.superblock.pool);
        let at = root.slot().0 * PAGE_BYTES as u64;
        let disk = self.pages.disk();
        let mut written = disk.write_at(&page[..], at);
        if Guard::RootSyncedBeforeReuse.holds() {
            written = written.and_then(|()| disk.sync());
        }
        written.map_err(|error| StoreError::io("writing the pool's root", error))
    }

    /// The root is durable: what it reaches is what is on disk.
    fn publish(&self, written: &Written, sealed: &Sealed) -> Result<()> {
        for leaves in sealed
            .leaves
            .chunk_by(|a, b| a.dirty.layer.id == b.dirty.layer.id)
        {
            let Some(first) = leaves.first() else {
                continue;
            };
            if let Some(root) = written.layers.get(&first.dirty.layer.id) {
                self.maps.publish(&first.dirty.layer, *root, leaves);
            }
        }
        for layer in &sealed.gone {
            self.maps.publish(layer, TreeRoot::default(), &[]);
        }
        let mut uncommitted = self.uncommitted()?;
        let metadata = &mut uncommitted.metadata;
        let pages = sealed.catalogue.pages.iter();
        for volume in pages.flat_map(|(_, records)| records.iter().flatten()) {
            if let Some(root) = written.layers.get(&volume.layer) {
                let counts = sealed.counts.get(&volume.layer).copied();
                metadata
                    .catalogue
                    .set_map(volume.layer, *root, counts.unwrap_or_default());
            }
        }
        metadata.queue.publish(written.root.queue, &sealed.queue);
        metadata.batches.root = written.root.batch;
        metadata.catalogue.root = written.root.catalogue;
        metadata.space.set_root(written.root.space);
        if sealed.cut.is_some() {
            metadata.space.cut()?;
        }
        self.log_span.set_start(written.root.log_position);
        Ok(())
    }
}

/// No record before the log position leaves anything beyond the new end, and none behind it can: so
/// the blocks there can go with this checkpoint. While an opening replays, records behind it can, for
/// they were written before the shrinking began.
fn cut_now(metadata: &MetadataState) -> Option<u64> {
    let space = &metadata.space;
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
        let pointer = write_leaf(
            writer,
            PageKind::Space,
            SPACE_OWNER,
            index,
            in_use,
            |page| {
                space_page::encode(named, page);
            },
        )?;
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
    let mut changes: Vec<Change> = sealed.gone.clone().map(|index| (index, None)).collect();
    for (index, elements) in &sealed.pages {
        let fill = |page: &mut PageBytes| queue::encode(elements, page);
        let pointer = writer.write(PageKind::Queue, 0, QUEUE_OWNER, *index, 0, fill)?;
        changes.push((*index, Some(pointer)));
    }
    tree::rewrite(writer, QUEUE_OWNER, sealed.root, &changes)
}

/// A batch is small and soon over: all of it is written anew.
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

/// Writes a leaf, unless it says nothing: then its absence says the same.
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
