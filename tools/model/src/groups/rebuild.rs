//! The rebuild of a lost index: the open batches are settled, then the references are counted.
//!
//! Each group pauses and reports what it does with each block. From all reports follow the answers that are lost; each
//! group settles with them and counts its references; then the rows are made. The whole index is counted again, so one
//! shard stands for all of them.

use super::config::GROUPS;
use super::few::Few;
use super::guards::Guard;
use super::milestone::Milestone;
use super::protocol::Groups;
use super::state::{
    Answer, BLOCKS, Contribution, Entry, Group, Item, Kind, LBAS_MAX, Lookup, Row, State, Stream,
    Use,
};
use super::violation::Violation;
use crate::bits::Bits;

impl Groups {
    /// Rebuilds the index: in one step, or only the last part of it if groups count apart.
    pub(super) fn rebuild(&self, state: &mut State, shard: usize) -> Option<()> {
        if !self.config.counts_apart {
            for group in 0..GROUPS {
                self.report_use(state, group, shard)?;
            }
            for group in 0..GROUPS {
                let _ = self.settle_lost(state, group, shard);
                while self.settle(state, group).is_some() {}
                self.count_references(state, group, shard)?;
            }
        }
        self.finish_rebuild(state, shard)
    }

    /// A group pauses its jobs and reports what it does with each block. Its guests continue.
    pub(super) fn report_use(&self, state: &mut State, group: usize, shard: usize) -> Option<()> {
        let rebuilt = &mut state.shards[shard];
        (rebuilt.is_lost && rebuilt.uses[group].is_none()).then_some(())?;
        let owner = &mut state.groups[group];
        (!self.waits_for_readers(owner)).then_some(())?;
        if self.on(Guard::LookupsEndAtRebuild) {
            owner.sessions[shard] = rebuilt.session;
            owner.version += 1;
            if matches!(owner.lookup, Lookup::Found { .. }) {
                owner.lookup = Lookup::Idle;
            }
        }
        if let Some(batch) = &mut owner.batch
            && self.on(Guard::AnswersEndAtRebuild)
        {
            batch.forget_answers();
        }
        rebuilt.uses[group] = Some(use_of(owner));
        Some(())
    }

    /// A group takes the answers that follow from all reports for what is open, and ends its claims, because their entries
    /// are counted.
    pub(super) fn settle_lost(&self, state: &mut State, group: usize, shard: usize) -> Option<()> {
        let uses = self.reported(state, shard)?;
        let owner = &mut state.groups[group];
        let before = *owner;
        if let Some(batch) = &mut owner.batch {
            let mut seen = Bits::NONE;
            for item in batch.items.iter_mut().filter(|item| item.answer.is_none()) {
                let is_first = !seen.has(item.block);
                seen.insert(item.block);
                item.answer = Some(match batch.kind {
                    Kind::Finder => self.decide_publication(&uses, item.block),
                    Kind::Counting => Answer::Counted,
                    Kind::Collector => self.decide_release(&uses, group, item.block, is_first),
                });
            }
        }
        if !owner.claims.is_empty() && self.on(Guard::ClaimsEndAtRebuild) {
            self.reach(Milestone::RebuiltWithClaim);
            owner.claims = Few::NONE;
        }
        (*owner != before).then_some(())
    }

    /// The reports of all groups.
    fn reported(&self, state: &State, shard: usize) -> Option<[Use; GROUPS]> {
        state.shards[shard].is_lost.then_some(())?;
        let [first, second] = state.shards[shard].uses;
        Some([first?, second?])
    }

    /// Only a published block is named by anything but the item that publishes it. A block that nothing else names
    /// becomes private again, whatever the lost shard answered.
    fn decide_publication(&self, uses: &[Use; GROUPS], block: u8) -> Answer {
        let is_named = uses.iter().any(|used| used.named.has(block));
        if is_named && self.on(Guard::PublishedIfNamed) {
            self.reach(Milestone::PublicationKept);
            Answer::Inserted
        } else {
            Answer::CalledOff
        }
    }

    /// The reference is gone: the lost index has taken it, or nobody counts it any more. If nothing names the block, and
    /// nobody keeps it, this release frees it, unless another open release does.
    fn decide_release(
        &self,
        uses: &[Use; GROUPS],
        group: usize,
        block: u8,
        is_first: bool,
    ) -> Answer {
        self.reach(Milestone::ReleaseDecided);
        let any = |of: fn(&Use) -> Bits| uses.iter().any(|used| of(used).has(block));
        let is_kept = any(|used| used.kept) && self.on(Guard::KeptIsReleased);
        let is_named = any(|used| used.named);
        if is_kept && !is_named {
            self.reach(Milestone::ReleaseOfKept);
        }
        let releases = uses.iter().position(|used| used.releases.has(block));
        let frees = is_first && releases == Some(group) || !self.on(Guard::OneReleaseFrees);
        if is_named || is_kept || !frees {
            Answer::Remaining
        } else {
            Answer::Zero
        }
    }

