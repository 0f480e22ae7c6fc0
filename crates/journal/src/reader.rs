//! A checkpoint that stays readable while requests continue.

use onefold_format::batch_page::BatchItem;
use onefold_format::map_page::{self, Segment};
use onefold_format::node::Pointer;
use onefold_format::page::{
    BATCH_OWNER, CATALOGUE_OWNER, CLAIMS_OWNER, PageBytes, PageKind, QUEUE_OWNER, SPACE_OWNER,
};
use onefold_format::{BatchKind, Pba, QueueElement, Root, SegmentIndex, VolumeRecord};
use onefold_metadata::{
    Batches, Catalogue, OpenBatch, PagesHold, QueueKind, Result, StoreError, StoredQueue,
    read_elements, tree,
};

use super::Journal;

/// Pages of a map read between two calls of `pace`, which is also called at the map's end.
pub const PAGES_AT_ONCE: u64 = 16;

/// Pages that may be kept for the scan alone before it continues in a newer checkpoint: 4 MiB.
pub const HELD_BACK_MAX: usize = 1024;

/// Pages of a map that are read concurrently.
const MAP_PAGES_TOGETHER: usize = 64;

/// A page of a map.
pub struct MapPage {
    /// The segment that it describes.
    pub segment: SegmentIndex,
    /// The pointer to the page.
    pub pointer: Pointer,
    /// The entries, or why they cannot be read.
    pub entries: Result<Box<Segment>>,
}

fn decoded(page: &PageBytes) -> Result<Box<Segment>> {
    map_page::decode(page).map_err(|error| StoreError::format("map page", error))
}

/// Reads a checkpoint and keeps its pages from being reused.
pub struct CheckpointReader<'a> {
    journal: &'a Journal,
    /// The root of the checkpoint.
    pub root: Root,
    /// Each layer's record, with its name for messages.
    pub volumes: Vec<VolumeRecord>,
    /// The unsettled items of finder, collector or counting.
    pub open: Option<OpenBatch>,
    /// Whether the checkpoint is from just now: only requests have changed anything since.
    pub is_fresh: bool,
    hold: Option<PagesHold<'a>>,
}

impl<'a> CheckpointReader<'a> {
    /// Writes a checkpoint and keeps it. A caller that compares it with the index holds the job
    /// lock.
    pub fn take(journal: &'a Journal) -> Result<Self> {
        let is_fresh = journal.check_writable().is_ok();
        if is_fresh {
            journal.checkpoint()?;
        }
        let current = journal.root.lock();
        let (root, hold) = (*current, journal.state.pages.hold());
        drop(current);
        let catalogue = Catalogue::read(&journal.state.pages, root.catalogue, &mut |_| Ok(()))?;
        Ok(Self {
            journal,
            root,
            volumes: catalogue.into_fully_named(),
            open: Batches::read(&journal.state.pages, &root, &mut |_| Ok(()))?.into_open(),
            is_fresh,
            hold: Some(hold),
        })
    }

    /// Switches to a new checkpoint. The old one is released first, so that the pages of both are
    /// not kept together; after an error nothing can be read with this reader.
    pub fn renew(&mut self) -> Result<()> {
        drop(self.hold.take());
        *self = Self::take(self.journal)?;
        Ok(())
    }

    /// The number of pages kept for readers.
    pub fn held_back_count(&self) -> usize {
        self.journal.state.pages.held_back_count()
    }

    /// Reads every page of the wanted maps, many concurrently, and visits them in order.
    pub fn each_map_page(
        &self,
        is_wanted: &dyn Fn(&VolumeRecord) -> bool,
        visit: &mut dyn FnMut(&VolumeRecord, MapPage) -> Result<()>,
    ) -> Result<()> {
        for volume in self.volumes.iter().filter(|volume| is_wanted(volume)) {
            let (mut from, mut is_end) = (SegmentIndex(0), false);
            while !is_end {
                let mut found = Vec::with_capacity(MAP_PAGES_TOGETHER);
                while !is_end && found.len() < MAP_PAGES_TOGETHER {
                    match self.next_map_page(volume, from)? {
                        None => is_end = true,
                        Some((segment, pointer)) => {
                            found.push((segment, pointer));
                            from = segment + 1;
                        }
                    }
                }
                for page in self.map_pages(volume, &found) {
                    visit(volume, page)?;
                }
            }
        }
        Ok(())
    }

    fn map_pages(&self, volume: &VolumeRecord, found: &[(SegmentIndex, Pointer)]) -> Vec<MapPage> {
        let leaves: Vec<_> = found
            .iter()
            .map(|(segment, pointer)| (segment.0, *pointer))
            .collect();
        let pages = &self.journal.state.pages;
        let read = pages.read_leaves(PageKind::Map, volume.layer.0, &leaves);
        let pages = found.iter().zip(read);
        pages
            .map(|((segment, pointer), read)| MapPage {
                segment: *segment,
                pointer: *pointer,
                entries: read.and_then(|page| decoded(&page)),
            })
            .collect()
    }

