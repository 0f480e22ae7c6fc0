//! The collector: intent → commit → decrement → outcome → commit → forget the tombstone.

use crate::finder::{may_begin, sync_after_call};
use crate::guards::Guard;
use crate::image::{Block, Fingerprint, Intent, LayerId, Record, Release, StreamNumber};
use crate::index::Answer;
use crate::state::{Config, Phase, Stage, State};

/// Takes a block from the layer's queue, once its readers have drained, and logs the intent.
pub(crate) fn begin(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    block: Block,
) -> Option<()> {
    let found = state.memory.image.layer(layer)?;
    let deleting = found.deleting && state.memory.jobs.iter().all(|job| job.layer != layer);
    if !deleting && !may_begin(state, config, layer) {
        return None;
    }
    let waits = &state.memory.given_up_waits;
    let is_read = waits.iter().any(|(l, b, _)| (*l, *b) == (layer, block));
    if !found.given_up.contains(&block) || (is_read && config.on(Guard::CollectorAfterDrain)) {
        return None;
    }
    let number = found.next;
    let fingerprint = config.fingerprint(state.disk.now[usize::from(block)]);
    state.budget.collects = state.budget.collects.checked_sub(1)?;
    state.append(
        config,
        Record::CollectIntent {
            layer,
            number,
            block,
            fingerprint,
        },
    );
    state
        .memory
        .set_phase(layer, number, Some(Phase::Intent(Stage::Tail)));
    Some(())
}

/// The block and fingerprint of an open batch.
fn item(state: &State, layer: LayerId, number: StreamNumber) -> Option<(Block, Fingerprint)> {
    let intents = &state.memory.image.layer(layer)?.intents;
    match intents.iter().find(|intent| intent.number() == number)? {
        Intent::Collect {
            block, fingerprint, ..
        } => Some((*block, *fingerprint)),
        Intent::Find { .. } => None,
    }
}

/// Releases the reference in the index.
pub(crate) fn call(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    let Phase::Intent(stage) = state.memory.job(layer, number)?.phase else {
        return None;
    };
    if stage != Stage::Durable && config.on(Guard::CollectorIntentDurable) {
        return None;
    }
    let (block, fingerprint) = item(state, layer, number)?;
    let answers = state
        .disk
        .index
        .decrement(config, layer, number, fingerprint, block);
    sync_after_call(state, config);
    state
        .memory
        .set_phase(layer, number, Some(Phase::Answered(answers)));
    Some(())
}

/// Logs what became of the reference.
pub(crate) fn outcome(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    let Phase::Answered(answers) = state.memory.job(layer, number)?.phase.clone() else {
        return None;
    };
    item(state, layer, number)?;
    let release = match answers.first()? {
        Answer::Remaining => Release::Remaining,
        Answer::Zero if config.tombstones => Release::Freed,
        Answer::Zero => Release::FreedAndDone,
        Answer::Unknown if !config.on(Guard::UnknownQuarantines) => Release::FreedAndDone,
        _ => Release::Quarantined,
    };
    state.append(
        config,
        Record::CollectOutcome {
            layer,
            number,
            release,
        },
    );
    let freed = (release == Release::Freed).then_some(Phase::Freed(Stage::Tail));
    state.memory.set_phase(layer, number, freed);
    Some(())
}

/// Deletes the tombstone, once the free record is durable, and closes the intent.
pub(crate) fn forget(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    if state.memory.job(layer, number)?.phase != Phase::Freed(Stage::Durable) {
        return None;
    }
    let (block, logged) = item(state, layer, number)?;
    let fingerprint = if config.on(Guard::FingerprintInIntent) {
        logged
    } else {
        config.fingerprint(state.disk.now[usize::from(block)])
    };
    state
        .disk
        .index
        .forget(config.guards, layer, number, fingerprint);
    sync_after_call(state, config);
    state.append(config, Record::CollectDone { layer, number });
    state.memory.set_phase(layer, number, None);
    Some(())
}
