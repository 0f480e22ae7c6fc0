//! A shared pool as one host serves it: the groups and the shards that it owns.
//!
//! A host opens the groups that the directory gives to it, and any that it takes from others. It serves the shards that
//! it prefers, and those that nobody serves when one of its groups needs them. Guests need no shard.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use onefold_engine::cluster::{Owned, TakeError, TakeOptions};
use onefold_engine::{Cluster, Disk, Engine, Holding, Part};
use onefold_format::{GroupId, IndexKind, PoolId, Shard, WhenFull};
use onefold_index::sharded::Sharded;
use onefold_metadata::sync::{Mutex, lock};
use onefold_metadata::{Result, StoreError, StoreErrorKind};

use super::Shared;
use super::counted::GroupCensus;
use super::directory::Names;
use super::missed::{Missed, Noting};
use super::shards::OpenShard;
use crate::creation::{self, GroupOptions};
use crate::recovery::{self, OpenOptions, RecoveryReport};
use crate::store::Store;

/// The part of the memory for shards.
pub(super) const SHARDS_MEMORY_PART: u64 = 8;

/// The part of the memory for a check of the pool; the rest is for groups.
pub(super) const CHECK_MEMORY_PART: u64 = 16;

/// The least memory of a group's store, in bytes.
pub const GROUP_BYTES_MIN: u64 = 16 << 20;

/// The permanent properties of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedDescription {
    /// The pool's id.
    pub pool: PoolId,
    /// Bytes in a block: 4096, 8192, 16384 or 65536.
    pub block_size: u32,
    /// Shards of the index: a power of two, up to [`SHARDS_MAX`](onefold_format::units::SHARDS_MAX).
    pub shards: u16,
}

/// How a host serves a shared pool.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// The host's name among those that share the pool.
    pub host: String,
    /// The memory of all groups and shards together, in bytes.
    pub memory_bytes: u64,
    /// The most groups that are open at a time: each gets an equal share of the memory.
    pub groups_max: u64,
    /// Bytes in the ring of a new group's log.
    pub log_bytes: u64,
    /// How writes end for which the pool has no room.
    pub when_full: WhenFull,
    /// How groups and shards are taken.
    pub take: TakeOptions,
    /// How long a call to a shard may take.
    pub call_timeout: Duration,
}

/// A shared pool, and what this host owns of it.
pub struct SharedPool {
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) description: SharedDescription,
    pub(super) options: HostOptions,
    groups: Mutex<BTreeMap<GroupId, OpenGroup>>,
    pub(super) shards: Mutex<BTreeMap<Shard, OpenShard>>,
    /// The turn to take a shard, which may wait for its owner. Before the lock of the shards, which calls need.
    pub(super) taking_shard: Mutex<()>,
    pub(super) missed: Arc<Missed>,
    pub(super) wake: Option<Wake>,
}

/// Wakes the threads of a host.
#[derive(Clone)]
pub struct Wake {
    /// Called when [`SharedPool::answer_calls`] has work.
    pub calls: Arc<dyn Fn() + Send + Sync>,
    /// Called when [`SharedPool::count_groups`] has work.
    pub census: Arc<dyn Fn() + Send + Sync>,
}

struct OpenGroup {
    store: Arc<Store>,
    census: Arc<GroupCensus>,
    /// Given up after the store is closed.
    _holding: Arc<dyn Holding>,
}

impl SharedPool {
    /// Makes the parts that all groups of a new pool have in common: the shards of the index, the secret, the label.
    ///
    /// # Errors
    ///
    /// `Exists` if there is a shard already, `Io`.
    pub fn create(
        cluster: &dyn Cluster,
        description: &SharedDescription,
        take: &TakeOptions,
    ) -> Result<()> {
        let SharedDescription {
            pool,
            block_size,
            shards,
        } = *description;
        for shard in (0..shards).map(Shard) {
            let (holding, _) = create_shard(cluster, shard, pool, take)?;
            if shard == Shard(0) {
                creation::create_shared(&*holding, pool, block_size)?;
            }
        }
        Names(cluster.directory()).set_created()
    }