    /// A group that has settled what was open counts its references. They do not change any more: a dropped reference
    /// joins the queue, and a hit makes a claim.
    pub(super) fn count_references(
        &self,
        state: &mut State,
        group: usize,
        shard: usize,
    ) -> Option<()> {
        self.reported(state, shard)?;
        let owner = &state.groups[group];
        let is_open = owner.batch.is_some() && self.on(Guard::PausedInRebuild);
        let has_claims = !owner.claims.is_empty() && self.on(Guard::ClaimsEndAtRebuild);
        let is_counted = state.shards[shard].counted[group].is_some();
        (!is_open && !has_claims && !is_counted).then_some(())?;
        state.shards[shard].counted[group] = Some(contribution(owner));
        Some(())
    }

    /// Makes the rows of the counted blocks, and takes the streams up where the groups are.
    fn finish_rebuild(&self, state: &mut State, shard: usize) -> Option<()> {
        state.shards[shard].is_lost.then_some(())?;
        let [first, second] = state.shards[shard].counted;
        let all = [first?, second?];
        self.make_rows(state, shard, &all);
        // With the guard off the shard takes up the stream of the group that coordinates the rebuild only.
        let known = if self.on(Guard::AllStreamsInRebuild) {
            GROUPS
        } else {
            1
        };
        let rebuilt = &mut state.shards[shard];
        for (stream, counted) in rebuilt.streams.iter_mut().zip(all).take(known) {
            let (number, answers) = (counted.last_number, Few::NONE);
            *stream = Stream { number, answers };
        }
        rebuilt.is_lost = false;
        rebuilt.uses = [None; GROUPS];
        rebuilt.counted = [None; GROUPS];
        self.give_back(state);
        self.reach(Milestone::Rebuilt);
        Some(())
    }

    /// Makes the rows of the counted blocks.
    fn make_rows(&self, state: &mut State, shard: usize, all: &[Contribution; GROUPS]) {
        for block in 0..BLOCKS {
            let at = usize::from(block);
            let content = state.contents[at];
            let references: i8 = all.iter().map(|counted| counted.references[at]).sum();
            if references < 0 {
                state.met = Some(Violation::NegativeReferences);
            }
            if content == 0 || self.config.shard(content) != shard || references <= 0 {
                continue;
            }
            let is_second = state.row(content).is_some();
            if is_second {
                state.met = Some(Violation::TwoKeepers);
            }
            *state.row(content) = Some(Row { block, references });
        }
    }

    /// The first group gets the blocks in no custody: the lost shard aliased an item to such a block, the answer is lost,
    /// and all other references are released.
    fn give_back(&self, state: &mut State) {
        let mut kept = Bits::NONE;
        for group in &state.groups {
            kept = kept.or(group.free).or(group.deferred);
            for block in group.entries.iter().filter_map(|entry| entry.private()) {
                kept.insert(block);
            }
        }
        for row in state.rows.iter().flatten() {
            kept.insert(row.block);
        }
        for block in Bits::below(self.config.blocks()).minus(kept).iter() {
            self.reach(Milestone::GivenBack);
            state.release(0, block);
        }
    }
}

/// What a group does with each block.
fn use_of(group: &Group) -> Use {
    let mut used = Use {
        named: Bits::NONE,
        kept: group.free.or(group.deferred),
        releases: Bits::NONE,
    };
    for (lba, entry) in group.entries.iter().enumerate() {
        match *entry {
            Entry::Absent => {}
            Entry::Private(block) => used.kept.insert(block),
            Entry::Shared(block) => {
                let is_item = open(group, Kind::Finder).any(|item| {
                    usize::from(item.lba) == lba && item.block == block && !item.is_moved
                });
                if !is_item {
                    used.named.insert(block);
                }
            }
        }
    }
    group
        .queue
        .iter()
        .for_each(|block| used.named.insert(block));
    open(group, Kind::Finder).for_each(|item| used.kept.insert(item.block));
    open(group, Kind::Collector).for_each(|item| used.releases.insert(item.block));
    used
}

/// The unsettled items of a group's open batch, if it is one of this job.
fn open(group: &Group, kind: Kind) -> impl Iterator<Item = Item> + use<> {
    let batch = group.batch.filter(|batch| batch.kind == kind);
    let mut items = batch.map_or(Few::NONE, |batch| batch.items);
    let all: [Option<Item>; LBAS_MAX] = std::array::from_fn(|_| items.pop_first());
    all.into_iter().flatten()
}

/// A group's references.
fn contribution(group: &Group) -> Contribution {
    let mut references = [0; BLOCKS as usize];
    let mut add = |block: u8, counted: i8| references[usize::from(block)] += counted;
    for entry in group.entries {
        if let Entry::Shared(block) = entry {
            add(block, 1);
        }
    }
    group.queue.iter().for_each(|block| add(block, 1));
    group.claims.iter().for_each(|claim| add(claim.block, -1));
    Contribution {
        references,
        last_number: group.next_number - 1,
    }
}
