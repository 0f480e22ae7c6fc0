//! What can be done to volumes.

use super::{DataReply, Report, Service, Verb, check_name, whole_blocks};
use crate::error::{Error, Result};
use crate::output::Document;
use crate::sharing::{Dedup, Sharing};
use crate::size;
use crate::verbs::snapshot::utc;
use onefold_store::{Usage, VolumeChange};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// Makes an empty volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeCreate {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) sharing: Sharing,
}

/// A volume as it is now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeReply {
    name: String,
    size_bytes: u64,
    dedup: Dedup,
    domain: String,
    verify: bool,
    rounds: u8,
    interval_seconds: u32,
    hash_cache_bytes: u64,
    quota_bytes: u64,
    mapped_bytes: u64,
    reservation_bytes: u64,
    reserved_unused_bytes: u64,
    #[serde(flatten)]
    data: DataReply,
    /// What its live layer adds to its last snapshot.
    new_bytes: u64,
    /// Blocks with data in its live layer.
    logical_blocks: u64,
    logical_bytes: u64,
    private_blocks: u64,
    shared_blocks: u64,
    dirty_blocks: u64,
    #[serde(flatten)]
    usage: UsageReply,
    nbd_uri: Option<String>,
    pub(crate) clients: Vec<String>,
}

/// What a volume or a snapshot held when all maps were last gone through; nothing before that.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct UsageReply {
    exclusive_bytes: Option<u64>,
    shared_bytes: Option<u64>,
    freed_if_deleted_bytes: Option<u64>,
    /// When that was, in seconds since the Unix epoch.
    as_of: Option<u64>,
}

impl UsageReply {
    pub(super) fn of(usage: Option<Usage>, block_size: u64) -> Self {
        usage.map_or_else(Self::default, |usage| Self {
            exclusive_bytes: Some(usage.exclusive_blocks * block_size),
            shared_bytes: Some(usage.shared_blocks * block_size),
            freed_if_deleted_bytes: Some(usage.freed_if_deleted_blocks * block_size),
            as_of: Some(usage.as_of_unix_seconds),
        })
    }

    /// What would be freed, for a table.
    pub(super) fn freed(&self) -> String {
        let freed = self.freed_if_deleted_bytes;
        freed.map_or_else(|| "-".to_owned(), size::display)
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (Some(exclusive), Some(shared), Some(as_of)) =
            (self.exclusive_bytes, self.shared_bytes, self.as_of)
        else {
            return Ok(());
        };
        writeln!(
            out,
            "alone    {}, {} with others, {} freed if deleted, as of {}",
            size::display(exclusive),
            size::display(shared),
            self.freed(),
            utc(as_of)
        )
    }
}

impl VolumeReply {
    fn of(service: &Service, stat: onefold_store::VolumeStat) -> Self {
        Self::among(service, stat, 1)
    }

    /// One of so many in a list.
    fn among(service: &Service, stat: onefold_store::VolumeStat, volumes: usize) -> Self {
        let block_size = u64::from(service.store.block_size());
        Self {
            usage: UsageReply::of(stat.usage, block_size),
            nbd_uri: service.nbd_uri(&stat.name),
            clients: service.clients(&stat.name),
            data: service.data(&stat.name, volumes),
            new_bytes: stat.logical_blocks * block_size,
            size_bytes: stat.size_bytes,
            dedup: stat.dedup.into(),
            domain: stat.domain,
            verify: stat.verify,
            rounds: stat.rounds,
            interval_seconds: stat.interval_seconds,
            hash_cache_bytes: stat.hash_cache_bytes,
            quota_bytes: stat.quota_bytes,
            mapped_bytes: stat.mapped_blocks * block_size,
            reservation_bytes: stat.reservation_bytes,
            reserved_unused_bytes: stat.reserved_unused_blocks * block_size,
            logical_blocks: stat.logical_blocks,
            private_blocks: stat.private_blocks,
            shared_blocks: stat.shared_blocks,
            dirty_blocks: stat.dirty_blocks,
            logical_bytes: stat.logical_blocks * block_size,
            name: stat.name,
        }
    }
}

