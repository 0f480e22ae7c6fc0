//! Hosts, their groups, and the requests to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onefold_engine::Cluster;
use onefold_engine::cluster::{Owned, OwnerEvent, TakeOptions};
use onefold_engine::simulated::{CrashKind, SimulatedCluster};
use onefold_format::{GroupId, PoolId, Shard, WhenFull};
use onefold_store::{
    Blocking, DedupMode, HostOptions, Lba, PreparedRead, Ready, SharedDescription, SharedPool,
    Store, StoreError, StoreErrorKind, Volume, VolumeOptions, VolumeSettings,
};

use crate::conversion;
use crate::model::{Block, Content, VolumeModel};

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const HOSTS: usize = 3;
pub(crate) const GROUPS: usize = 4;
pub(crate) const SHARDS: u16 = 4;
pub(crate) const EXTENTS: u64 = 40;

/// So many groups find their duplicates off-line, and the others in line.
const OFF_LINE: usize = 2;
pub(crate) const VOLUME_BLOCKS: u64 = 48;

/// The least free blocks of a group where they are scarce; at most twice as many are left.
const FREE_BLOCKS_MIN: u64 = 12;

/// Steps after which a job that is still not done never will be.
const STEPS_MAX: usize = 200;

/// What must not happen.
pub(crate) type Violation = String;

/// The result of a step.
pub(crate) type Step = Result<(), Violation>;

pub(crate) struct Xorshift(u64);

impl Xorshift {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A host's process.
pub(crate) struct Process {
    pub(crate) pool: Arc<SharedPool>,
}

pub(crate) struct World {
    pub(crate) cluster: SimulatedCluster,
    description: SharedDescription,
    pub(crate) random: Xorshift,
    pub(crate) hosts: Vec<Option<Process>>,
    /// The host on which each group was opened last.
    pub(crate) homes: BTreeMap<GroupId, usize>,
    pub(crate) volumes: BTreeMap<GroupId, VolumeModel>,
    /// Reads that have found their blocks and have not read them.
    pending: Vec<PendingRead>,
    /// Blocks that were not written because of hits.
    pub(crate) hits: u64,
    /// Checks of the pool that ended before the groups came to rest.
    pub(crate) checks: u64,
    /// Rebuilds of the index that ended, and the blocks that they gave to the pool.
    pub(crate) rebuilds: u64,
    pub(crate) given_back: u64,
    /// The index has to be rebuilt.
    pub(crate) is_index_lost: bool,
    /// Groups have few free blocks, and the pool has no more.
    is_scarce: bool,
    trace: bool,
}

/// A read of one block that waits for the disk.
struct PendingRead {
    group: GroupId,
    host: usize,
    lba: u64,
    read: PreparedRead,
    /// What the block had since the read began.
    possible: BTreeSet<Content>,
}

/// What the pool of a run was before groups shared it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nothing.
    New,
    /// A pool with one owner, which is the first group now.
    Converted,
}

pub(crate) fn take_options() -> TakeOptions {
    TakeOptions {
        patience: Duration::ZERO,
        asks: false,
        fence_interval: Duration::from_secs(3600),
    }
}

pub(crate) fn options(host: usize) -> HostOptions {
    HostOptions {
        host: format!("host{host}"),
        memory_bytes: 256 << 20,
        groups_max: 8,
        log_bytes: 256 << 10,
        when_full: WhenFull::Fail,
        take: take_options(),
        call_timeout: Duration::from_secs(1),
    }
}

impl Drop for World {
    /// The pool's handlers refer to its hosts.
    fn drop(&mut self) {
        (0..HOSTS).for_each(|host| self.cluster.kill(host, CrashKind::ProcessKilled));
    }
}

impl World {
    /// A pool with groups of one volume each, spread over the hosts.
    pub(crate) fn new(seed: u64, is_scarce: bool) -> Result<Self, Violation> {
        Self::with(seed, is_scarce, Origin::New)
    }

    pub(crate) fn with(seed: u64, is_scarce: bool, origin: Origin) -> Result<Self, Violation> {
        Self::on(SimulatedCluster::new(seed), seed, is_scarce, origin)
    }

