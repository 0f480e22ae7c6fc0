//! What can be asked of a whole pool.

use super::job::Counts;
use super::snapshot::DeletionReply;
use super::volume::PlanReply;
use super::{DataReply, Report, Service, Verb, whole_blocks};
use crate::error::{Error, Result};
use crate::limits::FINDINGS_LISTED_MAX;
use crate::output::Document;
use crate::sharing::{Dedup, Index};
use crate::size;
use onefold_jobs::{Shrunk, dedup_now, keeps_its_size, shrink_to};
use onefold_store::{Finding, SpaceLevel, WhenFull};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// How full a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Space {
    Enough,
    Low,
    Scarce,
    Reserve,
    Full,
}

impl From<SpaceLevel> for Space {
    fn from(level: SpaceLevel) -> Self {
        match level {
            SpaceLevel::Enough => Self::Enough,
            SpaceLevel::Low => Self::Low,
            SpaceLevel::Scarce => Self::Scarce,
            SpaceLevel::Reserve => Self::Reserve,
            SpaceLevel::Full => Self::Full,
        }
    }
}

impl Space {
    /// For people.
    fn describe(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::Low => "low",
            Self::Scarce => "scarce: imports stop",
            Self::Reserve => "down to the reserve: only what overwrites data is written",
            Self::Full => "full",
        }
    }
}

/// What becomes of writes for which a pool has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Full {
    /// They wait until there is room.
    Pause,
    /// They fail, with ENOSPC.
    Fail,
}

impl Full {
    /// For people.
    fn describe(self) -> &'static str {
        match self {
            Self::Pause => "writes wait for room",
            Self::Fail => "writes fail",
        }
    }
}

impl From<WhenFull> for Full {
    fn from(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Pause => Self::Pause,
            WhenFull::Fail => Self::Fail,
        }
    }
}

impl From<Full> for WhenFull {
    fn from(full: Full) -> Self {
        match full {
            Full::Pause => Self::Pause,
            Full::Fail => Self::Fail,
        }
    }
}

/// Numbers of blocks and bytes, over everything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolStat {}

/// One volume's line in [`PoolStatReply`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolVolume {
    name: String,
    size_bytes: u64,
    dedup: Dedup,
    domain: String,
    #[serde(flatten)]
    data: DataReply,
    logical_blocks: u64,
    dirty_blocks: u64,
    nbd_uri: Option<String>,
}

/// The document of `pool stat`; its field names are a promise.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolStatReply {
    block_size: u32,
    pool_blocks: u64,
    shrinking_to_blocks: Option<u64>,
    logical_blocks: u64,
    physical_blocks: u64,
    private_blocks: u64,
    /// Blocks that the finder is publishing just now.
    unsettled_blocks: u64,
    unique_blocks: u64,
    shared_blocks: u64,
    free_blocks: u64,
    /// Of these, those that the host has space for.
    available_blocks: u64,
    /// What the file system of the pool's file has free.
    host_free_bytes: Option<u64>,
    /// Of these, those that only what overwrites data gets.
    reserve_blocks: u64,
    /// Of the free ones, those that are kept for volumes with a reservation.
    reserved_unused_blocks: u64,
    space: Space,
    when_full: Full,
    /// Clients' requests that wait for room.
    waiting_requests: u64,
    reclaim_blocks: u64,
    /// References that were given up and that the collector has still to release.
    queued_blocks: u64,
    dirty_blocks: u64,
    index: Index,
    index_rebuilding: bool,
    index_bytes_on_disk: u64,
    pool_bytes_on_disk: u64,
    /// Of these, for blocks that are free: what `pool trim` gives back.
    free_bytes_on_disk: u64,
    metadata_bytes_on_disk: u64,
    dedup_ratio: f64,
    saved_bytes: u64,
    volumes: Vec<PoolVolume>,
    /// Volumes and snapshots that were deleted and still hold something.
    being_deleted: Vec<DeletionReply>,
}

