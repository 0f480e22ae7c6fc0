//! The finder: read → mark and announce → commit → increment → one outcome per item. What was not read before it was
//! announced is read after the commit.

use crate::batch::{
    answered, call_items, may_begin, may_call, next_answer, sync_after_call, used_answer,
};
use crate::bits::Bits;
use crate::guards::Guard;
use crate::image::{
    BatchKind, BatchNumber, Block, Content, Entry, Fingerprint, Item, LayerId, Lba, OpenBatch,
    Outcome, Record,
};
use crate::index::Answer;
use crate::state::{Candidate, Config, Phase, Stage, State};

/// Makes a private block the candidate, which is read without its lock.
pub(crate) fn choose(state: &mut State, config: &Config, layer: LayerId, lba: Lba) -> Option<()> {
    let memory = &state.memory;
    let found = memory.image.layer(layer)?;
    let Entry::Private(block) = found.map[usize::from(lba)] else {
        return None;
    };
    let is_locked = memory.is_locked(config, layer, lba) && config.on(Guard::CandidateLocked);
    if is_locked || memory.candidate.is_some() {
        return None;
    }
    state.budget.candidates = state.budget.candidates.checked_sub(1)?;
    state.memory.candidate = Some(Candidate {
        layer,
        lba,
        block,
        read: None,
    });
    Some(())
}

/// Reads the candidate.
pub(crate) fn read(state: &mut State) -> Option<()> {
    let candidate = state.memory.candidate.as_mut()?;
    if candidate.read.is_some() {
        return None;
    }
    candidate.read = Some(state.disk.now[usize::from(candidate.block)]);
    Some(())
}

/// Marks the entries of `lbas` shared and announces them, under the locks. A batch may be
/// announced by several records, in ascending order, until it is committed.
pub(crate) fn mark(state: &mut State, config: &Config, layer: LayerId, lbas: Bits) -> Option<()> {
    let image = &state.memory.image;
    let stays = image.children(layer).count() > 1;
    let found = image
        .layer(layer)
        .filter(|found| !found.deleting || stays)?;
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
    let read = take_read(state, layer, &items);
    let number = match growing(state, config, layer, lbas) {
        Some(number) => number,
        None if may_begin(state, config) => {
            state.budget.finds = state.budget.finds.checked_sub(1)?;
            state.memory.image.next_number
        }
        None => return None,
    };
    state.append(
        config,
        Record::Publish {
            layer,
            number,
            items,
        },
    );
    let phase = Some(Phase::Intent(Stage::Tail));
    state.memory.set_phase(number, phase);
    if let Some((block, content)) = read {
        let is_other = content != state.disk.now[usize::from(block)];
        state.memory.misprinted[usize::from(block)] = is_other.then_some(content);
    }
    Some(())
}

/// The content that was read of the candidate, if it is one of the blocks that are published.
fn take_read(
    state: &mut State,
    layer: LayerId,
    items: &[(Lba, Block)],
) -> Option<(Block, Content)> {
    let candidate = state.memory.candidate.take_if(|candidate| {
        candidate.layer == layer && items.contains(&(candidate.lba, candidate.block))
    })?;
    Some((candidate.block, candidate.read?))
}

/// The batch that `lbas` of `layer` would join.
fn growing(state: &State, config: &Config, layer: LayerId, lbas: Bits) -> Option<BatchNumber> {
    let open = state.memory.image.open.last()?;
    let phase = &state.memory.job(open.number)?.phase;
    let is_announced = *phase == Phase::Intent(Stage::Durable);
    let last = open.items.last()?.lba;
    let fits = open.items.len() + lbas.iter().count() <= usize::from(config.batch);
    let grows = matches!(phase, Phase::Intent(_)) && !is_announced && fits;
    let follows = open.kind == BatchKind::Finder(layer) && lbas.iter().all(|lba| lba > last);
    (grows && follows && open.done == 0).then_some(open.number)
}

