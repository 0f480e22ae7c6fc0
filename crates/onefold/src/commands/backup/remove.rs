//! `onefold backup remove`

use super::{RepositoryArgs, repository_error};
use crate::context::Context;
use crate::output::Render;
use onefold_api::{Error, ErrorKind, Result, size};
use onefold_repository::{KnownSource, Repository};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Name or id of the source.
    source: String,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Remove the source. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    yes: bool,
}

/// The JSON document of `backup remove`.
#[derive(Debug, Serialize)]
struct Reply {
    /// Whether the plan was carried out.
    is_done: bool,
    source: String,
    /// Names of the backups, SOURCE@N.
    backups: Vec<String>,
    packs: u64,
    /// Bytes of the source's packs. The next 'backup prune' removes popular blocks that only this source
    /// needed.
    stored_bytes: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let (opened, _) = args.repository.open_to_change(context)?;
    let repository = &opened.repository;
    let source = find(repository, &args.source)?;
    opened.check(source.id)?;
    let plan = plan(repository, &source).map_err(repository_error)?;
    let protected = repository.protected(source.id).map_err(repository_error)?;
    if let Some(backup) = protected.first() {
        let name = &source.source.name;
        return Err(Error::usage(format!(
            "{name}@{backup} is protected, so {source} stays; 'onefold backup unprotect {name}@{backup}' ends that"
        )));
    }
    if args.yes {
        // First, so that an interrupted removal does not look like a repository that went back.
        opened.forget(source.id);
        let removed = repository.remove_source(source.id);
        removed.map_err(|error| {
            let error = repository_error(error);
            Error::new(
                error.kind,
                format!("{source} is not removed: {}", error.message),
            )
        })?;
        // A concurrent command may have seen and remembered the source.
        opened.forget(source.id);
    }
    let reply = Reply {
        is_done: args.yes,
        ..plan
    };
    context.print_plan(&reply, args.yes)
}

/// Finds a source, or the remains of an interrupted removal.
fn find(repository: &Repository, name: &str) -> Result<KnownSource> {
    let known = repository.source(name).map_err(repository_error)?;
    let found = match known {
        Some(known) => Some(known),
        None => repository.half_removed(name).map_err(repository_error)?,
    };
    found.ok_or_else(|| {
        let message = format!("the repository has no source '{name}'");
        Error::new(ErrorKind::NotFound, message)
    })
}

fn plan(repository: &Repository, source: &KnownSource) -> onefold_repository::Result<Reply> {
    let name = &source.source.name;
    let backups = repository.backups(source.id)?.into_iter();
    Ok(Reply {
        is_done: false,
        source: name.clone(),
        backups: backups.map(|backup| format!("{name}@{backup}")).collect(),
        packs: repository.packs(source.id)?.len() as u64,
        stored_bytes: repository.stored_bytes(source.id)?,
    })
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let verb = if self.is_done {
            "removed"
        } else {
            "would be removed"
        };
        for backup in &self.backups {
            writeln!(out, "{backup} {verb}")?;
        }
        writeln!(
            out,
            "source '{}' {verb}, with {} of {}",
            self.source,
            size::count(self.packs, "pack"),
            size::display(self.stored_bytes)
        )
    }
}
