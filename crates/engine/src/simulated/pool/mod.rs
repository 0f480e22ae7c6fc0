//! A shared pool with several hosts, in memory: a seed and one sequence of calls always give one result.
//!
//! A group or shard that a host owns is a machine of its own, with the faults of a pool in a cluster. It is in the hands
//! of its owner until another takes it, which decides then what the former owner's unacknowledged operations have done.
//! The data belongs to the pool (see `data`).
//!
//! Code of owners (answers to calls, events) and of tests (hooks) runs without any lock of the simulation.
//!
//! Lock order: [`Pool::state`], a machine's state, the pool's parts.

mod calls;
mod data;
mod extents;
mod faults;
mod holding;
mod host;
mod member;
mod orders;
mod ownership;

pub use faults::{ClusterCounts, ClusterRates};
pub use holding::SimulatedHolding;
pub use host::{OnOwnedEvent, SimulatedHost};

pub(super) use data::POOL_DATA_BYTES;
pub(super) use member::Member;

use super::Machine;
use super::cluster::Rules;
use super::part::PartState;
use super::prepared::StartedWrite;
use super::random::Random;
use super::stop::Stop;
use crate::Part;
use crate::cluster::{Answer, Owned, OwnerEvent, Rows};
use calls::Calls;
use data::{Client, Shared};
use extents::Extents;
use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The event handler of an owner.
type OnEvent = Arc<dyn Fn(OwnerEvent) + Send + Sync>;

/// A pool that hosts share. Clones are handles on the same pool.
///
/// The pool keeps the answers and event handlers of owners, which may keep the pool: a test that makes many pools kills
/// all hosts at its end.
#[derive(Clone)]
pub struct SimulatedCluster {
    pool: Arc<Pool>,
}

/// The state that all hosts share.
struct Pool {
    state: Mutex<PoolState>,
    shared: Arc<Mutex<Shared>>,
}

struct PoolState {
    random: Random,
    rules: Rules,
    /// A host knows every fence before it gets extents.
    is_map_latest: bool,
    /// The answer to an exchange is kept with its number.
    is_number_kept: bool,
    rates: ClusterRates,
    hosts: BTreeMap<usize, Host>,
    owned: BTreeMap<Owned, Record>,
    extents: Extents,
    directory: Rows,
    calls: Calls,
    counts: ClusterCounts,
    /// The event handlers of processes that were fenced and do not know it.
    lost: BTreeMap<Client, Vec<OnEvent>>,
    last_client: Client,
    unix_seconds: u64,
}

/// A host, and its process if one has started.
struct Host {
    client: Client,
    is_dead: bool,
    is_cut: bool,
    is_frozen: bool,
    /// A host has fenced the process.
    is_fenced: bool,
    boot_id: [u8; 16],
    /// The last machine of each holding since the host was started, which has the memory that outlives processes.
    machines: BTreeMap<Owned, Arc<Machine>>,
    /// The sessions of these machines.
    sessions: BTreeMap<Owned, u64>,
    ios: u64,
    ios_until_death: Option<u64>,
}

/// A group or a shard.
#[derive(Default)]
struct Record {
    session: u64,
    owner: Option<Owner>,
    /// The parts while there is no owner.
    parts: BTreeMap<Part, PartState>,
}

/// The owner of a group or shard, which may be dead.
struct Owner {
    client: Client,
    host: usize,
    machine: Arc<Machine>,
    answer: Option<Arc<dyn Answer>>,
    on_event: Option<OnEvent>,
}

/// A process, as its cluster and the other hosts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Live,
    /// The host is frozen, or cut off.
    Silent,
    /// The process has died, or was fenced.
    Dead,
}

/// The property of a dead process. It is dropped without locks, because it may own anything.
type Remains = Vec<Box<dyn Any>>;

impl Host {
    /// Host `n`, which has no process yet.
    fn new(n: usize) -> Host {
        Host {
            client: 0,
            is_dead: true,
            is_cut: false,
            is_frozen: false,
            is_fenced: false,
            boot_id: ((n as u128 + 1) << 64).to_le_bytes(),
            machines: BTreeMap::new(),
            sessions: BTreeMap::new(),
            ios: 0,
            ios_until_death: None,
        }
    }

    /// Starts a process.
    fn start(&mut self, client: Client) {
        *self = Host {
            client,
            is_dead: false,
            is_cut: false,
            is_frozen: false,
            is_fenced: false,
            boot_id: self.boot_id,
            machines: std::mem::take(&mut self.machines),
            sessions: std::mem::take(&mut self.sessions),
            ios: 0,
            ios_until_death: None,
        };
    }

    /// Loses the memory that outlives processes. Returns the machines that had it.
    fn lose_power(&mut self) -> BTreeMap<Owned, Arc<Machine>> {
        let number = u128::from_le_bytes(self.boot_id).wrapping_add(1);
        self.boot_id = number.to_le_bytes();
        std::mem::take(&mut self.machines)
    }
}

impl PoolState {
    fn host_of(&self, client: Client) -> Option<&Host> {
        self.hosts.values().find(|host| host.client == client)
    }

