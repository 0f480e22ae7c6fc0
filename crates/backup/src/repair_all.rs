//! Repairs a repository: finds all damage, repairs what can be repaired, and verifies again.

use onefold_repository::{KnownSource, Leftovers, Repository};

use crate::create::Report;
use crate::error::Result;
use crate::opening::Opened;
use crate::repair::{RepairPlan, Repaired, SickPacks, repair};
use crate::room::Room;
use crate::supervision::{ProgressUnit, Stage};
use crate::verified::Finding;
use crate::verify::verify;

/// What to repair, and how.
#[derive(Debug)]
pub struct RepairAll<'a> {
    /// The repository.
    pub opened: &'a Opened,
    /// The compression level for zstd.
    pub level: i32,
    /// Whether the plan is carried out.
    pub is_to_change: bool,
}

/// What was repaired, or would be.
#[derive(Debug)]
pub struct RepairedAll {
    /// Sources and stores of popular blocks with damaged packs, with the result or the expected result.
    pub sick: Vec<(KnownSource, Repaired)>,
    /// Damage that remains; the damage that was found, if the plan was not carried out.
    pub findings: Vec<Finding>,
    /// Files of killed commands.
    pub leftovers: Leftovers,
}

impl RepairAll<'_> {
    /// Repairs the repository.
    ///
    /// # Errors
    ///
    /// If the repository went back, or a source is in use; any failure of reading and writing.
    pub fn run(&self) -> Result<RepairedAll> {
        self.opened.check_all()?;
        let repository = self.opened.repository();
        let plan = self.stage("verifying", |report| RepairPlan::new(repository, report))?;
        plan.verified
            .warn_if_not_remembered(self.opened.supervision());
        let room = Room::new(repository, self.is_to_change)?;
        if self.is_to_change {
            // Wait for all leases at the same time. Holders that keep theirs are reported later.
            let sick = plan.sick.iter().map(|sick| sick.of.id);
            repository.wait_for_leases(&sick.collect::<Vec<_>>())?;
        }
        let mut repaired = Vec::new();
        for sick in &plan.sick {
            let done = if self.is_to_change {
                room.with(|| self.repair(sick))?
            } else {
                sick.expected
            };
            repaired.push((sick.of.clone(), done));
        }
        let mended_copies = if self.is_to_change {
            room.with(|| mend_copies(repository))?
        } else {
            0
        };
        let has_changed = self.is_to_change && (!repaired.is_empty() || mended_copies > 0);
        let verified = if has_changed {
            self.stage("verifying again", |report| {
                verify(repository, None, false, report)
            })?
        } else {
            plan.verified
        };
        let leftovers = if self.is_to_change {
            repository.remove_leftovers()
        } else {
            repository.leftovers()
        };
        Ok(RepairedAll {
            sick: repaired,
            findings: verified.findings,
            leftovers: leftovers?,
        })
    }

    fn repair(&self, sick: &SickPacks) -> Result<Repaired> {
        let repository = self.opened.repository();
        let writer = repository.writer(sick.of.id, "backup repair")?;
        self.stage("repairing", |report| {
            repair(&writer, repository, sick, self.level, report)
        })
    }

    fn stage<T>(&self, label: &str, work: impl FnOnce(Report<'_>) -> Result<T>) -> Result<T> {
        let stage = Stage {
            label,
            unit: ProgressUnit::Steps,
            if_interrupted: "the same command does the rest",
        };
        self.opened.supervision().stage(stage, work)
    }
}

/// Restores small objects of the repository and of its sources that are missing or damaged.
fn mend_copies(repository: &Repository) -> Result<u64> {
    let mut mended = repository.mend_identity()?;
    let sources = repository.sources()?;
    let mut wrong = Vec::new();
    for known in sources.disks.iter().chain(&sources.popular) {
        let marks = repository.wrong_marks(known)?;
        if !repository.wrong_copies(known).is_empty() || !marks.is_empty() {
            wrong.push(known.id);
        }
    }
    for writer in repository.writers(&wrong, "backup repair")? {
        let writer = writer?;
        mended += writer.mend_copies()?;
        mended += writer.mend_marks()?;
    }
    Ok(mended)
}
