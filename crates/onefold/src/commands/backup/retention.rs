//! Determines which backups of a source are kept.

use crate::rendering::utc;
use onefold_api::Result;
use onefold_format::backup::{BackupNumber, SourceId};
use onefold_repository::{Repository, RepositoryError};
use std::collections::HashSet;

/// Retention rules. Each rule keeps the newest backup of each of the last N periods that have one; protected
/// backups are always kept. Times are the times of the backups, in UTC.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Rules {
    /// Keep the last N backups.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_last: Option<u32>,

    /// Keep the last backup of each of the last N hours that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_hourly: Option<u32>,

    /// Keep the last backup of each of the last N days that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_daily: Option<u32>,

    /// Keep the last backup of each of the last N weeks that have one; weeks begin on Mondays.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_weekly: Option<u32>,

    /// Keep the last backup of each of the last N months that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_monthly: Option<u32>,

    /// Keep the last backup of each of the last N years that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    keep_yearly: Option<u32>,

    /// Keep all backups with this tag; may be given several times.
    #[arg(long = "keep-tag", value_name = "TAG")]
    keep_tags: Vec<String>,
}

/// A count of at least 1, because a rule that keeps nothing is a mistake.
fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// Returns the period to which a rule assigns a backup.
type PeriodOf = fn(&Candidate) -> String;

/// A backup that may be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) number: BackupNumber,
    pub(super) unix_seconds: u64,
    pub(super) tags: Vec<String>,
    pub(super) is_protected: bool,
    /// Whether the backup is of a user's snapshot, and has the snapshot's time.
    pub(super) is_of_snapshot: bool,
}

impl Candidate {
    /// Reads the backups of a source, in order. Rules do not apply to those that cannot be read, whose errors
    /// are returned, too.
    pub(super) fn all(
        repository: &Repository,
        source: SourceId,
    ) -> Result<(Vec<Self>, Vec<RepositoryError>)> {
        let backups = repository.backups(source)?;
        Self::some(repository, source, &backups)
    }

    /// Reads some of the backups of a source, and returns errors like `all`.
    pub(super) fn some(
        repository: &Repository,
        source: SourceId,
        backups: &[BackupNumber],
    ) -> Result<(Vec<Self>, Vec<RepositoryError>)> {
        let protected = repository.protected(source)?;
        let (mut candidates, mut damaged) = (Vec::new(), Vec::new());
        for number in backups.iter().copied() {
            match repository.listed_manifest(source, number) {
                Ok(None) => {}
                Ok(Some(manifest)) => candidates.push(Self {
                    number,
                    unix_seconds: manifest.unix_seconds,
                    is_of_snapshot: !manifest.snapshot.is_empty(),
                    tags: manifest.tags,
                    is_protected: protected.contains(&number),
                }),
                Err(error) => damaged.push(error),
            }
        }
        Ok((candidates, damaged))
    }
}

impl Rules {
    pub(super) fn is_empty(&self) -> bool {
        self.periods().iter().all(|(_, count, _)| count.is_none()) && self.keep_tags.is_empty()
    }

