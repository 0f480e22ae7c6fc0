//! The differences between two backups of a source.

use std::sync::Arc;

use clap::Args;
use onefold_backup::{BlockReader, Difference, Restore};
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::diff::{DiffContent, DiffExtent};
use crate::error::{Error, Result};

/// Number of runs that are compared at a time.
const RUNS_MAX: usize = 4096;

/// Lists what changed between two backups of a source.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupDiff {
    /// Older state.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    pub since: BackupName,

    /// Newer state, whose content is listed: a backup of the same source.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    pub name: BackupName,
}

/// The differences between two backups of a source.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupDiffReply {
    /// Name of the older backup, SOURCE@N.
    pub since: String,
    /// Name of the newer backup, SOURCE@N.
    pub name: String,
    /// Size of the disk in the older backup.
    pub since_size_bytes: u64,
    /// Size of the disk in the newer backup.
    pub size_bytes: u64,
    /// Runs that differ, in ascending order.
    pub extents: Vec<DiffExtent>,
    /// Bytes in the runs of data.
    pub data_bytes: u64,
    /// Bytes in the runs of zeros.
    pub zero_bytes: u64,
}

impl RepositoryVerb for BackupDiff {
    const NAME: &'static str = "backup diff";
    type Reply = BackupDiffReply;
}

impl RepositoryRequest for BackupDiff {
    const USE: RepositoryUse = RepositoryUse::Read;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupDiffReply> {
        let (source, since) = self.since.find(at.opened())?;
        let (other, number) = self.name.find(at.opened())?;
        if source.id != other.id {
            return Err(Error::usage(format!(
                "'{}' and '{}' are not backups of one source",
                self.since.source(),
                self.name.source()
            )));
        }
        let blocks = BlockReader::new(Arc::clone(at.repository()), 0);
        let open = |number| Restore::open(&blocks, &source, number, Self::NAME);
        let (before, now) = (open(since)?, open(number)?);
        let mut extents = Vec::new();
        let (mut offset, size_bytes) = (0, now.manifest().size_bytes);
        while offset < size_bytes {
            for run in now.differences(&before, &(offset..size_bytes), RUNS_MAX)? {
                note(&mut extents, offset, run.bytes, run.what);
                offset += run.bytes;
            }
        }
        Ok(BackupDiffReply {
            since: BackupName::new(&source, since).to_string(),
            name: BackupName::new(&source, number).to_string(),
            since_size_bytes: before.manifest().size_bytes,
            size_bytes,
            data_bytes: bytes_of(&extents, DiffContent::Data),
            zero_bytes: bytes_of(&extents, DiffContent::Zero),
            extents,
        })
    }
}

/// Adds a run to the list if it differs.
fn note(extents: &mut Vec<DiffExtent>, offset: u64, length: u64, difference: Difference) {
    let content = match difference {
        Difference::Same => return,
        Difference::Data => DiffContent::Data,
        Difference::Zeros => DiffContent::Zero,
    };
    match extents.last_mut() {
        // Join runs that were split only at the end of a comparison step.
        Some(last) if last.offset + last.length == offset && last.content == content => {
            last.length += length;
        }
        _ => extents.push(DiffExtent {
            offset,
            length,
            content,
        }),
    }
}

fn bytes_of(extents: &[DiffExtent], content: DiffContent) -> u64 {
    let extents = extents.iter().filter(|extent| extent.content == content);
    extents.map(|extent| extent.length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_content_that_touch_are_one() {
        let mut extents = Vec::new();
        note(&mut extents, 0, 10, Difference::Data);
        note(&mut extents, 10, 5, Difference::Data);
        note(&mut extents, 15, 5, Difference::Same);
        note(&mut extents, 20, 5, Difference::Data);
        note(&mut extents, 25, 7, Difference::Zeros);
        let found = extents.iter().map(|extent| (extent.offset, extent.length));
        assert_eq!(found.collect::<Vec<_>>(), [(0, 15), (20, 5), (25, 7)]);
        assert_eq!(bytes_of(&extents, DiffContent::Data), 20);
        assert_eq!(bytes_of(&extents, DiffContent::Zero), 7);
    }
}
