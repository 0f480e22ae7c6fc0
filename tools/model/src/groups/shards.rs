//! A shard's part: it executes batches, answers lookups, holds rows, and may die or lose its index.

use super::config::{GROUPS, take_one};
use super::few::Few;
use super::guards::Guard;
use super::milestone::Milestone;
use super::protocol::Groups;
use super::state::{
    Answer, CalledItem, Hold, Kind, LBAS_MAX, Lookup, Message, Positioned, Row, Shard, State,
    Stream,
};
use crate::bits::Bits;

impl Groups {
    /// A message arrives. If it arrives twice, it also stays in flight.
    pub(super) fn deliver(&self, state: &mut State, message: Message, twice: bool) -> Option<()> {
        if twice {
            matches!(message, Message::Call { .. }).then_some(())?;
            take_one(&mut state.budget.doubles)?;
        } else {
            state.messages.retain(|other| other != message);
        }
        match message {
            Message::Call {
                group,
                shard,
                kind,
                number,
                items,
            } => {
                self.admits(state, group, shard, number)?.then(|| {
                    let answers = self.execute(state, shard, kind, items);
                    state.shards[usize::from(shard)].streams[usize::from(group)] =
                        Stream { number, answers };
                });
            }
            Message::CallOff {
                group,
                shard,
                number,
                position,
            } => {
                self.admits(state, group, shard, number)?.then(|| {
                    let mut answers = Few::NONE;
                    let answer = Answer::CalledOff;
                    answers.push(Positioned { position, answer });
                    state.shards[usize::from(shard)].streams[usize::from(group)] =
                        Stream { number, answers };
                });
            }
            Message::Lookup {
                group,
                content,
                version,
            } => self.answer_lookup(state, group, content, version),
            Message::Found {
                group,
                content,
                version,
                session,
                block,
            } => self.take_answer(state, usize::from(group), content, version, session, block),
            Message::EndHolds {
                group,
                shard,
                version,
                session,
            } => self.take_end(state, group, shard, version, session),
        }
        Some(())
    }

    /// Whether a shard executes a group's batch: its number is above that of the last one. A lost shard takes no calls.
    fn admits(&self, state: &State, group: u8, shard: u8, number: u8) -> Option<bool> {
        let shard = &state.shards[usize::from(shard)];
        (!shard.is_lost).then_some(())?;
        let is_new = number > shard.streams[usize::from(group)].number;
        if !is_new {
            self.reach(Milestone::CallRefused);
        }
        Some(is_new || !self.on(Guard::NumberKeptByShard))
    }

    /// Executes the items of a batch in order.
    fn execute(
        &self,
        state: &mut State,
        shard: u8,
        kind: Kind,
        items: Few<CalledItem, LBAS_MAX>,
    ) -> Few<Positioned, LBAS_MAX> {
        let mut answers = Few::NONE;
        for item in items.iter() {
            let may_be_held = self.may_be_held(&state.shards[usize::from(shard)], item.block);
            let row = state.row(item.fingerprint);
            let answer = match kind {
                Kind::Finder => publish(row, item.block),
                Kind::Counting => add_claim(row, item.block),
                Kind::Collector => release(row, item.block, may_be_held),
            };
            answers.push(Positioned {
                position: item.position,
                answer,
            });
        }
        answers
    }

    /// Whether a block is held, or may be by a hold from before the shard's session.
    fn may_be_held(&self, shard: &Shard, block: u8) -> bool {
        let mut holds = shard.holds.iter();
        let is_held = holds.any(|hold| hold.block == block);
        let is_owed = !shard.owing.is_empty();
        if is_owed && !is_held {
            self.reach(Milestone::Owed);
        }
        is_held && self.on(Guard::HeldNotFreed) || is_owed && self.on(Guard::OwingFreesNothing)
    }

    /// Notes the holder and the hold, and answers.
    fn answer_lookup(&self, state: &mut State, group: u8, content: u8, version: u8) {
        let row = *state.row(content);
        let shard = &mut state.shards[self.config.shard(content)];
        let block = row.filter(|_| !shard.is_lost).map(|row| row.block);
        if let Some(block) = block {
            if self.on(Guard::HeldBeforeAnswered) {
                shard.holds.insert(Hold {
                    group,
                    version,
                    block,
                });
            }
            if self.on(Guard::HoldersListed) {
                shard.holders.insert(group);
            }
        }
        let session = shard.session;
        state.messages.insert(Message::Found {
            group,
            content,
            version,
            session,
            block,
        });
    }

    /// A group gets the answer to a lookup, unless it has given the lookup up.
    fn take_answer(
        &self,
        state: &mut State,
        group: usize,
        content: u8,
        version: u8,
        session: u8,
        block: Option<u8>,
    ) {
        let shard = self.config.shard(content);
        if state.groups[group].lookup != (Lookup::Asked { content, version }) {
            return;
        }
        if session > state.groups[group].sessions[shard] {
            self.meet_session(state, group, shard, session);
        }
        state.groups[group].lookup = block.map_or(Lookup::Idle, |block| Lookup::Found {
            content,
            version,
            block,
        });
    }