    /// The rules that keep each backup, oldest backup first; empty for backups that no rule keeps.
    pub(super) fn reasons(&self, backups: &[Candidate]) -> Vec<Vec<&'static str>> {
        let mut reasons = vec![Vec::new(); backups.len()];
        for (name, count, period) in self.periods() {
            let count = count.unwrap_or(0) as usize;
            let mut seen = HashSet::new();
            // By number and not by time, so that setting the clock back does not reorder backups.
            for (backup, reasons) in backups.iter().zip(&mut reasons).rev() {
                if seen.len() < count && seen.insert(period(backup)) {
                    reasons.push(name);
                }
            }
        }
        for (backup, reasons) in backups.iter().zip(&mut reasons) {
            if backup.tags.iter().any(|tag| self.keep_tags.contains(tag)) {
                reasons.push("tag");
            }
            if backup.is_protected {
                reasons.push("protected");
            }
        }
        reasons
    }

    /// The rules with periods: their names, the number of periods, and the period of a backup.
    fn periods(&self) -> [(&'static str, Option<u32>, PeriodOf); 6] {
        const DAY: u64 = 86_400;
        /// The first day of the epoch was a Thursday.
        const SINCE_MONDAY: u64 = 3;
        fn time(backup: &Candidate, digits: usize) -> String {
            utc(backup.unix_seconds).chars().take(digits).collect()
        }
        [
            ("last", self.keep_last, |backup| backup.number.to_string()),
            ("hourly", self.keep_hourly, |backup| {
                time(backup, "2026-11-25T10".len())
            }),
            ("daily", self.keep_daily, |backup| {
                time(backup, "2026-11-25".len())
            }),
            ("weekly", self.keep_weekly, |backup| {
                ((backup.unix_seconds / DAY + SINCE_MONDAY) / 7).to_string()
            }),
            ("monthly", self.keep_monthly, |backup| {
                time(backup, "2026-11".len())
            }),
            ("yearly", self.keep_yearly, |backup| {
                time(backup, "2026".len())
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a backup at each of these times, in humantime's format.
    fn backups(times: &[&str]) -> Vec<Candidate> {
        let backups = times.iter().zip(1..).map(|(time, number)| {
            let time = humantime::parse_rfc3339_weak(time).unwrap();
            let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
            Candidate {
                number: BackupNumber(number),
                unix_seconds: since.as_secs(),
                tags: Vec::new(),
                is_protected: false,
                is_of_snapshot: false,
            }
        });
        backups.collect()
    }

    fn kept(rules: &Rules, backups: &[Candidate]) -> Vec<(u64, String)> {
        let reasons = rules.reasons(backups).into_iter().zip(backups);
        let kept = reasons.filter(|(reasons, _)| !reasons.is_empty());
        kept.map(|(reasons, backup)| (backup.number.0, reasons.join(" ")))
            .collect()
    }

    fn expected(kept: &[(u64, &str)]) -> Vec<(u64, String)> {
        kept.iter()
            .map(|(number, why)| (*number, (*why).to_owned()))
            .collect()
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_periods() {
        let backups = backups(&[
            "2025-12-31 23:59:59",
            "2026-01-01 00:00:00",
            "2026-11-20 10:00:00",
            "2026-11-22 23:00:00", // A Sunday.
            "2026-11-23 00:00:00", // A Monday.
            "2026-11-23 10:05:00",
            "2026-11-23 10:55:00",
        ]);
        let rules = |change: fn(&mut Rules)| {
            let mut rules = Rules::default();
            change(&mut rules);
            rules
        };
        assert_eq!(kept(&rules(|_| ()), &backups), []);
        let last = rules(|rules| rules.keep_last = Some(2));
        assert_eq!(kept(&last, &backups), expected(&[(6, "last"), (7, "last")]));
        let hourly = rules(|rules| rules.keep_hourly = Some(3));
        let found = expected(&[(4, "hourly"), (5, "hourly"), (7, "hourly")]);
        assert_eq!(kept(&hourly, &backups), found);
        let daily = rules(|rules| rules.keep_daily = Some(3));
        let found = expected(&[(3, "daily"), (4, "daily"), (7, "daily")]);
        assert_eq!(kept(&daily, &backups), found);
        let weekly = rules(|rules| rules.keep_weekly = Some(2));
        assert_eq!(
            kept(&weekly, &backups),
            expected(&[(4, "weekly"), (7, "weekly")])
        );
        let monthly = rules(|rules| rules.keep_monthly = Some(9));
        let found = expected(&[(1, "monthly"), (2, "monthly"), (7, "monthly")]);
        assert_eq!(kept(&monthly, &backups), found);
        let yearly = rules(|rules| rules.keep_yearly = Some(9));
        assert_eq!(
            kept(&yearly, &backups),
            expected(&[(1, "yearly"), (7, "yearly")])
        );
        let both = rules(|rules| (rules.keep_last, rules.keep_yearly) = (Some(1), Some(1)));
        assert_eq!(kept(&both, &backups), expected(&[(7, "last yearly")]));
    }

    #[test]
    fn a_clock_that_was_set_back_loses_no_new_backup() {
        let backups = backups(&[
            "2026-11-25 10:00:00",
            "2026-11-20 10:00:00",
            "2026-11-25 11:00:00",
        ]);
        let rules = Rules {
            keep_daily: Some(2),
            ..Rules::default()
        };
        assert_eq!(
            kept(&rules, &backups),
            expected(&[(2, "daily"), (3, "daily")])
        );
    }

    #[test]
    fn tags_and_protection_keep() {
        let mut backups = backups(&["2026-11-25 10:00:00"; 3]);
        backups[0].tags = vec!["release".to_owned()];
        backups[1].is_protected = true;
        let rules = Rules {
            keep_tags: vec!["release".to_owned()],
            ..Rules::default()
        };
        assert!(!rules.is_empty() && Rules::default().is_empty());
        assert_eq!(
            kept(&rules, &backups),
            expected(&[(1, "tag"), (2, "protected")])
        );
    }
}
