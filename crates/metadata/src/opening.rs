//! The metadata as the last checkpoint left it.

use std::sync::Arc;

use onefold_engine::Blocking;
use onefold_format::{Root, SegmentIndex, TreeRoot};

use super::batch::Batches;
use super::catalogue::Catalogue;
use super::map::{Maps, Wanted};
use super::pages::Pages;
use super::queue::{self, Queue, QueueKind, StoredQueue};
use super::run::PbaRun;
use super::space::{Space, SpaceOf};
use super::state::MetadataState;
use super::tree;
use crate::error::{Result, StoreErrorKind};
use crate::limits::Limits;

/// Walks all inner pages to find the pages in use and the mapped amounts. With `rebuild_free_space`
/// an unreadable free-space map is counted again. Returns whether it was.
pub fn open(
    pages: &Arc<Pages>,
    maps: &Maps,
    root: &Root,
    space_of: SpaceOf,
    limits: &Limits,
    rebuild_free_space: bool,
) -> Result<(MetadataState, bool)> {
    let mut is_rebuilt = false;
    let mut catalogue = Catalogue::read(pages, root.catalogue, &mut |page| pages.mark_used(page))?;
    catalogue.next_volume_id = root.next_volume_id;
    catalogue.next_layer_id = root.next_layer_id;
    catalogue.next_domain_id = root.next_domain_id;
    for (_, volume) in catalogue.volumes() {
        let layer = maps.add_layer(volume);
        tree::walk(
            pages,
            volume.layer.0,
            volume.map,
            &mut |visit| match visit {
                tree::Visit::Node(page) => pages.mark_used(page),
                tree::Visit::Leaf(segment, pointer) => {
                    layer.note_segment(SegmentIndex(segment));
                    pages.mark_used(pointer.page)
                }
            },
        )
        .map_err(|error| {
            let name = catalogue.name_of(volume);
            error.during(format_args!("the map of volume '{name}'"))
        })?;
    }
    for (_, volume) in catalogue.volumes() {
        maps.put_above(&maps.layer(volume.layer)?, volume.below)?;
    }
    let queue = |kind| Queue::open(Arc::clone(pages), &StoredQueue::of(root, kind));
    let (queue, claims) = (queue(QueueKind::Dropped)?, queue(QueueKind::Claims)?);
    let batches = Batches::read(pages, root, &mut |page| pages.mark_used(page))?;
    let space = match Space::open(Arc::clone(pages), root.space, space_of, root, limits) {
        // The blocks of a group can be counted only together with those of all other groups.
        Err(error)
            if rebuild_free_space
                && space_of == SpaceOf::Pool
                && error.kind() == StoreErrorKind::Damaged =>
        {
            is_rebuilt = true;
            count_free_space(pages, maps, &catalogue, &batches, root, limits)?
        }
        space => space?,
    };
    let state = MetadataState {
        space,
        exchanged: root.exchanged,
        catalogue,
        queue,
        claims,
        claims_max: limits.claims_max,
        batches,
        lookup_version: Arc::default(),
        hits_held: false,
        gone: Vec::new(),
        is_recovered: false,
    };
    Ok((state, is_rebuilt))
}

/// Counts the free-space map from all maps of the checkpoint.
fn count_free_space(
    pages: &Arc<Pages>,
    maps: &Maps,
    catalogue: &Catalogue,
    batches: &Batches,
    root: &Root,
    limits: &Limits,
) -> Result<Space> {
    let nothing = TreeRoot::default();
    let mut space = Space::open(Arc::clone(pages), nothing, SpaceOf::Pool, root, limits)?;
    // A shared block may be met many times.
    let mut claim = |run: PbaRun| -> Result<()> {
        for n in 0..run.count {
            let block = PbaRun {
                start: run.start + n,
                count: 1,
            };
            if space.is_free(block)? {
                space.take(block)?;
                space.name(block)?;
            }
        }
        Ok(())
    };
    let unsettled = batches.open.iter().flat_map(|batch| batch.unsettled());
    for item in unsettled {
        claim(PbaRun {
            start: item.pba,
            count: 1,
        })?;
    }
    let dropped = StoredQueue::of(root, QueueKind::Dropped);
    queue::read_elements(pages, &dropped, &mut |element| {
        claim(PbaRun {
            start: element.pba,
            count: u64::from(element.count),
        })
    })?;
    for (_, volume) in catalogue.volumes() {
        let layer = maps.layer(volume.layer)?;
        let mut from = SegmentIndex(0);
        while let Some(segment) = maps.next_segment(&layer, from, Wanted::Mapped)? {
            let leaf = maps.leaf(&layer, segment, Blocking::Yes)?;
            let stored = leaf.with(|entries| entries.map(|entry| entry.pba()));
            for start in stored.into_iter().flatten() {
                claim(PbaRun { start, count: 1 })?;
            }
            from = segment + 1;
        }
    }
    Ok(space)
}
