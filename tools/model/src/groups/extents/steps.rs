//! The steps of owners, of clients that take groups, and of storage daemons; and the custody that has to hold.

use super::state::{Answer, EXTENTS, Entry, Exchange, Group, Operation, State};
use super::{Extents, Guard, Step};
use crate::bits::Bits;
use crate::groups::config::GROUPS;
use crate::groups::config::take_one;
use crate::groups::milestone::Milestone;
use crate::groups::violation::Violation;

impl Extents {
    pub(super) fn step(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Decide {
                group,
                gives,
                takes,
            } => self.decide(state, group, gives, takes),
            Step::Send { group } => send(state, group),
            Step::Record { group } => self.record(state, group),
            Step::Write { group } => self.write(state, group),
            Step::Acknowledge { group } => acknowledge(state, group),
            Step::Trim { group } => trim(state, group),
            Step::Read { group } => read(state, group),
            Step::Publish { group } => self.publish(state, group),
            Step::PassOn { group } => self.pass_on(state, group),
            Step::Take { group } => self.take(state, group),
            Step::Land(operation) => self.land(state, operation),
        }
    }

    /// A group decides on an exchange, and does not use what it gives any more.
    ///
    /// The free-space map shows it at once, and not with the answer: by then the group may have got a block of that
    /// extent back, as the one that released its last reference.
    fn decide(
        &self,
        state: &mut State,
        group: usize,
        gives: Option<u8>,
        takes: bool,
    ) -> Option<()> {
        let owner = &mut state.groups[group];
        let is_free = |extent| owner.free.has(extent) && owner.writing != Some(extent);
        (owner.exchange.is_none() && gives.is_none_or(is_free)).then_some(())?;
        take_one(&mut state.budget.exchanges)?;
        if self.on(Guard::GivenAtDecision) {
            gives.iter().for_each(|extent| owner.free.remove(*extent));
        }
        owner.exchange = Some(Exchange {
            number: owner.last_number + 1,
            gives,
            takes,
        });
        Some(())
    }

    fn record(&self, state: &mut State, group: usize) -> Option<()> {
        let answer = state.answers[group];
        let owner = &mut state.groups[group];
        let exchange = owner.exchange?;
        (answer.number == exchange.number).then_some(())?;
        owner.exchange = None;
        owner.last_number = exchange.number;
        if !self.on(Guard::GivenAtDecision) {
            exchange
                .gives
                .iter()
                .for_each(|extent| owner.free.remove(*extent));
        }
        if let Some(extent) = answer.took {
            owner.free.insert(extent);
            if group == 1 && extent == 0 {
                self.reached.note(Milestone::ExtentMoved);
            }
        }
        if self.on(Guard::LatestMapBeforeExtent) {
            state.client_epochs[usize::from(owner.client)] = state.epoch;
        }
        Some(())
    }

    /// Writes to the entry's block if it is private, else to the lowest free extent.
    fn write(&self, state: &mut State, group: usize) -> Option<()> {
        let owner = &mut state.groups[group];
        owner.writing.is_none().then_some(())?;
        let extent = match owner.entry {
            Some(entry) if entry.is_published => return None,
            Some(entry) => entry.extent,
            None => {
                let given = owner.exchange.and_then(|exchange| exchange.gives);
                let given = given.filter(|_| !self.on(Guard::GivenAtDecision));
                let mut free = owner.free.iter();
                free.find(|extent| given != Some(*extent))?
            }
        };
        take_one(&mut state.budget.writes)?;
        owner.writing = Some(extent);
        state.operations.insert(Operation::Write {
            client: owner.client,
            epoch: state.client_epochs[usize::from(owner.client)],
            extent,
        });
        Some(())
    }

    fn publish(&self, state: &mut State, group: usize) -> Option<()> {
        let owner = &mut state.groups[group];
        let is_known = owner.has_touched || !self.on(Guard::PublishedIsRead);
        (is_known && owner.writing.is_none()).then_some(())?;
        let entry = owner.entry.as_mut().filter(|entry| !entry.is_published)?;
        entry.is_published = true;
        take_one(&mut state.budget.publications)
    }

    /// The block that one group published becomes free in the custody of the other one.
    fn pass_on(&self, state: &mut State, group: usize) -> Option<()> {
        let entry = state.groups[group]
            .entry
            .filter(|entry| entry.is_published)?;
        state.groups[group].entry = None;
        state.groups[1 - group].free.insert(entry.extent);
        self.reached.note(Milestone::PassedThroughIndex);
        Some(())
    }

    fn take(&self, state: &mut State, group: usize) -> Option<()> {
        take_one(&mut state.budget.takes)?;
        let owner = &mut state.groups[group];
        let client = state.next_client;
        let former = usize::from(std::mem::replace(&mut owner.client, client));
        state.next_client += 1;
        state.epoch += 1;
        state.fences[former] = Some(state.epoch);
        state.groups_of[usize::from(client)] = group as u8;
        state.client_epochs[usize::from(client)] = state.epoch;
        owner.writing = None;
        owner.has_touched = false;
        let is_executed = |exchange: Exchange| state.answers[group].number == exchange.number;
        if owner.exchange.is_some_and(is_executed) {
            self.reached.note(Milestone::ExchangeRepeated);
        }
        if !self.on(Guard::ExtentNumberRecorded) {
            let forgotten = owner.exchange.take();
            let given = forgotten.and_then(|exchange| exchange.gives);
            given.iter().for_each(|extent| owner.free.insert(*extent));
        }
        Some(())
    }

    /// A daemon refuses clients that its map fences. It learns of newer maps from operations.
    fn land(&self, state: &mut State, operation: Operation) -> Option<()> {
        state.operations.retain(|other| other != operation);
        let (client, epoch, daemon) = match operation {
            Operation::Exchange { client, epoch, .. } => (client, epoch, EXTENTS),
            Operation::Write {
                client,
                epoch,
                extent,
            } => (client, epoch, extent),
        };
        let known = &mut state.daemon_epochs[usize::from(daemon)];
        let fence = state.fences[usize::from(client)];
        if fence.is_some_and(|fence| fence <= *known) {
            self.reached.note(Milestone::LateWriteRefused);
            return Some(());
        }
        *known = epoch.max(*known);
        match operation {
            Operation::Exchange {
                group, exchange, ..
            } => self.exchange(state, usize::from(group), exchange),
            Operation::Write { extent, .. } => {
                if fence.is_some() {
                    self.reached.note(Milestone::LateWriteLanded);
                }
                state.contents[usize::from(extent)] = Some(client);
                rewrite_in_place(state, client, extent);
            }
        }
        Some(())
    }

    /// Executes an exchange, unless its number is not the next one of its group.
    fn exchange(&self, state: &mut State, group: usize, exchange: Exchange) {
        let answer = &mut state.answers[group];
        if exchange.number != answer.number + 1 && self.on(Guard::ExchangeNumberGuarded) {
            return;
        }
        // The extent that is given is not the one that is taken.
        let taken = state.unleased.iter().next().filter(|_| exchange.takes);
        if let Some(extent) = exchange.gives {
            state.unleased.insert(extent);
        }
        if let Some(extent) = taken {
            state.unleased.remove(extent);
        }
        *answer = Answer {
            number: exchange.number,
            took: taken,
        };
    }

    /// The extents in a group's custody. An exchange that is executed counts even if its answer is not recorded yet.
    fn custody(&self, state: &State, group: usize) -> Bits {
        let owner = &state.groups[group];
        let answer = state.answers[group];
        let given = owner.exchange.and_then(|exchange| exchange.gives);
        let is_executed = answer.number > owner.last_number;
        let mut custody = owner.free;
        if let Some(extent) = given {
            if !is_executed {
                custody.insert(extent);
            } else if !self.on(Guard::GivenAtDecision) {
                custody.remove(extent);
            }
        }
        let took = answer.took.filter(|_| is_executed);
        let named = owner.entry.map(|entry| entry.extent);
        for extent in took.into_iter().chain(named).chain(owner.writing) {
            custody.insert(extent);
        }
        custody
    }

    pub(super) fn violation(&self, state: &State) -> Option<Violation> {
        let mut leased = state.unleased;
        for group in 0..GROUPS {
            let custody = self.custody(state, group);
            if !leased.and(custody).is_empty() {
                return Some(Violation::TwoKeepers);
            }
            leased = leased.or(custody);
        }
        let is_overwritten = |group: &Group| {
            let entry = group.entry.as_ref();
            entry.is_some_and(|entry| {
                state.contents[usize::from(entry.extent)] != Some(entry.content)
            })
        };
        if state.groups.iter().any(is_overwritten) {
            return Some(Violation::LateWrite);
        }
        (leased != Bits::below(EXTENTS)).then_some(Violation::NoKeeper)
    }
}

