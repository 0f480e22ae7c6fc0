//! A pool in memory on a machine that fails in every way that the contract of [`Disk`] allows.
//!
//! One seed and one sequence of calls always give one result, so a failing run replays. All parts
//! are behind one lock; code of a test runs inside I/Os without it.
//!
//! # Faults modelled
//!
//! - Power loss: each 512-byte sector of each write since the last sync survives or not, in any order and in any
//!   combination with sectors of other writes. Overlapping writes leave any of their versions or the old content. The
//!   parts behave independently of each other.
//! - Death of the process: it loses nothing and makes nothing durable; but an in-flight sync continues, and may fail
//!   when its caller is dead.
//! - A stop in the middle of any I/O: its effect may be lost, torn or done.
//! - A failed write, which may have changed any subset of its sectors.
//! - A failed sync, after which some of the data it covered can never become durable although
//!   readers see it and a later sync succeeds; and a kernel that evicts some of that by itself, so
//!   that readers see the old content again.
//! - A failed read, whose buffer holds rubbish.
//! - Discards that did nothing, that were lost, and that were done in part.
//! - A length or reservation that did not survive; a part that its creation left missing or empty;
//!   one that took another's place, or was removed, although that failed.
//! - No room: a write that fails after a part of it was written.
//! - Reads that would have to wait; alignment as O_DIRECT demands it.
//! - In a cluster ([`SimulatedEngine::of_cluster`]), with the contract of [`rados`](crate::rados):
//!   - Data is durable when its write returns. Writes of other parts return before they are durable: until a sync, the
//!     death of the owner, even of its process alone, leaves any of its operations, object by object, but never a later
//!     one on an object without the earlier ones, and never a part of one.
//!   - Operations in flight when the owner died may take effect between any two I/Os of the next one: on objects that
//!     this one has not touched, and not where it asserts that it owns the pool. Both rules can be turned off.
//!   - Growth is durable after a sync. Bytes beyond the length may be there without it, and are cleared when the next
//!     owner opens the part, except in data.
//!   - A write that fails after it has returned has no effect. Reads of the part fail until the next sync, which fails,
//!     too.
//!   - Another host has nothing of the memory that outlives the process.
//! - In a shared pool with several hosts ([`SimulatedCluster`]), with the contract of [`Cluster`](crate::Cluster):
//!   - Each group and shard has the faults of a pool in a cluster. It changes hands when its owner gives it up, dies, is
//!     cut off or is frozen. A process that was fenced does nothing more, with one exception: its reads and writes of
//!     data are done, are late, or fail, until it learns of the fence.
//!   - An owner lives while another takes its group: a host that is frozen, perhaps in the middle of an I/O, and wakes.
//!   - Data that a process had in flight when it died, was cut off or was fenced is there, is lost, or arrives between
//!     any two I/Os of any host, object by object: until the process is fenced and the object was touched by a process
//!     that knows the fence. A process knows the fences that are older than its start, or than the last group or extent
//!     that it got. Both rules can be turned off.
//!   - Death in the middle of any I/O or operation on the cluster, of one process with all that it owns; the memory that
//!     outlives it is of one host and one group, until another host owns the group.
//!   - Operations on the cluster that fail, and have happened or not.
//!   - Calls whose request or reply is lost; that reach an owner twice, or late: then the owner of that moment, between
//!     any two I/Os, also after the caller's death; that reach an owner that is dead, frozen or cut off.
//!   - A repeated exchange that is not recognised, by order.
//! - Decay: flipped bits, overwritten ranges, ranges that cannot be read until they are written,
//!   lost parts.
//!
//! # Faults not modelled
//!
//! - Synced writes that the device drops, writes that land in the wrong place, and reads that
//!   return old content once: use [`SimulatedEngine::overwrite`] where a test needs their effect.
//! - Sectors that are torn inside themselves.
//! - In a cluster: operations of the head that are late; objects of a replaced index that come back. Without a
//!   [`SimulatedCluster`], also an owner that lives while another takes the pool.
//! - In a shared pool: late operations on a group's own parts that a frozen owner sends after it was fenced, because an
//!   object that its successor has not touched takes them as it takes those of a dead one; cluster maps that a host gets
//!   without taking or exchanging anything; an operation that a host waits for while it is cut off.
//! - Delays: nothing takes time. Order is tested with [`SimulatedEngine::on_next_io`].

mod cluster;
mod content;
mod disk;
mod engine;
mod faults;
mod image;
mod memory;
mod orders;
mod orphans;
mod part;
mod pool;
mod prepared;
mod random;
mod stop;
mod unsynced;

