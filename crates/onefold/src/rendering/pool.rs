//! Renders the pool.

use std::io::{self, Write};

use onefold_api::{
    PoolCheckReply, PoolDedupReply, PoolSetReply, PoolStatReply, PoolTrimReply, PoolUpgradeReply,
    size,
};
use onefold_store::{PoolStat, Provisioning, SpaceLevel, WhenFull};

use super::snapshot::write_deletion;
use super::{short, word};
use crate::output::Render;

impl Render for PoolTrimReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let given_back = self
            .before_bytes_on_disk
            .saturating_sub(self.pool_bytes_on_disk);
        writeln!(
            out,
            "{} given back; the host has allocated {} for data",
            size::display(given_back),
            size::display(self.pool_bytes_on_disk)
        )
    }
}

impl Render for PoolStatReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let stat = &self.stat;
        let bytes = |blocks: u64| size::display(blocks * u64::from(stat.block_size));
        let waiting = match self.waiting_requests {
            0 => String::new(),
            waiting => format!(", {waiting} of them now"),
        };
        let index_state = if stat.index_rebuilding {
            ", to be counted again before anything more is shared"
        } else {
            ""
        };
        writeln!(out, "{:14}  {}", "state", self.state.name())?;
        for problem in &self.problems {
            writeln!(out, "{:14}  {}", "", problem.message)?;
        }
        let lines = [
            (
                "size",
                match stat.shrinking_to_blocks {
                    Some(end) => {
                        format!("{}, shrinking to {}", bytes(stat.pool_blocks), bytes(end))
                    }
                    None => bytes(stat.pool_blocks),
                },
            ),
            (
                "",
                match stat.provisioning {
                    Provisioning::Thin => String::new(),
                    Provisioning::Thick => "thick, all of it allocated on the host".to_owned(),
                },
            ),
            ("block size", size::display(stat.block_size.into())),
            ("format", stat.format.clone()),
            (
                "free",
                match stat.reserved_unused_blocks {
                    0 => bytes(stat.free_blocks),
                    kept => format!(
                        "{}, of which {} are reserved",
                        bytes(stat.free_blocks),
                        bytes(kept)
                    ),
                },
            ),
            ("", host_room(stat, &bytes)),
            ("space", space(stat.space).to_owned()),
            (
                "when full",
                format!("{}{waiting}", when_full(stat.when_full)),
            ),
            ("pending free", bytes(stat.pending_free_blocks)),
            (
                "claimed",
                match stat.claimed_blocks {
                    0 => String::new(),
                    claimed => format!("{} of {}", bytes(claimed), bytes(stat.claimed_max_blocks)),
                },
            ),
            (
                "data",
                format!("{} in volumes and snapshots", bytes(stat.logical_blocks)),
            ),
            ("", format!("{} in the pool", bytes(stat.physical_blocks))),
            ("  private", bytes(stat.private_blocks)),
            ("  unsettled", bytes(stat.unsettled_blocks)),
            ("  unique", bytes(stat.unique_blocks)),
            ("  shared", bytes(stat.shared_blocks)),
            ("pending dedup", bytes(stat.pending_dedup_blocks)),
            ("saved", size::display(self.saved_bytes)),
            (
                "dedup ratio",
                format!("{:.2}, data to its blocks in the pool", self.dedup_ratio),
            ),
            ("index", format!("{}{index_state}", word(stat.index))),
            (
                "on disk",
                format!("{} data", size::display(stat.pool_bytes_on_disk)),
            ),
            ("", free_on_disk(stat)),
            ("", holes(stat, &bytes)),
            (
                "",
                format!("{} metadata", size::display(stat.metadata_bytes_on_disk)),
            ),
            (
                "",
                format!("{} index", size::display(stat.index_bytes_on_disk)),
            ),
            (
                "lost",
                match stat.lost_blocks {
                    0 => String::new(),
                    lost => format!("{}, which give errors until they are written", bytes(lost)),
                },
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
                short(volume.data),
                size::display(volume.size_bytes),
                volume
                    .nbd_uri
                    .as_ref()
                    .map(|uri| format!("  {uri}"))
                    .unwrap_or_default(),
            )?;
        }
        for damaged in &self.damaged_volumes {
            let name = &damaged.name;
            writeln!(
                out,
                "  {name} lost answered writes: its flushes fail until `volume accept-loss {name}`"
            )?;
        }
        self.being_deleted
            .iter()
            .try_for_each(|deletion| write_deletion(deletion, out))
    }
}

