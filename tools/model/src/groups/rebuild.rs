//! The rebuild of a lost shard: each group counts its references, then the rows are made.

use super::config::GROUPS;
use super::few::Few;
use super::guards::Guard;
use super::milestone::Milestone;
use super::protocol::Groups;
use super::state::{
    Answer, BLOCKS, Contribution, Entry, Group, Item, Kind, LBAS_MAX, Lookup, Positioned, Row,
    State, Stream,
};
use super::violation::Violation;
use crate::bits::Bits;

impl Groups {
    /// Rebuilds a shard: in one step, or in one step per group if the configuration wants it.
    pub(super) fn rebuild(&self, state: &mut State, shard: usize) -> Option<()> {
        if !self.config.counts_apart {
            for group in 0..GROUPS {
                self.count_references(state, group, shard)?;
            }
        }
        self.finish_rebuild(state, shard)
    }

    /// A group counts its references for the rebuild of a shard. Its guests continue.
    pub(super) fn count_references(
        &self,
        state: &mut State,
        group: usize,
        shard: usize,
    ) -> Option<()> {
        let rebuilt = &state.shards[shard];
        (rebuilt.is_lost && rebuilt.contributions[group].is_none()).then_some(())?;
        let session = rebuilt.session + 1;
        if self.on(Guard::ClaimsEndAtRebuild) {
            self.end_claims(state, group, shard);
        }
        let owner = &mut state.groups[group];
        if let Some(batch) = &mut owner.batch {
            batch.is_rebuilt = true;
            if self.on(Guard::AnswersEndAtRebuild) {
                batch.forget_answers();
            }
        }
        if self.on(Guard::LookupsEndAtRebuild) {
            owner.sessions[shard] = session;
            owner.version += 1;
            if matches!(owner.lookup, Lookup::Found { .. }) {
                owner.lookup = Lookup::Idle;
            }
        }
        state.shards[shard].contributions[group] = Some(contribution(owner));
        Some(())
    }

    /// Ends a group's claims on rows of the shard, those of an open counting batch included: their entries are counted now.
    fn end_claims(&self, state: &mut State, group: usize, shard: usize) {
        let contents = state.contents;
        let is_here = |block: u8| self.config.shard(contents[usize::from(block)]) == shard;
        let owner = &state.groups[group];
        let counting = owner.batch.filter(|batch| batch.kind == Kind::Counting);
        let counting = counting.map_or(Few::NONE, |batch| batch.items);
        let claimed = owner.claims.iter().map(|claim| claim.block);
        for block in claimed.chain(counting.iter().map(|item| item.block)) {
            if is_here(block) {
                self.reach(Milestone::RebuiltWithClaim);
                if is_published_by_other(state, group, block) {
                    self.reach(Milestone::RebuiltWithClaimOnUnsettled);
                }
            }
        }
        let owner = &mut state.groups[group];
        owner.claims.retain(|claim| !is_here(claim.block));
        if let Some(batch) = &mut owner.batch
            && batch.kind == Kind::Counting
        {
            batch.items.retain(|item| !is_here(item.block));
            if batch.items.is_empty() {
                owner.batch = None;
            }
        }
    }

    /// Makes the rows of the counted blocks, and takes the streams up where the groups are.
    fn finish_rebuild(&self, state: &mut State, shard: usize) -> Option<()> {
        let mut all = [Contribution::NONE; GROUPS];
        for (group, counted) in state.shards[shard].contributions.iter().enumerate() {
            all[group] = (*counted)?;
        }
        self.make_rows(state, shard, &all);
        let decided = self.decide_releases(state, shard, &all);
        let mut rows = state.rows.iter().flatten();
        if rows.any(|row| row.references < 0) {
            state.met = Some(Violation::NegativeReferences);
        }
        let rebuilt = &mut state.shards[shard];
        rebuilt.is_lost = false;
        rebuilt.contributions = [None; GROUPS];
        if self.on(Guard::RebuildIsASession) {
            rebuilt.session += 1;
        }
        // With the guard off the shard takes up the stream of the group that coordinates the rebuild only.
        let known = if self.on(Guard::AllStreamsInRebuild) {
            GROUPS
        } else {
            1
        };
        for group in 0..known {
            let number = all[group].last_number;
            let answers = Few::NONE;
            rebuilt.streams[group] = decided[group].unwrap_or(Stream { number, answers });
        }
        for (group, owner) in state.groups.iter().enumerate() {
            let open = owner.batch.filter(|batch| batch.is_rebuilt);
            if open.is_none_or(|batch| batch.kind == Kind::Collector) {
                continue;
            }
            self.reach(Milestone::RebuiltWithOpenBatch);
            if self.on(Guard::OpenBatchesOwe) {
                rebuilt.owing.insert(group as u8);
                if self.on(Guard::OpenBatchesListed) {
                    rebuilt.unsettled.insert(group as u8);
                }
            }
        }
        self.leave_to_check(state);
        Some(())
    }

    /// A block that nothing names, and that is in no custody after a rebuild, waits for a check: the lost index aliased
    /// an item to it whose answer is lost, and all other references are released.
    fn leave_to_check(&self, state: &mut State) {
        for block in 0..self.config.blocks() {
            let in_group = state.groups.iter().any(|group| {
                let mut items = group.batch.iter().flat_map(|batch| batch.items.iter());
                group.free.or(group.deferred).has(block)
                    || group
                        .entries
                        .iter()
                        .any(|entry| entry.block() == Some(block))
                    || group.queue.has(block)
                    || group.claims.iter().any(|claim| claim.block == block)
                    || items.any(|item| item.block == block)
            });
            let in_index = state.rows.iter().flatten().any(|row| row.block == block);
            if !in_group && !in_index {
                self.reach(Milestone::LeftToCheck);
                state.unaccounted.insert(block);
            }
        }
    }

