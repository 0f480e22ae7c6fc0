//! The name of a source.

use clap::Args;
use onefold_backup::rename_source;
use serde::{Deserialize, Serialize};

use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::Result;
use crate::service::check_name;

/// Renames a source.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRename {
    /// Name or id of the source.
    pub source: String,

    /// New name of the source.
    pub new_name: String,
}

/// A source that was renamed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRenameReply {
    /// Id of the source, which never changes.
    pub source_id: String,
    /// Name of the source before.
    pub old_name: String,
    /// Name of the source now.
    pub new_name: String,
}

impl RepositoryVerb for BackupRename {
    const NAME: &'static str = "backup rename";
    type Reply = BackupRenameReply;

    fn check(&self) -> Result<()> {
        check_name(&self.new_name)
    }
}

impl RepositoryRequest for BackupRename {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupRenameReply> {
        let before = rename_source(at.opened(), &self.source, &self.new_name)?;
        Ok(BackupRenameReply {
            source_id: before.id.to_string(),
            old_name: before.source.name,
            new_name: self.new_name.clone(),
        })
    }
}
