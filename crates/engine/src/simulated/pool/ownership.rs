//! Becoming the owner of a group or a shard, and ceasing to be.

use super::super::cluster::draw_late_rate;
use super::super::random::Random;
use super::super::stop::Stop;
use super::super::{Machine, State};
use super::data::Client;
use super::{Member, OnEvent, Owner, Pool, PoolState, Record, SimulatedHost, Standing};
use crate::Part;
use crate::cluster::{Owned, OwnerEvent, TakeError, TakeOptions};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};

/// The most by which one session's number exceeds the last one's.
const SESSION_STEP_MAX: u64 = 3;

/// The state of a group or shard that a host wants.
enum Found {
    /// A group or shard that may be taken now: from this process, if there is one.
    Free(Option<Client>),
    /// A live owner, and its event handler.
    Held(String, Option<OnEvent>),
}

/// A new owner's machine and session.
pub(super) struct Taken {
    pub(super) machine: Arc<Machine>,
    pub(super) session: u64,
}

impl PoolState {
    pub(super) fn create(&mut self, what: Owned) -> io::Result<()> {
        if self.owned.contains_key(&what) {
            let message = format!("there is a {what} already");
            return Err(io::Error::new(ErrorKind::AlreadyExists, message));
        }
        self.owned.insert(what, Record::default());
        Ok(())
    }

    fn record(&mut self, what: Owned) -> io::Result<&mut Record> {
        let missing = || io::Error::new(ErrorKind::NotFound, format!("there is no {what}"));
        self.owned.get_mut(&what).ok_or_else(missing)
    }

    /// Looks whether a process may take something. Waits for the patience if another host's owner is silent.
    fn find(
        &mut self,
        of: &SimulatedHost,
        what: Owned,
        options: &TakeOptions,
    ) -> io::Result<Found> {
        let Some(owner) = &self.record(what)?.owner else {
            return Ok(Found::Free(None));
        };
        let (client, host, on_event) = (owner.client, owner.host, owner.on_event.clone());
        // It was dropped while its host was cut off.
        let is_abandoned = owner.machine.state().stopped == Some(Stop::GivenUp);
        if is_abandoned && client == of.client {
            return Ok(Found::Free(None));
        }
        if self.standing(client) == Standing::Live && !is_abandoned {
            let owner = format!("process {client} on host {host}");
            return Ok(Found::Held(owner, on_event));
        }
        // A host knows that its own process before is dead.
        if host != of.number {
            self.advance_seconds(options.patience.as_secs());
        }
        Ok(Found::Free(Some(client)))
    }

    /// Advances the clocks of all hosts.
    pub(super) fn advance_seconds(&mut self, seconds: u64) {
        self.unix_seconds += seconds;
        let owners = self
            .owned
            .values()
            .filter_map(|record| record.owner.as_ref());
        for owner in owners {
            owner.machine.state().unix_seconds += seconds;
        }
    }

    /// Loses a part, unless a live process has it. Returns whether there was one.
    pub(super) fn lose_part(&mut self, what: Owned, part: Part) -> bool {
        let Some(record) = self.owned.get_mut(&what) else {
            return false;
        };
        let Some(owner) = &record.owner else {
            return record.parts.remove(&part).is_some();
        };
        let (client, machine) = (owner.client, Arc::clone(&owner.machine));
        let is_dead = self.standing(client) == Standing::Dead;
        is_dead && machine.state().parts.remove(&part).is_some()
    }

    /// Moves the parts to a machine of a new owner.
    fn grant(&mut self, what: Owned, member: Member) -> io::Result<Taken> {
        let mut random = Random::new(self.random.next());
        let rules = self.rules;
        let step = 1 + self.random.below(SESSION_STEP_MAX);
        let (n, client) = (member.host, member.client);
        let record = self.record(what)?;
        let session_before = record.session;
        record.session += step;
        let session = record.session;
        let mut parts = std::mem::take(&mut record.parts);
        let before = record.owner.take();
        if let Some(before) = &before {
            let mut state = before.machine.state();
            for (name, part) in std::mem::take(&mut state.parts) {
                if let Some(placement) = part.placement() {
                    parts.insert(name, part.after_death(placement, &mut random));
                }
            }
        }
        if let Some(handler) = before.and_then(|before| Some((before.client, before.on_event?))) {
            self.lost.entry(handler.0).or_default().push(handler.1);
        }
        let mut state = State::new(Random::new(self.random.next()));
        state.parts = parts;
        state.cluster = Some(rules);
        state.late_rate = draw_late_rate(&mut random);
        state.unix_seconds = self.unix_seconds;
        let missing = || io::Error::other("there is no such host");
        let host = self.hosts.get_mut(&n).ok_or_else(missing)?;
        state.boot_id = host.boot_id;
        // The memory is of no use once another host was the owner.
        let session_here = host.sessions.insert(what, session);
        if let Some(last) = host.machines.get(&what)
            && session_here == Some(session_before)
        {
            state.host_memory = last.state().host_memory.clone();
        }
        let machine = Arc::new(Machine {
            state: Mutex::new(state),
            member: Some(member),
        });
        host.machines.insert(what, Arc::clone(&machine));
        let owner = Owner {
            client,
            host: n,
            machine: Arc::clone(&machine),
            answer: None,
            on_event: None,
        };
        self.record(what)?.owner = Some(owner);
        Ok(Taken { machine, session })
    }

