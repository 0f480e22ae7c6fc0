//! Backups as read-only disks.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::options::MEMORY_DEFAULT;
use super::request::RepositoryVerb;
use crate::size;

/// Serves backups as read-only NBD exports until interrupted. The command line chooses the addresses.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupMount {
    /// Backups to serve. If none is named, all backups of the repository are served, including new ones.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    #[serde(default)]
    pub names: Vec<BackupName>,

    /// Memory for cached blocks, at least 8 MiB. Clients and their requests take as much again; 64 MiB are
    /// enough for 110 clients.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = MEMORY_DEFAULT)]
    pub memory: u64,
}

/// Nothing: the command serves until it is interrupted, and prints no document.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupMountReply {}

impl RepositoryVerb for BackupMount {
    const NAME: &'static str = "backup mount";
    type Reply = BackupMountReply;
}
