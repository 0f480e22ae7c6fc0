//! `onefold backup forget`, `protect` and `unprotect`

use super::clock::steps_back;
use super::retention::{Candidate, Rules};
use super::{ASIDE_BYTES, BackupName, Opened, RepositoryArgs, find_source, name_damaged};
use crate::context::Context;
use crate::output::Render;
use crate::rendering::utc;
use onefold_api::{Error, Result, size};
use onefold_format::backup::BackupNumber;
use onefold_repository::{KnownSource, RepositoryError, RepositoryErrorKind};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Backups to forget; or, with rules, the sources to which the rules apply (all sources if none is
    /// named).
    #[arg(value_name = "SOURCE@N|SOURCE")]
    names: Vec<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    rules: Rules,

    /// Forget the backups. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ProtectArgs {
    /// Backups to protect or unprotect.
    #[arg(value_name = "SOURCE@N", required = true)]
    backups: Vec<BackupName>,

    #[command(flatten)]
    repository: RepositoryArgs,
}

/// The JSON document of `backup forget`.
#[derive(Debug, Serialize)]
struct Reply {
    /// Whether the plan was carried out.
    is_done: bool,
    backups: Vec<BackupReply>,
}

#[derive(Debug, Serialize)]
struct BackupReply {
    /// Name of the backup, SOURCE@N.
    name: String,
    /// The moment of the backup's content; `None` if its manifest cannot be read.
    unix_seconds: Option<u64>,
    is_kept: bool,
    /// Rules that keep the backup: `last`, `hourly`, `daily`, `weekly`, `monthly`, `yearly`, `tag`,
    /// `protected`.
    kept_by: Vec<&'static str>,
}

/// A backup to be forgotten.
type Forgotten = (KnownSource, BackupNumber);

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let (opened, _) = args.repository.open_to_change(context)?;
    let repository = opened.repository();
    let (mut damaged, mut steps) = (Vec::new(), Vec::new());
    let (forgotten, mut backups) = if args.rules.is_empty() {
        by_name(&opened, &args.names)?
    } else {
        by_rules(&opened, args, &mut damaged, &mut steps)?
    };
    for step in &steps {
        context.output.warn(step);
    }
    let mut failed = Vec::new();
    if args.yes {
        let ids = forgotten
            .iter()
            .map(|(source, backup)| (source.id, *backup));
        let room = repository.make_room(ASIDE_BYTES)?;
        let done = repository.forget_all(&ids.collect::<Vec<_>>());
        for ((source, backup), done) in forgotten.iter().zip(done?) {
            let is_full = |error: &RepositoryError| error.kind() == RepositoryErrorKind::NoSpace;
            let done = match done {
                Err(error) if is_full(&error) => {
                    room.with(is_full, || repository.forget(source.id, *backup))
                }
                done => done,
            };
            if let Err(error) = done {
                failed.push(of_source(source, error));
                let name = format!("{}@{backup}", source.source.name);
                backups.retain(|reply| reply.name != name);
            }
        }
    }
    if backups.is_empty()
        && let Some(error) = failed.pop()
    {
        return Err(error);
    }
    for error in &failed {
        context.output.warn(format_args!("{error}"));
    }
    let reply = Reply {
        is_done: args.yes,
        backups,
    };
    let code = if failed.is_empty() {
        name_damaged(context, &damaged)
    } else {
        ExitCode::FAILURE
    };
    context.print_plan(&reply, args.yes || forgotten.is_empty())?;
    Ok(code)
}

fn of_source(source: &KnownSource, error: RepositoryError) -> Error {
    let error = Error::from(error);
    Error::new(
        error.kind,
        format!("'{}': {}", source.source.name, error.message),
    )
}

fn by_name(opened: &Opened, names: &[String]) -> Result<(Vec<Forgotten>, Vec<BackupReply>)> {
    let repository = opened.repository();
    if names.is_empty() {
        return Err(Error::usage("which backups? name backups, or give rules"));
    }
    let (mut forgotten, mut replies) = (Vec::new(), Vec::new());
    for name in names {
        let name: BackupName = name.parse().map_err(|_| {
            Error::usage(format!(
                "'{name}' is not a backup: write SOURCE@N, or give a rule such as --keep-last"
            ))
        })?;
        let (source, number) = find_forgettable(opened, &name)?;
        let is_named = |(known, backup): &Forgotten| known.id == source.id && *backup == number;
        if forgotten.iter().any(is_named) {
            continue;
        }
        let protected = repository.protected(source.id)?;
        if protected.contains(&number) {
            let name = &source.source.name;
            return Err(Error::usage(format!(
                "{name}@{number} is protected; 'onefold backup unprotect' ends that"
            )));
        }
        let manifest = repository.manifest(source.id, number).ok();
        replies.push(BackupReply {
            name: format!("{}@{number}", source.source.name),
            unix_seconds: manifest.map(|manifest| manifest.unix_seconds),
            is_kept: false,
            kept_by: Vec::new(),
        });
        forgotten.push((source, number));
    }
    Ok((forgotten, replies))
}

