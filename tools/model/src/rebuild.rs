//! Rebuilding the index from the maps: after a crash that destroyed it, and for `check --repair`.
//!
//! The rebuild counts the image at one moment, and reads the blocks later, while guests work. During the rebuild no
//! batch continues and no hit is taken, so references that are dropped only join the queue, where they count as before.
//! The index is marked whole only once that image is durable: otherwise a crash could bring back an open batch whose
//! number the index considers used.

use crate::guards::{Guard, Guards};
use crate::image::{BLOCKS, BatchKind, Block, Entry, Image};
use crate::index::Index;
use crate::state::{Config, Phase, Stage, State};

/// References to each block that the index has counted if it has not yet been called for the open batch: shared
/// entries, except those that the batch has not published yet; the queue; references that an open batch of the
/// collector has not released yet; less the claims. Negative only with a guard off.
pub(crate) fn references(image: &Image, guards: Guards) -> [i8; BLOCKS] {
    let mut references = [0; BLOCKS];
    for (layer, lba, entry) in image.entries() {
        let Entry::Shared(block) = entry else {
            continue;
        };
        let mut open = image.open.iter();
        let is_unpublished = if guards.on(Guard::RebuildCountsHits) {
            open.any(|batch| batch.has_unsettled(layer, lba, block))
        } else {
            open.any(|batch| batch.has_announced(layer, lba))
        };
        if !is_unpublished || !guards.on(Guard::RebuildSkipsUnpublished) {
            references[usize::from(block)] += 1;
        }
    }
    if guards.on(Guard::RebuildCountsQueue) {
        for block in &image.queue {
            references[usize::from(*block)] += 1;
        }
    }
    let collected = image.open.iter();
    let collected = collected.filter(|batch| batch.kind == BatchKind::Collector);
    for item in collected.flat_map(|batch| batch.unsettled()) {
        references[usize::from(item.block)] += i8::from(guards.on(Guard::RebuildCountsCollected));
    }
    for block in uncounted(image) {
        references[usize::from(block)] -= i8::from(guards.on(Guard::RebuildLessClaims));
    }
    references
}

/// The blocks of the claims, including claims that an open batch has not counted yet.
pub(crate) fn uncounted(image: &Image) -> impl Iterator<Item = Block> {
    let open = image.open.iter();
    let counting = open.filter(|batch| batch.kind == BatchKind::Counting);
    let counting = counting.flat_map(|batch| batch.unsettled());
    image
        .claims
        .iter()
        .copied()
        .chain(counting.map(|item| item.block))
}

/// Clears the index and counts the maps. No call of the index is in flight.
pub(crate) fn begin(state: &mut State, config: &Config) -> Option<()> {
    let mut jobs = state.memory.jobs.iter();
    let idle = jobs.all(|job| matches!(job.phase, Phase::Intent(_)));
    if state.memory.rebuild.is_some() || !idle {
        return None;
    }
    if !state.disk.index.needs_rebuild {
        state.budget.rebuilds = state.budget.rebuilds.checked_sub(1)?;
    }
    state.disk.index = Index::lost();
    state.disk.sync_index();
    if let Some(lookup) = &mut state.memory.lookup {
        lookup.rebuilt = true;
    }
    let is_durable = state.memory.tail.is_empty() && state.memory.commit.is_none();
    let stage = if is_durable {
        Stage::Durable
    } else {
        Stage::Tail
    };
    let counted = references(&state.memory.image, config.guards);
    state.memory.rebuild = Some((stage, counted));
    Some(())
}

/// Reads the blocks and makes their rows. The open batch, if there is one, will be executed again.
pub(crate) fn finish(state: &mut State, config: &Config) -> Option<()> {
    let (stage, references) = state.memory.rebuild?;
    if stage != Stage::Durable && config.on(Guard::RebuildAfterCommit) {
        return None;
    }
    state.memory.rebuild = None;
    let image = &state.memory.image;
    let next = image
        .open
        .first()
        .map_or(image.next_number, |open| open.number);
    let contents = state.disk.now;
    let index = &mut state.disk.index;
    index.rebuild(config, &references, &contents, next - 1);
    state.disk.sync_index();
    Some(())
}