impl Document for VolumeReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "volume   {}", self.name)?;
        writeln!(out, "size     {}", size::display(self.size_bytes))?;
        let as_of = self.data.data_as_of.map(|at| format!(" as of {}", utc(at)));
        writeln!(
            out,
            "data     {}{}, {} of it in no snapshot of this volume",
            self.data.short(),
            as_of.unwrap_or_default(),
            size::display(self.new_bytes)
        )?;
        writeln!(
            out,
            "dedup    {}, domain {}, verify {}, {}, every {} s, hash cache {}",
            self.dedup.name(),
            self.domain,
            if self.verify { "on" } else { "off" },
            size::count(self.rounds.into(), "round"),
            self.interval_seconds,
            size::display(self.hash_cache_bytes)
        )?;
        writeln!(
            out,
            "blocks   {} published, {} private, {} of these not looked at",
            self.shared_blocks, self.private_blocks, self.dirty_blocks
        )?;
        if self.quota_bytes > 0 {
            let (mapped, quota) = (size::display(self.mapped_bytes), self.quota_bytes);
            writeln!(out, "quota    {mapped} of {} used", size::display(quota))?;
        }
        if self.reservation_bytes > 0 {
            writeln!(
                out,
                "reserved {}, of which {} are kept free",
                size::display(self.reservation_bytes),
                size::display(self.reserved_unused_bytes)
            )?;
        }
        self.usage.text(out)?;
        if let Some(uri) = &self.nbd_uri {
            writeln!(out, "nbd      {uri}")?;
        }
        for client in &self.clients {
            writeln!(out, "client   {client}")?;
        }
        Ok(())
    }
}

impl Verb for VolumeCreate {
    const PATH: &'static str = "/v1/volume/create";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        check_name(&self.name)?;
        let size_bytes = whole_blocks(self.size_bytes, service.store.block_size(), "volume")?;
        self.sharing.check()?;
        let options = self.sharing.volume_options(size_bytes);
        service.store.create_volume(&self.name, &options)?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Makes a volume that holds what another volume or a snapshot does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeClone {
    pub(crate) source: String,
    pub(crate) name: String,
}

impl Verb for VolumeClone {
    const PATH: &'static str = "/v1/volume/clone";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        check_name(&self.name)?;
        service.store.clone_volume(&self.source, &self.name)?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Names every volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeList {}

/// The document of `volume list`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeListReply {
    volumes: Vec<VolumeReply>,
}

impl Verb for VolumeList {
    const PATH: &'static str = "/v1/volume/list";
    type Reply = VolumeListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeListReply> {
        let stats = service.store.stat()?.volumes;
        let count = stats.len();
        let volumes = stats.into_iter();
        Ok(VolumeListReply {
            volumes: volumes
                .map(|stat| VolumeReply::among(service, stat, count))
                .collect(),
        })
    }
}

impl Document for VolumeListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self
            .volumes
            .iter()
            .map(|volume| volume.name.len())
            .max()
            .unwrap_or(0)
            .max(4);
        if !self.volumes.is_empty() {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:7}  {:>10}  CLIENTS",
                "NAME", "SIZE", "DATA", "NEW", "ALONE", "DEDUP", "DIRTY"
            )?;
        }
        for volume in &self.volumes {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:7}  {:>10}  {}",
                volume.name,
                size::display(volume.size_bytes),
                volume.data.short(),
                size::display(volume.new_bytes),
                volume.usage.freed(),
                volume.dedup.name(),
                volume.dirty_blocks,
                volume.clients.len()
            )?;
        }
        Ok(())
    }
}

/// Describes one volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeStat {
    pub(crate) name: String,
    /// Go through all maps first.
    pub(crate) exact: bool,
}

impl Verb for VolumeStat {
    const PATH: &'static str = "/v1/volume/stat";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<VolumeReply> {
        let stat = service.find(&self.name)?;
        if !self.exact {
            return Ok(VolumeReply::of(service, stat));
        }
        let is_complete = service.store.account(&mut |done, all| {
            report(done, all);
            match service.is_stopping() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if !is_complete {
            return Err(Error::failed("the daemon was stopped meanwhile"));
        }
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Changes how a volume takes part in sharing, also while it is in use.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeSet {
    pub(crate) name: String,
    pub(crate) dedup: Option<Dedup>,
    pub(crate) verify: Option<bool>,
    pub(crate) rounds: Option<u8>,
    pub(crate) interval_seconds: Option<u32>,
    pub(crate) hash_cache_bytes: Option<u64>,
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) reservation_bytes: Option<u64>,
}

impl Verb for VolumeSet {
    const PATH: &'static str = "/v1/volume/set";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        let change = VolumeChange {
            dedup: self.dedup.map(Dedup::into),
            verify: self.verify,
            rounds: self.rounds,
            interval_seconds: self.interval_seconds,
            hash_cache_bytes: self.hash_cache_bytes,
            quota_bytes: self.quota_bytes,
            reservation_bytes: self.reservation_bytes,
        };
        service.store.set_volume(&self.name, &change)?;
        Ok(VolumeReply::of(service, service.find(&self.name)?))
    }
}

/// Gives a volume another name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeRename {
    pub(crate) name: String,
    pub(crate) new_name: String,
    pub(crate) force: bool,
}

