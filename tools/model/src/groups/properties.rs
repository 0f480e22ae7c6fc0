//! What holds in every state.

use super::protocol::Groups;
use super::state::{BLOCKS, CONTENTS, Entry, Group, State};
use super::violation::Violation;
use crate::bits::Bits;

impl Groups {
    /// The promise that a state breaks.
    pub(super) fn violation(&self, state: &State) -> Option<Violation> {
        state
            .met
            .or_else(|| entries(state))
            .or_else(|| self.custody(state))
            .or_else(|| {
                let has_batch = state.groups.iter().any(|group| group.batch.is_some());
                let is_lost = self.shards(state).iter().any(|shard| shard.is_lost);
                (!has_batch && !is_lost).then(|| counts(state)).flatten()
            })
    }

    /// Each block has at most one keeper: free or private in one group, or in a row. A block without any is in an open
    /// batch.
    fn custody(&self, state: &State) -> Option<Violation> {
        let mut kept = Bits::NONE;
        let mut keep = |blocks: Bits| {
            let is_second = !kept.and(blocks).is_empty();
            kept = kept.or(blocks);
            is_second
        };
        for group in &state.groups {
            if keep(group.free.or(group.deferred)) {
                return Some(Violation::TwoKeepers);
            }
            for entry in group.entries {
                if let Entry::Private(block) = entry
                    && keep(Bits::of(block))
                {
                    return Some(Violation::TwoKeepers);
                }
            }
        }
        for (content, row) in CONTENTS.iter().zip(state.rows) {
            let Some(row) = row else {
                continue;
            };
            if keep(Bits::of(row.block)) {
                return Some(Violation::TwoKeepers);
            }
            if state.contents[usize::from(row.block)] != *content {
                return Some(Violation::WrongRow);
            }
        }
        let has_batch = state.groups.iter().any(|group| group.batch.is_some());
        let is_lost = self.shards(state).iter().any(|shard| shard.is_lost);
        let is_kept = Bits::below(self.config.blocks()).within(kept);
        (!has_batch && !is_lost && !is_kept).then_some(Violation::NoKeeper)
    }
}

/// No block that a group names or reads is free, and each entry has the content that was written last.
fn entries(state: &State) -> Option<Violation> {
    let free = |block: u8| {
        let mut groups = state.groups.iter();
        groups.any(|group| group.free.or(group.deferred).has(block))
    };
    for group in &state.groups {
        for (entry, written) in group.entries.iter().zip(group.written) {
            let Some(block) = entry.block() else {
                continue;
            };
            if free(block) {
                return Some(Violation::FreeNamed);
            }
            if state.contents[usize::from(block)] != written {
                return Some(Violation::WrongContent);
            }
        }
        if let Some(read) = group.read
            && state.groups.iter().any(|other| other.free.has(read.block))
        {
            return Some(Violation::FreeRead);
        }
    }
    None
}

/// Each row counts the entries and dropped references of all groups, less their claims.
fn counts(state: &State) -> Option<Violation> {
    let is_right = (0..BLOCKS).all(|block| {
        let mut rows = state.rows.iter().flatten();
        let row = rows.find(|row| row.block == block);
        let references: i8 = state
            .groups
            .iter()
            .map(|group| references(group, block))
            .sum();
        row.is_none_or(|row| row.references == references)
    });
    (!is_right).then_some(Violation::WrongCount)
}

fn references(group: &Group, block: u8) -> i8 {
    let entries = group.entries.iter();
    let entries = entries
        .filter(|entry| **entry == Entry::Shared(block))
        .count();
    let queued = group.queue.iter().filter(|queued| *queued == block).count();
    let claims = group.claims.iter();
    let claims = claims.filter(|claim| claim.block == block).count();
    (entries + queued) as i8 - claims as i8
}
