//! Requests about snapshots.

use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use onefold_store::{Blocking, Change, DeletionStat, SnapshotStat, full_name, split_name};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::DIFF_EXTENTS_MAX;
use crate::request::{Report, Request};
use crate::service::{DataReply, Service, check_plain};
use crate::size;
use crate::volume::{DELETE, PlanReply, UsageReply};

/// The verb for refusals while a volume to be rolled back is attached.
const ROLL_BACK: &str = "roll back";

/// A snapshot's name, `VOLUME@SNAPSHOT`. In JSON it is a string of this form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotName {
    volume: String,
    snapshot: String,
}

impl SnapshotName {
    /// The part of the name before the `@`.
    #[must_use]
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The part of the name after the `@`.
    #[must_use]
    pub fn snapshot(&self) -> &str {
        &self.snapshot
    }

    fn full(&self) -> String {
        full_name(&self.volume, &self.snapshot)
    }

    fn check(&self) -> Result<()> {
        check_plain(&self.snapshot, "a snapshot's name")
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SnapshotName {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .pattern(Some("^[^@]+@[^@]+$"))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SnapshotName {}

impl From<SnapshotName> for String {
    fn from(name: SnapshotName) -> Self {
        name.full()
    }
}

impl TryFrom<String> for SnapshotName {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (volume, Some(snapshot)) = split_name(text) else {
            return Err("a snapshot is named VOLUME@SNAPSHOT".to_owned());
        };
        Ok(Self {
            volume: volume.to_owned(),
            snapshot: snapshot.to_owned(),
        })
    }
}

/// Creates snapshots of one or several volumes, all at the same moment.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotCreate {
    /// The snapshots to create, at most one per volume.
    #[arg(value_name = "VOLUME@SNAPSHOT", required = true)]
    pub names: Vec<SnapshotName>,
}

/// Lists the snapshots of one volume, or of all.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotList {
    /// List only the snapshots of this volume.
    pub volume: Option<String>,
}

/// Snapshots, and snapshots that are still being deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotListReply {
    /// The snapshots, one entry each.
    pub snapshots: Vec<SnapshotReply>,
    /// Deleted snapshots that still hold blocks.
    pub being_deleted: Vec<DeletionReply>,
}

/// A deleted volume or snapshot that still holds blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletionReply {
    #[serde(flatten)]
    /// The deletion's progress.
    pub stat: DeletionStat,
    /// Bytes that the deleted volume or snapshot still holds.
    pub own_bytes: u64,
}

impl DeletionReply {
    pub(crate) fn of(stat: DeletionStat, block_size: u64) -> Self {
        Self {
            own_bytes: stat.own_blocks * block_size,
            stat,
        }
    }
}

/// A snapshot's current figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotReply {
    #[serde(flatten)]
    /// The figures of the store.
    pub stat: SnapshotStat,
    #[serde(flatten)]
    /// The snapshot's data, over all layers.
    pub data: DataReply,
    /// Bytes of data in the snapshot's own layer.
    pub own_bytes: u64,
    #[serde(flatten)]
    /// Results of the last accounting.
    pub usage: UsageReply,
    /// NBD URI of the snapshot, if a daemon serves it.
    pub nbd_uri: Option<String>,
    /// Clients attached to the snapshot.
    pub clients: Vec<String>,
}

impl SnapshotListReply {
    fn of(service: &Service, is_wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let stat = service.stores.stat()?;
        let block_size = u64::from(stat.block_size);
        let wanted = stat
            .snapshots
            .into_iter()
            .filter(|snapshot| is_wanted(&snapshot.name));
        let wanted: Vec<_> = wanted.collect();
        let count = wanted.len();
        let snapshots = wanted.into_iter().map(|stat| SnapshotReply {
            data: service.data(&stat.name, count),
            nbd_uri: service.nbd_uri(&stat.name),
            clients: service.clients(&stat.name),
            own_bytes: stat.own_blocks * block_size,
            usage: UsageReply::of(&stat.name, stat.usage, block_size),
            stat,
        });
        let deletions = stat.deletions.into_iter();
        let deletions = deletions
            .filter(|deletion| split_name(&deletion.name).1.is_some() && is_wanted(&deletion.name));
        Ok(Self {
            snapshots: snapshots.collect(),
            being_deleted: deletions
                .map(|deletion| DeletionReply::of(deletion, block_size))
                .collect(),
        })
    }
}

impl Request for SnapshotCreate {
    const PATH: &'static str = "/v1/snapshot/create";
    type Reply = SnapshotListReply;

