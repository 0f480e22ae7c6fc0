//! Batches of a group: announced, called, recalled after a death, settled.

use super::config::{GROUPS, take_one};
use super::few::Few;
use super::guards::Guard;
use super::milestone::Milestone;
use super::protocol::Groups;
use super::state::{
    Answer, Batch, CalledItem, Entry, Group, Item, Kind, LBAS_MAX, Message, Positioned, State,
};
use super::violation::Violation;

impl Groups {
    /// The finder makes private entries shared and announces them.
    pub(super) fn publish(&self, state: &mut State, group: usize) -> Option<()> {
        let owner = &mut state.groups[group];
        let mut items = Few::NONE;
        for (lba, entry) in owner.entries.iter_mut().enumerate() {
            if let Entry::Private(block) = *entry {
                *entry = Entry::Shared(block);
                items.push(item(items.len(), lba, block));
            }
        }
        self.announce(state, group, Kind::Finder, items)?;
        take_one(&mut state.budget.finds)
    }

    /// The collector takes dropped references off the queue.
    pub(super) fn collect(&self, state: &mut State, group: usize) -> Option<()> {
        let mut items = Few::NONE;
        while items.len() < self.config.lbas {
            let Some(block) = state.groups[group].queue.pop_first() else {
                break;
            };
            items.push(item(items.len(), 0, block));
        }
        self.announce(state, group, Kind::Collector, items)?;
        take_one(&mut state.budget.collects)
    }

    /// Counting takes a claim off its queue.
    pub(super) fn count(&self, state: &mut State, group: usize) -> Option<()> {
        let claim = state.groups[group].claims.pop_first()?;
        let mut items = Few::NONE;
        items.push(item(0, 0, claim.block));
        self.announce(state, group, Kind::Counting, items)?;
        let batch = state.groups[group].batch.as_mut()?;
        batch.version = claim.version;
        Some(())
    }

    fn announce(
        &self,
        state: &mut State,
        group: usize,
        kind: Kind,
        items: Few<Item, LBAS_MAX>,
    ) -> Option<()> {
        let mut shards = self.shards(state).iter();
        let is_paused = shards.any(|shard| shard.uses[group].is_some());
        (!is_paused || !self.on(Guard::PausedInRebuild)).then_some(())?;
        let owner = &mut state.groups[group];
        (owner.batch.is_none() && !items.is_empty()).then_some(())?;
        owner.batch = Some(Batch {
            kind,
            number: owner.next_number,
            version: 0,
            items,
            is_inherited: false,
            is_recalled: false,
        });
        owner.next_number += 1;
        Some(())
    }

    /// The owner asks the shards for the answers to the open batch, and calls them for items that have none.
    ///
    /// Reading the blocks, recalling and sending are one step, although the product makes three of them: as long as no
    /// shard has executed an item, the group holds its reference, and the content of its block does not change. This
    /// needs the read before the recall (`BlocksReadBeforeRecall`).
    pub(super) fn ask(&self, state: &mut State, group: usize) -> Option<()> {
        let batch = self.called(state, group)?;
        let recalls = batch.is_inherited && self.on(Guard::RecallBeforeRepeat);
        let is_recall = recalls && !self.on(Guard::BlocksReadBeforeRecall) && !batch.is_recalled;
        // The owner that announced the batch knows the fingerprints, and so the shards.
        let everywhere =
            !batch.is_inherited || is_recall || recalls && self.on(Guard::BlocksReadBeforeRecall);
        let answered = self.answers(state, group, &batch, everywhere);
        let mut next = batch;
        for item in next.items.iter_mut().filter(|item| item.answer.is_none()) {
            item.answer = answered[usize::from(item.position)];
        }
        if batch.is_inherited && answered.iter().any(Option::is_some) {
            self.reach(Milestone::Recalled);
        }
        next.is_recalled |= is_recall;
        state.groups[group].batch = Some(next);
        if is_recall {
            return Some(());
        }
        let has_sent = self.send(state, group);
        (has_sent || next != batch).then_some(())
    }

    /// The open batch, if it may be called.
    fn called(&self, state: &State, group: usize) -> Option<Batch> {
        let owner = &state.groups[group];
        let batch = owner.batch?;
        let is_lost = self.shards(state).iter().any(|shard| shard.is_lost);
        (!is_lost && !self.waits_for_readers(owner)).then_some(batch)
    }

    /// Whether reads that were pinned before the group's collector announced its batch are in progress.
    pub(super) fn waits_for_readers(&self, owner: &Group) -> bool {
        let open = owner.batch.filter(|batch| batch.kind == Kind::Collector);
        let is_read = |block| owner.read.is_some_and(|read| read.block == block);
        self.on(Guard::ReadersDrainedBeforeRelease)
            && open.is_some_and(|batch| batch.items.iter().any(|item| is_read(item.block)))
    }

