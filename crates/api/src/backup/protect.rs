//! The protection of backups from being forgotten.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::Result;

/// Protects backups from being forgotten.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupProtect {
    /// Backups to protect or unprotect.
    #[arg(value_name = "SOURCE@N", required = true)]
    pub backups: Vec<BackupName>,
}

/// Removes the protection of backups.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupUnprotect {
    /// Backups to protect or unprotect.
    #[arg(value_name = "SOURCE@N", required = true)]
    pub backups: Vec<BackupName>,
}

/// Backups whose protection was set or removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupProtectReply {
    /// Names of the backups, SOURCE@N.
    pub backups: Vec<String>,
    /// Whether the backups are protected now.
    pub is_protected: bool,
}

impl RepositoryVerb for BackupProtect {
    const NAME: &'static str = "backup protect";
    type Reply = BackupProtectReply;
}

impl RepositoryRequest for BackupProtect {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupProtectReply> {
        protect(at, &self.backups, true)
    }
}

impl RepositoryVerb for BackupUnprotect {
    const NAME: &'static str = "backup unprotect";
    type Reply = BackupProtectReply;
}

impl RepositoryRequest for BackupUnprotect {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupProtectReply> {
        protect(at, &self.backups, false)
    }
}

/// Protects or unprotects backups, after all were found.
fn protect(
    at: &RepositoryService<'_>,
    names: &[BackupName],
    is_protected: bool,
) -> Result<BackupProtectReply> {
    let found = names.iter().map(|name| {
        let found = name.find(at.opened())?;
        at.opened().check(found.0.id)?;
        Ok(found)
    });
    let found = found.collect::<Result<Vec<_>>>()?;
    let mut backups = Vec::new();
    for (source, number) in found {
        at.repository().protect(source.id, number, is_protected)?;
        backups.push(BackupName::new(&source, number).to_string());
    }
    Ok(BackupProtectReply {
        backups,
        is_protected,
    })
}
