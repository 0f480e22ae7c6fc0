//! Requests about the whole pool.

use clap::Args;
use onefold_jobs::{JobCounts, Shrunk, dedup_now, grow_to, keeps_its_size, shrink_to, trim_now};
use onefold_store::{CheckReport, DedupMode, Finding, Store, VolumeSettings, VolumeStat, WhenFull};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::health::{PoolState, Problem};
use crate::limits::{CENSUS_POLL_INTERVAL, FINDINGS_LISTED_MAX};
use crate::loss::{self, DamagedVolumeReply};
use crate::request::{Report, Request};
use crate::service::{DataReply, Service, whole_blocks};
use crate::size;
use crate::snapshot::DeletionReply;
use crate::stores::Stores;
use crate::volume::PlanReply;

/// Shows the pool's state, space and deduplication.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStat {}

/// A volume in [`PoolStatReply`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolVolume {
    /// Name of the volume.
    pub name: String,
    /// Size of the volume as guests see it.
    pub size_bytes: u64,
    /// Whether and when the volume's blocks are deduplicated.
    pub dedup: DedupMode,
    /// The volume's domain; blocks are shared only within a domain.
    pub domain: String,
    #[serde(flatten)]
    /// The volume's data, over all layers.
    pub data: DataReply,
    /// Blocks with data in the live layer.
    pub logical_blocks: u64,
    /// Blocks that the finder has not scanned yet.
    pub pending_dedup_blocks: u64,
    /// NBD URI of the volume, if a daemon serves it.
    pub nbd_uri: Option<String>,
}

/// The pool's current figures. Field names are stable.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStatReply {
    /// Health of the pool.
    pub state: PoolState,
    /// The pool's problems, the worst first.
    pub problems: Vec<Problem>,
    #[serde(flatten)]
    /// The figures of the store.
    pub stat: onefold_store::PoolStat,
    /// Clients' requests that wait for space.
    pub waiting_requests: u64,
    /// Logical blocks for each physical block; 1 for an empty pool.
    pub dedup_ratio: f64,
    /// Logical minus physical bytes.
    pub saved_bytes: u64,
    /// Volumes that lost answered writes when a sync failed. Their flushes fail until the loss is accepted.
    pub damaged_volumes: Vec<DamagedVolumeReply>,
    /// The pool's volumes, one entry each.
    pub volumes: Vec<PoolVolume>,
    /// Deleted volumes and snapshots that still hold blocks.
    pub being_deleted: Vec<DeletionReply>,
}

impl PoolVolume {
    /// An entry in a list of `volumes` volumes, which together share the budget for counting data.
    fn among(service: &Service, stat: VolumeStat, volumes: usize) -> Self {
        let (data, nbd_uri) = (
            service.data(&stat.name, volumes),
            service.nbd_uri(&stat.name),
        );
        let VolumeStat {
            name,
            size_bytes,
            domain,
            settings: VolumeSettings { dedup, .. },
            logical_blocks,
            pending_dedup_blocks,
            ..
        } = stat;
        Self {
            name,
            size_bytes,
            dedup,
            domain,
            data,
            logical_blocks,
            pending_dedup_blocks,
            nbd_uri,
        }
    }
}

impl Request for PoolStat {
    const PATH: &'static str = "/v1/pool/stat";
    type Reply = PoolStatReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolStatReply> {
        let mut stat = service.stores.stat()?;
        let health = service.health_of(&stat);
        let saved_blocks = stat.logical_blocks.saturating_sub(stat.physical_blocks);
        // An empty pool has the ratio of a pool without deduplication.
        let dedup_ratio = match stat.physical_blocks {
            0 => 1.0,
            physical_blocks => stat.logical_blocks as f64 / physical_blocks as f64,
        };
        let volumes = std::mem::take(&mut stat.volumes);
        let count = volumes.len();
        let volumes = volumes
            .into_iter()
            .map(|volume| PoolVolume::among(service, volume, count));
        let block_size = u64::from(stat.block_size);
        let deletions = std::mem::take(&mut stat.deletions).into_iter();
        Ok(PoolStatReply {
            state: health.state(),
            problems: health.problems,
            waiting_requests: service.waiting_for_space(),
            dedup_ratio,
            saved_bytes: saved_blocks * block_size,
            damaged_volumes: loss::damaged_volumes(service),
            volumes: volumes.collect(),
            being_deleted: deletions
                .map(|deletion| DeletionReply::of(deletion, block_size))
                .collect(),
            stat,
        })
    }
}

/// Upgrades the pool to the newest format.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolUpgrade {
    /// Carry out the upgrade; without it, the format is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// The pool's format.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolUpgradeReply {
    /// Major and minor version, as `1.0`.
    pub format: String,
    /// The newest format that this build writes.
    pub newest: String,
    /// Whether anything was changed.
    pub upgraded: bool,
}

