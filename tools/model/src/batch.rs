//! The common parts of finder, collector and counting: one batch at a time in the pool, announced by a durable record,
//! executed by one call of the index, and settled item by item.

use crate::guards::Guard;
use crate::image::{BatchNumber, Block, Fingerprint, Item, OpenBatch};
use crate::index::{Answer, Index};
use crate::properties::Violation;
use crate::state::{Config, Phase, Stage, State};

/// Whether the state of the index permits a batch to begin, or a resumed batch to continue.
pub(crate) fn index_is_ready(state: &State, config: &Config) -> bool {
    !state.disk.index.needs_rebuild || !config.on(Guard::RebuildBeforeBatch)
}

/// Whether a batch may begin.
pub(crate) fn may_begin(state: &State, config: &Config) -> bool {
    let alone = state.memory.jobs.is_empty() || !config.on(Guard::OneBatch);
    alone && index_is_ready(state, config)
}

/// Whether batch `number` may be passed to the index. The guard `intent_durable` demands that the record which
/// announces the batch is durable.
pub(crate) fn may_call(
    state: &State,
    config: &Config,
    number: BatchNumber,
    intent_durable: Guard,
) -> Option<OpenBatch> {
    let Phase::Intent(stage) = state.memory.job(number)?.phase else {
        return None;
    };
    let announced = stage == Stage::Durable || !config.on(intent_durable);
    if !announced || !index_is_ready(state, config) {
        return None;
    }
    state.memory.image.batch(number).cloned()
}

/// The blocks that a call passes to the index, read again and fingerprinted: only the unsettled ones, because the
/// others may have been reused.
pub(crate) fn call_items(
    state: &State,
    config: &Config,
    batch: &OpenBatch,
) -> Vec<(Fingerprint, Block)> {
    let items = if config.on(Guard::OnlyUnsettledAgain) {
        batch.unsettled()
    } else {
        &batch.items
    };
    let content = |item: &Item| state.disk.now[usize::from(item.block)];
    items
        .iter()
        .map(|item| (config.fingerprint(content(item)), item.block))
        .collect()
}

/// Notes the index's answers. A repeated call may also have answers for settled items; the last answers belong to the
/// unsettled items.
pub(crate) fn answered(
    state: &mut State,
    batch: &OpenBatch,
    mut answers: Vec<Answer>,
) -> Option<()> {
    let Some(settled) = answers.len().checked_sub(batch.unsettled().len()) else {
        state.violate(Violation::Refused);
        return Some(());
    };
    answers.drain(..settled);
    let phase = Some(Phase::Answered(answers));
    state.memory.set_phase(batch.number, phase);
    Some(())
}

/// The index syncs a batch before it answers. No one else can see an unsynced call, so call and sync are one step.
pub(crate) fn sync_after_call(state: &mut State, config: &Config) {
    if !config.on(Guard::IndexSyncBeforeOutcome) {
        return;
    }
    state.disk.sync_index();
    if !config.on(Guard::AnswersWithEntries) {
        let index: &mut Index = std::sync::Arc::make_mut(&mut state.disk.index_durable);
        index.last = 0;
        index.answers.clear();
    }
}

/// The answer to the batch's first unsettled item, with that item and its position.
pub(crate) fn next_answer(state: &State, number: BatchNumber) -> Option<(OpenBatch, Item, Answer)> {
    let Phase::Answered(answers) = &state.memory.job(number)?.phase else {
        return None;
    };
    let batch = state.memory.image.batch(number)?;
    let item = *batch.unsettled().first()?;
    Some((batch.clone(), item, *answers.first()?))
}

/// Removes the answer that was used; with the last one the batch ends.
pub(crate) fn used_answer(state: &mut State, number: BatchNumber) {
    let Some(Phase::Answered(answers)) = state.memory.job(number).map(|job| &job.phase) else {
        return;
    };
    let left = answers[1..].to_vec();
    let phase = (!left.is_empty()).then_some(Phase::Answered(left));
    state.memory.set_phase(number, phase);
}
