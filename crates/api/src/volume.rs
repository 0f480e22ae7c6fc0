//! Requests about volumes.

use std::ops::ControlFlow;

use clap::Args;
use onefold_backup::BACKUP_SNAPSHOT;
use onefold_store::{InlineStat, SettingsChange, Usage, split_name};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::options::NewVolumeOptions;
use crate::request::{Report, Request};
use crate::service::{DataReply, LocalityReply, Service, check_name, volume_size};
use crate::size;

/// Creates an empty volume.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeCreate {
    /// The new volume's name.
    pub name: String,
    /// Size of the volume in bytes, for example 20G. A multiple of 512 is used as is; other sizes are rounded
    /// up to whole blocks.
    #[arg(long = "size", value_name = "SIZE", value_parser = size::parse)]
    pub size_bytes: u64,
    #[command(flatten)]
    #[serde(flatten)]
    /// How the volume takes part in deduplication, and its share of the pool.
    pub options: NewVolumeOptions,
    /// The group of the volume, for a pool that hosts share [default: an open one without volumes, or a new one].
    #[arg(long, value_name = "NUMBER", hide_short_help = true)]
    #[serde(default)]
    pub group: Option<u64>,
}

/// A volume's current settings and figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeReply {
    #[serde(flatten)]
    /// The figures and settings of the store.
    pub stat: onefold_store::VolumeStat,
    #[serde(flatten)]
    /// The volume's data, over all layers.
    pub data: DataReply,
    #[serde(flatten)]
    /// The volume's layout in the pool.
    pub locality: LocalityReply,
    /// Data written since the last snapshot.
    pub new_bytes: u64,
    /// Bytes of data in the live layer.
    pub logical_bytes: u64,
    /// Size in bytes of the private blocks that the finder has not scanned yet.
    pub pending_dedup_bytes: u64,
    /// Results of in-line deduplication since the pool was opened.
    pub inline: InlineReply,
    #[serde(flatten)]
    /// Results of the last accounting.
    pub usage: UsageReply,
    /// NBD URI of the volume, if a daemon serves it.
    pub nbd_uri: Option<String>,
    /// Clients attached to the volume.
    pub clients: Vec<String>,
}

/// Results of a volume's in-line deduplication since the pool was opened, in blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InlineReply {
    #[serde(flatten)]
    /// The counts of the store.
    pub stat: InlineStat,
    /// Blocks that were looked up and then written.
    pub miss_blocks: u64,
    /// Bytes that were not written because of hits.
    pub not_written_bytes: u64,
    /// The last switch by mode `auto`.
    pub last_switch: Option<AutoSwitchReply>,
    /// Set while mode `auto` finds enough duplicates to switch to in-line but does not, because guests'
    /// requests exceed the latency budget and no processor is idle.
    pub held_back: Option<AutoHeldBackReply>,
}

/// A switch of mode `auto`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AutoSwitchReply {
    /// Whether the switch was to in-line, rather than away from it.
    pub to_inline: bool,
    /// The share of hits among the blocks looked up that caused the switch, in percent.
    pub hit_percent: u64,
    /// Seconds since the switch.
    pub seconds_ago: u64,
}

/// A switch to in-line that mode `auto` postpones.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AutoHeldBackReply {
    /// The share of hits among the blocks looked up that would justify the switch, in percent.
    pub hit_percent: u64,
    /// Seconds since the switch was first justified.
    pub since_seconds: u64,
}

impl InlineReply {
    fn of(stat: InlineStat, block_size: u64) -> Self {
        Self {
            miss_blocks: stat.miss_blocks(),
            not_written_bytes: stat.hit_blocks * block_size,
            last_switch: stat.last_switch.map(|switch| AutoSwitchReply {
                to_inline: switch.to_inline,
                hit_percent: switch.hit_percent,
                seconds_ago: switch.at.elapsed().as_secs(),
            }),
            held_back: stat.held_back.map(|held| AutoHeldBackReply {
                hit_percent: held.hit_percent,
                since_seconds: held.since.elapsed().as_secs(),
            }),
            stat,
        }
    }
}