impl Request for PoolUpgrade {
    const PATH: &'static str = "/v1/pool/upgrade";
    type Reply = PoolUpgradeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolUpgradeReply> {
        let store = service.stores.sole("an upgrade of the pool")?;
        let before = store.format_version()?;
        if self.yes {
            store.upgrade()?;
        }
        let now = store.format_version()?;
        let text = |(major, minor): (u8, u8)| format!("{major}.{minor}");
        Ok(PoolUpgradeReply {
            format: text(now),
            newest: text(Store::NEWEST_FORMAT),
            upgraded: now != before,
        })
    }
}

/// Changes the pool's settings. The pool may be in use.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolSet {
    /// How writes are treated while the pool is full.
    #[arg(long, value_enum)]
    pub when_full: WhenFull,
}

/// The pool's current settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolSetReply {
    /// How writes are treated while the pool is full.
    pub when_full: WhenFull,
}

impl Request for PoolSet {
    const PATH: &'static str = "/v1/pool/set";
    type Reply = PoolSetReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolSetReply> {
        let store = service.stores.sole("a setting of the pool")?;
        store.set_when_full(self.when_full)?;
        Ok(PoolSetReply {
            when_full: store.when_full(),
        })
    }
}

/// Finds and shares all present duplicates, then releases unused blocks.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolDedup {
    /// Scan only this volume, even if its dedup is off.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
}

/// Results of a `pool dedup`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolDedupReply {
    #[serde(flatten)]
    /// Number of blocks by outcome.
    pub counts: JobCounts,
    /// Bytes in a block.
    pub block_size: u32,
    /// Duration in seconds.
    pub seconds: f64,
    /// Scan rate in bytes per second.
    pub bytes_per_second: u64,
}

impl Request for PoolDedup {
    const PATH: &'static str = "/v1/pool/dedup";
    type Reply = PoolDedupReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolDedupReply> {
        let stores = match &self.volume {
            Some(volume) => vec![service.store_of(volume)?],
            None => service.stores.all(),
        };
        let (mut counts, mut seconds, mut was_broken_off) = (JobCounts::default(), 0.0, false);
        for store in stores {
            if store.space().shrinking_to()?.is_some() {
                return Err(Error::failed(
                    "the pool is being made smaller, and nothing is shared until that is done; 'onefold pool \
                     resize' continues or cancels it",
                ));
            }
            let mut progress = service.blocks_until_stopped(&mut *report);
            let found = dedup_now(&store, self.volume.as_deref(), &mut progress)?;
            counts += found.counts;
            seconds += found.seconds;
            was_broken_off = found.was_broken_off;
            if was_broken_off {
                break;
            }
        }
        if was_broken_off {
            return Err(Error::failed(format!(
                "the daemon was stopped after {}; the rest is found later",
                size::display(counts.bytes)
            )));
        }
        Ok(PoolDedupReply {
            bytes_per_second: (counts.bytes as f64 / seconds.max(1e-9)) as u64,
            counts,
            block_size: service.stores.block_size(),
            seconds,
        })
    }
}

/// Changes the pool's size. The pool may be in use.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolResize {
    /// The new size in bytes, rounded up to whole blocks; at most the size of the device if the pool is on
    /// one.
    #[arg(long = "size", value_name = "SIZE", value_parser = size::parse)]
    pub size_bytes: u64,
    /// Carry out a plan that makes the pool smaller; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

