//! What can be done to snapshots.

use super::{DataReply, Report, Service, Verb, check_plain};
use crate::error::{Error, Result};
use crate::limits::DIFF_EXTENTS_MAX;
use crate::output::Document;
use crate::size;
use crate::verbs::volume::{PlanReply, UsageReply};
use onefold_store::{Blocking, Change, DeletionStat};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::str::FromStr;

/// `VOLUME@SNAPSHOT`, as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotName {
    volume: String,
    snapshot: String,
}

impl SnapshotName {
    fn full(&self) -> String {
        format!("{}@{}", self.volume, self.snapshot)
    }

    /// # Errors
    /// Where the snapshot cannot have this name.
    pub(crate) fn check(&self) -> Result<()> {
        check_plain(&self.snapshot, "a snapshot's name")
    }
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let Some((volume, snapshot)) = text.split_once('@') else {
            return Err("a snapshot is named VOLUME@SNAPSHOT".to_owned());
        };
        Ok(Self {
            volume: volume.to_owned(),
            snapshot: snapshot.to_owned(),
        })
    }
}

/// Makes snapshots of one moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotCreate {
    pub(crate) names: Vec<SnapshotName>,
}

/// Names the snapshots, of one volume or of all.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotList {
    pub(crate) volume: Option<String>,
}

/// The document of `snapshot list`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotListReply {
    snapshots: Vec<SnapshotReply>,
    /// Gone, but they still hold something.
    being_deleted: Vec<DeletionReply>,
}

/// A volume or snapshot that was deleted and still holds something.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DeletionReply {
    name: String,
    own_blocks: u64,
    own_bytes: u64,
    /// Those that need what it holds. It is kept as long as there are several.
    needed_by: Vec<String>,
    /// Why it cannot go on for now.
    failure: Option<String>,
}

impl DeletionReply {
    pub(super) fn of(stat: DeletionStat, block_size: u64) -> Self {
        Self {
            own_bytes: stat.own_blocks * block_size,
            name: stat.name,
            own_blocks: stat.own_blocks,
            needed_by: stat.needed_by,
            failure: stat.failure,
        }
    }

    pub(super) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, own) = (&self.name, size::display(self.own_bytes));
        if let Some(failure) = &self.failure {
            return writeln!(out, "{name} was deleted; {own} of it stuck: {failure}");
        }
        match self.needed_by.is_empty() {
            true => writeln!(out, "{name} was deleted; {own} of it still to be given up"),
            false => {
                let needed_by = self.needed_by.join(", ");
                writeln!(out, "{name} was deleted; {own} of it needed by {needed_by}")
            }
        }
    }
}

/// A snapshot as it is now.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotReply {
    name: String,
    size_bytes: u64,
    created_unix_seconds: u64,
    #[serde(flatten)]
    data: DataReply,
    own_blocks: u64,
    own_bytes: u64,
    #[serde(flatten)]
    usage: UsageReply,
    nbd_uri: Option<String>,
    clients: Vec<String>,
}

impl SnapshotListReply {
    fn of(service: &Service, is_wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let stat = service.store.stat()?;
        let block_size = u64::from(stat.block_size);
        let wanted = stat.snapshots.into_iter().filter(|it| is_wanted(&it.name));
        let wanted: Vec<_> = wanted.collect();
        let count = wanted.len();
        let snapshots = wanted.into_iter().map(|stat| SnapshotReply {
            data: service.data(&stat.name, count),
            nbd_uri: service.nbd_uri(&stat.name),
            clients: service.clients(&stat.name),
            size_bytes: stat.size_bytes,
            created_unix_seconds: stat.created_unix_seconds,
            own_blocks: stat.own_blocks,
            own_bytes: stat.own_blocks * block_size,
            usage: UsageReply::of(stat.usage, block_size),
            name: stat.name,
        });
        let deletions = stat.deletions.into_iter();
        let deletions = deletions.filter(|it| it.name.contains('@') && is_wanted(&it.name));
        Ok(Self {
            snapshots: snapshots.collect(),
            being_deleted: deletions
                .map(|it| DeletionReply::of(it, block_size))
                .collect(),
        })
    }
}

impl Verb for SnapshotCreate {
    const PATH: &'static str = "/v1/snapshot/create";
    type Reply = SnapshotListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<SnapshotListReply> {
        self.names.iter().try_for_each(SnapshotName::check)?;
        let wanted = self.names.iter();
        let wanted: Vec<_> = wanted
            .map(|name| (name.volume.clone(), name.snapshot.clone()))
            .collect();
        service.store.create_snapshots(&wanted)?;
        SnapshotListReply::of(service, |made| {
            self.names.iter().any(|name| name.full() == made)
        })
    }
}

impl Verb for SnapshotList {
    const PATH: &'static str = "/v1/snapshot/list";
    type Reply = SnapshotListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<SnapshotListReply> {
        if let Some(volume) = &self.volume {
            service.find(volume)?;
        }
        SnapshotListReply::of(service, |name| {
            let of = name.split_once('@').map(|(volume, _)| volume);
            self.volume.is_none() || self.volume.as_deref() == of
        })
    }
}

