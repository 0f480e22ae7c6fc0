//! A test's orders to the hosts of a pool, and what it may look at.

use super::super::cluster::{OBJECT_BYTES, Rules};
use super::super::orders::CrashKind;
use super::super::random::Random;
use super::super::stop::Stop;
use super::super::{EPOCH_SECONDS, SimulatedEngine};
use super::calls::Calls;
use super::data::Shared;
use super::extents::Extents;
use super::{ClusterCounts, ClusterRates, Host, Pool, PoolState, SimulatedCluster, SimulatedHost};
use crate::Part;
use crate::cluster::{Owned, Rows};
use onefold_format::{Pba, Shard, SpaceExtent};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

impl SimulatedCluster {
    /// A pool without groups, shards and extents, and without faults until some are ordered.
    pub fn new(seed: u64) -> SimulatedCluster {
        let mut random = Random::new(seed);
        let rules = Rules {
            object_bytes: OBJECT_BYTES,
            is_fenced: true,
            is_asserted: true,
        };
        let shared = Shared::new(Random::new(random.next()), rules);
        let state = PoolState {
            random,
            rules,
            is_map_latest: true,
            is_number_kept: true,
            rates: ClusterRates::default(),
            hosts: BTreeMap::new(),
            owned: BTreeMap::new(),
            extents: Extents::new(),
            directory: Rows::default(),
            calls: Calls::default(),
            counts: ClusterCounts::default(),
            lost: BTreeMap::new(),
            last_client: 0,
            unix_seconds: EPOCH_SECONDS,
        };
        SimulatedCluster {
            pool: Arc::new(Pool {
                state: Mutex::new(state),
                shared: Arc::new(Mutex::new(shared)),
            }),
        }
    }

    /// The process of host `n`. If there is none, or it has died, this starts one, which knows all fences.
    ///
    /// A process that has died in an I/O is replaced on the same boot of the host, unless [`SimulatedCluster::kill`]
    /// says that the host has lost power.
    pub fn host(&self, n: usize) -> Arc<SimulatedHost> {
        let mut state = self.pool.state();
        let runs = state.hosts.get(&n).is_some_and(|host| !host.is_dead);
        if !runs {
            state.last_client += 1;
            let client = state.last_client;
            let host = state.hosts.entry(n).or_insert_with(|| Host::new(n));
            host.start(client);
            self.pool.shared().learn_map(client);
        }
        let client = state.hosts.get(&n).map_or(0, |host| host.client);
        Arc::new(SimulatedHost {
            pool: Arc::clone(&self.pool),
            number: n,
            client,
            on_event: Mutex::default(),
        })
    }

    /// Loses the index of a shard, unless a live process has the shard. Returns whether there was one.
    pub fn lose_index(&self, shard: Shard) -> bool {
        self.pool
            .state()
            .lose_part(Owned::Shard(shard), Part::Index)
    }

    /// The machine of what a host owns, or owned last since its power was lost: for orders that concern it alone. Its
    /// [`SimulatedEngine::crash_after`] and [`SimulatedEngine::halt`] end the process of the host.
    pub fn engine(&self, n: usize, what: Owned) -> Option<SimulatedEngine> {
        let state = self.pool.state();
        let machine = state.hosts.get(&n)?.machines.get(&what)?;
        Some(SimulatedEngine {
            machine: Arc::clone(machine),
        })
    }

    // Orders to hosts.

    /// Ends the process of a host, if it has not died already. A power loss also takes the memory that outlives
    /// processes, and the next process has another boot id. The host can reach the cluster afterwards.
    pub fn kill(&self, n: usize, kind: CrashKind) {
        let mut state = self.pool.state();
        let client = state.hosts.entry(n).or_insert_with(|| Host::new(n)).client;
        drop(state);
        self.pool.stop_process(n, client);
        let mut state = self.pool.state();
        let mut machines = BTreeMap::new();
        if let (Some(host), CrashKind::PowerLoss) = (state.hosts.get_mut(&n), kind) {
            machines = host.lose_power();
        }
        drop(state);
        drop(machines);
    }

    /// Ends the process of a host in the middle of its `nth` I/O from now (1 is the next). Operations on the cluster
    /// count as I/Os.
    pub fn kill_after(&self, n: usize, nth: u64) {
        let _ = self.host(n);
        if let Some(host) = self.pool.state().hosts.get_mut(&n) {
            host.ios_until_death = Some(nth.max(1));
        }
    }

    /// Whether the process of a host has died, and no other was started.
    pub fn is_dead(&self, n: usize) -> bool {
        self.of_host(n, |host| host.is_dead)
    }

    /// Cuts a host off from the cluster: each of its I/Os, operations and calls fails at once. An error on the log or in
    /// a sync is final for a store, so the host's stores have to be opened again. Data on its way may arrive.
    pub fn cut(&self, n: usize) {
        let _ = self.host(n);
        self.pool.cut(n);
    }

    /// Ends [`SimulatedCluster::cut`]. What another host has taken stays lost.
    pub fn heal(&self, n: usize) {
        let mut state = self.pool.state();
        let Some(host) = state.hosts.get_mut(&n) else {
            return;
        };
        host.is_cut = false;
        if !host.is_fenced && !host.is_dead {
            self.pool.shared().lose_late_of(host.client);
        }
        for machine in host.machines.values() {
            let stopped = &mut machine.state().stopped;
            if *stopped == Some(Stop::CutOff) {
                *stopped = None;
            }
        }
    }

    /// Freezes a host: it answers nothing, so others may take what it owns. Its code may be in the middle of an I/O,
    /// whose hook runs the other hosts.
    pub fn freeze(&self, n: usize) {
        let _ = self.host(n);
        self.set_frozen(n, true);
    }

