//! Detects clocks that were set back: a backup whose time is earlier than its predecessor's.
//!
//! Backups are ordered by number, but rules such as `--keep-daily` count their dates. A backup with a wrong
//! date counts as a separate day and takes the place of a real one.

use onefold_format::backup::BackupNumber;
use onefold_repository::{KnownSource, Repository};

use crate::candidates::{Candidate, Candidates};

/// A backup whose time is earlier than that of the backup before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepBack {
    /// Name of the source.
    pub source: String,
    /// The backup with the earlier time.
    pub backup: DatedBackup,
    /// The backup that was made before it.
    pub predecessor: DatedBackup,
}

/// A backup and the time of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatedBackup {
    /// Number of the backup.
    pub number: BackupNumber,
    /// The time of its content, in seconds since the Unix epoch.
    pub unix_seconds: u64,
}

impl From<&Candidate> for DatedBackup {
    fn from(backup: &Candidate) -> Self {
        Self {
            number: backup.number,
            unix_seconds: backup.unix_seconds,
        }
    }
}

/// Whether the last backup of a source has an earlier time than the one before it. Commands that need the backups
/// report those that cannot be read.
#[must_use]
pub fn last_step_back(repository: &Repository, source: &KnownSource) -> Option<StepBack> {
    let numbers = repository.backups(source.id).unwrap_or_default();
    let last = &numbers[numbers.len().saturating_sub(2)..];
    let read = Candidates::some(repository, source.id, last).ok()?;
    steps_back(&source.source.name, &read.backups).pop()
}

/// The backups whose time is earlier than their predecessor's. Backups of user's snapshots are ignored, because they
/// have the snapshot's time, which can be any.
pub(crate) fn steps_back(source: &str, backups: &[Candidate]) -> Vec<StepBack> {
    let of_now: Vec<&Candidate> = backups
        .iter()
        .filter(|backup| !backup.is_of_snapshot)
        .collect();
    let pairs = of_now.iter().zip(of_now.iter().skip(1));
    let back = pairs.filter(|(before, after)| after.unix_seconds < before.unix_seconds);
    back.map(|(before, after)| StepBack {
        source: source.to_owned(),
        backup: DatedBackup::from(*after),
        predecessor: DatedBackup::from(*before),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_backup_before_the_one_before_it_is_named() {
        let backup = |number, unix_seconds, is_of_snapshot| Candidate {
            number: BackupNumber(number),
            unix_seconds,
            tags: Vec::new(),
            is_protected: false,
            is_of_snapshot,
        };
        let backups = [
            backup(1, 1000, false),
            backup(2, 1000, false),
            backup(3, 10, true),
            backup(4, 5000, false),
            backup(6, 4999, false),
            backup(7, 6000, false),
        ];
        let dated = |backup: &Candidate| DatedBackup::from(backup);
        let step = StepBack {
            source: "vm".to_owned(),
            backup: dated(&backups[4]),
            predecessor: dated(&backups[3]),
        };
        assert_eq!(steps_back("vm", &backups), [step]);
    }
}
