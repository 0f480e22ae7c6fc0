//! What can be asked of a whole pool.

use super::{Report, Service, Verb};
use crate::error::Result;
use crate::limits::FINDINGS_LISTED_MAX;
use crate::output::Document;
use crate::size;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Numbers of blocks and bytes, over everything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolStat {}

/// One volume's line in [`PoolStatReply`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolVolume {
    name: String,
    size_bytes: u64,
    dedup: String,
    logical_blocks: u64,
    dirty_blocks: u64,
    nbd_uri: Option<String>,
}

/// The document of `pool stat`; its field names are a promise.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolStatReply {
    block_size: u32,
    pool_blocks: u64,
    logical_blocks: u64,
    physical_blocks: u64,
    private_blocks: u64,
    unique_blocks: u64,
    shared_blocks: u64,
    free_blocks: u64,
    reclaim_blocks: u64,
    dirty_blocks: u64,
    pool_bytes_on_disk: u64,
    metadata_bytes_on_disk: u64,
    dedup_ratio: f64,
    saved_bytes: u64,
    volumes: Vec<PoolVolume>,
}

impl Verb for PoolStat {
    const PATH: &'static str = "/v1/pool/stat";
    type Reply = PoolStatReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolStatReply> {
        let stat = service.store.stat()?;
        // Nothing is shared without a finder: no block is in the index, every entry is private,
        // and dirty is what is private.
        let (unique_blocks, shared_blocks) = (0, 0);
        let dirty_blocks = stat.private_blocks;
        let physical_blocks = stat.private_blocks + unique_blocks + shared_blocks;
        let saved_blocks = stat.logical_blocks.saturating_sub(physical_blocks);
        // An empty pool saves nothing and wastes nothing: the ratio of a pool without dedup.
        let dedup_ratio = match physical_blocks {
            0 => 1.0,
            _ => stat.logical_blocks as f64 / physical_blocks as f64,
        };
        let volumes = stat.volumes.into_iter().map(|volume| PoolVolume {
            nbd_uri: service.nbd_uri(&volume.name),
            name: volume.name,
            size_bytes: volume.size_bytes,
            dedup: super::volume::DEDUP_OFF.to_owned(),
            logical_blocks: volume.logical_blocks,
            dirty_blocks: volume.logical_blocks,
        });
        Ok(PoolStatReply {
            block_size: stat.block_size,
            pool_blocks: stat.pool_blocks,
            logical_blocks: stat.logical_blocks,
            physical_blocks,
            private_blocks: stat.private_blocks,
            unique_blocks,
            shared_blocks,
            free_blocks: stat.free_blocks,
            reclaim_blocks: stat.reclaim_blocks,
            dirty_blocks,
            pool_bytes_on_disk: stat.pool_bytes_on_disk,
            metadata_bytes_on_disk: stat.metadata_bytes_on_disk,
            dedup_ratio,
            saved_bytes: saved_blocks * u64::from(stat.block_size),
            volumes: volumes.collect(),
        })
    }
}

impl Document for PoolStatReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let bytes = |blocks: u64| size::display(blocks * u64::from(self.block_size));
        writeln!(out, "size            {}", bytes(self.pool_blocks))?;
        writeln!(
            out,
            "block size      {}",
            size::display(self.block_size.into())
        )?;
        writeln!(out, "free            {}", bytes(self.free_blocks))?;
        writeln!(out, "given up        {}", bytes(self.reclaim_blocks))?;
        writeln!(
            out,
            "data            {} in volumes",
            bytes(self.logical_blocks)
        )?;
        writeln!(
            out,
            "                {} in the pool",
            bytes(self.physical_blocks)
        )?;
        writeln!(out, "saved           {}", size::display(self.saved_bytes))?;
        writeln!(out, "dedup ratio     {:.2}", self.dedup_ratio)?;
        writeln!(
            out,
            "on disk         {} data",
            size::display(self.pool_bytes_on_disk)
        )?;
        writeln!(
            out,
            "                {} metadata",
            size::display(self.metadata_bytes_on_disk)
        )?;
        writeln!(out, "volumes         {}", self.volumes.len())?;
        for volume in &self.volumes {
            writeln!(
                out,
                "  {}  {} of {}{}",
                volume.name,
                bytes(volume.logical_blocks),
                size::display(volume.size_bytes),
                volume
                    .nbd_uri
                    .as_ref()
                    .map(|uri| format!("  {uri}"))
                    .unwrap_or_default(),
            )?;
        }
        Ok(())
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

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolCheckReply> {
        let mut listed = Vec::new();
        let report = service.store.check(self.repair, &mut |finding| {
            if listed.len() < FINDINGS_LISTED_MAX {
                let (message, repairable) = (finding.message, finding.repairable);
                listed.push(ListedFinding {
                    message,
                    repairable,
                });
            }
        })?;
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
            "{} mapped blocks and {} metadata pages checked: {} findings, {} repaired, \
             {} blocks leaked",
            self.mapped_blocks, self.pages_read, self.findings, self.repaired, self.leaked_blocks
        )
    }
}