pub use orders::{Count, CrashKind, FailureRates, Op, PowerLossBias, SECTOR_BYTES, When};
pub use pool::{
    ClusterCounts, ClusterRates, OnOwnedEvent, SimulatedCluster, SimulatedHolding, SimulatedHost,
};

use crate::Part;
#[cfg(doc)]
use crate::{Disk, Engine};
use cluster::{OBJECT_BYTES, Rules};
use faults::Plan;
use image::Image;
use orphans::Orphans;
use part::PartState;
use pool::Member;
use prepared::StartedWrite;
use random::Random;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stop::Stop;

/// The clock's start, so that times look realistic.
const EPOCH_SECONDS: u64 = 1_700_000_000;

/// A simulated machine with its parts. Clones are handles on the same machine.
#[derive(Clone)]
pub struct SimulatedEngine {
    machine: Arc<Machine>,
}

/// State that all handles and disks share.
struct Machine {
    state: Mutex<State>,
    /// The host of a shared pool, and what it owns there, if the machine is a holding.
    member: Option<Member>,
}

impl Machine {
    /// Locks the state even after a test failed while it held the lock: later failures must not hide the first.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    random: Random,
    parts: BTreeMap<Part, PartState>,
    plan: Plan,
    /// Why the machine does no I/O, if it does none.
    stopped: Option<Stop>,
    ios: u64,
    counts: BTreeMap<(Part, Op), Count>,
    forgotten: BTreeMap<Part, u64>,
    unix_seconds: u64,
    bias: PowerLossBias,
    alignment: BTreeMap<Part, usize>,
    capacity: BTreeMap<Part, u64>,
    discard_ignored_rate: f64,
    eviction: BTreeMap<Part, f64>,
    failures: BTreeMap<(Part, Op), u64>,
    cold_rate: f64,
    cold: Vec<(Part, Range<u64>)>,
    host_memory: Image,
    boot_id: [u8; 16],
    has_host_memory: bool,
    /// Writes that were started and have done nothing.
    started: Vec<StartedWrite>,
    /// The rules of the cluster, if the parts are in one.
    cluster: Option<Rules>,
    /// The probability that a late operation takes effect before an I/O.
    late_rate: f64,
    landed_late: u64,
    /// Syncs in flight when the machine stopped: the part, and the first change that each does not cover.
    in_flight: Vec<(Part, u64)>,
    /// The probability that a sync in flight at a death fails.
    orphan_failure_rate: f64,
    /// A sync of an earlier process failed and lost data.
    has_lost_data: bool,
    /// The host has not reported yet that it lost data.
    has_to_report: bool,
}

impl State {
    /// A machine without parts, and without faults until some are ordered.
    fn new(random: Random) -> State {
        State {
            random,
            parts: BTreeMap::new(),
            plan: Plan::default(),
            stopped: None,
            ios: 0,
            counts: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            unix_seconds: EPOCH_SECONDS,
            bias: PowerLossBias::default(),
            alignment: BTreeMap::new(),
            capacity: BTreeMap::new(),
            discard_ignored_rate: 0.0,
            eviction: BTreeMap::new(),
            failures: BTreeMap::new(),
            cold_rate: 0.0,
            cold: Vec::new(),
            host_memory: Image::new(0),
            boot_id: [1; 16],
            has_host_memory: true,
            started: Vec::new(),
            cluster: None,
            late_rate: 0.0,
            landed_late: 0,
            in_flight: Vec::new(),
            orphan_failure_rate: 0.0,
            has_lost_data: false,
            has_to_report: false,
        }
    }
}

impl SimulatedEngine {
    /// A machine without parts, and without faults until some are ordered.
    pub fn new(seed: u64) -> SimulatedEngine {
        SimulatedEngine::with(State::new(Random::new(seed)), None)
    }

    /// Like [`SimulatedEngine::new`], but the parts are in the objects of a cluster.
    pub fn of_cluster(seed: u64) -> SimulatedEngine {
        let engine = SimulatedEngine::new(seed);
        engine.machine.state().cluster = Some(Rules {
            object_bytes: OBJECT_BYTES,
            is_fenced: true,
            is_asserted: true,
        });
        engine
    }

    fn with(state: State, member: Option<Member>) -> SimulatedEngine {
        SimulatedEngine {
            machine: Arc::new(Machine {
                state: Mutex::new(state),
                member,
            }),
        }
    }

