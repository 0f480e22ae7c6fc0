//! The repair of a repository.

use clap::Args;
use onefold_backup::{Finding, RepairAll, Repaired, RepairedAll};
use onefold_repository::KnownSource;
use serde::{Deserialize, Serialize};

use super::options::LEVEL_DEFAULT;
use super::request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::Result;

/// Removes damaged blocks so that the next backup stores them again, restores blocks that have an intact
/// copy, and removes leftovers of killed commands.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRepair {
    /// Repair. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// What was repaired, or would be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRepairReply {
    /// Whether the plan was carried out.
    pub is_done: bool,
    /// The sources with damaged packs, and the popular blocks of domains.
    pub sources: Vec<RepairedSource>,
    /// Damage that remains; without --yes, the damage found.
    pub findings: Vec<Finding>,
    /// Number of files that killed commands left.
    pub leftovers: u64,
    /// Bytes of the files that killed commands left.
    pub leftover_bytes: u64,
}

/// A source that was repaired, or would be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepairedSource {
    /// Title for messages.
    #[serde(skip)]
    pub title: String,
    /// Name of the source; null for the popular blocks of a domain.
    pub source: Option<String>,
    /// Domain of the source.
    pub domain: String,
    /// The result, or the expected one.
    #[serde(flatten)]
    pub repaired: Repaired,
}

impl BackupRepairReply {
    /// Whether there was nothing to repair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.sources.is_empty() && self.leftovers == 0
    }
}

impl Planned for BackupRepairReply {
    fn is_settled(&self) -> bool {
        self.is_done || self.is_empty()
    }
}

impl RepositoryVerb for BackupRepair {
    const NAME: &'static str = "backup repair";
    type Reply = BackupRepairReply;
}

impl RepositoryRequest for BackupRepair {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupRepairReply> {
        let job = RepairAll {
            opened: at.opened(),
            level: LEVEL_DEFAULT,
            is_to_change: self.yes,
        };
        let RepairedAll {
            sick,
            findings,
            leftovers,
        } = job.run()?;
        if !findings.is_empty() {
            at.found(Outcome::Damaged);
        }
        let sources = sick.iter();
        let sources = sources.map(|(known, repaired)| RepairedSource::of(known, *repaired));
        Ok(BackupRepairReply {
            is_done: self.yes,
            sources: sources.collect(),
            findings,
            leftovers: leftovers.files,
            leftover_bytes: leftovers.bytes,
        })
    }
}

impl RepairedSource {
    fn of(known: &KnownSource, repaired: Repaired) -> Self {
        let source = &known.source;
        Self {
            title: known.to_string(),
            source: (!source.is_popular()).then(|| source.name.clone()),
            domain: source.domain.clone(),
            repaired,
        }
    }
}