    /// Makes the rows of blocks that entries and dropped references name.
    fn make_rows(&self, state: &mut State, shard: usize, all: &[Contribution; GROUPS]) {
        for block in 0..BLOCKS {
            let at = usize::from(block);
            let content = state.contents[at];
            if content == 0 || self.config.shard(content) != shard || state.quarantined.has(block) {
                continue;
            }
            let is_settled = self.on(Guard::OpenReleaseDecided);
            let references = all.iter().map(|counted| {
                let released = if is_settled { 0 } else { counted.releases[at] };
                counted.references[at] + released
            });
            let references: i8 = references.sum();
            if references > 0 {
                let row = state.row(content);
                let is_second = row.is_some();
                *row = Some(Row { block, references });
                if is_second {
                    state.met = Some(Violation::TwoKeepers);
                }
            }
        }
    }

    /// Decides the open releases of all groups, whose answers are lost: the lost index may have executed them.
    ///
    /// If a group keeps the block, the reference was released, and another release freed the block. If the content has
    /// the row of another block, the lost index has removed this block's row: the release was the last one. Otherwise
    /// the reference counts, and its release is executed again.
    fn decide_releases(
        &self,
        state: &mut State,
        shard: usize,
        all: &[Contribution; GROUPS],
    ) -> [Option<Stream>; GROUPS] {
        let mut decided = [None; GROUPS];
        let union = |of: fn(&Contribution) -> Bits| all.iter().map(of).fold(Bits::NONE, Bits::or);
        // A block that has references was not freed: a group may publish it that has not settled it.
        let kept = union(|counted| counted.kept).minus(union(Contribution::referenced));
        let mut freed = Bits::NONE;
        for (group, stream) in decided.iter_mut().enumerate() {
            let open = state.groups[group].batch;
            let open = open.filter(|batch| batch.kind == Kind::Collector && batch.is_rebuilt);
            let Some(batch) = open.filter(|_| self.on(Guard::OpenReleaseDecided)) else {
                continue;
            };
            self.reach(Milestone::ReleaseDecided);
            // Configurations with a lost index have batches of one item.
            let Some(item) = batch.items.first() else {
                continue;
            };
            let content = state.contents[usize::from(item.block)];
            let is_kept = kept.or(freed).has(item.block);
            if self.config.shard(content) != shard && !is_kept {
                continue;
            }
            let row = state.row(content);
            let answer = match row {
                _ if is_kept => Answer::Remaining,
                Some(row) if row.block == item.block => {
                    row.references += 1;
                    continue;
                }
                Some(_) => {
                    freed.insert(item.block);
                    Answer::Zero
                }
                None => {
                    *row = Some(Row {
                        block: item.block,
                        references: 1,
                    });
                    continue;
                }
            };
            let mut answers = Few::NONE;
            let position = item.position;
            answers.push(Positioned { position, answer });
            *stream = Some(Stream {
                number: batch.number,
                answers,
            });
        }
        decided
    }
}

/// Whether a block is an unsettled item of the other group's finder.
fn is_published_by_other(state: &State, group: usize, block: u8) -> bool {
    unsettled(&state.groups[1 - group]).any(|item| item.block == block)
}

/// The unsettled items of a group's open finder batch, which is executed again.
fn unsettled(group: &Group) -> impl Iterator<Item = Item> {
    let finder = group.batch.filter(|batch| batch.kind == Kind::Finder);
    let items = finder.map_or(Few::NONE, |batch| batch.items);
    let items: [Option<Item>; LBAS_MAX] = {
        let mut all = items.iter();
        std::array::from_fn(|_| all.next())
    };
    items.into_iter().flatten()
}

/// A group's references, without the unsettled items of the finder.
fn contribution(group: &Group) -> Contribution {
    let mut counted = Contribution::NONE;
    let mut add = |block: u8, references: i8| counted.references[usize::from(block)] += references;
    for (lba, entry) in group.entries.iter().enumerate() {
        let Entry::Shared(block) = *entry else {
            continue;
        };
        let is_unsettled = unsettled(group)
            .any(|item| usize::from(item.lba) == lba && item.block == block && !item.is_moved);
        if !is_unsettled {
            add(block, 1);
        }
    }
    group.queue.iter().for_each(|block| add(block, 1));
    for claim in group.claims.iter() {
        add(claim.block, -1);
    }
    let mut releases = [0; BLOCKS as usize];
    if let Some(batch) = group.batch {
        for item in batch.items.iter() {
            match batch.kind {
                Kind::Finder => {}
                Kind::Collector => releases[usize::from(item.block)] += 1,
                Kind::Counting => add(item.block, -1),
            }
        }
    }
    counted.releases = releases;
    counted.kept = group.free.or(group.deferred);
    for block in group.entries.iter().filter_map(|entry| entry.private()) {
        counted.kept.insert(block);
    }
    for item in unsettled(group) {
        counted.kept.insert(item.block);
    }
    counted.last_number = group.batch.map_or(group.next_number, |batch| batch.number) - 1;
    counted
}

impl Contribution {
    /// Blocks with references.
    fn referenced(&self) -> Bits {
        let mut blocks = Bits::NONE;
        for (block, references) in self.references.iter().enumerate() {
            if *references > 0 {
                blocks.insert(block as u8);
            }
        }
        blocks
    }

    const NONE: Contribution = Contribution {
        references: [0; BLOCKS as usize],
        releases: [0; BLOCKS as usize],
        kept: Bits::NONE,
        last_number: 0,
    };
}