    /// The machine as it comes back after stopping at this instant.
    ///
    /// This machine is left as it is, and later operations on it do not reach the other: call again
    /// for another outcome of the same crash. The new one has the same clock, alignments,
    /// capacities and power-loss bias; orders, rates and counts start afresh.
    ///
    /// # Panics
    /// If the machine is a holding of a shared pool: [`SimulatedCluster::kill`] stops its host.
    pub fn crash(&self, kind: CrashKind) -> SimulatedEngine {
        assert!(self.machine.member.is_none(), "a host of a pool is killed");
        let mut state = self.machine.state();
        let mut random = Random::new(state.random.next());
        let mut boot_id = state.boot_id;
        if kind == CrashKind::PowerLoss {
            // The remains of the memory are unchanged, for a reader that trusts it by mistake.
            let number = u128::from_le_bytes(boot_id).wrapping_add(1);
            boot_id = number.to_le_bytes();
        }
        let late_rate = match state.cluster {
            Some(_) => cluster::draw_late_rate(&mut random),
            None => 0.0,
        };
        let mut orphans = Orphans::of(&state, kind);
        let mut parts = BTreeMap::new();
        for (name, part) in &state.parts {
            let mut part = part.clone();
            for write in &state.started {
                write.remains(*name, &mut part, &mut random);
            }
            let after = match (kind, part.placement()) {
                (_, Some(placement)) => part.after_death(placement, &mut random),
                (CrashKind::PowerLoss, None) => part.after_power_loss(&state.bias, &mut random),
                (CrashKind::ProcessKilled, None) => {
                    orphans.end(*name, &mut part, &state, &mut random);
                    part
                }
            };
            parts.insert(*name, after);
        }
        let (has_lost_data, has_to_report) = orphans.outcome(&mut random);
        let after = State {
            parts,
            unix_seconds: state.unix_seconds,
            bias: state.bias,
            alignment: state.alignment.clone(),
            capacity: state.capacity.clone(),
            host_memory: match (kind, state.cluster) {
                (CrashKind::PowerLoss, Some(_)) => Image::new(0),
                _ => state.host_memory.clone(),
            },
            boot_id,
            has_host_memory: state.has_host_memory,
            cluster: state.cluster,
            late_rate,
            orphan_failure_rate: state.orphan_failure_rate,
            has_lost_data,
            has_to_report: has_to_report || state.has_to_report && kind == CrashKind::ProcessKilled,
            ..State::new(random)
        };
        SimulatedEngine::with(after, None)
    }

    // Orders that stop the machine.

    /// Stops the machine in the middle of the `n`-th I/O from now (1 is the next): that one and all
    /// later calls fail. Its effect is one more change that is not durable.
    pub fn crash_after(&self, n: u64) {
        self.machine.state().plan.ios_until_crash = Some(n.max(1));
    }

    /// Stops the machine now, between two I/Os.
    pub fn halt(&self) {
        self.machine.state().stopped.get_or_insert(Stop::Crashed);
        if let Some(member) = &self.machine.member {
            member.host_dies();
        }
    }

    /// Whether the machine has stopped, or is cut off from its cluster.
    pub fn is_crashed(&self) -> bool {
        self.machine.state().stopped.is_some()
    }

    /// The remains of one write after power losses; half of the losses do something simpler: keep
    /// everything, lose everything, or cut all writes of a part at one point.
    pub fn set_power_loss_bias(&self, bias: PowerLossBias) {
        self.machine.state().bias = bias;
    }

    // Rules of a cluster. They must be set before there are parts.

    /// Makes objects smaller, so that a small pool has many.
    ///
    /// # Panics
    /// If the parts are not in a cluster, or there are some already.
    pub fn set_object_bytes(&self, bytes: u64) {
        assert!(bytes > 0, "an object has bytes");
        self.set_rules(|rules| rules.object_bytes = bytes);
    }

    /// Whether an object that an owner has touched takes no operations of earlier owners. If not, late operations may
    /// arrive at any time.
    ///
    /// # Panics
    /// As [`SimulatedEngine::set_object_bytes`].
    pub fn set_fenced(&self, is_fenced: bool) {
        self.set_rules(|rules| rules.is_fenced = is_fenced);
    }

    /// Whether the objects of the log, and the first object of every other part but the data, take operations only from
    /// the owner that opened the part last. If not, they are objects like all others.
    ///
    /// # Panics
    /// As [`SimulatedEngine::set_object_bytes`].
    pub fn set_asserted(&self, is_asserted: bool) {
        self.set_rules(|rules| rules.is_asserted = is_asserted);
    }