impl Render for PoolUpgradeReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { format, newest, .. } = self;
        match (self.upgraded, format == newest) {
            (true, _) => writeln!(out, "the pool has format {format} now"),
            (false, true) => writeln!(
                out,
                "the pool has format {format}, the newest that there is: nothing to do"
            ),
            (false, false) => writeln!(
                out,
                "the pool has format {format}, and would get {newest}: releases that do not know it only read the \
                 pool then"
            ),
        }
    }
}

impl Render for PoolSetReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "when full  {}", when_full(self.when_full))
    }
}

impl Render for PoolDedupReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts = &self.counts;
        let bytes = |blocks: u64| size::display(blocks * u64::from(self.block_size));
        writeln!(
            out,
            "{} scanned: {} new, {} duplicate",
            bytes(counts.scanned),
            bytes(counts.unique),
            bytes(counts.duplicates)
        )?;
        if counts.rejected > 0 {
            writeln!(
                out,
                "{} with the fingerprint of other data, but not its bytes",
                bytes(counts.rejected)
            )?;
        }
        writeln!(
            out,
            "{} released, {} freed",
            size::count(counts.released, "reference"),
            bytes(counts.freed)
        )?;
        writeln!(
            out,
            "{:.1} s, {}/s",
            self.seconds,
            size::display(self.bytes_per_second)
        )
    }
}

impl Render for PoolCheckReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let totals = &self.totals;
        for finding in &self.listed {
            let hint = if finding.repairable {
                " (--repair puts this right)"
            } else {
                ""
            };
            writeln!(out, "{}{hint}", finding.message)?;
        }
        let unlisted = totals.findings.saturating_sub(self.listed.len() as u64);
        if unlisted > 0 {
            writeln!(out, "and {unlisted} more")?;
        }
        writeln!(
            out,
            "{} and {} checked: {}, {} repaired, {} leaked",
            size::count(totals.mapped_blocks, "mapped block"),
            size::count(totals.pages_read, "metadata page"),
            size::count(totals.findings, "finding"),
            totals.repaired,
            size::count(totals.leaked_blocks, "block")
        )
    }
}

/// Space that is allocated on disk but holds no stored data, if any.
fn free_on_disk(stat: &PoolStat) -> String {
    match stat.free_bytes_on_disk {
        0 => String::new(),
        free => format!("  of which {} are free", size::display(free)),
    }
}

/// The use of blocks without space on the host, if there was any.
fn holes(stat: &PoolStat, bytes: &dyn Fn(u64) -> String) -> String {
    match stat.hole_blocks {
        0 => String::new(),
        blocks => format!(
            "  {} were written to holes since the pool was opened, {} are spare",
            bytes(blocks),
            bytes(stat.spare_blocks)
        ),
    }
}

/// A remark if the host has too little free space for the pool.
fn host_room(stat: &PoolStat, bytes: &dyn Fn(u64) -> String) -> String {
    match stat.host_free_bytes {
        Some(host_free) if stat.available_blocks < stat.free_blocks => format!(
            "the host has room for {} of it: {} free in its file system",
            bytes(stat.available_blocks),
            size::display(host_free)
        ),
        _ => String::new(),
    }
}

/// Describes how full the pool is.
fn space(level: SpaceLevel) -> &'static str {
    match level {
        SpaceLevel::Ok => "ok",
        SpaceLevel::Low => "low",
        SpaceLevel::Scarce => "scarce: imports stop",
        SpaceLevel::Reserve => "reserve: only writes over existing data succeed",
        SpaceLevel::Full => "full",
    }
}

/// Describes how writes are treated while the pool is full.
fn when_full(when_full: WhenFull) -> &'static str {
    match when_full {
        WhenFull::Pause => "writes wait for space",
        WhenFull::Fail => "writes fail",
    }
}

/// Warnings about faults that deduplication found.
pub(crate) fn warnings(reply: &PoolDedupReply) -> Vec<String> {
    let mut warnings = Vec::new();
    if reply.counts.declined > 0 {
        warnings.push(format!(
            "the index had no room for {}, left as they are; give the daemon more memory, or \
             delete unused data",
            size::count(reply.counts.declined, "block")
        ));
    }
    if reply.counts.quarantined > 0 {
        warnings.push(format!(
            "the index did not know {} that lost a reference; they are set aside until 'onefold \
             pool check --repair'",
            size::count(reply.counts.quarantined, "block")
        ));
    }
    warnings
}
