//! The details of a backup.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::origin::OriginReply;
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
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// Id of the source, which never changes.
    pub source_id: String,
    /// Name of the host that made the backup.
    pub host: String,
    /// Origin of the source's disk; null if it is not known.
    pub origin: Option<OriginReply>,
    /// The origin in words, for the text.
    #[serde(skip)]
    pub from: String,
    /// Name of the user's snapshot that was backed up, without the volume's name; null if no snapshot was
    /// named.
    pub snapshot: Option<String>,
    /// The moment of the backup's content, in seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Size of the blocks in which the backup is stored.
    pub block_size: u32,
    /// Bytes of data on the disk.
    pub logical_bytes: u64,
    /// Bytes that were read from the disk, without blocks that were known to be zeros.
    pub read_bytes: u64,
    /// Bytes of content that was stored for this backup.
    pub new_bytes: u64,
    /// Bytes that the new content takes in the repository, compressed.
    pub stored_bytes: u64,
    /// Bytes of data that popular blocks hold.
    pub popular_bytes: u64,
    /// Size of the recipe in the repository.
    pub recipe_bytes: u64,
    /// Runs of stored blocks with consecutive numbers.
    pub number_runs: u64,
    /// Tags of the backup.
    pub tags: Vec<String>,
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
        let (counts, origin) = (manifest.counts, source.source.origin.as_ref());
        Ok(BackupShowReply {
            name: BackupName::new(&source, number).to_string(),
            source_id: source.id.to_string(),
            host: manifest.host,
            origin: origin.map(OriginReply::from),
            from: origin.map(ToString::to_string).unwrap_or_default(),
            snapshot: Some(manifest.snapshot).filter(|name| !name.is_empty()),
            unix_seconds: manifest.unix_seconds,
            size_bytes: manifest.size_bytes,
            block_size: manifest.block_size,
            logical_bytes: counts.logical_blocks * block_size,
            read_bytes: counts.read_blocks * block_size,
            new_bytes: counts.new_blocks * block_size,
            stored_bytes: counts.stored_bytes,
            popular_bytes: counts.popular_blocks * block_size,
            recipe_bytes: manifest.recipe_pages.iter().copied().map(u64::from).sum(),
            number_runs: (manifest.own.len() + manifest.popular.len()) as u64,
            tags: manifest.tags,
        })
    }
}
