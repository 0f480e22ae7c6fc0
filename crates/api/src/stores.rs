//! The stores that carry out requests: the one of a pool with one owner, or those of the groups of a shared pool that are
//! open on this host.

use std::sync::Arc;

use onefold_format::GroupId;
use onefold_store::{PoolStat, ScrubStatus, SharedPool, Store, split_name};

use crate::error::{Error, ErrorKind, Result};

/// A shared pool, as the daemon of one host serves it.
pub trait Groups: Send + Sync {
    /// The pool, and what this host owns of it.
    fn pool(&self) -> &SharedPool;

    /// Makes a group, opens it here, and begins background work on it.
    ///
    /// # Errors
    /// If this host can open no more groups, or the cluster fails.
    fn create(&self) -> Result<(GroupId, Arc<Store>)>;

    /// Calls `create`, to create a volume in an open group without volumes, or else in a new one. One call at a time, so
    /// that each volume gets a group of its own.
    ///
    /// # Errors
    /// As [`Groups::create`]; those of `create`.
    fn create_in_own_group(&self, create: &mut dyn FnMut(&Arc<Store>) -> Result<()>) -> Result<()>;

    /// Opens a group here, unless it is open already, and begins background work on it. A live owner keeps it, unless
    /// `asks` is set: then it is asked to give the group up.
    ///
    /// # Errors
    /// If the group has a live owner, which the message names; if this host can open no more groups.
    fn take(&self, group: GroupId, asks: bool) -> Result<Arc<Store>>;
}

/// The stores of a pool that are open in this process.
#[derive(Clone)]
pub enum Stores {
    /// The store of a pool with one owner.
    One(Arc<Store>),
    /// The stores of a shared pool's groups.
    Shared(Arc<dyn Groups>),
}

impl Stores {
    /// All stores, in the order of their groups.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Store>> {
        match self {
            Self::One(store) => vec![Arc::clone(store)],
            Self::Shared(groups) => {
                let stores = groups.pool().stores().into_iter();
                stores.map(|(_, store)| store).collect()
            }
        }
    }

    /// The store with this volume or snapshot. In a pool with one owner that is the store, whether or not it has the volume.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), which names the host that has the volume, if there is one.
    pub fn of(&self, name: &str) -> Result<Arc<Store>> {
        let groups = match self {
            Self::One(store) => return Ok(Arc::clone(store)),
            Self::Shared(groups) => groups,
        };
        let volume = split_name(name).0;
        let mut stores = groups.pool().stores().into_iter();
        let found = stores.find(|(_, store)| store.volumes().has(volume));
        found
            .map(|(_, store)| store)
            .ok_or_else(|| elsewhere(groups.pool(), volume))
    }

    /// The progress of scrubbing. Groups of a shared pool are not scrubbed; a bad block counts for each group that knows it.
    ///
    /// # Errors
    /// Those of [`PoolStat`](crate::PoolStat).
    pub fn scrub_status(&self) -> Result<ScrubStatus> {
        match self {
            Self::One(store) => Ok(store.scrub().status()?),
            Self::Shared(_) => {
                let mut status = ScrubStatus {
                    pool_blocks: self.stat()?.pool_blocks,
                    ..ScrubStatus::default()
                };
                for store in self.all() {
                    status.bad_blocks += store.scrub().status()?.bad_blocks;
                }
                Ok(status)
            }
        }
    }

    /// The store of a pool with one owner, for a request about all of its blocks.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage) for a shared pool.
    pub fn sole(&self, doing: &str) -> Result<Arc<Store>> {
        match self {
            Self::One(store) => Ok(Arc::clone(store)),
            Self::Shared(_) => Err(Error::usage(format!(
                "{doing} concerns all groups of the shared pool, and is not possible yet"
            ))),
        }
    }

    /// Creates a volume of this name with `create`, in this group, or in one of its own. Returns the store and the result
    /// of `create`.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists) if another group of a shared pool has a volume of this name; if the group is not
    /// open here; those of `create` and of [`Groups::create`].
    pub fn create_volume<T>(
        &self,
        name: &str,
        group: Option<u64>,
        create: impl FnOnce(&Arc<Store>) -> Result<T>,
    ) -> Result<(Arc<Store>, T)> {
        if let Self::Shared(groups) = self {
            // The store claims the name. Without this check, a group might be made in vain.
            check_is_free(groups.pool(), name)?;
        }
        let store = match (self, group) {
            (Self::One(store), None) => Arc::clone(store),
            (Self::One(_), Some(_)) => {
                return Err(Error::usage(
                    "--group is for pools that hosts share, and this pool has one owner",
                ));
            }
            (Self::Shared(groups), None) => return create_in_own_group(&**groups, create),
            (Self::Shared(groups), Some(group)) => {
                let found = groups.pool().store(GroupId(group));
                found.ok_or_else(|| {
                    let message = format!(
                        "group {group} is not open on this host; 'onefold group list' says where it is, and 'onefold \
                         group take {group}' opens it here"
                    );
                    Error::new(ErrorKind::NotFound, message)
                })?
            }
        };
        let created = create(&store)?;
        Ok((store, created))
    }

    /// The shared pool.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage) for a pool with one owner.
    pub fn groups(&self) -> Result<&dyn Groups> {
        match self {
            Self::One(_) => Err(Error::usage(
                "the pool has one owner, and no groups; 'onefold pool create ceph:CEPHPOOL/NAME --shards N' makes one that \
                 hosts share",
            )),
            Self::Shared(groups) => Ok(&**groups),
        }
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        match self {
            Self::One(store) => store.block_size(),
            Self::Shared(groups) => groups.pool().description().block_size,
        }
    }

    /// Counts the content of the pool, as [`Store::stat`] or [`SharedPool::stat`] does.
    pub(crate) fn stat(&self) -> Result<PoolStat> {
        Ok(match self {
            Self::One(store) => store.stat()?,
            Self::Shared(groups) => groups.pool().stat()?,
        })
    }
}

fn create_in_own_group<T>(
    groups: &dyn Groups,
    create: impl FnOnce(&Arc<Store>) -> Result<T>,
) -> Result<(Arc<Store>, T)> {
    let (mut create, mut created) = (Some(create), None);
    groups.create_in_own_group(&mut |store| {
        if let Some(create) = create.take() {
            created = Some((Arc::clone(store), create(store)?));
        }
        Ok(())
    })?;
    created.ok_or_else(|| Error::failed("the volume was not created"))
}

fn check_is_free(pool: &SharedPool, volume: &str) -> Result<()> {
    let volumes = pool.volumes()?;
    let Some(group) = volumes.get(volume) else {
        return Ok(());
    };
    let message = format!("volume '{volume}' exists already, in group {group}");
    Err(Error::new(ErrorKind::Exists, message))
}

/// The error for a volume that no group on this host has.
fn elsewhere(pool: &SharedPool, volume: &str) -> Error {
    let place = || {
        let group = *pool.volumes().ok()?.get(volume)?;
        let host = pool.groups().ok()?.remove(&group)?;
        Some((group, host))
    };
    let message = match place() {
        Some((group, host)) => format!(
            "volume '{volume}' is not open on this host: it is in group {group}, of host '{host}'; ask there, or open the \
             group here with 'onefold group take {group}'"
        ),
        None => format!("there is no volume '{volume}'"),
    };
    Error::new(ErrorKind::NotFound, message)
}
