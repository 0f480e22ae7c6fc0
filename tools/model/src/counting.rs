//! Counting: announce → commit → increment with the claimed blocks → one result per item.

use crate::batch::{
    answered, call_items, may_begin, may_call, next_answer, sync_after_call, used_answer,
};
use crate::guards::Guard;
use crate::image::{BatchKind, BatchNumber, Record};
use crate::index::Answer;
use crate::state::{Config, Phase, Stage, State};

/// Takes elements off the head of the claims. The next commit makes the entries of these claims durable, because they
/// are earlier in the log.
pub(crate) fn begin(state: &mut State, config: &Config, elements: u8) -> Option<()> {
    let claimed = state.memory.image.claims.len();
    if usize::from(elements) > claimed || !may_begin(state, config) {
        return None;
    }
    state.budget.counts = state.budget.counts.checked_sub(1)?;
    let number = state.memory.image.next_number;
    state.append(config, Record::Count { number, elements });
    let phase = Some(Phase::Intent(Stage::Tail));
    state.memory.set_phase(number, phase);
    Some(())
}

/// Has the index count the claims. Their blocks are published, so the fingerprints made at the time of the hit equal
/// the fingerprints of the blocks now, which the model uses.
pub(crate) fn call(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let batch = may_call(state, config, number, Guard::CountIntentDurable)?;
    if batch.kind != BatchKind::Counting {
        return None;
    }
    let items = call_items(state, config, &batch);
    let answers = state.disk.index.count_claims(config, number, &items);
    sync_after_call(state, config);
    answered(state, &batch, answers)
}

/// Logs the outcome of the batch's first unsettled item.
pub(crate) fn settle(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let (batch, _, answer) = next_answer(state, number)?;
    if batch.kind != BatchKind::Counting {
        return None;
    }
    let position = batch.done;
    let quarantined = answer != Answer::Inserted;
    state.append(
        config,
        Record::Counted {
            number,
            position,
            quarantined,
        },
    );
    used_answer(state, number);
    Some(())
}
