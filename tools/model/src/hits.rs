//! Hits: an in-line write whose content the index has takes a reference and stores nothing. The
//! record that makes the entry makes a claim; the index counts that later ([`crate::counting`]).
//!
//! The lookup comes before every lock and is a hint. Whether it still holds is decided where the record is appended. A
//! write that is refused there, or whose content the index does not have, continues as any other write: `StartWrite`.

use crate::guards::Guard;
use crate::image::{BatchKind, Block, Content, Entry, LayerId, Lba, Record, Volume};
use crate::state::{Config, Lookup, State};
use crate::volume_steps::{admit, answer, lockable, update_cache};

/// The result of a lookup for its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The entry names the block already, so no record is needed.
    Nothing,
    /// A record makes the write's entry name the block.
    Hit,
    /// The write is treated as a miss.
    Refused(Refusal),
}

/// Why a hit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A block was freed since the lookup, so this block may have another owner.
    Freed,
    /// A rebuild began since the lookup: the block may have no row.
    Rebuilt,
    /// The collector is about to release the block.
    Collected,
    /// The finder's batch may make the block private again.
    Unsettled,
    /// The block cannot be read.
    Bad,
}

/// Looks `content` up in the index. Which write uses the answer stays open until the record is appended.
pub(crate) fn look_up(state: &mut State, config: &Config, content: Content) -> Option<()> {
    let index = &state.disk.index;
    if state.memory.lookup.is_some() || index.needs_rebuild {
        return None;
    }
    let row = index.rows[usize::from(config.fingerprint(content))]?;
    state.budget.lookups = state.budget.lookups.checked_sub(1)?;
    state.memory.lookup = Some(Lookup {
        content,
        block: row.block,
        freed: false,
        rebuilt: false,
    });
    Some(())
}

/// Lock, shape, admit, append, apply, reply: nothing is stored, so all of it is one step.
pub(crate) fn take(state: &mut State, config: &Config, volume: Volume, lba: Lba) -> Option<()> {
    let layer = lockable(state, config, volume, lba)?;
    let lookup = state.memory.lookup?;
    let old = state.memory.image.layer(layer)?.map[usize::from(lba)];
    let fate = fate(state, config, lookup, old);
    state.memory.lookup = None;
    if matches!(fate, Fate::Refused(_)) {
        return Some(());
    }
    admit(state, volume, lba, lookup.content);
    if fate == Fate::Hit {
        append(state, config, (layer, lba), old, lookup.block);
        update_cache(state, config, volume, lba);
    }
    answer(state, volume, lba, lookup.content);
    Some(())
}

fn append(
    state: &mut State,
    config: &Config,
    (layer, lba): (LayerId, Lba),
    old: Entry,
    block: Block,
) {
    let new = Entry::Shared(block);
    state.append(
        config,
        Record::Write {
            layer,
            lba,
            old,
            new,
        },
    );
    if !config.on(Guard::ClaimWithEntry) {
        state.memory.late_claims.push(block);
    }
}

/// The result for the write that made `lookup`, at an LBA whose entry is `old`.
pub(crate) fn fate(state: &State, config: &Config, lookup: Lookup, old: Entry) -> Fate {
    let is_same = old == Entry::Shared(lookup.block);
    let valid = if is_same {
        Guard::SameStillValid
    } else {
        Guard::HitStillValid
    };
    // An entry that names the block keeps it, whatever a batch does to other references to it.
    let is_item = |kinds: fn(BatchKind) -> bool| {
        let batches = state.memory.image.open.iter();
        let mut items = batches
            .filter(|batch| kinds(batch.kind))
            .flat_map(|batch| batch.unsettled());
        !is_same && items.any(|item| item.block == lookup.block)
    };
    let collected = is_item(|kind| kind == BatchKind::Collector);
    let unsettled = is_item(|kind| matches!(kind, BatchKind::Finder(_)));
    let is_bad = state.disk.bad.has(lookup.block);
    let refusals = [
        (lookup.freed, valid, Refusal::Freed),
        (lookup.rebuilt, Guard::HitOfThisIndex, Refusal::Rebuilt),
        (collected, Guard::HitNotCollected, Refusal::Collected),
        (unsettled, Guard::HitSettled, Refusal::Unsettled),
        (is_bad, Guard::HitNotBad, Refusal::Bad),
    ];
    let mut refusals = refusals.iter();
    match refusals.find(|(applies, guard, _)| *applies && config.on(*guard)) {
        Some((_, _, refusal)) => Fate::Refused(*refusal),
        None if is_same => Fate::Nothing,
        None => Fate::Hit,
    }
}

/// Appends records for the late claims, which only exist with a guard off.
pub(crate) fn claim_late(state: &mut State, config: &Config) -> Option<()> {
    let late = std::mem::take(&mut state.memory.late_claims);
    if late.is_empty() {
        return None;
    }
    for block in late {
        state.append(config, Record::Claim { block });
    }
    Some(())
}
