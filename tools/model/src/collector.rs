//! The collector: announce → commit → fingerprint and decrement → one release per item.

use crate::batch::{
    answered, call_items, may_begin, may_call, next_answer, sync_after_call, used_answer,
};
use crate::guards::Guard;
use crate::image::{BatchKind, BatchNumber, Record, Release};
use crate::index::Answer;
use crate::state::{Config, Phase, Stage, State};

/// Takes elements off the queue's head. Their records may be undurable and their readers active: the next commit makes
/// the records durable, and the release of a freed block waits for the readers. Claims are counted first.
pub(crate) fn begin(state: &mut State, config: &Config, elements: u8) -> Option<()> {
    let queued = state.memory.image.queue.len();
    let claimed = !state.memory.image.claims.is_empty();
    let waits = claimed && config.on(Guard::ClaimsBeforeRelease);
    if usize::from(elements) > queued || waits || !may_begin(state, config) {
        return None;
    }
    state.budget.collects = state.budget.collects.checked_sub(1)?;
    let number = state.memory.image.next_number;
    state.append(config, Record::Collect { number, elements });
    let phase = Some(Phase::Intent(Stage::Tail));
    state.memory.set_phase(number, phase);
    Some(())
}

/// Reads the blocks, fingerprints them, and releases the references in the index.
pub(crate) fn call(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let batch = may_call(state, config, number, Guard::CollectorIntentDurable)?;
    if batch.kind != BatchKind::Collector {
        return None;
    }
    let items = call_items(state, config, &batch);
    let answers = state.disk.index.decrement(config, number, &items);
    sync_after_call(state, config);
    answered(state, &batch, answers)
}

/// Logs the outcome of the batch's first unsettled item.
pub(crate) fn release(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let (batch, _, answer) = next_answer(state, number)?;
    if batch.kind != BatchKind::Collector {
        return None;
    }
    let release = match answer {
        Answer::Zero => Release::Freed,
        Answer::Remaining if config.on(Guard::FreeOnlyAtZero) => Release::Remaining,
        Answer::Remaining => Release::Freed,
        _ if config.on(Guard::UnknownQuarantines) => Release::Quarantined,
        Answer::Unknown => Release::Freed,
        _ => Release::Quarantined,
    };
    let position = batch.done;
    state.append(
        config,
        Record::Release {
            number,
            position,
            release,
        },
    );
    used_answer(state, number);
    Some(())
}
