//! `onefold backup verify`

use super::{Context, RepositoryArgs, backup_error, find_source, repository_error};
use crate::commands::foreground::interruption;
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::{Result, size};
use onefold_backup::{BackupError, Finding, verify};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Only the backups of this source.
    source: Option<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Also read all blocks, and compare them with their fingerprints.
    #[arg(long)]
    data: bool,
}

#[derive(Debug, Serialize)]
struct Reply {
    backups: u64,
    /// Of packs and recipes.
    objects: u64,
    /// Compared with their fingerprints.
    compared_bytes: u64,
    findings: Vec<FindingReply>,
}

#[derive(Debug, Serialize)]
struct FindingReply {
    source: String,
    /// The damage.
    message: String,
    /// Numbers of the backups that need what is damaged.
    backups: Vec<u64>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let repository = args.repository.open()?;
    let interrupted = interruption()?;
    let sources = match &args.source {
        Some(name) => vec![find_source(&repository, name)?],
        None => repository.sources().map_err(repository_error)?,
    };
    let mut reply = Reply {
        backups: 0,
        objects: 0,
        compared_bytes: 0,
        findings: Vec::new(),
    };
    for source in sources {
        let name = &source.source.name;
        let progress = Progress::steps(&context.output, &format!("verifying {name}"));
        let verified = verify(&repository, &source, args.data, &mut |done, all| {
            progress.set(done, all);
            match interrupted.load(Ordering::Relaxed) {
                true => Err(BackupError::Receiver("interrupted".to_owned())),
                false => Ok(()),
            }
        });
        let verified = verified.map_err(backup_error)?;
        reply.backups += verified.backups;
        reply.objects += verified.objects;
        reply.compared_bytes += verified.compared_bytes;
        let findings = verified.findings.into_iter();
        reply
            .findings
            .extend(findings.map(|Finding { message, backups }| FindingReply {
                source: name.clone(),
                message,
                backups: backups.into_iter().map(|backup| backup.0).collect(),
            }));
    }
    let is_whole = reply.findings.is_empty();
    context.output.document(&reply)?;
    match is_whole {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(FOUND_DAMAGE)),
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.findings {
            let numbers = finding.backups.iter();
            let names = numbers.map(|number| format!("{}@{number}", finding.source));
            let names: Vec<_> = names.collect();
            let needed_by = match names.is_empty() {
                true => "no backup needs it".to_owned(),
                false => format!("needed by {}", names.join(", ")),
            };
            writeln!(out, "{}; {needed_by}", finding.message)?;
        }
        writeln!(
            out,
            "{} in {} verified, {} compared with fingerprints: {}",
            size::count(self.backups, "backup"),
            size::count(self.objects, "object"),
            size::display(self.compared_bytes),
            match self.findings.len() {
                0 => "nothing wrong".to_owned(),
                found => size::count(found as u64, "finding"),
            }
        )
    }
}