impl Verb for PoolStat {
    const PATH: &'static str = "/v1/pool/stat";
    type Reply = PoolStatReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolStatReply> {
        let stat = service.store.stat()?;
        let saved_blocks = stat.logical_blocks.saturating_sub(stat.physical_blocks);
        // An empty pool saves nothing and wastes nothing: the ratio of a pool without dedup.
        let dedup_ratio = match stat.physical_blocks {
            0 => 1.0,
            physical_blocks => stat.logical_blocks as f64 / physical_blocks as f64,
        };
        let count = stat.volumes.len();
        let volumes = stat.volumes.into_iter().map(|volume| PoolVolume {
            data: service.data(&volume.name, count),
            nbd_uri: service.nbd_uri(&volume.name),
            name: volume.name,
            size_bytes: volume.size_bytes,
            dedup: volume.dedup.into(),
            domain: volume.domain,
            logical_blocks: volume.logical_blocks,
            dirty_blocks: volume.dirty_blocks,
        });
        let deletions = stat.deletions.into_iter();
        let deletions = deletions.map(|it| DeletionReply::of(it, stat.block_size.into()));
        Ok(PoolStatReply {
            block_size: stat.block_size,
            pool_blocks: stat.pool_blocks,
            shrinking_to_blocks: stat.shrinking_to_blocks,
            logical_blocks: stat.logical_blocks,
            physical_blocks: stat.physical_blocks,
            private_blocks: stat.private_blocks,
            unsettled_blocks: stat.unsettled_blocks,
            unique_blocks: stat.unique_blocks,
            shared_blocks: stat.shared_blocks,
            free_blocks: stat.free_blocks,
            available_blocks: stat.available_blocks,
            host_free_bytes: stat.host_free_bytes,
            reserve_blocks: stat.reserve_blocks,
            reserved_unused_blocks: stat.reserved_unused_blocks,
            space: stat.space.into(),
            when_full: stat.when_full.into(),
            waiting_requests: service.waiting_for_space(),
            reclaim_blocks: stat.reclaim_blocks,
            queued_blocks: stat.queued_blocks,
            dirty_blocks: stat.dirty_blocks,
            index: stat.index.into(),
            index_rebuilding: stat.index_rebuilding,
            index_bytes_on_disk: stat.index_bytes_on_disk,
            pool_bytes_on_disk: stat.pool_bytes_on_disk,
            free_bytes_on_disk: stat.free_bytes_on_disk,
            metadata_bytes_on_disk: stat.metadata_bytes_on_disk,
            dedup_ratio,
            saved_bytes: saved_blocks * u64::from(stat.block_size),
            volumes: volumes.collect(),
            being_deleted: deletions.collect(),
        })
    }
}

impl PoolStatReply {
    /// What the host has allocated and nothing is stored in, if there is any.
    fn free_on_disk(&self) -> String {
        match self.free_bytes_on_disk {
            0 => String::new(),
            free => format!("  of which {} are free", size::display(free)),
        }
    }

    /// What the host lacks, if it does.
    fn host_room(&self, bytes: &dyn Fn(u64) -> String) -> String {
        match self.host_free_bytes {
            Some(host_free) if self.available_blocks < self.free_blocks => format!(
                "the host has room for {} of it: {} free in its file system",
                bytes(self.available_blocks),
                size::display(host_free)
            ),
            _ => String::new(),
        }
    }
}

impl Document for PoolStatReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let bytes = |blocks: u64| size::display(blocks * u64::from(self.block_size));
        let waiting = match self.waiting_requests {
            0 => String::new(),
            waiting => format!(", {waiting} of them now"),
        };
        let index_state = if self.index_rebuilding {
            ", to be counted again before anything more is shared"
        } else {
            ""
        };
        let lines = [
            (
                "size",
                match self.shrinking_to_blocks {
                    Some(end) => {
                        format!("{}, shrinking to {}", bytes(self.pool_blocks), bytes(end))
                    }
                    None => bytes(self.pool_blocks),
                },
            ),
            ("block size", size::display(self.block_size.into())),
            (
                "free",
                match self.reserved_unused_blocks {
                    0 => bytes(self.free_blocks),
                    kept => format!(
                        "{}, of which {} are reserved",
                        bytes(self.free_blocks),
                        bytes(kept)
                    ),
                },
            ),
            ("", self.host_room(&bytes)),
            ("space", self.space.describe().to_owned()),
            (
                "when full",
                format!("{}{waiting}", self.when_full.describe()),
            ),
            ("given up", bytes(self.reclaim_blocks)),
            (
                "data",
                format!("{} in volumes and snapshots", bytes(self.logical_blocks)),
            ),
            ("", format!("{} in the pool", bytes(self.physical_blocks))),
            ("  private", bytes(self.private_blocks)),
            ("  unsettled", bytes(self.unsettled_blocks)),
            ("  unique", bytes(self.unique_blocks)),
            ("  shared", bytes(self.shared_blocks)),
            ("to look at", bytes(self.dirty_blocks)),
            ("saved", size::display(self.saved_bytes)),
            (
                "dedup ratio",
                format!(
                    "{:.2}, of data to what is in the pool for it",
                    self.dedup_ratio
                ),
            ),
            ("index", format!("{}{index_state}", self.index.name())),
            (
                "on disk",
                format!("{} data", size::display(self.pool_bytes_on_disk)),
            ),
            ("", self.free_on_disk()),
            (
                "",
                format!("{} metadata", size::display(self.metadata_bytes_on_disk)),
            ),
            (
                "",
                format!("{} index", size::display(self.index_bytes_on_disk)),
            ),
            ("volumes", self.volumes.len().to_string()),
        ];
        for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
            writeln!(out, "{name:14}  {value}")?;
        }
        for volume in &self.volumes {
            writeln!(
                out,
                "  {}  {} of {}{}",
                volume.name,
                volume.data.short(),
                size::display(volume.size_bytes),
                volume
                    .nbd_uri
                    .as_ref()
                    .map(|uri| format!("  {uri}"))
                    .unwrap_or_default(),
            )?;
        }
        self.being_deleted.iter().try_for_each(|it| it.text(out))
    }
}