    /// A group learns a shard's session.
    pub(super) fn learn(&self, state: &mut State, group: usize, shard: usize) -> Option<()> {
        let session = state.shards[shard].session;
        (session > state.groups[group].sessions[shard]).then_some(())?;
        self.meet_session(state, group, shard, session);
        Some(())
    }

    /// A group raises its lookup version as it meets a new session of a shard.
    fn meet_session(&self, state: &mut State, group: usize, shard: usize, session: u8) {
        let owner = &mut state.groups[group];
        owner.sessions[shard] = session;
        if self.on(Guard::SessionRaisesVersion) {
            owner.version += 1;
        }
    }

    /// A group raises its lookup version, as it does from time to time.
    pub(super) fn raise(&self, state: &mut State, group: usize) -> Option<()> {
        take_one(&mut state.budget.raises)?;
        state.groups[group].version += 1;
        Some(())
    }

    /// A group ends its holds of all earlier versions once their claims are counted.
    pub(super) fn end_holds(&self, state: &mut State, group: usize) -> Option<()> {
        let owner = &mut state.groups[group];
        let version = owner.version - 1;
        (owner.ended_version < version).then_some(())?;
        let has_claims = owner.claims.iter().any(|claim| claim.version <= version);
        let counting = owner.batch.filter(|batch| batch.kind == Kind::Counting);
        let is_open = counting.is_some_and(|batch| batch.version <= version);
        let is_counted = !has_claims && !is_open;
        (is_counted || !self.on(Guard::HoldsEndAfterCount)).then_some(())?;
        owner.ended_version = version;
        let sessions = owner.sessions;
        for (shard, session) in sessions.into_iter().enumerate().take(self.config.shards) {
            state.messages.insert(Message::EndHolds {
                group: group as u8,
                shard: shard as u8,
                version,
                session,
            });
        }
        Some(())
    }

    /// A shard removes a group's holds. What the group owes from before the session ends only if the group knows the
    /// session.
    fn take_end(&self, state: &mut State, group: u8, shard: u8, version: u8, session: u8) {
        let shard = &mut state.shards[usize::from(shard)];
        shard
            .holds
            .retain(|hold| hold.group != group || hold.version > version);
        if session == shard.session || !self.on(Guard::EndOfThisSession) {
            if shard.owing.has(group) {
                self.reach(Milestone::OwingEnded);
            }
            shard.owing.remove(group);
        }
    }

    /// A shard's owner dies, and another host takes the shard.
    pub(super) fn shard_dies(&self, state: &mut State, shard: usize) -> Option<()> {
        take_one(&mut state.budget.shard_deaths)?;
        let shard = &mut state.shards[shard];
        shard.begin_session();
        // The next owner of a lost shard begins the rebuild again.
        shard.uses = [None; GROUPS];
        shard.counted = [None; GROUPS];
        Some(())
    }

    /// A shard loses its rows, its streams, and the list of holders, which is beside them.
    pub(super) fn lose_index(&self, state: &mut State, shard: usize) -> Option<()> {
        (!state.shards[shard].is_lost).then_some(())?;
        take_one(&mut state.budget.index_losses)?;
        for content in super::state::CONTENTS {
            if self.config.shard(content) == shard {
                *state.row(content) = None;
            }
        }
        let shard = &mut state.shards[shard];
        shard.begin_session();
        shard.is_lost = true;
        shard.holders = Bits::NONE;
        shard.owing = Bits::NONE;
        shard.streams = [Stream {
            number: 0,
            answers: Few::NONE,
        }; GROUPS];
        Some(())
    }
}

impl Shard {
    /// A new owner knows no holds, but the groups that may have some.
    fn begin_session(&mut self) {
        self.holds = Few::NONE;
        self.owing = self.holders;
        self.session += 1;
    }
}

/// Adds the reference of a published block to the row of its content.
fn publish(row: &mut Option<Row>, block: u8) -> Answer {
    match row {
        None => {
            *row = Some(Row {
                block,
                references: 1,
            });
            Answer::Inserted
        }
        Some(row) => {
            row.references += 1;
            if row.block == block {
                Answer::Inserted
            } else {
                Answer::Shared(row.block)
            }
        }
    }
}

/// Counts a claim in the row of its block.
fn add_claim(row: &mut Option<Row>, block: u8) -> Answer {
    match row {
        Some(row) if row.block == block => {
            row.references += 1;
            Answer::Counted
        }
        _ => Answer::Unknown,
    }
}

/// Takes a reference from the row of a block. A row goes with its last reference, unless it may be held.
///
/// A row without references is kept for claims that are not counted yet.
fn release(row: &mut Option<Row>, block: u8, may_be_held: bool) -> Answer {
    match row {
        Some(found) if found.block == block => {
            if found.references > 1 {
                found.references -= 1;
                Answer::Remaining
            } else if may_be_held || found.references == 0 {
                Answer::Held
            } else {
                *row = None;
                Answer::Zero
            }
        }
        _ => Answer::Unknown,
    }
}