    fn standing(&self, client: Client) -> Standing {
        match self.host_of(client) {
            Some(host) if host.is_dead || host.is_fenced => Standing::Dead,
            Some(host) if host.is_cut || host.is_frozen => Standing::Silent,
            Some(_) => Standing::Live,
            None => Standing::Dead,
        }
    }

    /// Fails if a process can do nothing in the cluster.
    fn check_process(&self, client: Client) -> io::Result<()> {
        let stop = match self.host_of(client) {
            Some(host) if host.is_fenced => Stop::Lost,
            Some(host) if host.is_cut => Stop::CutOff,
            Some(host) if !host.is_dead => return Ok(()),
            _ => Stop::Crashed,
        };
        Err(io::Error::other(stop.why()))
    }

    /// The machines of all that a process owns.
    fn machines_of(&self, client: Client) -> Vec<Arc<Machine>> {
        let owners = self
            .owned
            .values()
            .filter_map(|record| record.owner.as_ref());
        let owners = owners.filter(|owner| owner.client == client);
        owners.map(|owner| Arc::clone(&owner.machine)).collect()
    }

    /// Stops the machines of a process.
    fn stop_machines(&self, client: Client, stop: Stop) {
        for machine in self.machines_of(client) {
            let stopped = &mut machine.state().stopped;
            // A machine that is cut off may also be fenced, and all may die.
            if matches!(stopped, None | Some(Stop::CutOff)) || stop == Stop::Crashed {
                *stopped = Some(stop);
            }
        }
    }

    /// Ends a process. Its writes that were started may arrive.
    fn end_process(&mut self, n: usize, client: Client) -> Remains {
        let Some(host) = self.hosts.get_mut(&n).filter(|host| host.client == client) else {
            return Remains::new();
        };
        if host.is_dead {
            return Remains::new();
        }
        host.is_dead = true;
        self.stop_machines(client, Stop::Crashed);
        let mut remains = Remains::new();
        for machine in self.machines_of(client) {
            let started: Vec<StartedWrite> = std::mem::take(&mut machine.state().started);
            for write in started {
                write.leave_in_pool();
                remains.push(Box::new(write));
            }
        }
        for record in self.owned.values_mut() {
            if let Some(owner) = record.owner.as_mut().filter(|owner| owner.client == client) {
                remains.push(Box::new((owner.answer.take(), owner.on_event.take())));
            }
        }
        remains.push(Box::new(self.lost.remove(&client)));
        remains
    }
}

impl Pool {
    /// Locks the state even after a test failed while it held the lock: later failures must not hide the first.
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self, client: Client) -> Standing {
        self.state().standing(client)
    }

    /// Whether this session owns something now, and is able to act.
    fn owns(&self, what: Owned, session: u64) -> bool {
        let state = self.state();
        let record = state.owned.get(&what);
        let record = record.filter(|record| record.session == session);
        let owner = record.and_then(|record| record.owner.as_ref());
        owner.is_some_and(|owner| state.standing(owner.client) == Standing::Live)
    }

    /// Does what happens between two I/Os of any host.
    fn between_ios(self: &Arc<Pool>) {
        self.shared().land();
        self.deliver_due();
    }

    /// Counts an I/O of a host. Returns whether the host dies in it.
    fn count_io(&self, n: usize, client: Client) -> bool {
        let mut state = self.state();
        let (dies_at, cut_at) = (state.rates.host_dies, state.rates.host_cut);
        let (dies, is_cut) = (state.random.chance(dies_at), state.random.chance(cut_at));
        let Some(host) = state.hosts.get_mut(&n).filter(|host| host.client == client) else {
            return false;
        };
        host.ios += 1;
        let mut dies = dies;
        if let Some(left) = &mut host.ios_until_death {
            *left = left.saturating_sub(1);
            dies |= *left == 0;
        }
        drop(state);
        if dies {
            self.stop_process(n, client);
        } else if is_cut {
            self.cut(n);
        }
        dies
    }

    /// Ends a process, if it has not ended.
    fn stop_process(&self, n: usize, client: Client) {
        let remains = self.state().end_process(n, client);
        self.shared().draw_late_rate();
        drop(remains);
    }

    /// Cuts a host off from the cluster.
    fn cut(&self, n: usize) {
        let mut state = self.state();
        let Some(host) = state.hosts.get_mut(&n) else {
            return;
        };
        host.is_cut = true;
        let client = host.client;
        state.stop_machines(client, Stop::CutOff);
    }

    /// Lets a process know that it was fenced, and calls each of its owners' callbacks once.
    fn tell_fenced(&self, client: Client) {
        let mut state = self.state();
        let machines = state.hosts.values().filter(|host| host.client == client);
        let machines = machines.flat_map(|host| host.machines.values());
        for machine in machines {
            let stopped = &mut machine.state().stopped;
            if *stopped == Some(Stop::Fenced) {
                *stopped = Some(Stop::Lost);
            }
        }
        let handlers = state.lost.remove(&client).unwrap_or_default();
        drop(state);
        handlers.iter().for_each(tell_lost);
    }
}

fn tell_lost(on_event: &OnEvent) {
    on_event(OwnerEvent::Lost {
        reason: Stop::Lost.why().to_owned(),
    });
}
