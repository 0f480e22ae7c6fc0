//! A group or a shard in the hands of its owner.

use super::super::SimulatedEngine;
use super::super::disk::SimulatedDisk;
use super::ownership::Taken;
use super::{Pool, SimulatedHost};
use crate::cluster::{Answer, Holding, OnEvent, Owned};
use crate::{Disk, Engine, HostMemory, Part};
use std::io;
use std::sync::Arc;

/// A group or a shard that a simulated host owns. Dropping it gives that up, if the host still can.
pub struct SimulatedHolding {
    pool: Arc<Pool>,
    engine: SimulatedEngine,
    owned: Owned,
    session: u64,
}

impl SimulatedHolding {
    pub(super) fn new(of: &SimulatedHost, owned: Owned, taken: Taken) -> SimulatedHolding {
        SimulatedHolding {
            pool: Arc::clone(&of.pool),
            engine: SimulatedEngine {
                machine: taken.machine,
            },
            owned,
            session: taken.session,
        }
    }

    /// The machine with the parts, for orders that concern this holding alone.
    pub fn engine(&self) -> &SimulatedEngine {
        &self.engine
    }

    /// Ends all writes that were started.
    fn finish(&self) {
        let disk = SimulatedDisk {
            machine: self.engine.machine.clone(),
            part: Part::Data,
        };
        disk.submit();
    }
}

impl Drop for SimulatedHolding {
    fn drop(&mut self) {
        if !self.engine.is_crashed() {
            self.finish();
        }
        self.pool.give_up(self.owned, self.session);
    }
}

impl Holding for SimulatedHolding {
    fn owned(&self) -> Owned {
        self.owned
    }

    fn session(&self) -> u64 {
        self.session
    }

    fn serve(&self, answer: Arc<dyn Answer>) -> io::Result<()> {
        self.pool.serve(self.owned, self.session, answer)
    }

    /// The callback runs on the thread of another host that asks, or in the first I/O that fails because of a fence.
    fn on_event(&self, on_event: OnEvent) {
        let (machine, on_event) = (&self.engine.machine, Arc::from(on_event));
        self.pool
            .set_on_event(self.owned, self.session, machine, on_event);
    }
}

impl Engine for SimulatedHolding {
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>> {
        self.engine.create(part, len)
    }

    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>> {
        self.engine.open(part)
    }

    fn replace(&self, place: Part, part: Part) -> io::Result<()> {
        self.engine.replace(place, part)
    }

    fn remove(&self, part: Part) -> io::Result<()> {
        self.engine.remove(part)
    }

    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>> {
        self.engine.host_memory(len)
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.engine.boot_id()
    }

    fn describe(&self, part: Part) -> String {
        format!("{} of {}", self.engine.describe(part), self.owned)
    }

    fn random_id(&self) -> io::Result<[u8; 16]> {
        self.engine.random_id()
    }

    fn unix_seconds(&self) -> u64 {
        self.engine.unix_seconds()
    }
}