    pub(crate) fn on(
        cluster: SimulatedCluster,
        seed: u64,
        is_scarce: bool,
        origin: Origin,
    ) -> Result<Self, Violation> {
        cluster.set_extents(EXTENTS);
        let mut random = Xorshift::new(seed);
        let (description, first) = match origin {
            Origin::Converted => {
                let (description, volume) = conversion::convert_into(&cluster, &mut random, seed)?;
                (description, Some(volume))
            }
            Origin::New => {
                let description = SharedDescription {
                    pool: PoolId([7; 16]),
                    block_size: BLOCK as u32,
                    shards: SHARDS,
                };
                let made = SharedPool::create(&*cluster.host(0), &description, &take_options());
                made.map_err(|error| format!("creating the pool: {error}"))?;
                (description, None)
            }
        };
        let mut world = Self {
            cluster,
            description,
            random,
            hosts: (0..HOSTS).map(|_| None).collect(),
            homes: BTreeMap::new(),
            volumes: BTreeMap::new(),
            pending: Vec::new(),
            hits: 0,
            checks: 0,
            rebuilds: 0,
            given_back: 0,
            is_index_lost: false,
            is_scarce: false,
            trace: std::env::var_os("ONEFOLD_SIM_TRACE").is_some(),
        };
        let made = first.iter().len();
        if let Some(volume) = first {
            world.homes.insert(conversion::GROUP, 0);
            world.volumes.insert(conversion::GROUP, volume);
        }
        for host in 0..HOSTS {
            world.start(host)?;
        }
        if made > 0 {
            let store = world.process(0)?.pool.store(conversion::GROUP);
            let store = store.ok_or("the converted group is not open")?;
            let deleted = conversion::delete_rest(&store);
            let ended = deleted.and_then(|()| store.deletions().finish(&mut |_, _| {}));
            ended.map_err(|error| format!("deleting the rest of the old pool: {error}"))?;
        }
        for n in made..GROUPS {
            let host = n % HOSTS;
            let process = world.process(host)?;
            let made = process.pool.create_group().and_then(|(group, store)| {
                let options = VolumeOptions::new(VOLUME_BLOCKS * BLOCK).with(VolumeSettings {
                    dedup: if n < OFF_LINE {
                        DedupMode::Offline
                    } else {
                        DedupMode::Inline
                    },
                    ..VolumeSettings::default()
                });
                store.create_volume(&format!("vm{n}"), &options)?;
                Ok(group)
            });
            let group = made.map_err(|error| format!("creating group {n}: {error}"))?;
            world.homes.insert(group, host);
            let model = VolumeModel {
                name: format!("vm{n}"),
                blocks: vec![Block::zeros(); VOLUME_BLOCKS as usize],
            };
            world.volumes.insert(group, model);
        }
        if is_scarce {
            world.make_scarce()?;
        }
        Ok(world)
    }

    /// Leaves each group few free blocks, and the pool none.
    fn make_scarce(&mut self) -> Step {
        let groups: Vec<GroupId> = self.volumes.keys().copied().collect();
        for group in &groups {
            self.balance(*group)?;
        }
        self.cluster.set_extents(0);
        self.is_scarce = true;
        groups.iter().try_for_each(|group| self.leave_few(*group))
    }

    pub(crate) fn is_scarce(&self) -> bool {
        self.is_scarce
    }

