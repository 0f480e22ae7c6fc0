//! Shares blocks among the sources of each domain.

use onefold_repository::{RepositoryError, RepositoryErrorKind};

use crate::create::Report;
use crate::error::{BackupError, Result};
use crate::opening::Opened;
use crate::share::{Relatives, ShareOptions, Shared, plan_share, relatives, share};
use crate::supervision::{ProgressUnit, Stage};

/// What to share, and how.
#[derive(Debug)]
pub struct ShareAll<'a> {
    /// The repository.
    pub opened: &'a Opened,
    /// Only the sources of this domain.
    pub domain: Option<&'a str>,
    /// How each domain is shared.
    pub options: ShareOptions,
    /// Whether the plan is carried out.
    pub is_to_change: bool,
}

/// What was shared, or would be.
#[derive(Debug)]
pub struct SharedAll {
    /// The domains, with their results.
    pub domains: Vec<(Relatives, Shared)>,
    /// Sources that cannot be read and are left out.
    pub damaged: Vec<RepositoryError>,
}

impl ShareAll<'_> {
    /// Shares blocks.
    ///
    /// # Errors
    ///
    /// If the repository went back, if there is no source of the domain, or if a store of popular blocks is in use.
    pub fn run(&self) -> Result<SharedAll> {
        self.opened.check_all()?;
        let repository = self.opened.repository();
        let sources = repository.sources()?;
        for error in &sources.damaged {
            let supervision = self.opened.supervision();
            supervision.warn(format_args!("{error}; it is left out"));
        }
        let mut domains = relatives(repository, sources.disks);
        if let Some(domain) = self.domain {
            domains.retain(|relatives| relatives.domain() == domain);
            if domains.is_empty() {
                let message = format!("the repository has no source of domain '{domain}'");
                return Err(BackupError::refused(RepositoryErrorKind::NotFound, message));
            }
        }
        let domains = domains.into_iter().map(|relatives| {
            let shared = if self.is_to_change {
                self.share(&relatives)
            } else {
                self.plan(&relatives)
            };
            Ok((relatives, shared?))
        });
        Ok(SharedAll {
            domains: domains.collect::<Result<_>>()?,
            damaged: sources.damaged,
        })
    }

    fn plan(&self, relatives: &Relatives) -> Result<Shared> {
        let (repository, memory_bytes) = (self.opened.repository(), self.options.memory_bytes);
        let plan = self.stage(relatives, |report| {
            plan_share(repository, relatives, memory_bytes, report)
        })?;
        Ok(Shared {
            copied_blocks: plan.copied_blocks,
            stored_bytes: 0,
            plan,
        })
    }

    fn share(&self, relatives: &Relatives) -> Result<Shared> {
        // A single source has nothing to share.
        let [first, _, ..] = &relatives.sources[..] else {
            return self.plan(relatives);
        };
        let repository = self.opened.repository();
        let popular = repository.popular(&first.source)?;
        let writer = repository.writer(popular.id, "backup share")?;
        self.stage(relatives, |report| {
            share(&writer, relatives, &self.options, report)
        })
    }

    fn stage<T>(
        &self,
        relatives: &Relatives,
        work: impl FnOnce(Report<'_>) -> Result<T>,
    ) -> Result<T> {
        let stage = Stage {
            label: &format!("sharing in domain {}", relatives.domain()),
            unit: ProgressUnit::Steps,
            if_interrupted: "all backups are as they were, and the same command does the rest",
        };
        self.opened.supervision().stage(stage, work)
    }
}
