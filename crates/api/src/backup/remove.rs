//! The removal of a source.

use clap::Args;
use onefold_backup::RemovePlan;
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::Result;

/// Removes a source with all its backups.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRemove {
    /// Name or id of the source.
    pub source: String,

    /// Remove the source. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// The removal of a source, planned or carried out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRemoveReply {
    /// Whether the plan was carried out.
    pub is_done: bool,
    /// Name of the source.
    pub source: String,
    /// Names of the backups, SOURCE@N.
    pub backups: Vec<String>,
    /// Number of the source's packs.
    pub packs: u64,
    /// Bytes of the source's packs. The next 'backup prune' removes popular blocks that only this source
    /// needed.
    pub stored_bytes: u64,
}

impl Planned for BackupRemoveReply {
    fn is_settled(&self) -> bool {
        self.is_done
    }
}

impl RepositoryVerb for BackupRemove {
    const NAME: &'static str = "backup remove";
    type Reply = BackupRemoveReply;
}

impl RepositoryRequest for BackupRemove {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupRemoveReply> {
        let plan = RemovePlan::new(at.opened(), &self.source)?;
        if self.yes {
            plan.carry_out(at.opened())?;
        }
        let backups = plan.backups.iter();
        let backups = backups.map(|number| BackupName::new(&plan.source, *number).to_string());
        Ok(BackupRemoveReply {
            is_done: self.yes,
            backups: backups.collect(),
            packs: plan.packs,
            stored_bytes: plan.stored_bytes,
            source: plan.source.source.name,
        })
    }
}