    fn check(&self) -> Result<()> {
        self.names.iter().try_for_each(SnapshotName::check)
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<SnapshotListReply> {
        let wanted = self.names.iter();
        let wanted: Vec<_> = wanted
            .map(|name| (name.volume.clone(), name.snapshot.clone()))
            .collect();
        let mut stores = Vec::new();
        for (volume, _) in &wanted {
            stores.push(service.store_of(volume)?);
        }
        let Some((store, others)) = stores.split_first() else {
            return Err(Error::usage("name at least one snapshot"));
        };
        if others.iter().any(|other| !Arc::ptr_eq(other, store)) {
            return Err(Error::usage(
                "the volumes are in several groups, and only volumes of one group can have snapshots of one moment: make \
                 them one by one",
            ));
        }
        store.create_snapshots(&wanted)?;
        SnapshotListReply::of(service, |made| {
            self.names.iter().any(|name| name.full() == made)
        })
    }
}

impl Request for SnapshotList {
    const PATH: &'static str = "/v1/snapshot/list";
    type Reply = SnapshotListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<SnapshotListReply> {
        if let Some(volume) = &self.volume {
            service.find(volume)?;
        }
        SnapshotListReply::of(service, |name| {
            let (of, _) = split_name(name);
            self.volume.as_deref().is_none_or(|volume| volume == of)
        })
    }
}

/// Deletes a snapshot and releases the blocks that no other snapshot or volume holds.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotDelete {
    /// The snapshot to delete.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    pub name: SnapshotName,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
    /// Disconnect clients that have the snapshot attached.
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

impl Request for SnapshotDelete {
    const PATH: &'static str = "/v1/snapshot/delete";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let (SnapshotName { volume, snapshot }, full) = (&self.name, self.name.full());
        let store = service.store_of(volume)?;
        let found = store.check_snapshot(volume, snapshot)?;
        let plan = vec![format!(
            "delete snapshot '{full}' with {}, of which at most {} is in no other",
            service.data_in_words(&full),
            size::display(found.logical_blocks() * u64::from(service.stores.block_size()))
        )];
        if !self.yes {
            service.check_detachable(&full, self.force, DELETE)?;
            return Ok(PlanReply::planned(service, &[full], plan));
        }
        let _hold = service.detach(&full, self.force, DELETE)?;
        store.delete_snapshot(volume, snapshot)?;
        service.finish_deletions(&store, report)?;
        Ok(PlanReply::done(service, &full, plan))
    }
}

/// Rolls a volume back to one of its snapshots. Data written since then is discarded.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotRollback {
    /// The snapshot to roll back to.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    pub name: SnapshotName,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
    /// Disconnect clients that have the volume attached.
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

impl Request for SnapshotRollback {
    const PATH: &'static str = "/v1/snapshot/rollback";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let (SnapshotName { volume, snapshot }, full) = (&self.name, self.name.full());
        let before = service.find(volume)?;
        let store = service.store_of(volume)?;
        let to = store.check_snapshot(volume, snapshot)?;
        let mut plan = vec![format!(
            "take volume '{volume}' with {} back to '{full}' with {}",
            service.data_in_words(volume),
            service.data_in_words(&full)
        )];
        plan.push(match discarded(service, volume, &full) {
            Ok([written, trimmed]) => format!(
                "discard the data written since, {}, and bring back the data trimmed since, {}",
                size::display(written),
                size::display(trimmed)
            ),
            Err(error) => {
                format!("discard the data written since, which cannot be counted ({error})")
            }
        });
        let (before, after) = (before.size_bytes, to.size_bytes());
        if before != after {
            plan.push(format!("resize it {}", size::change(before, after)));
        }
        if !self.yes {
            service.check_detachable(volume, self.force, ROLL_BACK)?;
            let names = std::slice::from_ref(volume);
            return Ok(PlanReply::planned(service, names, plan));
        }
        let _hold = service.detach(volume, self.force, ROLL_BACK)?;
        store.roll_back(volume, snapshot)?;
        service.finish_deletions(&store, report)?;
        Ok(PlanReply::done(service, volume, plan))
    }
}

/// Counts the bytes in which a volume differs from one of its snapshots: with data in the volume, and
/// without.
fn discarded(service: &Service, volume: &str, snapshot: &str) -> Result<[u64; 2]> {
    let store = service.store_of(volume)?;
    let [volume, snapshot] = [store.volume(volume)?, store.volume(snapshot)?];
    let sizes = [volume.size_bytes(), snapshot.size_bytes()];
    let (both, end) = (sizes[0].min(sizes[1]), sizes[0].max(sizes[1]));
    let (mut written, mut trimmed, mut at) = (0, 0, 0);
    while at < end {
        let before = at;
        let range = at..if at < both { both } else { end };
        for extent in volume.changes(&snapshot, range, DIFF_EXTENTS_MAX, Blocking::Yes)? {
            match extent.change {
                Change::Data => written += extent.len,
                // Beyond the snapshot's end there is nothing to bring back.
                Change::Zero if at < snapshot.size_bytes() => trimmed += extent.len,
                Change::Zero | Change::Same => {}
            }
            at += extent.len;
        }
        if at == before {
            return Err(Error::failed("the maps end before the volume does"));
        }
    }
    Ok([written, trimmed])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_with_its_volume() {
        let name: SnapshotName = "vm@before.upgrade".parse().unwrap();
        assert_eq!(
            (name.volume.as_str(), name.full().as_str()),
            ("vm", "vm@before.upgrade")
        );
        assert!(name.check().is_ok());
        assert!("vm".parse::<SnapshotName>().is_err());
        for text in ["vm@", "vm@a@b", "vm@-x"] {
            let name: SnapshotName = text.parse().unwrap();
            assert!(name.check().is_err(), "{text}");
        }
    }
}