/// Brings the pool to the newest format.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolUpgrade {}

/// The document of `pool upgrade`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolUpgradeReply {
    /// The pool's format, as major and minor version.
    format: String,
    /// Whether anything was changed.
    upgraded: bool,
}

impl Verb for PoolUpgrade {
    const PATH: &'static str = "/v1/pool/upgrade";
    type Reply = PoolUpgradeReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolUpgradeReply> {
        let (major, minor) = service.store.format_version()?;
        Ok(PoolUpgradeReply {
            format: format!("{major}.{minor}"),
            upgraded: false,
        })
    }
}

impl Document for PoolUpgradeReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "the pool has format {}, the newest that there is: nothing to do",
            self.format
        )
    }
}

/// Changes how the pool behaves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolSet {
    pub(crate) when_full: Full,
}

/// The document of `pool set`: the settings as they are now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolSetReply {
    when_full: Full,
}

impl Verb for PoolSet {
    const PATH: &'static str = "/v1/pool/set";
    type Reply = PoolSetReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolSetReply> {
        service.store.set_when_full(self.when_full.into())?;
        Ok(PoolSetReply {
            when_full: service.store.when_full().into(),
        })
    }
}

impl Document for PoolSetReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "when full  {}", self.when_full.describe())
    }
}

/// Finds and shares all duplicates that are there now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolDedup {
    /// Only in this volume, whatever its dedup.
    pub(crate) volume: Option<String>,
}

/// The document of `pool dedup`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolDedupReply {
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    bytes_per_second: u64,
}

impl PoolDedupReply {
    /// What of it was not as it should be.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.counts.declined > 0 {
            warnings.push(format!(
                "the index had no room for {}, left as they are; give the daemon more memory, or \
                 delete what is not needed",
                size::count(self.counts.declined, "block")
            ));
        }
        if self.counts.quarantined > 0 {
            warnings.push(format!(
                "the index did not know {} that lost a reference; they are set aside until 'onefold \
                 pool check --repair'",
                size::count(self.counts.quarantined, "block")
            ));
        }
        warnings
    }
}

impl Verb for PoolDedup {
    const PATH: &'static str = "/v1/pool/dedup";
    type Reply = PoolDedupReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolDedupReply> {
        if service.store.shrinking_to()?.is_some() {
            return Err(Error::failed(
                "the pool is being made smaller, and nothing is shared meanwhile; 'onefold pool \
                 resize' goes on with that, or ends it",
            ));
        }
        let totals = dedup_now(
            &service.store,
            self.volume.as_deref(),
            &mut service.blocks_until_stopped(report),
        )?;
        if totals.was_broken_off {
            return Err(Error::failed(format!(
                "the daemon was stopped after {}; the rest is found later",
                size::count(totals.counts.looked_at, "block")
            )));
        }
        Ok(PoolDedupReply {
            counts: totals.counts.into(),
            seconds: totals.seconds,
            bytes_per_second: (totals.counts.bytes as f64 / totals.seconds.max(1e-9)) as u64,
        })
    }
}

impl Document for PoolDedupReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts = &self.counts;
        writeln!(
            out,
            "{} looked at: {} new, {}",
            size::count(counts.looked_at, "block"),
            counts.unique,
            size::count(counts.duplicates, "duplicate")
        )?;
        if counts.rejected > 0 {
            writeln!(
                out,
                "{} with the fingerprint of another, but not its bytes",
                size::count(counts.rejected, "block")
            )?;
        }
        writeln!(
            out,
            "{} released, {} freed",
            size::count(counts.released, "reference"),
            size::count(counts.freed, "block")
        )?;
        writeln!(
            out,
            "{:.1} s, {}/s",
            self.seconds,
            size::display(self.bytes_per_second)
        )
    }
}

/// Changes the pool's size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolResize {
    pub(crate) size_bytes: u64,
    /// Go on although it makes the pool smaller.
    pub(crate) yes: bool,
}

