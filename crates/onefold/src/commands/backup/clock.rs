//! Detects clocks that were set back: a backup whose time is earlier than its predecessor's.
//!
//! Backups are ordered by number, but rules such as `--keep-daily` count their dates. A backup with a wrong
//! date counts as a separate day and takes the place of a real one.

use super::retention::Candidate;
use crate::output::Output;
use crate::rendering::utc;
use onefold_repository::{KnownSource, Repository};

/// Warns if the last backup of a source has an earlier time than the one before it.
pub(super) fn warn_if_it_went_back(repository: &Repository, source: &KnownSource, output: &Output) {
    // Commands that need the backups report those that cannot be read.
    let numbers = repository.backups(source.id).unwrap_or_default();
    let last = &numbers[numbers.len().saturating_sub(2)..];
    if let Ok((backups, _)) = Candidate::some(repository, source.id, last) {
        for sentence in steps_back(&source.source.name, &backups) {
            output.warn(sentence);
        }
    }
}

/// A sentence for each backup whose time is earlier than its predecessor's. Backups of user's snapshots are
/// ignored, because they have the snapshot's time, which can be any.
pub(super) fn steps_back(source: &str, backups: &[Candidate]) -> Vec<String> {
    let of_now: Vec<&Candidate> = backups
        .iter()
        .filter(|backup| !backup.is_of_snapshot)
        .collect();
    let pairs = of_now.iter().zip(of_now.iter().skip(1));
    let back = pairs.filter(|(before, after)| after.unix_seconds < before.unix_seconds);
    back.map(|(before, after)| {
        format!(
            "the clock went back: {source}@{} is of {}, and {source}@{}, which was made before it, of {}; rules such as \
             --keep-daily count a wrong date as a day of its own",
            after.number,
            utc(after.unix_seconds),
            before.number,
            utc(before.unix_seconds)
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::backup::BackupNumber;

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
        let steps = steps_back("vm", &backups);
        assert_eq!(steps.len(), 1, "{steps:?}");
        for word in [
            "vm@6 is of 1970-01-01T01:23:19Z",
            "vm@4",
            "1970-01-01T01:23:20Z",
        ] {
            assert!(steps[0].contains(word), "{steps:?}");
        }
    }
}
