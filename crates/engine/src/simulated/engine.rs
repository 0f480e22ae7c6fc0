//! Which parts there are.

use super::SimulatedEngine;
use super::cluster::{Objects, Placement};
use super::disk::{Outcome, Request, SimulatedDisk};
use super::memory::SimulatedMemory;
use super::orders::Op;
use super::part::PartState;
use crate::{Disk, Engine, HostMemory, Part};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

impl SimulatedEngine {
    /// Changes which parts exist. A change that fails, or is cut short by a crash, may have
    /// happened.
    fn change_parts(
        &self,
        part: Part,
        op: Op,
        change: impl FnOnce(&mut BTreeMap<Part, PartState>, &Request) -> io::Result<()>,
    ) -> io::Result<()> {
        let request = Request {
            part,
            op,
            offset: 0,
            bytes: 0,
        };
        let started = self.machine.start(request)?;
        self.machine.finish(started, |state, outcome| {
            let is_lost = outcome != Outcome::Success && state.random.coin();
            // No holding removes or replaces what is the pool's.
            if is_lost || self.machine.is_of_pool(part) {
                return Ok(());
            }
            change(&mut state.parts, &request)
        })
    }
}

impl Engine for SimulatedEngine {
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>> {
        let request = Request {
            part,
            op: Op::Create,
            offset: 0,
            bytes: 0,
        };
        let started = self.machine.start(request)?;
        self.machine.finish(started, |state, outcome| {
            let exists = || request.failed(ErrorKind::AlreadyExists, "it exists already");
            if let Some(mut shared) = self.machine.shared(part) {
                let is_new = shared.create(part, len, outcome);
                return is_new.then_some(()).ok_or_else(exists);
            }
            if state.parts.contains_key(&part) {
                return Err(exists());
            }
            let left = match outcome {
                Outcome::Success => Some(len),
                Outcome::Failure(_) | Outcome::FailsBehind(_) => None,
                Outcome::Crash => [None, Some(0), Some(len)][state.random.below(3) as usize],
            };
            if let Some(len) = left {
                let objects = state
                    .cluster
                    .map(|rules| Objects::new(Placement { part, rules }));
                state.parts.insert(part, PartState::new(len, objects));
            }
            Ok(())
        })?;
        Ok(Arc::new(SimulatedDisk {
            machine: self.machine.clone(),
            part,
        }))
    }

    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        let mut state = self.machine.state();
        let what = format!("opening {}", self.describe(part));
        if let Some(stop) = state.stopped {
            return Err(io::Error::other(format!("{what}: {}", stop.why())));
        }
        let is_there = match self.machine.shared(part) {
            Some(shared) => shared.has(part),
            None => {
                let opened = state.parts.get_mut(&part);
                opened.map(PartState::take_over).is_some()
            }
        };
        if !is_there {
            let message = format!("{what}: no such part");
            return Err(io::Error::new(ErrorKind::NotFound, message));
        }
        drop(state);
        Ok(Arc::new(SimulatedDisk {
            machine: self.machine.clone(),
            part,
        }))
    }

    fn replace(&self, place: Part, part: Part) -> io::Result<()> {
        self.change_parts(part, Op::Replace, |parts, request| {
            let Some(state) = parts.remove(&part) else {
                return Err(request.failed(ErrorKind::NotFound, "no such part"));
            };
            parts.insert(place, state);
            Ok(())
        })
    }

    fn remove(&self, part: Part) -> io::Result<()> {
        self.change_parts(part, Op::Remove, |parts, _| {
            parts.remove(&part);
            Ok(())
        })
    }

    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>> {
        let mut state = self.machine.state();
        if !state.has_host_memory {
            let message = "making simulated:tail: no space left";
            return Err(io::Error::new(ErrorKind::StorageFull, message));
        }
        state.host_memory.len = state.host_memory.len.max(len as u64);
        Ok(Arc::new(SimulatedMemory {
            machine: self.machine.clone(),
        }))
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        Ok(self.machine.state().boot_id)
    }

    fn has_lost_writes(&self) -> io::Result<bool> {
        Ok(std::mem::take(&mut self.machine.state().has_to_report))
    }

    fn describe(&self, part: Part) -> String {
        format!("simulated:{}", part.name())
    }

    fn random_id(&self) -> io::Result<[u8; 16]> {
        let mut state = self.machine.state();
        let mut id = [0; 16];
        let (low, high) = id.split_at_mut(8);
        low.copy_from_slice(&state.random.next().to_le_bytes());
        high.copy_from_slice(&state.random.next().to_le_bytes());
        Ok(id)
    }

    fn unix_seconds(&self) -> u64 {
        self.machine.state().unix_seconds
    }
}
