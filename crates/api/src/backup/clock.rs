//! Clocks that were set back, in words.

use onefold_backup::StepBack;

use crate::utc;

/// A sentence about a backup with an earlier time than the one before it.
pub(crate) fn warning(step: &StepBack) -> String {
    let StepBack {
        source,
        backup,
        predecessor,
    } = step;
    format!(
        "the clock went back: {source}@{} is of {}, and {source}@{}, which was made before it, of {}; rules such as \
         --keep-daily count a wrong date as a day of its own",
        backup.number,
        utc(backup.unix_seconds),
        predecessor.number,
        utc(predecessor.unix_seconds)
    )
}

#[cfg(test)]
mod tests {
    use onefold_backup::DatedBackup;
    use onefold_format::backup::BackupNumber;

    use super::*;

    #[test]
    fn both_backups_are_named_with_their_times() {
        let dated = |number, unix_seconds| DatedBackup {
            number: BackupNumber(number),
            unix_seconds,
        };
        let sentence = warning(&StepBack {
            source: "vm".to_owned(),
            backup: dated(6, 4999),
            predecessor: dated(4, 5000),
        });
        for word in [
            "vm@6 is of 1970-01-01T01:23:19Z",
            "vm@4",
            "1970-01-01T01:23:20Z",
        ] {
            assert!(sentence.contains(word), "{sentence}");
        }
    }
}