    /// A pool of which this host owns nothing yet. Without `wake`, calls to shards are executed by the threads that bring
    /// them, which then wait.
    ///
    /// # Errors
    ///
    /// `Invalid` if the groups would have too little memory, or if the creation of the pool did not end; `Io`.
    pub fn open(
        cluster: Arc<dyn Cluster>,
        description: SharedDescription,
        options: HostOptions,
        wake: Option<Wake>,
    ) -> Result<Self> {
        let most = groups_max(options.memory_bytes);
        if options.groups_max == 0 || options.groups_max > most {
            let message = format!(
                "{} groups at a time are impossible: with this memory there can be 1 to {most}",
                options.groups_max
            );
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        if !Names(cluster.directory()).is_created()? {
            let message = "the creation of the pool was interrupted, and it can have no volumes: remove it, and create it \
                           again";
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        let missed = Arc::<Missed>::default();
        let cluster = Arc::new(Noting {
            cluster,
            missed: Arc::clone(&missed),
        });
        let pool = Self {
            cluster,
            description,
            options,
            groups: Mutex::default(),
            shards: Mutex::default(),
            taking_shard: Mutex::default(),
            missed,
            wake,
        };
        pool.names().set_host(&pool.options.host, "")?;
        Ok(pool)
    }

    fn names(&self) -> Names<'_> {
        Names(self.cluster.directory())
    }

    pub(super) fn cluster(&self) -> &dyn Cluster {
        &*self.cluster
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.options.call_timeout
    }

    /// The memory of all groups and shards together, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.options.memory_bytes
    }

