//! Storing blocks once that several sources have.

use clap::Args;
use onefold_backup::{Relatives, ShareAll, ShareOptions, Shared};
use serde::{Deserialize, Serialize};

use super::options::{LEVEL_DEFAULT, MEMORY_DEFAULT, memory_default, parse_memory, threads};
use super::request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::Result;

/// Stores blocks that several sources of a domain have once for all of them.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupShare {
    /// Share only among the sources of this domain.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,

    /// Memory for comparing the sources.
    #[arg(long = "memory", value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    #[serde(default = "memory_default")]
    pub memory_bytes: u64,

    /// Number of threads that compress and encrypt. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Share. Without this option the plan is printed, nothing is changed, and the exit code is 2.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// What was shared, or would be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupShareReply {
    /// Whether the plan was carried out.
    pub is_done: bool,
    /// The domains, one entry each.
    pub domains: Vec<SharedDomain>,
}

/// What the sources of a domain share.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SharedDomain {
    /// The domain.
    pub domain: String,
    /// Number of sources in the domain.
    pub sources: u64,
    /// Bytes of content that becomes popular and is copied once.
    pub copied_bytes: u64,
    /// Bytes of the sources' content that popular blocks have, too; pruning with --wasted 0% removes it.
    pub movable_bytes: u64,
    /// Bytes of the new packs; null for a plan.
    pub stored_bytes: Option<u64>,
    /// Objects that cannot be read and are left out.
    pub damaged: Vec<String>,
}

impl Planned for BackupShareReply {
    fn is_settled(&self) -> bool {
        self.is_done
    }
}

impl RepositoryVerb for BackupShare {
    const NAME: &'static str = "backup share";
    type Reply = BackupShareReply;

    fn check(&self) -> Result<()> {
        super::options::check(self.memory_bytes, self.threads)
    }
}

impl RepositoryRequest for BackupShare {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupShareReply> {
        let job = ShareAll {
            opened: at.opened(),
            domain: self.domain.as_deref(),
            options: ShareOptions {
                level: LEVEL_DEFAULT,
                threads: threads(self.threads),
                memory_bytes: usize::try_from(self.memory_bytes).unwrap_or(usize::MAX),
            },
            is_to_change: self.yes,
        };
        let done = job.run()?;
        let domains = done.domains.into_iter();
        let domains: Vec<_> = domains
            .map(|(relatives, shared)| SharedDomain::of(&relatives, shared, self.yes))
            .collect();
        let is_damaged = domains.iter().any(|domain| !domain.damaged.is_empty());
        if is_damaged || !done.damaged.is_empty() {
            at.found(Outcome::Damaged);
        }
        Ok(BackupShareReply {
            is_done: self.yes,
            domains,
        })
    }
}

impl SharedDomain {
    fn of(relatives: &Relatives, shared: Shared, is_done: bool) -> Self {
        let block_size = relatives.sources.first();
        let block_size = block_size.map_or(0, |known| u64::from(known.source.block_size));
        Self {
            domain: relatives.domain().to_owned(),
            sources: relatives.sources.len() as u64,
            copied_bytes: shared.copied_blocks * block_size,
            movable_bytes: shared.plan.freed_blocks * block_size,
            stored_bytes: is_done.then_some(shared.stored_bytes),
            damaged: shared.plan.damaged,
        }
    }
}
