//! Forgets backups: those that are named, or those that no rule keeps.

use onefold_format::backup::BackupNumber;
use onefold_repository::{KnownSource, RepositoryError, RepositoryErrorKind};
use onefold_retention::{Item, Reason, Rules};

use crate::candidates::{Candidate, Candidates};
use crate::clock::{StepBack, steps_back};
use crate::error::{BackupError, Result};
use crate::finding::{find_backup, find_source};
use crate::opening::Opened;
use crate::room::Room;

/// A backup in a plan of what to forget.
#[derive(Debug, Clone)]
pub struct PlannedBackup {
    /// The source of the backup.
    pub source: KnownSource,
    /// The backup's number.
    pub number: BackupNumber,
    /// The moment of the backup's content; `None` if its manifest cannot be read.
    pub unix_seconds: Option<u64>,
    /// Why the backup is kept; empty if it is forgotten.
    pub kept_by: Vec<Reason>,
}

/// What to forget.
#[derive(Debug, Default)]
pub struct ForgetPlan {
    /// The backups that were considered.
    pub backups: Vec<PlannedBackup>,
    /// Objects that cannot be read. Rules do not apply to their backups, which stay.
    pub damaged: Vec<RepositoryError>,
    /// Backups with dates that may be wrong.
    pub steps_back: Vec<StepBack>,
}

impl ForgetPlan {
    /// Plans to forget backups by their names: the source, and the number or `None` for the latest.
    ///
    /// # Errors
    ///
    /// `NotFound` if a backup does not exist, `Invalid` if it is protected, `Damaged` if its source went back.
    pub fn by_name<'n>(
        opened: &Opened,
        names: impl IntoIterator<Item = (&'n str, Option<BackupNumber>)>,
    ) -> Result<Self> {
        let repository = opened.repository();
        let mut plan = Self::default();
        for (source, number) in names {
            let (source, number) = find_forgettable(opened, source, number)?;
            let is_named = |planned: &PlannedBackup| {
                planned.source.id == source.id && planned.number == number
            };
            if plan.backups.iter().any(is_named) {
                continue;
            }
            if repository.protected(source.id)?.contains(&number) {
                let name = &source.source.name;
                return Err(BackupError::usage(format!(
                    "{name}@{number} is protected; 'onefold backup unprotect' ends that"
                )));
            }
            let manifest = repository.manifest(source.id, number).ok();
            plan.backups.push(PlannedBackup {
                source,
                number,
                unix_seconds: manifest.map(|manifest| manifest.unix_seconds),
                kept_by: Vec::new(),
            });
        }
        Ok(plan)
    }

    /// Plans to forget the backups of these sources that no rule keeps; without names, of all sources.
    ///
    /// # Errors
    ///
    /// `NotFound` if a source does not exist, `Damaged` if one went back.
    pub fn by_rules(opened: &Opened, names: &[String], rules: &Rules) -> Result<Self> {
        let repository = opened.repository();
        let mut plan = Self::default();
        let sources = match names {
            [] => {
                let sources = repository.sources()?;
                plan.damaged.extend(sources.damaged);
                sources.disks
            }
            names => {
                let sources = names.iter().map(|name| find_source(repository, name));
                sources.collect::<Result<_>>()?
            }
        };
        for source in sources {
            opened.check(source.id)?;
            let read = Candidates::all(repository, source.id)?;
            plan.add(&source, read, rules);
        }
        Ok(plan)
    }

    /// Applies the rules to the backups of a source.
    fn add(&mut self, source: &KnownSource, read: Candidates, rules: &Rules) {
        self.damaged.extend(read.unreadable);
        self.steps_back
            .extend(steps_back(&source.source.name, &read.backups));
        let items: Vec<Item<'_>> = read.backups.iter().map(Candidate::item).collect();
        let planned = read.backups.iter().zip(rules.reasons(&items));
        self.backups
            .extend(planned.map(|(backup, kept_by)| PlannedBackup {
                source: source.clone(),
                number: backup.number,
                unix_seconds: Some(backup.unix_seconds),
                kept_by,
            }));
    }

    /// Forgets the backups that nothing keeps. Returns the errors of those that stay; they are no longer in the plan.
    ///
    /// # Errors
    ///
    /// If readers of the backups cannot be listed.
    pub fn carry_out(&mut self, opened: &Opened) -> Result<Vec<BackupError>> {
        let repository = opened.repository();
        let forgotten = self
            .backups
            .iter()
            .filter(|backup| backup.kept_by.is_empty());
        let ids: Vec<_> = forgotten
            .map(|backup| (backup.source.id, backup.number))
            .collect();
        let room = Room::new(repository, true)?;
        let mut done = repository.forget_all(&ids)?.into_iter();
        let mut failed = Vec::new();
        self.backups.retain(|backup| {
            if !backup.kept_by.is_empty() {
                return true;
            }
            let done = match done.next() {
                Some(Err(error)) if error.kind() == RepositoryErrorKind::NoSpace => {
                    room.with(|| Ok(repository.forget(backup.source.id, backup.number)?))
                }
                done => done.unwrap_or(Ok(())).map_err(BackupError::from),
            };
            match done {
                Ok(()) => true,
                Err(error) => {
                    let name = &backup.source.source.name;
                    failed.push(error.within(format_args!("'{name}'")));
                    false
                }
            }
        });
        Ok(failed)
    }
}

/// Finds a backup, even if its manifest is missing, so that the user can name it.
fn find_forgettable(
    opened: &Opened,
    name: &str,
    number: Option<BackupNumber>,
) -> Result<(KnownSource, BackupNumber)> {
    let repository = opened.repository();
    if let Some(number) = number {
        let source = find_source(repository, name)?;
        if repository.history(source.id)?.missing.contains(&number) {
            return Ok((source, number));
        }
    }
    let (source, number) = find_backup(opened, name, number)?;
    opened.check(source.id)?;
    Ok((source, number))
}