impl PoolResize {
    /// Plans to shrink the pool, and carries the plan out if the request says so.
    fn shrink(&self, service: &Service, size_bytes: u64, report: Report<'_>) -> Result<PlanReply> {
        let store = &service.stores.sole("a change of the pool's size")?;
        let before = store.space().size_bytes()?;
        store.check_writable()?;
        // Deleted blocks do not have to be moved.
        store.deletions().finish(&mut service.blocks(report))?;
        let wanted = store.space().plan_shrink(size_bytes)?;
        let block_size = u64::from(store.block_size());
        let copied = size::display(wanted.copied_blocks * block_size);
        let mut plan = vec![format!(
            "shrink the pool {}",
            size::change(before, size_bytes)
        )];
        if wanted.copied_blocks > 0 {
            plan.push(format!(
                "copy {copied} from beyond the new end to before it"
            ));
        }
        if wanted.first_size_bytes > size_bytes {
            let first = size::display(wanted.first_size_bytes);
            plan.push(format!(
                "shrink to {first} first, and find the duplicates among the copies before the next stage"
            ));
        }
        if !self.yes {
            return Ok(PlanReply::without_clients(plan, false));
        }
        let shrunk = shrink_to(store, size_bytes, &mut service.blocks_until_stopped(report));
        let now = || {
            store
                .space()
                .size_bytes()
                .map(size::display)
                .unwrap_or_default()
        };
        let failed = match shrunk {
            Ok(Shrunk::Done) => None,
            Ok(Shrunk::Cancelled) => Some("another command has cancelled this".to_owned()),
            Ok(Shrunk::BrokenOff) => Some(
                "the daemon was stopped; it continues when it is started again, or run this command \
                 again for the rest"
                    .to_owned(),
            ),
            Ok(Shrunk::Stuck(left)) => Some(format!(
                "the pool has {} and keeps it: {} beyond the new end cannot be moved; run \
                 'onefold pool check'",
                now(),
                size::count(left, "block")
            )),
            Err(error) if keeps_its_size(&error) => {
                Some(format!("the pool has {} and keeps it: {error}", now()))
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(message) = failed {
            return Err(Error::failed(message));
        }
        if wanted.copied_blocks > 0 {
            plan.push("leave it to the finder to share the copies again".to_owned());
        }
        Ok(PlanReply::without_clients(plan, true))
    }
}

impl Request for PoolResize {
    const PATH: &'static str = "/v1/pool/resize";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let store = &service.stores.sole("a change of the pool's size")?;
        let size_bytes = whole_blocks(self.size_bytes, store.block_size(), "pool")?;
        let before = store.space().size_bytes()?;
        if size_bytes < before {
            return self.shrink(service, size_bytes, report);
        }
        let shrinking = store.space().shrinking_to()?;
        let mut progress = service.blocks_until_stopped(report);
        let grown = grow_to(store, size_bytes, &mut progress)?;
        if grown.is_break() {
            return Err(Error::failed(format!(
                "the daemon was stopped before the new space was allocated; the pool keeps its {}",
                size::display(before)
            )));
        }
        let plan = match size_bytes == before {
            true if shrinking.is_some() => "keep the pool's size: it shrinks no more".to_owned(),
            true => "leave the pool as it is: it has this size".to_owned(),
            false => format!("grow the pool {}", size::change(before, size_bytes)),
        };
        Ok(PlanReply::without_clients(vec![plan], true))
    }
}

/// Proves that every block is accounted for exactly once.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolCheck {
    /// Rebuild free space from the maps where the two disagree. Data that cannot be accounted for is never
    /// deleted.
    #[arg(long)]
    #[serde(default)]
    pub repair: bool,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolCheckReply {
    #[serde(flatten)]
    /// The totals of the check.
    pub totals: CheckReport,
    /// The first findings, up to a limit.
    pub listed: Vec<Finding>,
}

impl PoolCheckReply {
    /// The reply for a pool that is too damaged to be opened: a single finding.
    #[must_use]
    pub fn unopenable(message: String) -> Self {
        let totals = CheckReport {
            findings: 1,
            ..CheckReport::default()
        };
        let listed = vec![Finding {
            message,
            repairable: false,
        }];
        Self { totals, listed }
    }
}

impl Request for PoolCheck {
    const PATH: &'static str = "/v1/pool/check";
    type Reply = PoolCheckReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolCheckReply> {
        let mut listed = Vec::new();
        let mut list = |finding: Finding| {
            if listed.len() < FINDINGS_LISTED_MAX {
                listed.push(finding);
            }
        };
        let totals = match &service.stores {
            Stores::One(store) => store.check_with_progress(self.repair, &mut list, report)?,
            Stores::Shared(_) if self.repair => {
                return Err(Error::usage(
                    "--repair is not possible in a pool that hosts share; without it, the pool is checked",
                ));
            }
            Stores::Shared(groups) => {
                let mut wait = || std::thread::sleep(CENSUS_POLL_INTERVAL);
                groups.pool().check(&mut wait, &mut list, report)?
            }
        };
        Ok(PoolCheckReply { totals, listed })
    }
}

/// Returns all free space to the host.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolTrim {}

/// Space that the host allocated for data, before and after a trim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolTrimReply {
    /// Space that the host had allocated for data before the trim.
    pub before_bytes_on_disk: u64,
    /// Space that the host has allocated for data now.
    pub pool_bytes_on_disk: u64,
    /// The part of `pool_bytes_on_disk` that holds free blocks.
    pub free_bytes_on_disk: u64,
}

impl Request for PoolTrim {
    const PATH: &'static str = "/v1/pool/trim";
    type Reply = PoolTrimReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolTrimReply> {
        let store = service.stores.sole("trimming the pool")?;
        let before_bytes_on_disk = store.stat()?.pool_bytes_on_disk;
        let trimmed = trim_now(&store, &mut service.blocks_until_stopped(report))?;
        if trimmed.is_break() {
            return Err(Error::failed(
                "the daemon was stopped before all free space was given back",
            ));
        }
        let onefold_store::PoolStat {
            pool_bytes_on_disk,
            free_bytes_on_disk,
            ..
        } = store.stat()?;
        Ok(PoolTrimReply {
            before_bytes_on_disk,
            pool_bytes_on_disk,
            free_bytes_on_disk,
        })
    }
}
