//! The finder: mark and intent → commit → fingerprint and increment → one outcome an entry.

use crate::bits::Bits;
use crate::guards::Guard;
use crate::image::{
    Block, Entry, Fingerprint, Intent, LayerId, Lba, Outcome, Record, StreamNumber,
};
use crate::index::Answer;
use crate::state::{Config, Phase, Stage, State};

/// Whether `layer` may begin a batch.
pub(crate) fn may_begin(state: &State, config: &Config, layer: LayerId) -> bool {
    let Some(found) = state.memory.image.layer(layer) else {
        return false;
    };
    let jobs = state.memory.jobs.iter().filter(|job| job.layer == layer);
    let busy = |phase: &Phase| match phase {
        Phase::Answered(_) => config.on(Guard::OutcomeBeforeNextBatch),
        _ => config.on(Guard::OneJobPerLayer),
    };
    !found.deleting && !jobs.map(|job| &job.phase).any(busy)
}

/// Marks the entries of `lbas` shared and logs the intent, under the locks.
pub(crate) fn mark(state: &mut State, config: &Config, layer: LayerId, lbas: Bits) -> Option<()> {
    if !may_begin(state, config, layer) {
        return None;
    }
    let found = state.memory.image.layer(layer)?;
    let number = found.next;
    let mut items = Vec::new();
    for lba in lbas.iter() {
        let Entry::Private(block) = found.map[usize::from(lba)] else {
            return None;
        };
        if state.memory.is_locked(config, layer, lba) {
            return None;
        }
        items.push((lba, block));
    }
    state.budget.finds = state.budget.finds.checked_sub(1)?;
    state.append(
        config,
        Record::FindIntent {
            layer,
            number,
            items,
        },
    );
    state
        .memory
        .set_phase(layer, number, Some(Phase::Intent(Stage::Tail)));
    Some(())
}

/// The items of an open batch.
fn items(state: &State, layer: LayerId, number: StreamNumber) -> Option<Vec<(Lba, Block)>> {
    let intents = &state.memory.image.layer(layer)?.intents;
    match intents.iter().find(|intent| intent.number() == number)? {
        Intent::Find { items, .. } => Some(items.clone()),
        Intent::Collect { .. } => None,
    }
}

/// Reads the blocks back, fingerprints them, and counts them in the index.
///
/// After a crash the batch may have shrunk by the outcomes logged before; the index then has the
/// batch's answers, and those that belong to the remaining items are the last ones.
pub(crate) fn call(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    let job = state.memory.job(layer, number)?;
    let Phase::Intent(stage) = job.phase else {
        return None;
    };
    if stage != Stage::Durable && config.on(Guard::FinderIntentDurable) {
        return None;
    }
    let items = items(state, layer, number)?;
    let prints = fingerprints(state, config, &items);
    let mut answers = if config.on(Guard::CountBeforeName) {
        let answers = state
            .disk
            .index
            .increment(config.guards, layer, number, &prints);
        sync_after_call(state, config);
        answers
    } else {
        look_up(state, &prints)
    };
    answers.drain(..answers.len().saturating_sub(items.len()));
    if answers.len() < items.len() {
        return None;
    }
    state
        .memory
        .set_phase(layer, number, Some(Phase::Answered(answers)));
    Some(())
}

fn fingerprints(
    state: &State,
    config: &Config,
    items: &[(Lba, Block)],
) -> Vec<(Fingerprint, Block)> {
    let content = |block: Block| state.disk.now[usize::from(block)];
    items
        .iter()
        .map(|(_, block)| (config.fingerprint(content(*block)), *block))
        .collect()
}

/// What a finder does that trusts a lookup: it names first and counts later.
fn look_up(state: &State, prints: &[(Fingerprint, Block)]) -> Vec<Answer> {
    let answer = |(fingerprint, _): &(Fingerprint, Block)| {
        let row = state.disk.index.live_row(*fingerprint);
        row.map_or(Answer::Inserted, |row| Answer::Shared(row.block))
    };
    prints.iter().map(answer).collect()
}

/// The index syncs a batch before it answers. An unsynced call would be seen by nobody else, so
/// call and sync are one step.
pub(crate) fn sync_after_call(state: &mut State, config: &Config) {
    if !config.on(Guard::IndexSyncBeforeOutcome) {
        return;
    }
    state.disk.sync_index();
    if !config.on(Guard::AnswersWithEntries) {
        let stale = crate::index::Stream::default();
        let index = std::sync::Arc::make_mut(&mut state.disk.index_durable);
        index.streams.fill(stale);
    }
}

/// Logs the outcome of the batch's first entry that has none, under its lock.
pub(crate) fn outcome(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    let Phase::Answered(mut answers) = state.memory.job(layer, number)?.phase.clone() else {
        return None;
    };
    let left = items(state, layer, number)?;
    let (lba, old) = *left.first()?;
    if state.memory.is_locked(config, layer, lba) {
        return None;
    }
    let prints = fingerprints(state, config, &left);
    let answer = answers.remove(0);
    let (outcome, also_freed) = decide(state, config, layer, (lba, old), answer)?;
    state.append(
        config,
        Record::FindOutcome {
            layer,
            number,
            lba,
            old,
            outcome,
            also_freed,
        },
    );
    crate::layers::invalidate_cache(state, config);
    let phase = match (answers.is_empty(), config.on(Guard::CountBeforeName)) {
        (false, _) => Some(Phase::Answered(answers)),
        (true, true) => None,
        (true, false) => Some(Phase::Uncounted(prints)),
    };
    state.memory.set_phase(layer, number, phase);
    Some(())
}

fn decide(
    state: &State,
    config: &Config,
    layer: LayerId,
    (lba, old): (Lba, Block),
    answer: Answer,
) -> Option<(Outcome, Option<Block>)> {
    let shared = match answer {
        Answer::Inserted => return Some((Outcome::Inserted, None)),
        Answer::InsertedOver(other) => return Some((Outcome::Inserted, Some(other))),
        Answer::Shared(block) => block,
        _ => return None,
    };
    let entry = state.memory.image.layer(layer)?.map[usize::from(lba)];
    let moved = entry != Entry::Shared(old);
    let content = |block: Block| state.disk.now[usize::from(block)];
    let outcome = if moved && config.on(Guard::AliasOnlyIfUnmoved) {
        if config.on(Guard::DanglingGivesBack) {
            Outcome::Dangling(shared)
        } else {
            Outcome::Inserted
        }
    } else if content(old) != content(shared) && config.on(Guard::VerifyBytes) {
        Outcome::Rejected(shared)
    } else {
        Outcome::Aliased(shared)
    };
    Some((outcome, None))
}

/// The count that comes too late. Only with a guard off.
pub(crate) fn count_late(
    state: &mut State,
    config: &Config,
    layer: LayerId,
    number: StreamNumber,
) -> Option<()> {
    let Phase::Uncounted(prints) = state.memory.job(layer, number)?.phase.clone() else {
        return None;
    };
    state
        .disk
        .index
        .increment(config.guards, layer, number, &prints);
    state.disk.sync_index();
    state.memory.set_phase(layer, number, None);
    Some(())
}
