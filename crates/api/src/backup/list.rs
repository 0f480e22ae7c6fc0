//! The list of backups.

use clap::Args;
use onefold_backup::find_source;
use onefold_format::backup::{BackupNumber, Manifest};
use onefold_repository::KnownSource;
use serde::{Deserialize, Serialize};

use super::name::BackupName;
use super::origin::OriginReply;
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::Result;

/// Lists the backups of a repository, or of one source.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupList {
    /// List only the backups of this source.
    pub source: Option<String>,
}

/// The backups of a repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupListReply {
    /// The backups, one entry each.
    pub backups: Vec<ListedBackup>,
}

/// A backup in a list. The reply about one backup includes these fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedBackup {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// The moment of the backup's content, in seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes of data on the disk.
    pub logical_bytes: u64,
    /// Bytes of content that was stored for this backup.
    pub new_bytes: u64,
    /// Bytes that the new content takes in the repository, compressed.
    pub stored_bytes: u64,
    /// Name of the host that made the backup.
    pub host: String,
    /// Origin of the source's disk; null if it is not known.
    pub origin: Option<OriginReply>,
    /// Name of the user's snapshot that was backed up, without the volume's name; null if no snapshot was
    /// named.
    pub snapshot: Option<String>,
    /// Tags of the backup.
    pub tags: Vec<String>,
}

impl RepositoryVerb for BackupList {
    const NAME: &'static str = "backup list";
    type Reply = BackupListReply;
}

impl RepositoryRequest for BackupList {
    const USE: RepositoryUse = RepositoryUse::Read;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupListReply> {
        let repository = at.repository();
        let (sources, mut damaged) = match self.source.as_deref() {
            Some(name) => (vec![find_source(repository, name)?], Vec::new()),
            None => {
                let sources = repository.sources()?;
                (sources.disks, sources.damaged)
            }
        };
        let mut backups = Vec::new();
        for source in sources {
            let history = repository.history(source.id)?;
            damaged.extend(history.check_complete(&source).err());
            for number in history.backups {
                let manifest = match repository.listed_manifest(source.id, number) {
                    Ok(Some(manifest)) => manifest,
                    Ok(None) => continue,
                    Err(error) => {
                        damaged.push(error);
                        continue;
                    }
                };
                backups.push(ListedBackup::of(&source, number, manifest));
            }
        }
        at.found_damaged(&damaged);
        if at.opened().has_gone_back() {
            at.found(Outcome::Damaged);
        }
        Ok(BackupListReply { backups })
    }
}

impl ListedBackup {
    pub(super) fn of(source: &KnownSource, number: BackupNumber, manifest: Manifest) -> Self {
        let block_size = u64::from(manifest.block_size);
        Self {
            name: BackupName::new(source, number).to_string(),
            unix_seconds: manifest.unix_seconds,
            size_bytes: manifest.size_bytes,
            logical_bytes: manifest.counts.logical_blocks * block_size,
            new_bytes: manifest.counts.new_blocks * block_size,
            stored_bytes: manifest.counts.stored_bytes,
            origin: source.source.origin.as_ref().map(OriginReply::from),
            snapshot: Some(manifest.snapshot).filter(|name| !name.is_empty()),
            host: manifest.host,
            tags: manifest.tags,
        }
    }
}
