//! The result of a verification: figures, and the damage with the backups that it concerns.

use std::collections::{BTreeMap, BTreeSet};

use onefold_format::backup::SourceId;
use onefold_repository::RepositoryError;
use serde::{Deserialize, Serialize};

use crate::supervision::Supervision;

/// The most ranges of a backup that a finding lists.
const PLACES_MAX: usize = 8;

/// The result of a verification. Replies about it include these fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Verified {
    /// Number of backups that were verified.
    pub backups: u64,
    /// Number of packs and recipes that were verified.
    pub objects: u64,
    /// Bytes of blocks that were compared with their fingerprints.
    pub compared_bytes: u64,
    /// Damage that was found.
    pub findings: Vec<Finding>,
    /// If the damaged blocks could not be recorded, the reason. Not in JSON.
    #[serde(skip)]
    pub not_remembered: Option<RepositoryError>,
    /// Packs that are missing, or have damaged or lost blocks or tables, including copies of tables. Not in JSON.
    #[serde(skip)]
    pub(crate) packs: BTreeMap<SourceId, BTreeSet<u64>>,
}

impl Verified {
    /// Warns if damage was found and could not be recorded.
    pub fn warn_if_not_remembered(&self, supervision: &Supervision) {
        if let Some(error) = &self.not_remembered {
            supervision.warn(format_args!(
                "later backups may refer to damaged blocks, because it cannot be remembered in the repository: {error}"
            ));
        }
    }
}

/// Damage of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = FindingReply))]
pub struct Finding {
    /// Description of the damage.
    pub message: String,
    /// Backups that need the damaged object.
    pub needed_by: Vec<NeededBy>,
}

/// A backup that needs a damaged object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = NeededByReply))]
pub struct NeededBy {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// Number of the backup's blocks that are affected; 0 if it is not known, because the recipe is damaged.
    pub blocks: u64,
    /// First runs of affected blocks, in blocks of the disk.
    pub places: Vec<AffectedRun>,
}

/// A run of affected blocks of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedRun {
    /// The first block of the run.
    pub first_block: u64,
    /// Number of blocks in the run.
    pub blocks: u64,
}

/// Adds the next affected run to the first ones of a backup. Leaves it out if a finding lists no more.
pub(crate) fn add_place(places: &mut Vec<AffectedRun>, place: AffectedRun) {
    if let Some(last) = places.last_mut()
        && last.first_block + last.blocks == place.first_block
    {
        last.blocks += place.blocks;
    } else if places.len() < PLACES_MAX {
        places.push(place);
    }
}
