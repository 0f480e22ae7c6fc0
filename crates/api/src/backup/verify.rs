//! The proof that everything that backups need exists.

use clap::Args;
use onefold_backup::{ProgressUnit, Stage, Verified, find_source, verify};
use onefold_repository::Foreign;
use serde::{Deserialize, Serialize};

use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::Result;

/// Proves that everything that backups need exists.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupVerify {
    /// Verify only the backups of this source.
    pub source: Option<String>,

    /// Read all blocks, too, and compare them with their fingerprints.
    #[arg(long)]
    #[serde(default)]
    pub data: bool,
}

/// The result of verifying backups.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupVerifyReply {
    /// What was verified, and the damage.
    #[serde(flatten)]
    pub verified: Verified,
    /// First names of foreign files in the repository's folder, which are ignored.
    pub foreign: Vec<String>,
}

impl RepositoryVerb for BackupVerify {
    const NAME: &'static str = "backup verify";
    type Reply = BackupVerifyReply;
}

impl RepositoryRequest for BackupVerify {
    const USE: RepositoryUse = RepositoryUse::LongRead;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupVerifyReply> {
        let (repository, supervision) = (at.repository(), at.supervision());
        let only = self.source.as_deref();
        let only = only.map(|name| find_source(repository, name)).transpose()?;
        let stage = Stage {
            label: "verifying",
            unit: ProgressUnit::Steps,
            if_interrupted: "nothing was changed",
        };
        let verified = supervision.stage(stage, |report| {
            verify(repository, only.as_ref(), self.data, report)
        })?;
        verified.warn_if_not_remembered(supervision);
        let Foreign { names, has_more } = repository.foreign(only.map(|source| source.id))?;
        for name in &names {
            supervision.note(format_args!("{name} is not of onefold, and is ignored"));
        }
        if has_more {
            supervision.note("there is more that is not of onefold");
        }
        if !verified.findings.is_empty() || at.opened().has_gone_back() {
            at.found(Outcome::Damaged);
        }
        Ok(BackupVerifyReply {
            verified,
            foreign: names,
        })
    }
}
