//! The details of a backup.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::list::ListedBackup;
use super::name::BackupName;
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::Result;

/// Shows a backup's details.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupShow {
    /// Backup to show.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    pub name: BackupName,
}

/// A backup's details.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupShowReply {
    /// What a list says of the backup.
    #[serde(flatten)]
    pub listed: ListedBackup,
    /// Id of the source, which never changes.
    pub source_id: String,
    /// The origin in words, for the text.
    #[serde(skip)]
    pub from: String,
    /// Size of the blocks in which the backup is stored.
    pub block_size: u32,
    /// Bytes that were read from the disk, without blocks that were known to be zeros.
    pub read_bytes: u64,
    /// Bytes of data that popular blocks hold.
    pub popular_bytes: u64,
    /// Size of the recipe in the repository.
    pub recipe_bytes: u64,
    /// Runs of stored blocks with consecutive numbers.
    pub number_runs: u64,
}

impl RepositoryVerb for BackupShow {
    const NAME: &'static str = "backup show";
    type Reply = BackupShowReply;
}

impl RepositoryRequest for BackupShow {
    const USE: RepositoryUse = RepositoryUse::Read;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupShowReply> {
        let (source, number) = self.name.find(at.opened())?;
        let manifest = at.repository().manifest(source.id, number)?;
        let block_size = u64::from(manifest.block_size);
        let origin = source.source.origin.as_ref();
        Ok(BackupShowReply {
            source_id: source.id.to_string(),
            from: origin.map(ToString::to_string).unwrap_or_default(),
            block_size: manifest.block_size,
            read_bytes: manifest.counts.read_blocks * block_size,
            popular_bytes: manifest.counts.popular_blocks * block_size,
            recipe_bytes: manifest.recipe_pages.iter().copied().map(u64::from).sum(),
            number_runs: (manifest.own.len() + manifest.popular.len()) as u64,
            listed: ListedBackup::of(&source, number, manifest),
        })
    }
}
