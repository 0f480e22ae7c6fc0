//! Creates and opens pools that hosts share, and converts pools with one owner to such pools.

use std::fmt;
use std::io;
use std::sync::Arc;

use onefold_api::{Error, ErrorKind, Result};
use onefold_engine::Engine;
use onefold_engine::cluster::TakeOptions;
use onefold_engine::embedded::{CacheMode, EmbeddedEngine, PoolLock};
use onefold_engine::rados::{PoolDescription, RadosEngine, RadosHost};
use onefold_format::PoolId;
use onefold_format::units::{BLOCKS_PER_SPACE_EXTENT, SHARDS_MAX};
use onefold_rados::Client;
use onefold_store::{Conversion, SharedDescription, SharedPool};

use super::place::{CephPlace, PoolPlace};
use super::{FENCE_INTERVAL, Opening, take};
use crate::limits::{HOST_NAME_BYTES_MAX, MEMORY_BYTES_DEFAULT, store_memory_bytes};

/// A pool to be created that hosts share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewSharedPool {
    pub(crate) block_size: u32,
    pub(crate) size_bytes: u64,
    pub(crate) shards: u16,
}

impl NewSharedPool {
    /// Rounds the size up to whole space extents.
    pub(crate) fn new(block_size: u32, size_bytes: u64, shards: u16) -> Result<Self> {
        let extent_bytes = BLOCKS_PER_SPACE_EXTENT * u64::from(block_size);
        let size_bytes = size_bytes.max(1).checked_next_multiple_of(extent_bytes);
        let size_bytes =
            size_bytes.ok_or_else(|| Error::usage("--size is more than a pool can have"))?;
        Ok(Self {
            block_size,
            size_bytes,
            shards,
        })
    }

    fn extents(&self) -> u64 {
        self.size_bytes / (BLOCKS_PER_SPACE_EXTENT * u64::from(self.block_size))
    }

    /// Creates the pool; on failure removes everything it created.
    pub(crate) fn create(&self, ceph: &CephPlace) -> Result<()> {
        let title = ceph.rados.title();
        let failed = |cause: &dyn fmt::Display| {
            Error::failed(format!("cannot create a pool at {title}: {cause}"))
        };
        ceph.make_run()?;
        let _lock = PoolLock::acquire(&ceph.rados.run).map_err(|e| failed(&e))?;
        let client = ceph.connect()?;
        let engine = EmbeddedEngine::new(&ceph.rados.run, CacheMode::Host);
        let identity = PoolId(engine.random_id().map_err(|e| failed(&e))?);
        let description = PoolDescription {
            identity,
            block_bytes: self.block_size,
            shards: self.shards,
        };
        RadosHost::create_pool(&client, &ceph.rados, &description).map_err(|e| failed(&e))?;
        let created = self.fill(ceph, &client);
        if created.is_err() {
            // Report the original error, whether or not this succeeds.
            let _ = RadosHost::remove_pool(&client, &ceph.rados, &take_options(ceph));
        }
        created.map_err(|error| failed(&error))
    }

    fn fill(&self, ceph: &CephPlace, client: &Client) -> Result<()> {
        let failed = |error: std::io::Error| Error::failed(error.to_string());
        let host = RadosHost::open(client, &ceph.rados, FENCE_INTERVAL).map_err(failed)?;
        host.set_extents(self.extents()).map_err(failed)?;
        let description = shared_description(&host);
        Ok(SharedPool::create(
            &host,
            &description,
            &take_options(ceph),
        )?)
    }
}

/// Whether hosts share a pool already.
pub(crate) fn is_shared(ceph: &CephPlace) -> Result<bool> {
    let is_shared = RadosHost::is_shared(&ceph.connect()?, &ceph.rados);
    is_shared.map_err(|error| Error::failed(error.to_string()))
}

/// Removes what an interrupted conversion has left of the pool with one owner. Returns whether there was anything.
pub(crate) fn remove_converted(ceph: &CephPlace) -> Result<bool> {
    let removed = RadosHost::remove_converted(&ceph.connect()?, &ceph.rados);
    removed.map_err(|error| Error::failed(error.to_string()))
}