    /// The host's name among those that share the pool.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.options.host
    }

    /// How writes end for which the pool has no room, in new groups.
    #[must_use]
    pub fn when_full(&self) -> WhenFull {
        self.options.when_full
    }

    /// The pool's permanent properties.
    #[must_use]
    pub fn description(&self) -> SharedDescription {
        self.description
    }

    // Groups.

    /// An open group that has nothing: no volume, and nothing that is being imported or deleted.
    #[must_use]
    pub fn empty_group(&self) -> Option<Arc<Store>> {
        let mut stores = self.stores().into_iter().map(|(_, store)| store);
        stores.find(|store| store.pool.journal().maps().layers().is_empty())
    }

    /// The stores of the groups that are open, by the groups' numbers.
    #[must_use]
    pub fn stores(&self) -> Vec<(GroupId, Arc<Store>)> {
        let groups = lock(&self.groups);
        let stores = groups.iter();
        stores
            .map(|(group, open)| (*group, Arc::clone(&open.store)))
            .collect()
    }

    /// The store of an open group.
    #[must_use]
    pub fn store(&self, group: GroupId) -> Option<Arc<Store>> {
        let groups = lock(&self.groups);
        groups.get(&group).map(|open| Arc::clone(&open.store))
    }

    /// All groups of the pool, and the hosts that open them.
    ///
    /// # Errors
    ///
    /// `Io`; `Damaged` for a row of the directory.
    pub fn groups(&self) -> Result<BTreeMap<GroupId, String>> {
        self.names().groups()
    }

    /// All volumes of the pool, and their groups.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::groups`].
    pub fn volumes(&self) -> Result<BTreeMap<String, GroupId>> {
        self.names().volumes()
    }

    /// All hosts that ever opened the pool.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::groups`].
    pub fn hosts(&self) -> Result<Vec<String>> {
        Ok(self.names().hosts()?.into_keys().collect())
    }

    /// The groups that the directory gives to this host and that are not open.
    ///
    /// # Errors
    ///
    /// As [`SharedPool::groups`].
    pub fn own_groups(&self) -> Result<Vec<GroupId>> {
        let ours = self.names().groups()?.into_iter();
        let open = lock(&self.groups);
        let ours =
            ours.filter(|(group, host)| *host == self.options.host && !open.contains_key(group));
        Ok(ours.map(|(group, _)| group).collect())
    }

    /// Makes a group, and opens it.
    ///
    /// # Errors
    ///
    /// `Busy` if no more groups can be open; `Io`.
    pub fn create_group(&self) -> Result<(GroupId, Arc<Store>)> {
        self.check_room_for_group()?;
        let group = self.names().add_group(&self.options.host)?;
        self.make(Owned::Group(group))?;
        let holding = take_owned(&*self.cluster, Owned::Group(group), &self.options.take)?;
        self.make_parts(group, &*holding)?;
        let (store, _) = self.open_holding(group, holding)?;
        Ok((group, store))
    }

    /// Opens a group, which becomes this host's. A live owner keeps it, unless `asks`: then it is asked to give it up.
    ///
    /// # Errors
    ///
    /// `Busy` if it has a live owner, or if no more groups can be open; those of [`Store::open`].
    pub fn open_group(&self, group: GroupId, asks: bool) -> Result<(Arc<Store>, RecoveryReport)> {
        self.check_room_for_group()?;
        let take = TakeOptions {
            asks,
            ..self.options.take
        };
        // A group whose maker died may lack anything, and never had a volume.
        let may_be_unmade = self.names().volumes_of(group)?.is_empty();
        if may_be_unmade {
            self.make(Owned::Group(group))?;
        }
        let holding = take_owned(&*self.cluster, Owned::Group(group), &take)?;
        if may_be_unmade {
            self.make_parts(group, &*holding)?;
        }
        self.names().set_host_of(group, &self.options.host)?;
        self.open_holding(group, holding)
    }

    /// Makes a group or a shard, unless it is there.
    pub(super) fn make(&self, what: Owned) -> Result<()> {
        match self.cluster.create(what) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(StoreError::io(format_args!("creating {what}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the parts of a group without volumes, unless it has a root.
    fn make_parts(&self, group: GroupId, holding: &dyn Engine) -> Result<()> {
        match recovery::identify(holding) {
            Ok(_) => return Ok(()),
            Err(error) => match error.kind() {
                StoreErrorKind::MissingPart | StoreErrorKind::Damaged => {
                    // A group that was open has exchanged space, and is not made anew.
                    let last = self.cluster.last_exchange(group);
                    let failed = |e| StoreError::io(format_args!("opening group {group}"), e);
                    if last.map_err(failed)?.is_some() {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            },
        }
        for part in [Part::Superblock, Part::Meta, Part::Log] {
            let removed = holding.remove(part);
            removed.map_err(|error| StoreError::io(holding.describe(part), error))?;
        }
        creation::create_group(holding, &self.group_options(group))
    }

    fn group_options(&self, group: GroupId) -> GroupOptions {
        GroupOptions {
            pool: self.description.pool,
            group,
            block_size: self.description.block_size,
            log_bytes: self.options.log_bytes,
            when_full: self.options.when_full,
        }
    }

    fn check_room_for_group(&self) -> Result<()> {
        let open = lock(&self.groups).len() as u64;
        if open < self.options.groups_max {
            return Ok(());
        }
        let message = format!(
            "this host has {open} groups open, which is all that its memory is divided for; \
             use --groups-max, or open the group on another host"
        );
        Err(StoreError::new(StoreErrorKind::Busy, message))
    }

    fn open_holding(
        &self,
        group: GroupId,
        holding: Arc<dyn Holding>,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        let cluster = Arc::clone(&self.cluster);
        let index = self.sharded(group)?;
        let options = OpenOptions {
            memory_bytes: groups_memory(self.options.memory_bytes) / self.options.groups_max,
            rebuild_free_space: false,
            shared: Some(Shared {
                group,
                cluster,
                index: Arc::new(index),
            }),
        };
        let engine: Arc<dyn Engine> = holding.clone();
        let (store, report) = Store::open(engine, &options)?;
        let who = (self.description.pool, group, holding.session());
        let wake = self.wake.as_ref().map(|wake| Arc::clone(&wake.census));
        let census = Arc::new(GroupCensus::new(&store, who, wake));
        holding
            .serve(census.clone())
            .map_err(|error| StoreError::io(format_args!("opening group {group}"), error))?;
        let open = OpenGroup {
            store: Arc::clone(&store),
            census,
            _holding: holding,
        };
        lock(&self.groups).insert(group, open);
        Ok((store, report))
    }

    /// The index, as a group sees it.
    pub(super) fn sharded(&self, group: GroupId) -> onefold_index::Result<Sharded> {
        let SharedDescription { pool, shards, .. } = self.description;
        let (cluster, timeout) = (Arc::clone(&self.cluster), self.options.call_timeout);
        Sharded::new(cluster, pool, group, shards, timeout)
    }

    /// Does what a census of the pool asks of the groups that are open here.
    pub fn count_groups(&self) {
        let censuses: Vec<Arc<GroupCensus>> = {
            let groups = lock(&self.groups);
            groups
                .values()
                .map(|open| Arc::clone(&open.census))
                .collect()
        };
        censuses.iter().for_each(|census| census.work());
    }

    /// Closes a group and gives it up. No request to its volumes may be in progress, and no thread may use its store.
    ///
    /// # Errors
    ///
    /// Those of [`Store::close`]; the group is given up all the same.
    pub fn close_group(&self, group: GroupId) -> Result<()> {
        let open = lock(&self.groups).remove(&group);
        open.map_or(Ok(()), |open| {
            open.census.close();
            end_holds(group, &open.store);
            open.store.close()
        })
    }

    /// Closes all groups and shards.
    ///
    /// # Errors
    ///
    /// The first error; the others are closed all the same.
    pub fn close(&self) -> Result<()> {
        let groups = std::mem::take(&mut *lock(&self.groups));
        let closed = groups.values().map(|open| {
            open.census.close();
            open.store.close()
        });
        let mut first = closed.fold(Ok(()), Result::and);
        drop(groups);
        let shards = std::mem::take(&mut *lock(&self.shards));
        for open in shards.values() {
            first = first.and(open.served.close().map_err(StoreError::from));
        }
        first
    }
}

/// The most groups that can be open with this memory.
#[must_use]
pub fn groups_max(memory_bytes: u64) -> u64 {
    (groups_memory(memory_bytes) / GROUP_BYTES_MIN).max(1)
}

/// The memory of all groups together, in bytes.
fn groups_memory(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / SHARDS_MEMORY_PART - memory_bytes / CHECK_MEMORY_PART
}

/// Makes a shard without rows, which this host owns until the holding is dropped.
pub(super) fn create_shard(
    cluster: &dyn Cluster,
    shard: Shard,
    pool: PoolId,
    take: &TakeOptions,
) -> Result<(Arc<dyn Holding>, Arc<dyn Disk>)> {
    let what = Owned::Shard(shard);
    let failed = |error| StoreError::io(format_args!("creating {what}"), error);
    cluster.create(what).map_err(failed)?;
    let holding = take_owned(cluster, what, take)?;
    let disk = holding.create(Part::Index, 0).map_err(failed)?;
    onefold_index::create(IndexKind::Hash, &disk, pool)?;
    Ok((holding, disk))
}

pub(super) fn take_owned(
    cluster: &dyn Cluster,
    what: Owned,
    options: &TakeOptions,
) -> Result<Arc<dyn Holding>> {
    cluster.take(what, options).map_err(|error| match error {
        TakeError::Held { owner } => {
            StoreError::new(StoreErrorKind::Busy, format!("{what} is in use by {owner}"))
        }
        TakeError::Io(error) => StoreError::io(format_args!("taking {what}"), error),
    })
}

/// Ends the holds of a group that is being closed. Otherwise they last until it is opened again: rows stay that could go.
fn end_holds(group: GroupId, store: &Store) {
    // The first call may only find out who owns the shards.
    for _ in 0..2 {
        if store.dedup().may_hold()
            && let Err(error) = store.dedup().end_holds()
        {
            tracing::debug!("closing group {group}: {error}");
            return;
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use onefold_engine::simulated::SimulatedCluster;

    const DESCRIPTION: SharedDescription = SharedDescription {
        pool: PoolId([7; 16]),
        block_size: 4096,
        shards: 4,
    };

    fn options(host: &str) -> HostOptions {
        HostOptions {
            host: host.to_owned(),
            memory_bytes: 64 << 20,
            groups_max: 2,
            log_bytes: 256 << 10,
            when_full: WhenFull::Fail,
            take: TakeOptions {
                patience: Duration::ZERO,
                asks: false,
                fence_interval: Duration::from_secs(3600),
            },
            call_timeout: Duration::from_secs(1),
        }
    }

    fn open(cluster: &SimulatedCluster, host: usize) -> Result<SharedPool> {
        let options = options(&format!("host{host}"));
        SharedPool::open(cluster.host(host), DESCRIPTION, options, None)
    }

    fn served(pool: &SharedPool) -> Vec<Shard> {
        let (served, ended) = pool.serve_missed();
        assert!(ended.is_ok(), "{ended:?}");
        served
    }

    #[test]
    fn a_pool_whose_creation_did_not_end_is_refused() {
        let cluster = SimulatedCluster::new(1);
        cluster.set_extents(8);
        let host = cluster.host(0);
        host.create(Owned::Shard(Shard(0))).unwrap();
        let refused = open(&cluster, 1).err().unwrap();
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
        assert!(refused.to_string().contains("interrupted"), "{refused}");
    }

    #[test]
    fn a_shard_that_nobody_serves_is_served_once_a_call_misses_it() {
        let cluster = SimulatedCluster::new(2);
        cluster.set_extents(8);
        SharedPool::create(&*cluster.host(0), &DESCRIPTION, &options("").take).unwrap();
        let pool = open(&cluster, 1).unwrap();
        assert_eq!(served(&pool), []);
        // The figures need every shard.
        pool.stat().unwrap();
        let mut list = Vec::new();
        while list.len() < 4 {
            list.extend(served(&pool));
        }
        assert_eq!(pool.shards(), [0, 1, 2, 3].map(Shard));
        let stat = pool.stat().unwrap();
        assert_eq!((stat.pool_blocks, stat.unique_blocks), (8 * 16384, 0));
        assert_eq!(served(&pool), []);
        pool.close_shard(Shard(2)).unwrap();
        assert_eq!(pool.shards(), [0, 1, 3].map(Shard));
        pool.close().unwrap();
    }
}