/// Exclusive and shared data of a volume or snapshot, as of the last accounting; absent before the first.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageReply {
    /// Data that only this volume or snapshot refers to.
    pub exclusive_bytes: Option<u64>,
    /// Data that other volumes or snapshots refer to as well.
    pub shared_bytes: Option<u64>,
    /// Space that deleting this volume or snapshot would free.
    pub freed_if_deleted_bytes: Option<u64>,
    /// Space that deleting the volume with all its snapshots would free at least; absent for a snapshot.
    pub freed_with_snapshots_bytes: Option<u64>,
    /// Time of the last accounting, in seconds since the Unix epoch.
    pub usage_as_of: Option<u64>,
}

impl UsageReply {
    /// The usage of the volume or snapshot `name`.
    pub(crate) fn of(name: &str, usage: Option<Usage>, block_size: u64) -> Self {
        let with_snapshots = |usage: Usage| usage.freed_with_snapshots_blocks * block_size;
        usage.map_or_else(Self::default, |usage| Self {
            exclusive_bytes: Some(usage.exclusive_blocks * block_size),
            shared_bytes: Some(usage.shared_blocks * block_size),
            freed_if_deleted_bytes: Some(usage.freed_if_deleted_blocks * block_size),
            freed_with_snapshots_bytes: split_name(name).1.is_none().then(|| with_snapshots(usage)),
            usage_as_of: Some(usage.as_of_unix_seconds),
        })
    }
}

impl VolumeReply {
    fn of(service: &Service, stat: onefold_store::VolumeStat) -> Self {
        Self::among(service, stat, 1)
    }

    /// A reply for a list of `volumes` volumes, which together share the budget for counting data.
    fn among(service: &Service, mut stat: onefold_store::VolumeStat, volumes: usize) -> Self {
        let block_size = u64::from(service.stores.block_size());
        Self {
            usage: UsageReply::of(&stat.name, stat.usage, block_size),
            nbd_uri: service.nbd_uri(&stat.name),
            clients: service.clients(&stat.name),
            data: service.data(&stat.name, volumes),
            locality: service.locality(&stat.name, volumes),
            new_bytes: stat.logical_blocks * block_size,
            inline: InlineReply::of(std::mem::take(&mut stat.inline), block_size),
            pending_dedup_bytes: stat.pending_dedup_blocks * block_size,
            logical_bytes: stat.logical_blocks * block_size,
            stat,
        }
    }
}

impl Request for VolumeCreate {
    const PATH: &'static str = "/v1/volume/create";
    type Reply = VolumeReply;

    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        self.options.check()
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        let size_bytes = volume_size(self.size_bytes, service.stores.block_size())?;
        let options = self.options.volume_options(size_bytes);
        let (name, stores) = (&self.name, &service.stores);
        stores.create_volume(name, self.group, |store| {
            Ok(store.create_volume(name, &options)?)
        })?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Creates a volume with the content of another volume or of a snapshot, without copying it.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeClone {
    /// The source: a volume in its current state, or a snapshot.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub source: String,
    /// The new volume's name.
    pub name: String,
}

impl Request for VolumeClone {
    const PATH: &'static str = "/v1/volume/clone";
    type Reply = VolumeReply;