    fn set_rules(&self, set: impl FnOnce(&mut Rules)) {
        assert!(self.machine.member.is_none(), "the rules are its pool's");
        let mut state = self.machine.state();
        assert!(state.parts.is_empty(), "there are parts already");
        match state.cluster.as_mut() {
            Some(rules) => set(rules),
            None => panic!("the parts are not in a cluster"),
        }
    }

    /// Whether the parts are in a cluster.
    pub fn is_of_cluster(&self) -> bool {
        self.machine.state().cluster.is_some()
    }

    // Orders that make an I/O fail.

    /// Fails the `nth` such I/O from now (1 is the next), once, with this kind of error.
    pub fn fail_once(&self, part: Part, op: Op, nth: u64, kind: ErrorKind) {
        self.machine.state().plan.fail(part, op, nth, kind);
    }

    /// Fails I/Os of all parts at random from now on. Zero rates end it.
    pub fn set_failure_rates(&self, rates: FailureRates) {
        self.machine.state().plan.rates = rates;
    }

    /// Limits the space that a part may allocate, in bytes; `None` lifts the limit.
    pub fn set_capacity(&self, part: Part, bytes: Option<u64>) {
        let mut state = self.machine.state();
        match bytes {
            Some(bytes) => state.capacity.insert(part, bytes),
            None => state.capacity.remove(&part),
        };
    }

    /// Whether the host has room for [`Engine::host_memory`], as it has at first.
    pub fn set_has_host_memory(&self, has: bool) {
        self.machine.state().has_host_memory = has;
    }

    /// The alignment, a power of two, that writes to a part must have; 1 at first.
    ///
    /// # Panics
    /// If it is not a power of two.
    pub fn set_alignment(&self, part: Part, alignment: usize) {
        assert!(
            alignment.is_power_of_two(),
            "{alignment} is not a power of two"
        );
        self.machine.state().alignment.insert(part, alignment);
    }

    /// The probability that a discard succeeds without doing anything; 0 at first.
    pub fn set_discard_ignored_rate(&self, rate: f64) {
        self.machine.state().discard_ignored_rate = rate;
    }

    /// The probability with which the kernel evicts each page that a failed sync of this part
    /// dropped; 0 at first. Otherwise readers see the written data until
    /// [`Disk::forget_cached`] or a power loss.
    pub fn set_eviction_rate(&self, part: Part, rate: f64) {
        self.machine.state().eviction.insert(part, rate);
    }

    // Orders that make a read wait.

    /// The probability that a read that must not wait would have to; 0 at first.
    pub fn set_cold_rate(&self, rate: f64) {
        self.machine.state().cold_rate = rate;
    }

    /// Makes every read that must not wait and that touches this range one that would have to.
    pub fn set_cold(&self, part: Part, range: Range<u64>) {
        self.machine.state().cold.push((part, range));
    }

    /// Undoes all [`SimulatedEngine::set_cold`].
    pub fn clear_cold(&self) {
        self.machine.state().cold.clear();
    }

    // Callbacks during an I/O.

    /// Runs `hook` inside the next such I/O; it may do I/O on this machine. Several hooks for the
    /// same kind of I/O run in as many of them, in the order in which they were given.
    ///
    /// The hook is due when the I/O starts, so an I/O of the hook's own is not interrupted by it.
    pub fn on_next_io(&self, part: Part, op: Op, when: When, hook: Box<dyn FnOnce() + Send>) {
        self.machine.state().plan.hook(part, op, when, hook);
    }

    /// Sets the clock forward.
    pub fn advance_seconds(&self, seconds: u64) {
        self.machine.state().unix_seconds += seconds;
    }

    // Operations so far.

    /// I/Os since the machine started: of all kinds in [`Op`], over all parts.
    pub fn io_count(&self) -> u64 {
        self.machine.state().ios
    }

    /// How often this was asked of this part since the machine started or the counts were reset.
    pub fn count(&self, part: Part, op: Op) -> Count {
        self.machine
            .state()
            .counts
            .get(&(part, op))
            .copied()
            .unwrap_or_default()
    }

    /// How many such I/Os were made to fail since the machine started.
    pub fn failures(&self, part: Part, op: Op) -> u64 {
        let state = self.machine.state();
        state.failures.get(&(part, op)).copied().unwrap_or_default()
    }

    /// How often [`Disk::forget_cached`] was asked of this part since the
    /// machine started.
    pub fn times_forgotten(&self, part: Part) -> u64 {
        let state = self.machine.state();
        state.forgotten.get(&part).copied().unwrap_or_default()
    }

    /// Sets all of [`SimulatedEngine::count`] to zero.
    pub fn reset_counts(&self) {
        self.machine.state().counts.clear();
    }
}
