//! The content of a repository.

use clap::Args;
use onefold_backup::{PackFigures, shareable_bytes};
use onefold_repository::{KnownSource, Repository, RepositoryError};
use serde::{Deserialize, Serialize};

use super::origin::OriginReply;
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::RepositoryService;
use crate::error::Result;

/// Shows the content of a repository by source, and the savings by sharing.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupStat {}

/// The content of a repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupStatReply {
    /// Id of the repository.
    pub repository_id: String,
    /// Whether the repository is encrypted.
    pub encrypted: bool,
    /// The sources, one entry each.
    pub sources: Vec<BackupStatSource>,
    /// Blocks that several sources have, one entry for each domain.
    pub popular: Vec<BackupStatPopular>,
    /// Bytes of data of all backups.
    pub logical_bytes: u64,
    /// Bytes of content in all packs.
    pub content_bytes: u64,
    /// Bytes of all packs.
    pub stored_bytes: u64,
    /// Bytes that `share`, followed by pruning with --wasted 0%, would free.
    pub shareable_bytes: u64,
}

/// A source of a repository, with the figures of its packs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupStatSource {
    /// Name of the source.
    pub source: String,
    /// Id of the source, which never changes.
    pub source_id: String,
    /// The domain within which blocks are shared.
    pub domain: String,
    /// Origin of the disk; null if it is not known.
    pub origin: Option<OriginReply>,
    /// Number of backups.
    pub backups: u64,
    /// Bytes of data of all backups of the source.
    pub logical_bytes: u64,
    /// The packs of the source.
    #[serde(flatten)]
    pub packs: PackFigures,
}

/// The popular blocks of a domain, with the figures of their packs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupStatPopular {
    /// The domain.
    pub domain: String,
    /// The packs of the popular blocks.
    #[serde(flatten)]
    pub packs: PackFigures,
}

impl RepositoryVerb for BackupStat {
    const NAME: &'static str = "backup stat";
    type Reply = BackupStatReply;
}

impl RepositoryRequest for BackupStat {
    const USE: RepositoryUse = RepositoryUse::Read;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupStatReply> {
        let repository = at.repository();
        let listed = repository.sources()?;
        let shareable_bytes = shareable_bytes(repository, listed.disks.clone())?;
        let (mut damaged, mut sources, mut popular) = (listed.damaged, Vec::new(), Vec::new());
        for known in listed.disks {
            sources.push(BackupStatSource::of(repository, known, &mut damaged)?);
        }
        for known in listed.popular {
            popular.push(BackupStatPopular {
                domain: known.source.domain,
                packs: PackFigures::of(repository, known.id)?,
            });
        }
        at.found_damaged(&damaged);
        let mut reply = BackupStatReply {
            repository_id: repository.id().to_string(),
            encrypted: repository.is_encrypted(),
            logical_bytes: sources.iter().map(|source| source.logical_bytes).sum(),
            content_bytes: 0,
            stored_bytes: 0,
            shareable_bytes,
            sources,
            popular,
        };
        reply.content_bytes = reply.packs().map(|packs| packs.content_bytes).sum();
        reply.stored_bytes = reply.packs().map(|packs| packs.stored_bytes).sum();
        Ok(reply)
    }
}

impl BackupStatReply {
    /// The figures of the sources' packs and of popular blocks' packs.
    pub fn packs(&self) -> impl Iterator<Item = &PackFigures> {
        let packs = self.sources.iter().map(|source| &source.packs);
        packs.chain(self.popular.iter().map(|popular| &popular.packs))
    }
}

impl BackupStatSource {
    /// Counts what a source has. Adds manifests that cannot be read to `damaged`.
    fn of(
        repository: &Repository,
        known: KnownSource,
        damaged: &mut Vec<RepositoryError>,
    ) -> Result<Self> {
        let backups = repository.backups(known.id)?;
        let mut logical_bytes = 0;
        for backup in &backups {
            match repository.listed_manifest(known.id, *backup) {
                Ok(None) => {}
                Ok(Some(manifest)) => {
                    let block_size = u64::from(manifest.block_size);
                    logical_bytes += manifest.counts.logical_blocks * block_size;
                }
                Err(error) => damaged.push(error),
            }
        }
        Ok(Self {
            source: known.source.name,
            source_id: known.id.to_string(),
            origin: known.source.origin.as_ref().map(OriginReply::from),
            domain: known.source.domain,
            backups: backups.len() as u64,
            logical_bytes,
            packs: PackFigures::of(repository, known.id)?,
        })
    }
}
