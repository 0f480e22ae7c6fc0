//! Damage of a repository, in replies.

use std::ops::Range;

use onefold_backup::Finding;
use serde::{Deserialize, Serialize};

/// Damage of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FindingReply {
    /// Description of the damage.
    pub message: String,
    /// Backups that need the damaged object.
    pub needed_by: Vec<NeededByReply>,
}

/// A backup that needs a damaged object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NeededByReply {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// Number of the backup's blocks that are affected; 0 if it is not known.
    pub blocks: u64,
    /// First runs of affected blocks, in blocks of the disk.
    pub places: Vec<AffectedRun>,
}

/// A run of affected blocks of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedRun {
    /// The first block of the run.
    pub first_block: u64,
    /// Number of blocks in the run.
    pub blocks: u64,
}

impl From<Finding> for FindingReply {
    fn from(Finding { message, needed_by }: Finding) -> Self {
        let needed_by = needed_by.into_iter().map(|backup| NeededByReply {
            name: format!("{}@{}", backup.source, backup.backup),
            blocks: backup.blocks,
            places: backup.places.iter().map(AffectedRun::of).collect(),
        });
        Self {
            message,
            needed_by: needed_by.collect(),
        }
    }
}

impl AffectedRun {
    fn of(range: &Range<u64>) -> Self {
        Self {
            first_block: range.start,
            blocks: range.end - range.start,
        }
    }
}
