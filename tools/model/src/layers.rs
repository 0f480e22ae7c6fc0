//! Snapshot, clone, and the merge that deletes a layer.

use crate::guards::Guard;
use crate::image::{Entry, Image, LBAS, LayerId, Lba, Record, VOLUMES, Volume};
use crate::state::{Config, Stage, State};
use crate::volume_steps::readable;

/// Freezes the live layer, once its writes have drained, and starts an empty one on top.
pub(crate) fn snapshot(state: &mut State, config: &Config, volume: Volume) -> Option<()> {
    let frozen = state.memory.image.live[usize::from(volume)]?;
    let in_flight = state
        .memory
        .writers
        .iter()
        .flatten()
        .any(|w| w.volume == volume);
    if state.memory.snapshot.is_some() || (in_flight && config.on(Guard::SnapshotDrains)) {
        return None;
    }
    let live = state.memory.image.new_layer_id()?;
    state.budget.snapshots = state.budget.snapshots.checked_sub(1)?;
    state.append(config, Record::Snapshot { volume, live });
    for lba in 0..config.lbas {
        state.ghost.frozen[usize::from(frozen)][usize::from(lba)] = readable(state, volume, lba);
    }
    if config.on(Guard::SnapshotCommits) {
        state.memory.snapshot = Some((frozen, Stage::Tail));
    } else {
        state.ghost.promised.insert(frozen);
    }
    Some(())
}

/// Starts volume `volume` on a frozen layer.
pub(crate) fn clone(
    state: &mut State,
    config: &Config,
    volume: Volume,
    below: LayerId,
) -> Option<()> {
    let found = state.memory.image.layer(below)?;
    let taken = state.memory.image.live[usize::from(volume)].is_some();
    if taken || !found.frozen || found.deleting {
        return None;
    }
    let live = state.memory.image.new_layer_id()?;
    state.budget.clones = state.budget.clones.checked_sub(1)?;
    state.append(
        config,
        Record::Clone {
            volume,
            below,
            live,
        },
    );
    let frozen = state.ghost.frozen[usize::from(below)];
    state.ghost.allowed[usize::from(volume)] = frozen;
    let contents = frozen.map(|holds| holds.iter().next().unwrap_or(0));
    state.ghost.answered[usize::from(volume)] = contents;
    Some(())
}

/// Begins to delete a frozen layer. If several layers stand on it, it stays until only one does.
pub(crate) fn start_delete(state: &mut State, config: &Config, layer: LayerId) -> Option<()> {
    let image = &state.memory.image;
    let found = image.layer(layer)?;
    let unanswered = state.memory.snapshot.is_some_and(|(id, _)| id == layer);
    let other = state.memory.delete.is_some();
    if !found.frozen || found.deleting || unanswered || other {
        return None;
    }
    state.budget.deletes = state.budget.deletes.checked_sub(1)?;
    state.ghost.promised.remove(layer);
    state.append(config, Record::DeleteStart { layer });
    if config.on(Guard::DeleteDurable) {
        state.memory.delete = Some((layer, Stage::Tail));
    }
    Some(())
}

/// Merges one LBA of a deleted layer into its only child.
pub(crate) fn merge_step(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    lba: Lba,
) -> Option<()> {
    let image = &state.memory.image;
    let found = image.layer(layer)?;
    let starting = state.memory.delete.is_some_and(|(id, _)| id == layer);
    if !found.deleting || starting || !may_go(image, config, layer) {
        return None;
    }
    let into = image.children(layer).next();
    if into.is_some_and(|child| state.memory.is_locked(config, child, lba)) {
        return None;
    }
    let mut from = layer;
    if !config.on(Guard::MergeReleasesOwn) {
        from = image.resolve(layer, lba).0;
    }
    let entry = image.layer(from)?.map[usize::from(lba)];
    let moves_up = into.is_some_and(|child| {
        let above = image.layer(child).map(|layer| layer.map[usize::from(lba)]);
        above == Some(Entry::Absent)
    });
    let is_unsettled = |block| {
        let mut open = image.open.iter();
        open.any(|batch| batch.has_unsettled(from, lba, block))
    };
    let waits = moves_up && entry.block().is_some_and(is_unsettled);
    if entry == Entry::Absent || (waits && config.on(Guard::MergeMovesSettled)) {
        return None;
    }
    state.append(
        config,
        Record::MergeStep {
            layer: from,
            into,
            lba,
        },
    );
    invalidate_cache(state, config);
    Some(())
}

/// Removes a layer without entries. An open batch may still have items of the layer: their LBAs all name other blocks
/// by now, and the batch still owns the announced blocks.
pub(crate) fn drop_layer(state: &mut State, config: &Config, layer: LayerId) -> Option<()> {
    let found = state.memory.image.layer(layer)?;
    let empty = found.map.iter().all(|entry| *entry == Entry::Absent);
    let starting = state.memory.delete.is_some_and(|(id, _)| id == layer);
    if !found.deleting || starting || !empty || !may_go(&state.memory.image, config, layer) {
        return None;
    }
    state.append(config, Record::LayerDropped { layer });
    Some(())
}

/// The entries of a layer can move to one layer above it, not to several.
fn may_go(image: &Image, config: &Config, layer: LayerId) -> bool {
    image.children(layer).count() <= 1 || !config.on(Guard::MergeIntoOnlyChild)
}

/// Drops cached lookups that may have gone through a layer that gave an entry up.
pub(crate) fn invalidate_cache(state: &mut State, config: &Config) {
    if config.cached && config.on(Guard::CacheInvalidated) {
        state.memory.cache = [[None; LBAS]; VOLUMES];
    }
}