    /// The first page of a map at or after `from`.
    pub fn next_map_page(
        &self,
        volume: &VolumeRecord,
        from: SegmentIndex,
    ) -> Result<Option<(SegmentIndex, Pointer)>> {
        let (pages, owner) = (&self.journal.state.pages, volume.layer.0);
        let found = tree::next_leaf(pages, owner, volume.map, from.0, &|_| true)?;
        Ok(found.map(|(index, pointer)| (SegmentIndex(index), pointer)))
    }

    /// The page of one segment of a map, if there is one.
    pub fn map_page(
        &self,
        volume: &VolumeRecord,
        segment: SegmentIndex,
    ) -> Result<Option<Pointer>> {
        tree::lookup(
            &self.journal.state.pages,
            volume.layer.0,
            volume.map,
            segment.0,
        )
    }

    /// A page of the free-space map, unless it is empty.
    pub fn space_page(&self, index: u64) -> Result<Option<Pointer>> {
        tree::lookup(
            &self.journal.state.pages,
            SPACE_OWNER,
            self.root.space,
            index,
        )
    }

    /// Reads a page of the free-space map.
    pub fn read_space_page(&self, index: u64, pointer: Pointer) -> Result<Box<PageBytes>> {
        let pages = &self.journal.state.pages;
        pages.read(PageKind::Space, 0, SPACE_OWNER, index, pointer)
    }

    /// Visits every page that the root reaches.
    pub fn each_page(&self, visit: &mut dyn FnMut(&PageBytes) -> Result<()>) -> Result<()> {
        let (root, pages) = (&self.root, &self.journal.state.pages);
        let of_pool = [
            (CATALOGUE_OWNER, root.catalogue, PageKind::Catalogue),
            (SPACE_OWNER, root.space, PageKind::Space),
            (QUEUE_OWNER, root.queue, PageKind::Queue),
            (CLAIMS_OWNER, root.claims, PageKind::Queue),
            (BATCH_OWNER, root.batch, PageKind::Batch),
        ];
        for (owner, tree, leaf) in of_pool {
            tree::each_page(pages, owner, tree, leaf, visit)?;
        }
        self.volumes.iter().try_for_each(|volume| {
            let walked = tree::each_page(pages, volume.layer.0, volume.map, PageKind::Map, visit);
            walked.map_err(|e| e.during(format_args!("the map of volume '{}'", volume.name)))
        })
    }

    /// Reads the entries of a page.
    pub fn entries(
        &self,
        volume: &VolumeRecord,
        segment: SegmentIndex,
        pointer: Pointer,
    ) -> Result<Box<Segment>> {
        let layer = volume.layer.0;
        let page = self
            .journal
            .state
            .pages
            .read(PageKind::Map, 0, layer, segment.0, pointer)?;
        decoded(&page)
    }

    /// Visits the dropped references that are not released yet.
    pub fn each_dropped(&self, visit: &mut dyn FnMut(QueueElement)) -> Result<()> {
        self.each_waiting(QueueKind::Dropped, BatchKind::Collector, visit)
    }

    /// Visits the references of entries that the index does not count yet.
    pub fn each_claim(&self, visit: &mut dyn FnMut(QueueElement)) -> Result<()> {
        self.each_waiting(QueueKind::Claims, BatchKind::Counting, visit)
    }

    /// The elements of a queue, and the unsettled items of the batch that takes from it.
    fn each_waiting(
        &self,
        queue: QueueKind,
        batch: BatchKind,
        visit: &mut dyn FnMut(QueueElement),
    ) -> Result<()> {
        let stored = StoredQueue::of(&self.root, queue);
        read_elements(&self.journal.state.pages, &stored, &mut |element| {
            visit(element);
            Ok(())
        })?;
        let taken = self.open.as_ref().filter(|open| open.kind == batch);
        for item in taken.iter().flat_map(|open| open.unsettled()) {
            visit(QueueElement {
                pba: item.pba,
                count: 1,
                domain: item.domain,
            });
        }
        Ok(())
    }

    /// Blocks of any volume that an open batch of the finder has not settled yet.
    pub fn unsettled_blocks(&self) -> Vec<Pba> {
        let batch = self.open.iter();
        let finder = batch.filter(|batch| matches!(batch.kind, BatchKind::Finder(_)));
        let items = finder.flat_map(|batch| batch.unsettled());
        let mut blocks: Vec<Pba> = items.map(|item| item.pba).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Items that an open batch of the finder has announced and the index may not know: they
    /// count once they are settled.
    pub fn unpublished(&self, volume: &VolumeRecord) -> &[BatchItem] {
        match &self.open {
            Some(batch) if batch.kind == BatchKind::Finder(volume.layer) => batch.unsettled(),
            _ => &[],
        }
    }
}