    fn leave_few(&mut self, group: GroupId) -> Step {
        let kept = FREE_BLOCKS_MIN + self.random.below(FREE_BLOCKS_MIN);
        match self.find(group) {
            Some((host, store, _)) if self.is_scarce => {
                let left = store.space().leave_free(kept);
                left.or_else(|error| self.excused(host, "filling the pool", &error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", what());
        }
    }

    pub(crate) fn process(&self, host: usize) -> Result<&Process, Violation> {
        let process = self.hosts[host].as_ref();
        process.ok_or_else(|| format!("host {host} does not run"))
    }

    /// Whether nothing in the cluster explains an error of this host.
    fn is_well(&self, host: usize) -> bool {
        !self.cluster.is_dead(host) && !self.cluster.is_cut(host) && !self.cluster.is_fenced(host)
    }

    // Hosts.

    /// Starts a host's process, which opens its groups and serves the shards that it prefers.
    pub(crate) fn start(&mut self, host: usize) -> Step {
        self.note(|| format!("start {host}"));
        let node = self.cluster.host(host);
        let cluster: Arc<dyn Cluster> = node.clone();
        let opened = SharedPool::open(cluster, self.description, options(host), None);
        let pool = match opened {
            Ok(pool) => Arc::new(pool),
            Err(error) => return self.excused(host, "starting", &error),
        };
        let asked = Arc::downgrade(&pool);
        node.on_event(Arc::new(move |owned, event| {
            if let (Owned::Shard(shard), OwnerEvent::ReleaseWanted) = (owned, event)
                && let Some(pool) = asked.upgrade()
            {
                // The index of a host that cannot write is closed without its last words.
                let _ = pool.close_shard(shard);
            }
        }));
        self.hosts[host] = Some(Process { pool });
        let groups = match self.process(host)?.pool.own_groups() {
            Ok(groups) => groups,
            Err(error) => return self.excused(host, "listing groups", &error),
        };
        for group in groups {
            self.open(host, group)?;
        }
        let served = self.process(host)?.pool.serve_preferred();
        served.or_else(|error| self.excused(host, "serving shards", &error))
    }

    /// Opens a group on a host, which takes it from its owner unless that is alive.
    pub(crate) fn open(&mut self, host: usize, group: GroupId) -> Step {
        self.note(|| format!("host {host} opens group {group}"));
        let owner = self.cluster.owner(Owned::Group(group));
        let opened = self.process(host)?.pool.open_group(group, false);
        // A host that takes a group may die before it has opened it.
        let is_taken = !opened.as_ref().is_err_and(|error| {
            let is_held = error.kind() == StoreErrorKind::Busy;
            is_held && self.cluster.owner(Owned::Group(group)) == owner
        });
        if is_taken
            && self.homes.get(&group) != Some(&host)
            && let Some(volume) = self.volumes.get_mut(&group)
        {
            volume.blocks.iter_mut().for_each(Block::lose);
        }
        match opened {
            Ok(_) => {
                self.homes.insert(group, host);
                self.leave_few(group)
            }
            Err(error) if error.kind() == StoreErrorKind::Busy => Ok(()),
            Err(error) => self.excused(host, "opening a group", &error),
        }
    }

    /// Ends a host's process.
    pub(crate) fn kill(&mut self, host: usize, kind: CrashKind) {
        self.note(|| format!("kill {host} {kind:?}"));
        self.cluster.kill(host, kind);
        self.bury(host, kind);
    }

    /// Forgets the process of a dead host.
    pub(crate) fn bury(&mut self, host: usize, kind: CrashKind) {
        self.hosts[host] = None;
        self.pending.retain(|pending| pending.host != host);
        if kind == CrashKind::PowerLoss {
            for (group, home) in &self.homes {
                if *home == host
                    && let Some(volume) = self.volumes.get_mut(group)
                {
                    volume.blocks.iter_mut().for_each(Block::lose);
                }
            }
        }
    }

    /// Closes all that a host owns, and ends its process.
    pub(crate) fn stop(&mut self, host: usize) -> Step {
        self.note(|| format!("stop {host}"));
        self.pending.retain(|pending| pending.host != host);
        let Some(process) = self.hosts[host].take() else {
            return Ok(());
        };
        let closed = process.pool.close();
        drop(process);
        closed.or_else(|error| self.excused(host, "closing", &error))
    }

    // Requests.

    /// The host that has a group open, its store, and the group's volume.
    pub(crate) fn find(&self, group: GroupId) -> Option<(usize, Arc<Store>, Arc<Volume>)> {
        let host = *self.homes.get(&group)?;
        let store = self.hosts[host].as_ref()?.pool.store(group)?;
        let volume = store.volume(&self.volumes.get(&group)?.name).ok()?;
        Some((host, store, volume))
    }

    pub(crate) fn write(&mut self, group: GroupId, lba: u64, contents: &[Content]) -> Step {
        let Some((host, _, volume)) = self.find(group) else {
            return Ok(());
        };
        self.note(|| format!("write {group} {lba} {contents:?}"));
        for (n, content) in contents.iter().enumerate() {
            self.begin(group, lba + n as u64, *content);
        }
        let bytes: Vec<u8> = contents
            .iter()
            .flat_map(|content| bytes_of(*content))
            .collect();
        let hits_before = volume.inline_stat().hit_blocks;
        let written = volume.write(lba * BLOCK, &bytes, Blocking::Yes);
        self.hits += volume.inline_stat().hit_blocks - hits_before;
        match written {
            Ok(()) => {
                for (n, content) in contents.iter().enumerate() {
                    self.block(group, lba + n as u64).answered(*content);
                }
                Ok(())
            }
            Err(error) => self.excused(host, "writing", &error),
        }
    }

    /// Notes a write of one block that has ended.
    pub(crate) fn wrote(&mut self, group: GroupId, lba: u64, content: Content, is_answered: bool) {
        self.begin(group, lba, content);
        if is_answered {
            self.block(group, lba).answered(content);
        }
    }

    pub(crate) fn trim(&mut self, group: GroupId, lba: u64, count: u64) -> Step {
        let Some((host, _, volume)) = self.find(group) else {
            return Ok(());
        };
        self.note(|| format!("trim {group} {lba} {count}"));
        (lba..lba + count).for_each(|lba| self.begin(group, lba, 0));
        match volume.trim(lba * BLOCK, count * BLOCK, Blocking::Yes) {
            Ok(()) => {
                (lba..lba + count).for_each(|lba| self.block(group, lba).answered(0));
                Ok(())
            }
            Err(error) => self.excused(host, "trimming", &error),
        }
    }

    pub(crate) fn flush(&mut self, group: GroupId) -> Step {
        let Some((host, _, volume)) = self.find(group) else {
            return Ok(());
        };
        self.note(|| format!("flush {group}"));
        match volume.flush() {
            Ok(()) => {
                let volume = self.volumes.get_mut(&group).ok_or("no such group")?;
                volume.blocks.iter_mut().for_each(Block::flushed);
                Ok(())
            }
            Err(error) => self.excused(host, "flushing", &error),
        }
    }

    /// Reads a whole volume, and compares it with the model.
    pub(crate) fn read(&mut self, group: GroupId) -> Step {
        let Some((host, _, volume)) = self.find(group) else {
            return Ok(());
        };
        for lba in 0..VOLUME_BLOCKS {
            let mut found = vec![0; BLOCK as usize];
            if let Err(error) = volume.read(lba * BLOCK, &mut found, Blocking::Yes) {
                return self.excused(host, "reading", &error);
            }
            let content = content_of(&found);
            let possible = self.block(group, lba).now.clone();
            if !self.block(group, lba).found(content) {
                return Err(format!(
                    "P5: block {lba} of group {group} has {content}, and not one of {possible:?}"
                ));
            }
        }
        Ok(())
    }

    /// Begins a read of a block, which ends later.
    pub(crate) fn begin_read(&mut self, group: GroupId, lba: u64) {
        let Some((host, _, volume)) = self.find(group) else {
            return;
        };
        if let Some(read) = volume.prepare_read(lba * BLOCK, BLOCK as usize) {
            self.note(|| format!("begin to read {group} {lba}"));
            let possible = self.block(group, lba).now.clone();
            self.pending.push(PendingRead {
                group,
                host,
                lba,
                read,
                possible,
            });
        }
    }

    /// Ends the read that began first.
    pub(crate) fn end_read(&mut self) -> Step {
        if self.pending.is_empty() {
            return Ok(());
        }
        let PendingRead {
            group,
            lba,
            read,
            possible,
            ..
        } = self.pending.remove(0);
        self.note(|| format!("end the read of {group} {lba}"));
        let found = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&found);
        read.start(move |bytes| {
            let mut block = vec![0; BLOCK as usize];
            *kept.lock().unwrap() = bytes.map(|bytes| {
                bytes.copy_to(&mut block);
                block
            });
        });
        let found = found.lock().unwrap().take();
        match found.map(|bytes| content_of(&bytes)) {
            Some(content) if !possible.contains(&content) => Err(format!(
                "P3: a read of block {lba} of group {group} got {content}, and not one of {possible:?}"
            )),
            _ => Ok(()),
        }
    }

    /// Notes that a block is about to get this content.
    fn begin(&mut self, group: GroupId, lba: u64, content: Content) {
        self.block(group, lba).begin(content);
        let pending = self.pending.iter_mut();
        pending
            .filter(|pending| (pending.group, pending.lba) == (group, lba))
            .for_each(|pending| {
                pending.possible.insert(content);
            });
    }

    fn block(&mut self, group: GroupId, lba: u64) -> &mut Block {
        let volume = self.volumes.get_mut(&group).unwrap();
        &mut volume.blocks[lba as usize]
    }

    // Jobs.

    /// Runs one batch of the finder over a volume.
    pub(crate) fn find_duplicates(&mut self, group: GroupId) -> Result<bool, Violation> {
        let Some((host, store, volume)) = self.find(group) else {
            return Ok(false);
        };
        self.note(|| format!("find {group}"));
        let mut cursor = Lba(0);
        match store.dedup().find_batch(&volume, &mut cursor, Ready::All) {
            Ok(report) => Ok(report.scanned > 0),
            Err(error) => self.excused(host, "finding", &error).map(|()| true),
        }
    }

    /// Runs one batch of the collector.
    pub(crate) fn collect(&mut self, group: GroupId) -> Result<bool, Violation> {
        let Some((host, store, _)) = self.find(group) else {
            return Ok(false);
        };
        self.note(|| format!("collect {group}"));
        match store.dedup().collect_batch() {
            Ok(report) => {
                if report.quarantined > 0 {
                    return Err(format!(
                        "P4: group {group} released {} references that the index does not know",
                        report.quarantined
                    ));
                }
                Ok(report.released > 0)
            }
            Err(error) => self.excused(host, "collecting", &error).map(|()| true),
        }
    }

    /// Has the index count one batch of claims.
    pub(crate) fn count(&mut self, group: GroupId) -> Result<bool, Violation> {
        let Some((host, store, _)) = self.find(group) else {
            return Ok(false);
        };
        self.note(|| format!("count {group}"));
        match store.dedup().count_batch() {
            Ok(report) if report.quarantined > 0 => Err(format!(
                "P4: group {group} has {} claims on blocks that the index does not know",
                report.quarantined
            )),
            Ok(report) => Ok(report.counted > 0),
            Err(error) => self.excused(host, "counting", &error).map(|()| true),
        }
    }

    /// Ends a group's holds. Returns whether there may be some.
    pub(crate) fn end_holds(&mut self, group: GroupId) -> Result<bool, Violation> {
        let Some((host, store, _)) = self.find(group) else {
            return Ok(false);
        };
        if !store.dedup().may_hold() {
            return Ok(false);
        }
        self.note(|| format!("end holds {group}"));
        let ended = store.dedup().end_holds();
        ended.map_or_else(
            |error| self.excused(host, "ending holds", &error).map(|()| true),
            |_| Ok(true),
        )
    }

    pub(crate) fn tidy(&mut self, group: GroupId, commit: bool) -> Step {
        let Some((host, store, _)) = self.find(group) else {
            return Ok(());
        };
        let tidied = store.tidy(commit);
        tidied.or_else(|error| self.excused(host, "tidying", &error))
    }

    pub(crate) fn balance(&mut self, group: GroupId) -> Result<bool, Violation> {
        let Some((host, store, _)) = self.find(group) else {
            return Ok(false);
        };
        self.note(|| format!("balance {group}"));
        match store.space().balance() {
            Ok(has_changed) => Ok(has_changed),
            Err(error) => self.excused(host, "balancing", &error).map(|()| true),
        }
    }

    pub(crate) fn serve(&mut self, host: usize, shard: Shard) -> Step {
        let owner = self.cluster.owner(Owned::Shard(shard));
        if self.hosts[host].is_none() || owner.is_some_and(|owner| self.hosts[owner].is_some()) {
            return Ok(());
        }
        self.note(|| format!("host {host} serves shard {shard}"));
        let served = self.process(host)?.pool.serve_shard(shard);
        match served {
            Ok(_) => Ok(()),
            Err(error) => self.excused(host, "serving a shard", &error),
        }
    }

    /// Serves all shards that nobody serves.
    pub(crate) fn serve_all(&mut self, host: usize) -> Step {
        (0..SHARDS).try_for_each(|shard| self.serve(host, Shard(shard)))
    }

    /// An error is a violation unless something explains it: the host's state, an operation of the cluster whose outcome
    /// is lost, or a shard that does not answer or has lost its rows.
    pub(crate) fn excused(&self, host: usize, doing: &str, error: &StoreError) -> Step {
        self.note(|| format!("  {doing}: {:?}: {error}", error.kind()));
        let is_known = matches!(
            error.kind(),
            StoreErrorKind::Busy
                | StoreErrorKind::Paused
                | StoreErrorKind::ReadOnly
                | StoreErrorKind::Io
        ) || self.is_scarce && error.kind() == StoreErrorKind::NoSpace
            || self.is_index_lost && error.to_string().contains("the index is");
        if !self.is_well(host) || is_known {
            Ok(())
        } else {
            Err(format!(
                "{doing} on host {host}: {:?}: {error}",
                error.kind()
            ))
        }
    }

    /// Brings everything back, lets all jobs end, and returns whether all groups are served.
    pub(crate) fn come_to_rest(&mut self) -> Step {
        self.note(|| "come to rest".to_owned());
        while !self.pending.is_empty() {
            self.end_read()?;
        }
        self.is_scarce = false;
        self.cluster.set_extents(EXTENTS);
        self.cluster.set_rates(Default::default());
        for host in 0..HOSTS {
            self.cluster.heal(host);
            self.cluster.wake(host);
            // A store that met an error takes no writes; the next process does.
            if !self.cluster.is_dead(host) {
                self.kill(host, CrashKind::ProcessKilled);
            } else {
                self.bury(host, CrashKind::ProcessKilled);
            }
        }
        while self.cluster.deliver_late_call() {}
        for host in 0..HOSTS {
            self.start(host)?;
        }
        (0..HOSTS).try_for_each(|host| self.serve_all(host))?;
        if self.is_index_lost {
            self.rebuild(0)?;
            if self.is_index_lost {
                return Err("the index is not rebuilt, though all hosts are well".to_owned());
            }
        }
        let groups: Vec<GroupId> = self.volumes.keys().copied().collect();
        for group in &groups {
            if self.find(*group).is_none() {
                return Err(format!(
                    "group {group} is not open, though all hosts are well"
                ));
            }
            self.read(*group)?;
        }
        for steps in 0.. {
            let mut is_busy = false;
            for group in &groups {
                is_busy |= self.find_duplicates(*group)?;
                is_busy |= self.collect(*group)?;
                is_busy |= self.count(*group)?;
                is_busy |= self.end_holds(*group)?;
                self.flush(*group)?;
                self.tidy(*group, true)?;
            }
            if !is_busy {
                break;
            }
            if steps > STEPS_MAX {
                return Err("the jobs never end".to_owned());
            }
        }
        groups.iter().try_for_each(|group| self.read(*group))
    }
}

impl World {
    /// Deletes all volumes, lets all jobs end, and gives all space to the pool.
    pub(crate) fn delete_all(&mut self) -> Step {
        self.note(|| "delete all".to_owned());
        let failed = |error: StoreError| format!("deleting a volume: {error}");
        let stores: Vec<Arc<Store>> = (0..HOSTS)
            .filter_map(|host| self.hosts[host].as_ref())
            .flat_map(|process| process.pool.stores())
            .map(|(_, store)| store)
            .collect();
        for store in &stores {
            for name in store.volumes().names() {
                store.delete_volume(&name).map_err(failed)?;
            }
            while store.deletions().step().map_err(failed)?.is_some() {}
        }
        self.volumes.clear();
        // What one group frees may complete an extent for another.
        for _ in 0..2 {
            for store in &stores {
                while store.dedup().collect_batch().map_err(failed)?.released > 0 {}
                store.tidy(true).map_err(failed)?;
                store.tidy(true).map_err(failed)?;
                store.space().give_all().map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The bytes of a block with this content.
pub(crate) fn bytes_of(content: Content) -> Vec<u8> {
    content
        .to_le_bytes()
        .iter()
        .copied()
        .cycle()
        .take(BLOCK as usize)
        .collect()
}

/// The content of a block; `u64::MAX` for bytes that no request wrote.
fn content_of(bytes: &[u8]) -> Content {
    let content = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    if bytes_of(content) == bytes {
        content
    } else {
        u64::MAX
    }
}
