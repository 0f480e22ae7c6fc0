//! Finds sources and backups that users name.

use onefold_format::backup::BackupNumber;
use onefold_repository::{KnownSource, Repository, RepositoryErrorKind};

use crate::error::{BackupError, Result};
use crate::opening::Opened;

/// The source with this name or id.
///
/// # Errors
///
/// `NotFound` if there is none.
pub fn find_source(repository: &Repository, name: &str) -> Result<KnownSource> {
    repository.source(name)?.ok_or_else(|| no_source(name))
}

/// The error for a name that no source has.
pub(crate) fn no_source(name: &str) -> BackupError {
    let message = format!("the repository has no source '{name}'");
    BackupError::refused(RepositoryErrorKind::NotFound, message)
}

/// The backup of a source with this number, or the latest one.
///
/// # Errors
///
/// `NotFound` if there is none. For the latest backup, also if the source went back: the newest backup that is left may
/// not be the latest.
pub fn find_backup(
    opened: &Opened,
    source: &str,
    number: Option<BackupNumber>,
) -> Result<(KnownSource, BackupNumber)> {
    let (name, repository) = (source, opened.repository());
    let source = find_source(repository, name)?;
    let backups = repository.backups(source.id)?;
    let found = match number {
        Some(number) => backups.contains(&number).then_some(number),
        None => {
            opened.check(source.id)?;
            latest(repository, &source, &backups)?
        }
    };
    let number = found.ok_or_else(|| {
        let message = match number {
            Some(number) => format!("there is no backup {name}@{number}"),
            None => format!("there is no backup of '{name}'"),
        };
        BackupError::refused(RepositoryErrorKind::NotFound, message)
    })?;
    Ok((source, number))
}

/// The backup with the latest time; a backup of an old snapshot may have the highest number.
fn latest(
    repository: &Repository,
    source: &KnownSource,
    backups: &[BackupNumber],
) -> Result<Option<BackupNumber>> {
    let moments = backups.iter().map(|backup| {
        let manifest = repository.manifest(source.id, *backup);
        let manifest = manifest.map_err(|error| {
            BackupError::from(error).within(format_args!(
                "the latest backup of {source} cannot be determined, so name one by its number"
            ))
        })?;
        Ok((manifest.unix_seconds, *backup))
    });
    let moments = moments.collect::<Result<Vec<_>>>()?;
    Ok(moments.into_iter().max().map(|(_, backup)| backup))
}