impl Verb for VolumeRename {
    const PATH: &'static str = "/v1/volume/rename";
    type Reply = VolumeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<VolumeReply> {
        check_name(&self.new_name)?;
        service.find(&self.name)?;
        if service.find(&self.new_name).is_ok() {
            return Err(Error::failed(format!(
                "a volume '{}' exists already",
                self.new_name
            )));
        }
        let _hold = service.detach(&self.name, self.force, "rename")?;
        service.store.rename_volume(&self.name, &self.new_name)?;
        Ok(VolumeReply::of(service, service.find(&self.new_name)?))
    }
}

/// Changes a volume's size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeResize {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Go on although it discards what lies beyond the new end.
    pub(crate) yes: bool,
    pub(crate) force: bool,
}

/// What a destructive verb is going to do, or has done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlanReply {
    /// One sentence for each consequence.
    plan: Vec<String>,
    /// Whether it was carried out.
    pub(crate) done: bool,
    /// The clients that stand, or stood, in the way.
    clients: Vec<String>,
}

impl PlanReply {
    pub(super) fn of(service: &Service, volume: &str, mut plan: Vec<String>, done: bool) -> Self {
        let clients = service.clients(volume);
        if !clients.is_empty() && !done {
            plan.push(format!("disconnect {} (needs --force)", clients.join(", ")));
        }
        Self {
            plan,
            done,
            clients,
        }
    }
}

impl PlanReply {
    /// Of something that no client can stand in the way of.
    pub(super) fn without_clients(plan: Vec<String>, done: bool) -> Self {
        Self {
            plan,
            done,
            clients: Vec::new(),
        }
    }
}

impl Document for PlanReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.done { "done" } else { "plan" };
        self.plan
            .iter()
            .try_for_each(|sentence| writeln!(out, "{mark}: {sentence}"))
    }
}

impl Verb for VolumeResize {
    const PATH: &'static str = "/v1/volume/resize";
    type Reply = PlanReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PlanReply> {
        let size_bytes = whole_blocks(self.size_bytes, service.store.block_size(), "volume")?;
        let volume = service.find(&self.name)?;
        let shrinks = size_bytes < volume.size_bytes;
        let mut plan = vec![format!(
            "resize volume '{}' {}",
            self.name,
            size::change(volume.size_bytes, size_bytes)
        )];
        if shrinks {
            plan.push(format!(
                "discard everything in its last {}",
                size::display(volume.size_bytes - size_bytes)
            ));
        }
        if shrinks && !self.yes {
            return Ok(PlanReply::of(service, &self.name, plan, false));
        }
        let hold = match shrinks {
            true => service.detach(&self.name, self.force, "shrink")?,
            false => None,
        };
        let clients = service.clients(&self.name);
        if !clients.is_empty() {
            plan.push(format!(
                "keep the old size for {} until attached again",
                clients.join(", ")
            ));
        }
        service.store.resize_volume(&self.name, size_bytes)?;
        drop(hold);
        Ok(PlanReply::of(service, &self.name, plan, true))
    }
}

/// Deletes a volume and gives its blocks back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeDelete {
    pub(crate) name: String,
    /// Do it; otherwise only the plan comes back.
    pub(crate) yes: bool,
    pub(crate) force: bool,
    /// Its snapshots as well.
    pub(crate) snapshots: bool,
}

impl Verb for VolumeDelete {
    const PATH: &'static str = "/v1/volume/delete";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let volume = service.find(&self.name)?;
        let mut plan = vec![format!(
            "delete volume '{}' of {} with {}",
            self.name,
            size::display(volume.size_bytes),
            service.data_in_words(&self.name)
        )];
        let prefix = format!("{}@", self.name);
        let snapshots = service.store.stat()?.snapshots.into_iter();
        let snapshots = snapshots.filter(|it| self.snapshots && it.name.starts_with(&prefix));
        let snapshots: Vec<String> = snapshots.map(|snapshot| snapshot.name).collect();
        let deleted = |it: &String| {
            let data = service.data_in_words(it);
            format!("delete snapshot '{it}' with {data}")
        };
        plan.extend(snapshots.iter().map(deleted));
        if !self.yes {
            return Ok(PlanReply::of(service, &self.name, plan, false));
        }
        let names = [&self.name].into_iter().chain(&snapshots);
        let holds: Result<Vec<_>> = names
            .map(|name| service.detach(name, self.force, "delete"))
            .collect();
        let _holds = holds?;
        match self.snapshots {
            true => service.store.delete_volume_and_snapshots(&self.name)?,
            false => service.store.delete_volume(&self.name)?,
        }
        service.finish_deletions(report)?;
        Ok(PlanReply::of(service, &self.name, plan, true))
    }
}