impl Document for SnapshotListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.snapshots.iter().map(|snapshot| snapshot.name.len());
        let width = names.max().unwrap_or(0).max(4);
        if !self.snapshots.is_empty() {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:20}  CLIENTS",
                "NAME", "SIZE", "DATA", "NEW", "ALONE", "CREATED"
            )?;
        }
        for snapshot in &self.snapshots {
            writeln!(
                out,
                "{:width$}  {:>10}  {:>10}  {:>10}  {:>10}  {:20}  {}",
                snapshot.name,
                size::display(snapshot.size_bytes),
                snapshot.data.short(),
                size::display(snapshot.own_bytes),
                snapshot.usage.freed(),
                utc(snapshot.created_unix_seconds),
                snapshot.clients.len()
            )?;
        }
        self.being_deleted.iter().try_for_each(|it| it.text(out))
    }
}

/// A time for people.
pub(crate) fn utc(unix_seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(unix_seconds));
    time.map_or_else(
        || unix_seconds.to_string(),
        |time| humantime::format_rfc3339_seconds(time).to_string(),
    )
}

/// Deletes a snapshot and gives back what it alone holds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotDelete {
    pub(crate) name: SnapshotName,
    /// Do it; otherwise only the plan comes back.
    pub(crate) yes: bool,
    pub(crate) force: bool,
}

impl Verb for SnapshotDelete {
    const PATH: &'static str = "/v1/snapshot/delete";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let (SnapshotName { volume, snapshot }, full) = (&self.name, self.name.full());
        let stat = service.store.stat()?.snapshots;
        let Some(stat) = stat.into_iter().find(|stat| stat.name == full) else {
            return Err(Error::failed(format!("no snapshot is named '{full}'")));
        };
        let plan = vec![format!(
            "delete snapshot '{full}' with {}, of which at most {} is in no other",
            service.data_in_words(&full),
            size::display(stat.own_blocks * u64::from(service.store.block_size()))
        )];
        if !self.yes {
            return Ok(PlanReply::of(service, &full, plan, false));
        }
        let _hold = service.detach(&full, self.force, "delete")?;
        service.store.delete_snapshot(volume, snapshot)?;
        service.finish_deletions(report)?;
        Ok(PlanReply::of(service, &full, plan, true))
    }
}

/// Takes a volume back to one of its snapshots.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotRollback {
    pub(crate) name: SnapshotName,
    /// Do it; otherwise only the plan comes back.
    pub(crate) yes: bool,
    pub(crate) force: bool,
}

impl Verb for SnapshotRollback {
    const PATH: &'static str = "/v1/snapshot/rollback";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let (SnapshotName { volume, snapshot }, full) = (&self.name, self.name.full());
        let (before, to) = (service.find(volume)?, service.find(&full)?);
        let mut plan = vec![format!(
            "take volume '{volume}' with {} back to '{full}' with {}",
            service.data_in_words(volume),
            service.data_in_words(&full)
        )];
        plan.push(match discarded(service, volume, &full) {
            Ok([written, trimmed]) => format!(
                "discard what was written since, {}, and bring back what was trimmed, {}",
                size::display(written),
                size::display(trimmed)
            ),
            Err(error) => {
                format!("discard what was written since, which cannot be counted ({error})")
            }
        });
        if before.size_bytes != to.size_bytes {
            let (before, after) = (before.size_bytes, to.size_bytes);
            plan.push(format!("resize it {}", size::change(before, after)));
        }
        if !self.yes {
            return Ok(PlanReply::of(service, volume, plan, false));
        }
        let _hold = service.detach(volume, self.force, "roll back")?;
        service.store.roll_back(volume, snapshot)?;
        service.finish_deletions(report)?;
        Ok(PlanReply::of(service, volume, plan, true))
    }
}

/// The bytes of a volume that are different in a snapshot of it: with data in the volume, and without.
fn discarded(service: &Service, volume: &str, snapshot: &str) -> Result<[u64; 2]> {
    let [volume, snapshot] = [
        service.store.volume(volume)?,
        service.store.volume(snapshot)?,
    ];
    let sizes = [volume.size_bytes(), snapshot.size_bytes()];
    let (both, end) = (sizes[0].min(sizes[1]), sizes[0].max(sizes[1]));
    let (mut written, mut trimmed, mut at) = (0, 0, 0);
    while at < end {
        let before = at;
        let range = at..if at < both { both } else { end };
        for extent in volume.changes(&snapshot, range, DIFF_EXTENTS_MAX, Blocking::Yes)? {
            match extent.change {
                Change::Data => written += extent.len,
                // Where the volume has grown there was nothing.
                Change::Zero if at < snapshot.size_bytes() => trimmed += extent.len,
                Change::Zero | Change::Same => {}
            }
            at += extent.len;
        }
        if at == before {
            return Err(Error::failed("the maps do not say what lies beyond"));
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