/// A pool with one owner that can become one that hosts share.
pub(crate) struct SharedConversion<'a> {
    ceph: &'a CephPlace,
    owner: Arc<RadosEngine>,
    pub(crate) conversion: Conversion,
}

impl<'a> SharedConversion<'a> {
    /// Takes the pool, and settles it. The caller holds the lock.
    pub(crate) fn begin(ceph: &'a CephPlace) -> Result<Self> {
        let owner = Arc::new(take(ceph, &Opening::default())?);
        let memory_bytes = store_memory_bytes(MEMORY_BYTES_DEFAULT);
        let conversion = Conversion::begin(owner.clone(), memory_bytes);
        Ok(Self {
            conversion: conversion.map_err(|error| failed(ceph, &error))?,
            ceph,
            owner,
        })
    }

    /// Converts the pool, whose volumes `host` opens afterwards. Until the last step, the pool is what it was.
    pub(crate) fn run(
        &self,
        shards: u16,
        host: &str,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let (rados, conversion) = (&self.ceph.rados, &self.conversion);
        let failed = |error: io::Error| failed(self.ceph, &error);
        let SharedDescription {
            pool,
            block_size,
            shards,
        } = conversion.description(shards);
        let description = PoolDescription {
            identity: pool,
            block_bytes: block_size,
            shards,
        };
        RadosHost::begin_conversion(&self.owner, rados, &description).map_err(failed)?;
        // A fence would end all that a client owns, and this is another owner.
        let client = self.ceph.connect()?;
        let cluster = RadosHost::open(&client, rados, FENCE_INTERVAL).map_err(failed)?;
        let leased = cluster.set_leased(conversion.extents_end(), conversion.used_extents());
        leased.map_err(failed)?;
        let take = take_options(self.ceph);
        let copied = conversion.copy_to(&cluster, shards, host, &take, progress);
        copied.map_err(|error| self::failed(self.ceph, &error))?;
        RadosHost::end_conversion(&self.owner, rados).map_err(failed)
    }
}

fn failed(ceph: &CephPlace, cause: &dyn fmt::Display) -> Error {
    let title = ceph.rados.title();
    Error::failed(format!("cannot convert the pool {title}: {cause}"))
}

/// The name of this host among those that share a pool: `given`, or the system's.
pub(crate) fn host_name(given: Option<String>) -> Result<String> {
    let name = given.unwrap_or_else(|| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    });
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=HOST_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(name);
    }
    Err(Error::usage(format!(
        "{name:?} cannot be the name of a host: use --host-name with 1 to {HOST_NAME_BYTES_MAX} letters, digits, '.', '_' \
         and '-'"
    )))
}

/// Parses a number of shards.
pub(crate) fn parse_shards(text: &str) -> std::result::Result<u16, String> {
    let shards = text.parse::<u16>().ok();
    let is_possible = |shards: &u16| shards.is_power_of_two() && *shards <= SHARDS_MAX;
    shards
        .filter(is_possible)
        .ok_or_else(|| format!("use a power of two from 1 to {SHARDS_MAX}"))
}

/// How groups and shards are taken.
pub(crate) fn take_options(ceph: &CephPlace) -> TakeOptions {
    TakeOptions {
        patience: ceph.patience(),
        asks: false,
        fence_interval: FENCE_INTERVAL,
    }
}

pub(crate) fn shared_description(host: &RadosHost) -> SharedDescription {
    let PoolDescription {
        identity,
        block_bytes,
        shards,
    } = host.description();
    SharedDescription {
        pool: identity,
        block_size: block_bytes,
        shards,
    }
}

/// Becomes a host of the pool, if it is one that hosts share. The caller holds the lock.
pub(crate) fn open_host(place: &PoolPlace) -> Result<Option<RadosHost>> {
    let PoolPlace::Ceph(ceph) = place else {
        return Ok(None);
    };
    let client = ceph.connect()?;
    // If this cannot be found out, opening the pool says why.
    if !RadosHost::is_shared(&client, &ceph.rados).unwrap_or(false) {
        return Ok(None);
    }
    let host = RadosHost::open(&client, &ceph.rados, FENCE_INTERVAL);
    host.map(Some)
        .map_err(|error| Error::new(ErrorKind::Failed, error.to_string()))
}
