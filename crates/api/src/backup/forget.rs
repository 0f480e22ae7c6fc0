//! Forgetting backups, by name or by rules.

use clap::Args;
use onefold_backup::{ForgetPlan, PlannedBackup};
use onefold_retention::{Reason, Rules};
use serde::{Deserialize, Serialize};

use super::clock;
use super::name::BackupName;
use super::request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::{Error, Result};

/// Forgets backups: those named, or all that no rule keeps.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupForget {
    /// Backups to forget; or, with rules, the sources to which the rules apply (all sources if none is
    /// named).
    #[arg(value_name = "SOURCE@N|SOURCE")]
    #[serde(default)]
    pub names: Vec<String>,

    /// The rules by which backups are kept.
    #[command(flatten)]
    #[serde(flatten)]
    pub rules: RetentionRules,

    /// Forget the backups. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// Retention rules. Each rule keeps the newest backup of each of the last N periods that have one; protected
/// backups are always kept. Times are the times of the backups, in UTC.
#[derive(Debug, Clone, Default, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetentionRules {
    /// Keep the last N backups.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_last: Option<u32>,

    /// Keep the last backup of each of the last N hours that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_hourly: Option<u32>,

    /// Keep the last backup of each of the last N days that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_daily: Option<u32>,

    /// Keep the last backup of each of the last N weeks that have one; weeks begin on Mondays.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_weekly: Option<u32>,

    /// Keep the last backup of each of the last N months that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_monthly: Option<u32>,

    /// Keep the last backup of each of the last N years that have one.
    #[arg(long, value_name = "N", value_parser = count())]
    pub keep_yearly: Option<u32>,

    /// Keep all backups with this tag; may be given several times.
    #[arg(long = "keep-tag", value_name = "TAG")]
    #[serde(default)]
    pub keep_tags: Vec<String>,
}

/// A count of at least 1, because a rule that keeps nothing is a mistake.
fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

impl From<&RetentionRules> for Rules {
    fn from(rules: &RetentionRules) -> Self {
        Self {
            last: rules.keep_last,
            hourly: rules.keep_hourly,
            daily: rules.keep_daily,
            weekly: rules.keep_weekly,
            monthly: rules.keep_monthly,
            yearly: rules.keep_yearly,
            tags: rules.keep_tags.clone(),
        }
    }
}

impl RetentionRules {
    fn check(&self) -> Result<()> {
        let counts = [
            self.keep_last,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
            self.keep_monthly,
            self.keep_yearly,
        ];
        if counts.contains(&Some(0)) {
            Err(Error::usage("a rule that keeps no backup is a mistake"))
        } else {
            Ok(())
        }
    }
}

/// The backups that are forgotten and kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupForgetReply {
    /// Whether the plan was carried out.
    pub is_done: bool,
    /// The backups, one entry each.
    pub backups: Vec<ForgottenBackup>,
}

/// A backup that is forgotten or kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgottenBackup {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// The moment of the backup's content, in seconds since the Unix epoch; null if its manifest cannot be read.
    pub unix_seconds: Option<u64>,
    /// Whether the backup is kept.
    pub is_kept: bool,
    /// The rules that keep the backup.
    pub kept_by: Vec<Reason>,
}

impl From<PlannedBackup> for ForgottenBackup {
    fn from(backup: PlannedBackup) -> Self {
        Self {
            name: BackupName::new(&backup.source, backup.number).to_string(),
            unix_seconds: backup.unix_seconds,
            is_kept: !backup.kept_by.is_empty(),
            kept_by: backup.kept_by,
        }
    }
}

impl Planned for BackupForgetReply {
    fn is_settled(&self) -> bool {
        self.is_done || self.backups.iter().all(|backup| backup.is_kept)
    }
}

impl RepositoryVerb for BackupForget {
    const NAME: &'static str = "backup forget";
    type Reply = BackupForgetReply;

    fn check(&self) -> Result<()> {
        self.rules.check()
    }
}

impl RepositoryRequest for BackupForget {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupForgetReply> {
        let mut plan = self.plan(at)?;
        for step in &plan.steps_back {
            at.warn(clock::warning(step));
        }
        let mut failed = if self.yes {
            plan.carry_out(at.opened())?
        } else {
            Vec::new()
        };
        if plan.backups.is_empty()
            && let Some(error) = failed.pop()
        {
            return Err(error.into());
        }
        for error in &failed {
            at.warn(error);
        }
        if failed.is_empty() {
            at.found_damaged(&plan.damaged);
        } else {
            at.found(Outcome::Incomplete);
        }
        Ok(BackupForgetReply {
            is_done: self.yes,
            backups: plan
                .backups
                .into_iter()
                .map(ForgottenBackup::from)
                .collect(),
        })
    }
}

impl BackupForget {
    fn plan(&self, at: &RepositoryService<'_>) -> Result<ForgetPlan> {
        let rules = Rules::from(&self.rules);
        if !rules.is_empty() {
            return Ok(ForgetPlan::by_rules(at.opened(), &self.names, &rules)?);
        }
        if self.names.is_empty() {
            return Err(Error::usage("which backups? name backups, or give rules"));
        }
        let names = self.names.iter().map(|name| {
            name.parse().map_err(|_| {
                Error::usage(format!(
                    "'{name}' is not a backup: write SOURCE@N, or give a rule such as --keep-last"
                ))
            })
        });
        let names = names.collect::<Result<Vec<BackupName>>>()?;
        let names = names.iter().map(|name| (name.source(), name.number()));
        Ok(ForgetPlan::by_name(at.opened(), names)?)
    }
}