fn send(state: &mut State, group: usize) -> Option<()> {
    let owner = &state.groups[group];
    let exchange = owner.exchange?;
    let operation = Operation::Exchange {
        group: group as u8,
        client: owner.client,
        epoch: state.client_epochs[usize::from(owner.client)],
        exchange,
    };
    let is_answered = state.answers[group].number >= exchange.number;
    (!state.operations.has(operation) && !is_answered).then_some(())?;
    state.operations.insert(operation);
    Some(())
}

fn acknowledge(state: &mut State, group: usize) -> Option<()> {
    let owner = &mut state.groups[group];
    let extent = owner.writing?;
    let client = owner.client;
    let mut operations = state.operations.iter();
    let is_in_flight = operations.any(|operation| match operation {
        Operation::Write {
            client: sender,
            extent: target,
            ..
        } => sender == client && target == extent,
        Operation::Exchange { .. } => false,
    });
    (!is_in_flight).then_some(())?;
    owner.writing = None;
    owner.free.remove(extent);
    owner.entry = Some(Entry {
        extent,
        content: client,
        is_published: false,
    });
    owner.has_touched = true;
    Some(())
}

fn trim(state: &mut State, group: usize) -> Option<()> {
    let owner = &mut state.groups[group];
    owner.writing.is_none().then_some(())?;
    let entry = owner.entry.take_if(|entry| !entry.is_published)?;
    owner.free.insert(entry.extent);
    Some(())
}

/// The owner reads the entry's block, whose daemon learns the owner's map.
fn read(state: &mut State, group: usize) -> Option<()> {
    let owner = &mut state.groups[group];
    let entry = owner.entry.filter(|_| !owner.has_touched)?;
    owner.has_touched = true;
    let known = &mut state.daemon_epochs[usize::from(entry.extent)];
    *known = state.client_epochs[usize::from(owner.client)].max(*known);
    Some(())
}

/// A write of a private block that was not answered may land as long as no later owner has written the block.
fn rewrite_in_place(state: &mut State, client: u8, extent: u8) {
    let group = usize::from(state.groups_of[usize::from(client)]);
    if let Some(entry) = &mut state.groups[group].entry
        && entry.extent == extent
        && !entry.is_published
        && entry.content < client
    {
        entry.content = client;
    }
}
