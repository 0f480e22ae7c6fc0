//! `onefold backup list`

use super::identity::OriginReply;
use super::{RepositoryArgs, find_source, name_damaged, repository_error};
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::output::{Render, one_line};
use crate::rendering::utc;
use onefold_api::{Result, size};
use onefold_repository::{Repository, RepositoryError};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// List only the backups of this source.
    source: Option<String>,

    #[command(flatten)]
    repository: RepositoryArgs,
}

/// The JSON document of `backup list`.
#[derive(Debug, Serialize)]
struct Reply {
    backups: Vec<BackupReply>,
}

#[derive(Debug, Serialize)]
struct BackupReply {
    /// Name of the backup, SOURCE@N.
    name: String,
    unix_seconds: u64,
    size_bytes: u64,
    logical_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    /// Name of the host that made the backup.
    host: String,
    /// Origin of the source's disk; null if it is not known.
    origin: Option<OriginReply>,
    /// Name of the user's snapshot that was backed up, without the volume's name; null if no snapshot was
    /// named.
    snapshot: Option<String>,
    tags: Vec<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let (backups, damaged) = of(&opened.repository, args.source.as_deref())?;
    context.output.document(&Reply { backups })?;
    let code = name_damaged(context, &damaged);
    if opened.has_gone_back() {
        Ok(ExitCode::from(FOUND_DAMAGE))
    } else {
        Ok(code)
    }
}

/// The backups, and the errors of those that cannot be read.
fn of(
    repository: &Repository,
    only: Option<&str>,
) -> Result<(Vec<BackupReply>, Vec<RepositoryError>)> {
    let (sources, mut damaged) = match only {
        Some(name) => (vec![find_source(repository, name)?], Vec::new()),
        None => {
            let sources = repository.sources().map_err(repository_error)?;
            (sources.disks, sources.damaged)
        }
    };
    let mut backups = Vec::new();
    for source in sources {
        let history = repository.history(source.id).map_err(repository_error)?;
        damaged.extend(history.check_complete(&source).err());
        for number in history.backups {
            let manifest = match repository.listed_manifest(source.id, number) {
                Ok(Some(manifest)) => manifest,
                Ok(None) => continue,
                Err(error) => {
                    damaged.push(error);
                    continue;
                }
            };
            let block_size = u64::from(manifest.block_size);
            backups.push(BackupReply {
                name: format!("{}@{number}", source.source.name),
                unix_seconds: manifest.unix_seconds,
                size_bytes: manifest.size_bytes,
                logical_bytes: manifest.counts.logical_blocks * block_size,
                new_bytes: manifest.counts.new_blocks * block_size,
                stored_bytes: manifest.counts.stored_bytes,
                origin: source.source.origin.as_ref().map(OriginReply::from),
                snapshot: Some(manifest.snapshot).filter(|name| !name.is_empty()),
                host: manifest.host,
                tags: manifest.tags,
            });
        }
    }
    Ok((backups, damaged))
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self.backups.iter().map(|backup| backup.name.len());
        let width = names.max().unwrap_or(0).max(4);
        let hosts = self.backups.iter().map(|backup| backup.host.len());
        let host_width = hosts.max().unwrap_or(0).max(4);
        if !self.backups.is_empty() {
            writeln!(
                out,
                "{:width$}  {:20}  {:>10}  {:>10}  {:>10}  {:>10}  {:host_width$}  SNAPSHOT AND TAGS",
                "NAME", "TIME", "SIZE", "DATA", "NEW", "STORED", "HOST"
            )?;
        }
        self.backups.iter().try_for_each(|backup| {
            let snapshot = backup.snapshot.iter().map(|name| format!("@{name}"));
            let marks: Vec<_> = snapshot.chain(backup.tags.iter().cloned()).collect();
            writeln!(
                out,
                "{:width$}  {:20}  {:>10}  {:>10}  {:>10}  {:>10}  {:host_width$}  {}",
                backup.name,
                utc(backup.unix_seconds),
                size::display(backup.size_bytes),
                size::display(backup.logical_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
                one_line(&backup.host),
                marks.join(", ")
            )
        })
    }
}