impl PoolResize {
    /// What making it smaller takes, and that only if it is wanted.
    fn shrink(&self, service: &Service, size_bytes: u64, report: Report<'_>) -> Result<PlanReply> {
        let store = &service.store;
        let before = store.size_bytes()?;
        // What is deleted need not be moved.
        store.finish_deletions(&mut service.blocks(report))?;
        let wanted = store.plan_shrink(size_bytes)?;
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
                "shrink to {first} first, and find the duplicates among the copies before going on"
            ));
        }
        if !self.yes {
            return Ok(PlanReply::without_clients(plan, false));
        }
        let shrunk = shrink_to(store, size_bytes, &mut service.blocks_until_stopped(report));
        let now = || store.size_bytes().map(size::display).unwrap_or_default();
        let failed = match shrunk {
            Ok(Shrunk::Done) => None,
            Ok(Shrunk::Cancelled) => Some("somebody else has cancelled this".to_owned()),
            Ok(Shrunk::BrokenOff) => Some(
                "the daemon was stopped; it goes on when it is started again, and what it does not do \
                 this command will"
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
            plan.push("leave it to the finder to share again what was copied".to_owned());
        }
        Ok(PlanReply::without_clients(plan, true))
    }
}

impl Verb for PoolResize {
    const PATH: &'static str = "/v1/pool/resize";
    type Reply = PlanReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PlanReply> {
        let size_bytes = whole_blocks(self.size_bytes, service.store.block_size(), "pool")?;
        let before = service.store.size_bytes()?;
        if size_bytes < before {
            return self.shrink(service, size_bytes, report);
        }
        let shrinking = service.store.shrinking_to()?;
        service.store.grow(size_bytes)?;
        let plan = match size_bytes == before {
            true if shrinking.is_some() => "keep the pool's size: it shrinks no more".to_owned(),
            true => "leave the pool as it is: it has this size".to_owned(),
            false => format!("grow the pool {}", size::change(before, size_bytes)),
        };
        Ok(PlanReply::without_clients(vec![plan], true))
    }
}

/// Proves that every block is accounted for exactly once.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolCheck {
    /// Rebuild free space from the maps where they disagree.
    pub(crate) repair: bool,
}

/// The document of `pool check`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolCheckReply {
    pub(crate) findings: u64,
    pub(crate) repaired: u64,
    leaked_blocks: u64,
    mapped_blocks: u64,
    pages_read: u64,
    /// The first findings; [`PoolCheckReply::findings`] counts them all.
    listed: Vec<ListedFinding>,
}

/// One thing that is wrong.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListedFinding {
    message: String,
    repairable: bool,
}

impl PoolCheckReply {
    /// A pool that is too damaged to be opened has this one finding.
    pub(crate) fn unopenable(message: String) -> Self {
        let listed = vec![ListedFinding {
            message,
            repairable: false,
        }];
        let (repaired, leaked_blocks, mapped_blocks, pages_read) = (0, 0, 0, 0);
        Self {
            findings: 1,
            repaired,
            leaked_blocks,
            mapped_blocks,
            pages_read,
            listed,
        }
    }
}

impl Verb for PoolCheck {
    const PATH: &'static str = "/v1/pool/check";
    type Reply = PoolCheckReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolCheckReply> {
        let mut listed = Vec::new();
        let mut list = |finding: Finding| {
            if listed.len() < FINDINGS_LISTED_MAX {
                let (message, repairable) = (finding.message, finding.repairable);
                listed.push(ListedFinding {
                    message,
                    repairable,
                });
            }
        };
        let store = &service.store;
        let report = store.check_with_progress(self.repair, &mut list, report)?;
        Ok(PoolCheckReply {
            findings: report.findings,
            repaired: report.repaired,
            leaked_blocks: report.leaked_blocks,
            mapped_blocks: report.mapped_blocks,
            pages_read: report.pages_read,
            listed,
        })
    }
}

impl Document for PoolCheckReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.listed {
            let hint = if finding.repairable {
                " (--repair puts this right)"
            } else {
                ""
            };
            writeln!(out, "{}{hint}", finding.message)?;
        }
        let unlisted = self.findings.saturating_sub(self.listed.len() as u64);
        if unlisted > 0 {
            writeln!(out, "and {unlisted} more")?;
        }
        writeln!(
            out,
            "{} and {} checked: {}, {} repaired, {} leaked",
            size::count(self.mapped_blocks, "mapped block"),
            size::count(self.pages_read, "metadata page"),
            size::count(self.findings, "finding"),
            self.repaired,
            size::count(self.leaked_blocks, "block")
        )
    }
}