/// Finds a backup, even if its manifest is missing, so that the user can name it.
fn find_forgettable(opened: &Opened, name: &BackupName) -> Result<Forgotten> {
    let repository = opened.repository();
    if let Some(number) = name.number() {
        let source = find_source(repository, name.source())?;
        let history = repository.history(source.id)?;
        if history.missing.contains(&number) {
            return Ok((source, number));
        }
    }
    let (source, number) = name.find(opened)?;
    opened.check(source.id)?;
    Ok((source, number))
}

fn by_rules(
    opened: &Opened,
    args: &Args,
    damaged: &mut Vec<RepositoryError>,
    steps: &mut Vec<String>,
) -> Result<(Vec<Forgotten>, Vec<BackupReply>)> {
    let repository = opened.repository();
    let sources = match &args.names[..] {
        [] => {
            let sources = repository.sources()?;
            damaged.extend(sources.damaged);
            sources.disks
        }
        names => {
            let sources = names.iter().map(|name| find_source(repository, name));
            sources.collect::<onefold_backup::Result<_>>()?
        }
    };
    let (mut forgotten, mut replies) = (Vec::new(), Vec::new());
    for source in sources {
        opened.check(source.id)?;
        let (backups, unreadable) = Candidate::all(repository, source.id)?;
        damaged.extend(unreadable);
        steps.extend(steps_back(&source.source.name, &backups));
        for (backup, reasons) in backups.iter().zip(args.rules.reasons(&backups)) {
            if reasons.is_empty() {
                forgotten.push((source.clone(), backup.number));
            }
            replies.push(BackupReply::of(&source, backup, reasons));
        }
    }
    Ok((forgotten, replies))
}

impl BackupReply {
    fn of(source: &KnownSource, backup: &Candidate, kept_by: Vec<&'static str>) -> Self {
        Self {
            name: format!("{}@{}", source.source.name, backup.number),
            unix_seconds: Some(backup.unix_seconds),
            is_kept: !kept_by.is_empty(),
            kept_by,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.backups.iter().map(|backup| backup.name.len());
        let width = names.max().unwrap_or(0);
        for backup in &self.backups {
            let fate = match (backup.is_kept, self.is_done) {
                (true, _) => format!("kept: {}", backup.kept_by.join(", ")),
                (false, true) => "forgotten".to_owned(),
                (false, false) => "would be forgotten".to_owned(),
            };
            writeln!(
                out,
                "{:width$}  {}  {fate}",
                backup.name,
                backup
                    .unix_seconds
                    .map_or_else(|| "unknown".to_owned(), utc)
            )?;
        }
        let forgotten = self.backups.iter().filter(|backup| !backup.is_kept).count();
        let count = size::count(forgotten as u64, "backup");
        match (self.is_done, forgotten) {
            (_, 0) => writeln!(out, "nothing to forget"),
            (true, _) => writeln!(
                out,
                "{count} forgotten; 'onefold backup prune' gives the space back"
            ),
            (false, _) => writeln!(out, "{count} would be forgotten"),
        }
    }
}

pub(super) fn protect(
    context: &Context,
    args: &ProtectArgs,
    is_protected: bool,
) -> Result<ExitCode> {
    let (opened, _) = args.repository.open_to_change(context)?;
    let found = args.backups.iter().map(|name| {
        let found = name.find(&opened)?;
        opened.check(found.0.id)?;
        Ok(found)
    });
    let found = found.collect::<Result<Vec<_>>>()?;
    let mut protected = Vec::new();
    for (source, backup) in found {
        let done = opened.repository().protect(source.id, backup, is_protected);
        done?;
        protected.push(format!("{}@{backup}", source.source.name));
    }
    context.print(&ProtectReply {
        backups: protected,
        is_protected,
    })
}

#[derive(Debug, Serialize)]
struct ProtectReply {
    /// Names of the backups, SOURCE@N.
    backups: Vec<String>,
    is_protected: bool,
}

impl Render for ProtectReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let what = if self.is_protected {
            "is protected"
        } else {
            "may be forgotten"
        };
        let mut backups = self.backups.iter();
        backups.try_for_each(|backup| writeln!(out, "{backup} {what}"))
    }
}