    /// Ends an ownership in order. Operations that were not synced have happened or not, and none is late.
    fn give_up(&mut self, what: Owned, session: u64) -> Option<Owner> {
        let client = {
            let record = self.owned.get(&what)?;
            if record.session != session {
                return None;
            }
            record.owner.as_ref()?.client
        };
        if self.check_process(client).is_err() {
            // The cluster does not learn of it, but the machine does nothing more.
            let owner = self.owned.get(&what)?.owner.as_ref()?;
            let stopped = &mut owner.machine.state().stopped;
            if *stopped == Some(Stop::CutOff) {
                *stopped = Some(Stop::GivenUp);
            }
            return None;
        }
        let mut random = Random::new(self.random.next());
        let record = self.owned.get_mut(&what)?;
        let owner = record.owner.take()?;
        let mut state = owner.machine.state();
        state.stopped.get_or_insert(Stop::GivenUp);
        let parts = std::mem::take(&mut state.parts);
        drop(state);
        for (name, part) in parts {
            if let Some(placement) = part.placement() {
                record
                    .parts
                    .insert(name, part.after_end(placement, &mut random));
            }
        }
        Some(owner)
    }
}

impl Pool {
    /// Makes a process the owner, or returns the reason against it.
    pub(super) fn take(
        self: &Arc<Pool>,
        of: &SimulatedHost,
        what: Owned,
        options: &TakeOptions,
    ) -> Result<Taken, TakeError> {
        let mut was_asked = false;
        loop {
            let mut state = self.state();
            match state.find(of, what, options)? {
                Found::Held(_, Some(on_event)) if options.asks && !was_asked => {
                    drop(state);
                    was_asked = true;
                    on_event(OwnerEvent::ReleaseWanted);
                }
                Found::Held(owner, _) => return Err(TakeError::Held { owner }),
                Found::Free(before) => {
                    state.counts.given_up_when_asked += u64::from(was_asked && before.is_none());
                    if let Some(before) = before {
                        self.fence(&mut state, what, before);
                    }
                    let member = Member {
                        pool: Arc::downgrade(self),
                        shared: Arc::clone(&self.shared),
                        host: of.number,
                        client: of.client,
                    };
                    let taken = state.grant(what, member)?;
                    self.shared().learn_map(of.client);
                    return Ok(taken);
                }
            }
        }
    }

    /// Makes a process the owner that dies before it knows.
    pub(super) fn take_dying(
        self: &Arc<Pool>,
        of: &SimulatedHost,
        what: Owned,
        options: &TakeOptions,
    ) {
        if let Ok(taken) = self.take(of, what, options) {
            taken.machine.state().stopped = Some(Stop::Crashed);
        }
    }

    /// Ends all that a process owns. Without the guard it loses only what is being taken.
    fn fence(&self, state: &mut PoolState, what: Owned, client: Client) {
        state.counts.fenced += 1;
        if !state.rules.is_fenced {
            let owner = state
                .owned
                .get(&what)
                .and_then(|record| record.owner.as_ref());
            if let Some(owner) = owner {
                let stopped = &mut owner.machine.state().stopped;
                if *stopped != Some(Stop::Crashed) {
                    *stopped = Some(Stop::Fenced);
                }
            }
            return;
        }
        self.shared().fence(client);
        state.stop_machines(client, Stop::Fenced);
        let mut handlers = Vec::new();
        let owners = state
            .owned
            .values_mut()
            .filter_map(|record| record.owner.as_mut());
        for owner in owners.filter(|owner| owner.client == client) {
            handlers.extend(owner.on_event.take());
        }
        state.lost.entry(client).or_default().extend(handlers);
        let mut hosts = state.hosts.values_mut();
        if let Some(host) = hosts.find(|host| host.client == client) {
            host.is_fenced = true;
        }
    }

    /// Ends an ownership in order, unless it has ended otherwise.
    pub(super) fn give_up(&self, what: Owned, session: u64) {
        let owner = self.state().give_up(what, session);
        drop(owner);
    }

    /// Removes what a session owns.
    pub(super) fn remove(
        &self,
        state: &mut PoolState,
        what: Owned,
        session: u64,
    ) -> io::Result<Owner> {
        let owner = state.give_up(what, session);
        let lost = || io::Error::other(format!("{what} is not owned any more"));
        let owner = owner.ok_or_else(lost)?;
        state.owned.remove(&what);
        Ok(owner)
    }
}