    /// Ends [`SimulatedCluster::freeze`].
    pub fn wake(&self, n: usize) {
        self.set_frozen(n, false);
    }

    fn set_frozen(&self, n: usize, is_frozen: bool) {
        if let Some(host) = self.pool.state().hosts.get_mut(&n) {
            host.is_frozen = is_frozen;
        }
    }

    /// Whether another host has fenced the process of this one. It can do nothing any more, and has to be killed.
    pub fn is_fenced(&self, n: usize) -> bool {
        self.of_host(n, |host| host.is_fenced)
    }

    /// Whether a host is cut off.
    pub fn is_cut(&self, n: usize) -> bool {
        self.of_host(n, |host| host.is_cut)
    }

    /// I/Os of the process of a host.
    pub fn io_count(&self, n: usize) -> u64 {
        self.pool.state().hosts.get(&n).map_or(0, |host| host.ios)
    }

    fn of_host(&self, n: usize, look: impl FnOnce(&Host) -> bool) -> bool {
        self.pool.state().hosts.get(&n).is_some_and(look)
    }

    /// The host that owns something, even if its process is dead.
    pub fn owner(&self, what: Owned) -> Option<usize> {
        let state = self.pool.state();
        Some(state.owned.get(&what)?.owner.as_ref()?.host)
    }

    // Faults drawn at random.

    /// Sets the probabilities of faults between hosts.
    pub fn set_rates(&self, rates: ClusterRates) {
        self.pool.state().rates = rates;
    }

    /// The probability that a late operation on the data takes effect before an I/O of any host, and then another one.
    /// Each death and each fence draws one.
    pub fn set_late_rate(&self, rate: f64) {
        self.pool.shared().late_rate = rate;
    }

    // Rules. They must be set before there are groups.

    /// Makes objects smaller, so that a small pool has many.
    ///
    /// # Panics
    ///
    /// If there are groups or shards.
    pub fn set_object_bytes(&self, bytes: u64) {
        assert!(bytes > 0, "an object has bytes");
        self.set_rules(|rules| rules.object_bytes = bytes);
    }

    /// Whether an owner is fenced before its group or shard is taken. If not, its process can write data that it sent
    /// or sends, and late operations on its parts arrive at any time.
    ///
    /// # Panics
    ///
    /// As [`SimulatedCluster::set_object_bytes`].
    pub fn set_fenced(&self, is_fenced: bool) {
        self.set_rules(|rules| rules.is_fenced = is_fenced);
    }

    /// Whether guarded objects take operations only from the owner that opened their part last.
    ///
    /// # Panics
    ///
    /// As [`SimulatedCluster::set_object_bytes`].
    pub fn set_asserted(&self, is_asserted: bool) {
        self.set_rules(|rules| rules.is_asserted = is_asserted);
    }

    fn set_rules(&self, set: impl FnOnce(&mut Rules)) {
        let mut state = self.pool.state();
        assert!(state.owned.is_empty(), "there are groups already");
        set(&mut state.rules);
        self.pool.shared().set_rules(state.rules);
    }

    /// Whether an exchange gives its host the newest cluster map, so that data objects that it writes to take nothing
    /// of hosts that were fenced before. If not, a late write may land in an extent that another group has got.
    pub fn set_map_latest(&self, is_latest: bool) {
        self.pool.state().is_map_latest = is_latest;
    }

    /// Whether the cluster keeps a group's last exchange. If not, a repeat is one more exchange.
    pub fn set_numbers_kept(&self, are_kept: bool) {
        self.pool.state().is_number_kept = are_kept;
    }

    // The pool.

    /// Sets how many space extents the pool has. Their numbers begin at 1.
    pub fn set_extents(&self, extents: u64) {
        self.pool.state().extents.set_count(extents);
    }

    /// Makes `leased` the extents of groups, of all below `end`. No group has taken one before.
    pub fn set_leased(&self, end: u64, leased: &[SpaceExtent]) {
        self.pool.state().extents.set_leased(end, leased);
    }

    /// Whether an extent was taken, and not given as a whole since.
    pub fn is_out(&self, extent: SpaceExtent) -> bool {
        self.pool.state().extents.is_out(extent)
    }

    /// The blocks that were given of extents that are out.
    pub fn given_blocks(&self) -> Vec<Pba> {
        self.pool.state().extents.parts().collect()
    }

    /// Sets the clocks of all hosts forward.
    pub fn advance_seconds(&self, seconds: u64) {
        self.pool.state().advance_seconds(seconds);
    }

    // Calls.

    /// Delivers one of the calls that were kept. Returns whether there was one.
    pub fn deliver_late_call(&self) -> bool {
        self.pool.deliver_one()
    }

    /// The number of calls that may still reach an owner although no caller waits for them.
    pub fn calls_kept(&self) -> usize {
        self.pool.calls_kept()
    }

    /// Ends all calls that wait for a reply, as if their time had passed.
    pub fn time_out_calls(&self) {
        self.pool.time_out_calls();
    }

    // What has happened.

    /// Counts since the pool was made.
    pub fn counts(&self) -> ClusterCounts {
        self.pool.state().counts
    }

    /// The number of data objects for which operations of dead or fenced processes are in flight.
    pub fn objects_with_late(&self) -> usize {
        self.pool.shared().objects_with_late()
    }

    /// How many late operations have changed the data.
    pub fn landed_late(&self) -> u64 {
        self.pool.shared().landed_late
    }

    /// How many late operations the data's objects have refused, because of a fence.
    pub fn refused_late(&self) -> u64 {
        self.pool.shared().refused_late
    }
}
