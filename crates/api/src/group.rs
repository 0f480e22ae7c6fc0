//! Requests about the groups and the hosts of a shared pool.

use clap::Args;
use onefold_format::GroupId;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::request::{Report, Request};
use crate::service::Service;

/// A group of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupReply {
    /// The group's number, which no other group of the pool ever has.
    pub number: u64,
    /// The host that opens the group.
    pub host: String,
    /// The group's volumes, by name.
    pub volumes: Vec<String>,
    /// Whether the host that replies has the group open.
    pub is_open_here: bool,
}

/// The groups of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupListReply {
    /// The groups, in the order of their numbers.
    pub groups: Vec<GroupReply>,
}

impl GroupListReply {
    fn of(service: &Service, is_wanted: impl Fn(GroupId) -> bool) -> Result<Self> {
        let pool = service.stores.groups()?.pool();
        let volumes = pool.volumes()?;
        let groups = pool.groups()?.into_iter();
        let groups = groups.filter(|(group, _)| is_wanted(*group));
        let groups = groups.map(|(group, host)| {
            let own = volumes.iter().filter(|(_, other)| **other == group);
            GroupReply {
                number: group.0,
                host,
                volumes: own.map(|(name, _)| name.clone()).collect(),
                is_open_here: pool.store(group).is_some(),
            }
        });
        Ok(Self {
            groups: groups.collect(),
        })
    }
}

/// Lists the groups of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupList {}

impl Request for GroupList {
    const PATH: &'static str = "/v1/group/list";
    type Reply = GroupListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<GroupListReply> {
        GroupListReply::of(service, |_| true)
    }
}

/// Creates a group of a shared pool, and opens it on this host.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupCreate {}

impl Request for GroupCreate {
    const PATH: &'static str = "/v1/group/create";
    type Reply = GroupListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<GroupListReply> {
        let (made, _) = service.stores.groups()?.create()?;
        GroupListReply::of(service, |group| group == made)
    }
}

/// Opens a group of a shared pool on this host. A host that lives keeps its group, unless it is asked to give it up.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupTake {
    /// The group's number.
    pub number: u64,
    /// Ask the host that has the group open to give it up, and wait until it has.
    #[arg(long)]
    #[serde(default)]
    pub take: bool,
}

impl Request for GroupTake {
    const PATH: &'static str = "/v1/group/take";
    type Reply = GroupListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<GroupListReply> {
        let groups = service.stores.groups()?;
        let wanted = GroupId(self.number);
        if !groups.pool().groups()?.contains_key(&wanted) {
            let message =
                format!("the pool has no group {wanted}; 'onefold group list' lists its groups");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        groups.take(wanted, self.take)?;
        GroupListReply::of(service, |group| group == wanted)
    }
}

/// Lists the hosts of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostList {}

/// A host of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostReply {
    /// The host's name among those of the pool.
    pub name: String,
    /// Numbers of the groups that the host opens.
    pub groups: Vec<u64>,
    /// Whether this is the host that replies.
    pub is_here: bool,
    /// The number of shards of the index that the host serves; absent for other hosts than the one that replies.
    pub shards: Option<u64>,
}

/// The hosts of a shared pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostListReply {
    /// All hosts that ever opened the pool, by name.
    pub hosts: Vec<HostReply>,
}

impl Request for HostList {
    const PATH: &'static str = "/v1/host/list";
    type Reply = HostListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<HostListReply> {
        let pool = service.stores.groups()?.pool();
        let groups = pool.groups()?;
        let hosts = pool.hosts()?.into_iter().map(|name| {
            let own = groups.iter().filter(|(_, host)| **host == name);
            let is_here = name == pool.host();
            HostReply {
                groups: own.map(|(group, _)| group.0).collect(),
                is_here,
                shards: is_here.then(|| pool.shards().len() as u64),
                name,
            }
        });
        Ok(HostListReply {
            hosts: hosts.collect(),
        })
    }
}