    /// The answers of the shards to the open batch, by position.
    fn answers(
        &self,
        state: &State,
        group: usize,
        batch: &Batch,
        everywhere: bool,
    ) -> [Option<Answer>; LBAS_MAX] {
        let mut found: [Option<Answer>; LBAS_MAX] = [None; LBAS_MAX];
        let mut in_order = Vec::new();
        let mut called_off = 0;
        for (number, shard) in self.shards(state).iter().enumerate() {
            let stream = shard.streams[group];
            let is_asked = |answered: &Positioned| {
                let mut items = batch.items.iter();
                let item = items.find(|item| item.position == answered.position);
                item.is_some_and(|item| {
                    everywhere
                        || self.config.shard(state.contents[usize::from(item.block)]) == number
                })
            };
            if stream.number != batch.number {
                continue;
            }
            for answered in stream.answers.iter().filter(is_asked) {
                if answered.answer == Answer::CalledOff {
                    called_off += 1;
                    continue;
                }
                found[usize::from(answered.position)] = Some(answered.answer);
                in_order.push(answered.answer);
            }
        }
        let shards = self.shards(state).iter();
        let of_batch = shards.filter(|shard| shard.streams[group].number == batch.number);
        if in_order.len() > 1 && of_batch.count() > 1 {
            self.reach(Milestone::TwoShardsAnswered);
        }
        // A call may have been executed in one shard before the batch was called off in the others.
        if called_off == self.config.shards {
            let only = batch.items.first().map_or(0, |item| item.position);
            found[usize::from(only)] = Some(Answer::CalledOff);
        }
        if batch.is_inherited && !self.on(Guard::PositionsKept) {
            found = [None; LBAS_MAX];
            let positions: Vec<u8> = batch.items.iter().map(|item| item.position).collect();
            let last = positions.iter().rev().zip(in_order.iter().rev());
            for (position, answer) in last {
                found[usize::from(*position)] = Some(*answer);
            }
        }
        found
    }

    /// Sends the calls for items without an answer, one to each shard. Returns whether any of them is new.
    fn send(&self, state: &mut State, group: usize) -> bool {
        let Some(batch) = state.groups[group].batch else {
            return false;
        };
        let before = state.messages;
        for shard in 0..self.config.shards {
            let mut items = Few::NONE;
            for item in batch.items.iter().filter(|item| item.answer.is_none()) {
                let fingerprint = state.contents[usize::from(item.block)];
                if self.config.shard(fingerprint) == shard {
                    items.push(CalledItem {
                        position: item.position,
                        fingerprint,
                        block: item.block,
                    });
                }
            }
            if !items.is_empty() {
                state.messages.insert(Message::Call {
                    group: group as u8,
                    shard: shard as u8,
                    kind: batch.kind,
                    number: batch.number,
                    items,
                });
            }
        }
        state.messages != before
    }

    /// The finder cannot read the block of its batch, and calls the batch off at every shard: it does not know which
    /// shard an earlier owner has called.
    pub(super) fn call_off(&self, state: &mut State, group: usize) -> Option<()> {
        let batch = self.called(state, group)?;
        let item = batch.items.first()?;
        let is_answered = self
            .answers(state, group, &batch, true)
            .iter()
            .any(Option::is_some);
        (batch.kind == Kind::Finder && item.answer.is_none() && !is_answered).then_some(())?;
        take_one(&mut state.budget.unreadable)?;
        for shard in 0..self.config.shards {
            state.messages.insert(Message::CallOff {
                group: group as u8,
                shard: shard as u8,
                number: batch.number,
                position: item.position,
            });
        }
        Some(())
    }

    /// Logs the outcome of the batch's first unsettled item.
    pub(super) fn settle(&self, state: &mut State, group: usize) -> Option<()> {
        let mut batch = state.groups[group].batch?;
        let item = batch.items.pop_first()?;
        let answer = item.answer?;
        state.groups[group].batch = (!batch.items.is_empty()).then_some(batch);
        match batch.kind {
            Kind::Finder => self.settle_finder(state, group, item, answer),
            Kind::Collector => match answer {
                Answer::Zero => {
                    self.reach(Milestone::Freed);
                    if !self.config.leases(group, item.block) {
                        self.reach(Milestone::FreedByOther);
                    }
                    state.release(group, item.block);
                }
                Answer::Remaining => self.reach(Milestone::Remaining),
                Answer::Held => {
                    self.reach(Milestone::Held);
                    state.groups[group].queue.push(item.block);
                }
                _ => state.met = Some(Violation::UnknownReleased),
            },
            Kind::Counting => match answer {
                Answer::Counted => self.reach(Milestone::Counted),
                _ => state.met = Some(Violation::UnknownClaimed),
            },
        }
        Some(())
    }

    fn settle_finder(&self, state: &mut State, group: usize, item: Item, answer: Answer) {
        let lba = usize::from(item.lba);
        let kept = match answer {
            Answer::Shared(block) => block,
            Answer::CalledOff => {
                self.reach(Milestone::CalledOff);
                if item.is_moved {
                    state.release(group, item.block);
                } else {
                    state.groups[group].entries[lba] = Entry::Private(item.block);
                }
                return;
            }
            _ => item.block,
        };
        if item.is_moved {
            self.reach(Milestone::Dangling);
            state.groups[group].queue.push(kept);
        } else {
            state.groups[group].entries[lba] = Entry::Shared(kept);
        }
        if kept != item.block {
            self.reach(Milestone::Aliased);
            state.release(group, item.block);
        }
    }

    /// The group's owner dies, and another one takes the group. Messages that it has sent still arrive.
    pub(super) fn die(&self, state: &mut State, group: usize) -> Option<()> {
        take_one(&mut state.budget.group_deaths)?;
        let owner = &mut state.groups[group];
        owner.read = None;
        owner.lookup = super::state::Lookup::Idle;
        owner.version += 1;
        if let Some(batch) = &mut owner.batch {
            batch.forget_answers();
            batch.is_inherited = true;
            batch.is_recalled = false;
        }
        owner.free_unread();
        Some(())
    }
}

impl Batch {
    /// Answers that are not settled are forgotten.
    pub(super) fn forget_answers(&mut self) {
        for item in self.items.iter_mut() {
            item.answer = None;
        }
    }
}

fn item(position: usize, lba: usize, block: u8) -> Item {
    Item {
        position: position as u8,
        lba: lba as u8,
        block,
        is_moved: false,
        answer: None,
    }
}

const _: () = assert!(GROUPS == 2, "hits look at the other group");