    fn check(&self) -> Result<()> {
        check_name(&self.name)
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        let store = service.store_of(&self.source)?;
        store.clone_volume(&self.source, &self.name)?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Lists all volumes.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeList {}

/// All volumes, in the order of their names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeListReply {
    /// The volumes, one entry each.
    pub volumes: Vec<VolumeReply>,
}

impl Request for VolumeList {
    const PATH: &'static str = "/v1/volume/list";
    type Reply = VolumeListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeListReply> {
        let stats = service.stores.stat()?.volumes;
        let count = stats.len();
        let volumes = stats.into_iter();
        Ok(VolumeListReply {
            volumes: volumes
                .map(|stat| VolumeReply::among(service, stat, count))
                .collect(),
        })
    }
}

/// Shows one volume.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeStat {
    /// The volume's name, or VOLUME@SNAPSHOT.
    pub name: String,
    /// Walk all maps first, so that the figures for exclusive and shared data are exact.
    #[arg(long)]
    #[serde(default)]
    pub exact: bool,
}

impl Request for VolumeStat {
    const PATH: &'static str = "/v1/volume/stat";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<VolumeReply> {
        let stat = service.find(&self.name)?;
        if !self.exact {
            return Ok(VolumeReply::of(service, stat));
        }
        let store = service.store_of(&self.name)?;
        let is_complete = store.accounting().scan(&mut |done, all| {
            report(done, all);
            if service.is_stopping() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if !is_complete {
            return Err(Error::failed("the daemon was stopped before the end"));
        }
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Changes a volume's settings. The volume may be in use.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeSet {
    /// The volume's name.
    pub name: String,
    #[command(flatten)]
    #[serde(flatten)]
    /// The new values of the settings that change.
    pub change: SettingsChange,
}

impl Request for VolumeSet {
    const PATH: &'static str = "/v1/volume/set";
    type Reply = VolumeReply;

    fn check(&self) -> Result<()> {
        Ok(self.change.check()?)
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        service
            .store_of(&self.name)?
            .set_volume(&self.name, &self.change)?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Renames a volume.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeRename {
    /// The volume's name.
    pub name: String,
    /// The new name of the volume.
    pub new_name: String,
    /// Disconnect clients that have the volume attached.
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

impl Request for VolumeRename {
    const PATH: &'static str = "/v1/volume/rename";
    type Reply = VolumeReply;

    fn check(&self) -> Result<()> {
        check_name(&self.new_name)
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        service.find(&self.name)?;
        if service.find(&self.new_name).is_ok() {
            let message = format!("a volume '{}' exists already", self.new_name);
            return Err(Error::new(ErrorKind::Exists, message));
        }
        let _hold = service.detach(&self.name, self.force, "rename")?;
        let store = service.store_of(&self.name)?;
        store.rename_volume(&self.name, &self.new_name)?;
        Ok(VolumeReply::of(service, service.find(&self.new_name)?))
    }
}

/// Changes a volume's size.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeResize {
    /// The volume's name.
    pub name: String,
    /// New size in bytes. A multiple of 512 is used as is; other sizes are rounded up to whole blocks.
    #[arg(long = "size", value_name = "SIZE", value_parser = size::parse)]
    pub size_bytes: u64,
    /// Carry out a plan that discards data beyond the new end; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
    /// Disconnect clients that have the volume attached, if it shrinks.
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

/// The verb for refusals while a volume to be resized is attached.
const SHRINK: &str = "shrink";
pub(crate) const DELETE: &str = "delete";

/// The plan of a destructive request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanReply {
    /// The consequences of the request, one sentence each.
    pub plan: Vec<String>,
    /// Whether the plan was carried out.
    pub done: bool,
    /// Clients that block the plan, or that were disconnected.
    pub clients: Vec<String>,
}

impl PlanReply {
    /// A plan that has not been carried out and would disconnect the clients of these volumes and snapshots.
    pub(crate) fn planned(service: &Service, names: &[String], mut plan: Vec<String>) -> Self {
        let clients = names.iter().flat_map(|name| service.clients(name));
        let clients: Vec<String> = clients.collect();
        if !clients.is_empty() {
            plan.push(format!("disconnect {}", clients.join(", ")));
        }
        Self {
            plan,
            done: false,
            clients,
        }
    }

    /// A plan that was carried out.
    pub(crate) fn done(service: &Service, volume: &str, plan: Vec<String>) -> Self {
        Self {
            plan,
            done: true,
            clients: service.clients(volume),
        }
    }

    /// A plan of a request that no client can block.
    pub(crate) fn without_clients(plan: Vec<String>, done: bool) -> Self {
        Self {
            plan,
            done,
            clients: Vec::new(),
        }
    }
}

impl Request for VolumeResize {
    const PATH: &'static str = "/v1/volume/resize";
    type Reply = PlanReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PlanReply> {
        let size_bytes = volume_size(self.size_bytes, service.stores.block_size())?;
        let store = service.store_of(&self.name)?;
        let volume = store.check_resizable(&self.name, size_bytes)?;
        let old_bytes = volume.size_bytes();
        let shrinks = size_bytes < old_bytes;
        let mut plan = vec![format!(
            "resize volume '{}' {}",
            self.name,
            size::change(old_bytes, size_bytes)
        )];
        if shrinks {
            plan.push(format!(
                "discard everything in its last {}",
                size::display(old_bytes - size_bytes)
            ));
        }
        if shrinks && !self.yes {
            service.check_detachable(&self.name, self.force, SHRINK)?;
            return Ok(PlanReply::planned(
                service,
                std::slice::from_ref(&self.name),
                plan,
            ));
        }
        let hold = if shrinks {
            service.detach(&self.name, self.force, SHRINK)?
        } else {
            None
        };
        let clients = service.clients(&self.name);
        if !clients.is_empty() {
            plan.push(format!(
                "keep the old size for {} until attached again",
                clients.join(", ")
            ));
        }
        store.resize_volume(&self.name, size_bytes)?;
        drop(hold);
        Ok(PlanReply::done(service, &self.name, plan))
    }
}

/// Deletes a volume and releases its blocks.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeDelete {
    /// The volume's name.
    pub name: String,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
    /// Disconnect clients that have the volume attached.
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
    /// Delete the volume's snapshots, too; otherwise a volume with snapshots is not deleted. Snapshots that
    /// 'backup create' took are always deleted with it.
    #[arg(long)]
    #[serde(default)]
    pub snapshots: bool,
}

impl Request for VolumeDelete {
    const PATH: &'static str = "/v1/volume/delete";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let prefix = format!("{}@", self.name);
        let goes_along = |snapshot: &str| {
            let name = snapshot.strip_prefix(&prefix);
            name.is_some_and(|name| self.snapshots || name.starts_with(BACKUP_SNAPSHOT))
        };
        let store = service.store_of(&self.name)?;
        let deleted = store.check_deletable(&self.name, goes_along)?;
        let mut plan = Vec::new();
        for volume in &deleted {
            let (name, size) = (volume.name(), size::display(volume.size_bytes()));
            let data = service.data_in_words(&name);
            plan.push(if volume.is_snapshot() {
                format!("delete snapshot '{name}' with {data}")
            } else {
                format!("delete volume '{name}' of {size} with {data}")
            });
        }
        // Show the volume first, although it is deleted last.
        plan.rotate_right(1);
        let names: Vec<String> = deleted.iter().map(|volume| volume.name()).collect();
        if !self.yes {
            names
                .iter()
                .try_for_each(|name| service.check_detachable(name, self.force, DELETE))?;
            let usage = service.find(&self.name)?.usage;
            plan.extend(usage.map(|usage| {
                let block_size = u64::from(service.stores.block_size());
                let freed = size::display(usage.freed_with_snapshots_blocks * block_size);
                format!("free {freed} of the pool, as the last accounting found it")
            }));
            return Ok(PlanReply::planned(service, &names, plan));
        }
        let holds: Result<Vec<_>> = names
            .iter()
            .map(|name| service.detach(name, self.force, DELETE))
            .collect();
        let _holds = holds?;
        store.delete_volume_and(&self.name, goes_along)?;
        service.finish_deletions(&store, report)?;
        Ok(PlanReply::done(service, &self.name, plan))
    }
}
