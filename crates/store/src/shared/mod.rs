//! The common parts of the groups of a pool, and the pool as one host serves it.

mod census;
mod check;
mod convert;
mod counted;
mod directory;
mod leases;
mod missed;
mod pause;
mod pool;
mod rebuild;
mod shards;
mod stat;

use std::fmt;
use std::sync::Arc;

use onefold_engine::Cluster;
use onefold_format::{DomainId, GroupId};
use onefold_index::sharded::Sharded;
use onefold_journal::Journal;
use onefold_metadata::{Result, StoreError, StoreErrorKind};

pub use self::convert::Conversion;
use self::directory::Names;
pub(crate) use self::leases::Leases;
use self::pause::Pause;
pub use self::pool::{
    GROUP_BYTES_MIN, HostOptions, SharedDescription, SharedPool, Wake, groups_max,
};
pub use self::rebuild::RebuildReport;
use crate::pool::Pool;
use crate::volume_options::DEFAULT_DOMAIN;

/// The common parts of the groups of a pool, as one group uses them.
#[derive(Clone)]
pub struct Shared {
    /// The group.
    pub group: GroupId,
    /// The hosts that share the pool.
    pub cluster: Arc<dyn Cluster>,
    /// The fingerprint index.
    pub index: Arc<Sharded>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn names(&self) -> Names<'_> {
        Names(self.cluster.directory())
    }

    /// The number of a domain, which is the same in all groups.
    pub(crate) fn domain(&self, name: &str) -> Result<DomainId> {
        if name == DEFAULT_DOMAIN {
            return Ok(DomainId(0));
        }
        self.names().domain(name)
    }

    /// Claims the name of a volume among all groups.
    pub(crate) fn claim_name(&self, name: &str) -> Result<()> {
        self.names().claim_volume(name, self.group)
    }

    /// Gives the name of a volume up. If that fails, the next opening of the group does it.
    pub(crate) fn release_name(&self, name: &str) {
        if let Err(error) = self.names().release_volume(name, self.group) {
            tracing::warn!(
                "the name '{name}' stays taken until the group is opened again: {error}"
            );
        }
    }

    /// Makes the directory agree with the volumes of the group, which is being opened.
    pub(crate) fn settle_names(&self, volumes: &[String]) -> Result<()> {
        for name in self.names().volumes_of(self.group)? {
            if !volumes.contains(&name) {
                self.names().release_volume(&name, self.group)?;
            }
        }
        volumes.iter().try_for_each(|name| self.claim_name(name))
    }
}

/// The parts of a group that a pool with one owner does not have.
pub(crate) struct Group {
    shared: Shared,
    leases: Arc<Leases>,
}

impl Group {
    pub(crate) fn new(journal: &Arc<Journal>, shared: Shared) -> Self {
        let cluster = Arc::clone(&shared.cluster);
        Self {
            leases: Leases::new(Arc::clone(journal), cluster, shared.group),
            shared,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }
}

/// Refuses an operation on all blocks or on the index, of which a group has only a part.
pub(crate) fn check_is_alone(pool: &Pool, doing: &str) -> Result<()> {
    match pool.superblock().group {
        None => Ok(()),
        Some(group) => Err(StoreError::new(
            StoreErrorKind::Invalid,
            format!("{doing} concerns all groups of the shared pool, and not group {group} alone"),
        )),
    }
}