/// Reads the blocks back, fingerprints them, and counts them in the index.
pub(crate) fn call(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let batch = may_call(state, config, number, Guard::FinderIntentDurable)?;
    if !matches!(batch.kind, BatchKind::Finder(_)) {
        return None;
    }
    if is_called_off(state, &batch) {
        state.disk.index.increment(config, number, &[]);
        sync_after_call(state, config);
        return answered(state, &batch, vec![Answer::Full; batch.unsettled().len()]);
    }
    let items = fingerprints(state, config, &batch);
    let answers = if config.on(Guard::CountBeforeName) {
        let answers = state.disk.index.increment(config, number, &items);
        sync_after_call(state, config);
        answers
    } else {
        look_up(state, &items)
    };
    answered(state, &batch, answers)
}

/// Whether all items are declined: a block of the batch cannot be read, and the index was not called for the batch, or
/// returned no answers.
fn is_called_off(state: &State, batch: &OpenBatch) -> bool {
    let index = &state.disk.index;
    let mut unsettled = batch.unsettled().iter();
    if index.last == batch.number {
        return index.answers.is_empty();
    }
    index.last < batch.number && unsettled.any(|item| state.disk.bad.has(item.block))
}

/// The items of a call of the index: fingerprints of the blocks as they are read, or as the hash cache has them.
fn fingerprints(state: &State, config: &Config, batch: &OpenBatch) -> Vec<(Fingerprint, Block)> {
    let mut items = call_items(state, config, batch);
    for (fingerprint, block) in &mut items {
        let misprinted = state.memory.misprinted[usize::from(*block)];
        *fingerprint = misprinted.map_or(*fingerprint, |content| config.fingerprint(content));
    }
    items
}

/// The answers for a finder that trusts a lookup: it names first and counts later.
fn look_up(state: &State, items: &[(Fingerprint, Block)]) -> Vec<Answer> {
    let answer = |(fingerprint, _): &(Fingerprint, Block)| {
        let row = state.disk.index.rows[usize::from(*fingerprint)];
        row.map_or(Answer::Inserted, |row| Answer::Shared(row.block))
    };
    items.iter().map(answer).collect()
}

/// Logs the outcome of the batch's first unsettled item, under its lock.
pub(crate) fn outcome(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let (batch, item, answer) = next_answer(state, number)?;
    let BatchKind::Finder(layer) = batch.kind else {
        return None;
    };
    if state.memory.is_locked(config, layer, item.lba) {
        return None;
    }
    let prints = call_items(state, config, &batch);
    let outcome = decide(state, config, item, answer)?;
    let position = batch.done;
    state.append(
        config,
        Record::Outcome {
            number,
            position,
            outcome,
        },
    );
    crate::layers::invalidate_cache(state, config);
    used_answer(state, number);
    if !config.on(Guard::CountBeforeName) && is_last(&batch) {
        let phase = Some(Phase::Uncounted(prints));
        state.memory.set_phase(number, phase);
    }
    Some(())
}

fn is_last(batch: &OpenBatch) -> bool {
    batch.unsettled().len() == 1
}

fn decide(state: &State, config: &Config, item: Item, answer: Answer) -> Option<Outcome> {
    let moved = item.moved && config.on(Guard::AliasOnlyIfUnmoved);
    let indexed = match answer {
        Answer::Full => return Some(Outcome::Declined),
        Answer::Inserted => item.block,
        Answer::Shared(block) => block,
        _ => return None,
    };
    let content = |block: Block| state.disk.now[usize::from(block)];
    let equal = content(item.block) == content(indexed);
    Some(match answer {
        _ if moved && !config.on(Guard::DanglingGivesBack) => Outcome::Declined,
        _ if moved => Outcome::Dangling(indexed),
        Answer::Inserted => Outcome::Inserted,
        _ if state.disk.bad.has(indexed) => Outcome::Rejected(indexed),
        _ if equal || !config.on(Guard::VerifyBytes) => Outcome::Aliased(indexed),
        _ => Outcome::Rejected(indexed),
    })
}

/// Makes the count that comes too late, which happens only with a guard off.
pub(crate) fn count_late(state: &mut State, config: &Config, number: BatchNumber) -> Option<()> {
    let Phase::Uncounted(prints) = state.memory.job(number)?.phase.clone() else {
        return None;
    };
    state.disk.index.increment(config, number, &prints);
    state.disk.sync_index();
    state.memory.set_phase(number, None);
    Some(())
}
