//! `onefold backup verify`

use super::{RepositoryArgs, backup_error, find_source, reporting, repository_error};
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::foreground::interruption;
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::{Result, size};
use onefold_backup::{Finding, Verified, verify};
use onefold_repository::Foreign;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Verify only the backups of this source.
    source: Option<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Read all blocks, too, and compare them with their fingerprints.
    #[arg(long)]
    data: bool,
}

#[derive(Debug, Serialize)]
struct Reply {
    backups: u64,
    /// Number of packs and recipes that were verified.
    objects: u64,
    /// Bytes of blocks that were compared with their fingerprints.
    compared_bytes: u64,
    findings: Vec<FindingReply>,
    /// First names of foreign files in the repository's folder, which are ignored.
    foreign: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct FindingReply {
    /// Description of the damage.
    message: String,
    /// Backups that need the damaged object.
    needed_by: Vec<NeededByReply>,
}

#[derive(Debug, Serialize)]
struct NeededByReply {
    /// Name of the backup, SOURCE@N.
    name: String,
    /// Number of the backup's blocks that are affected; 0 if it is not known.
    blocks: u64,
    /// First runs of affected blocks, in blocks of the disk.
    places: Vec<Place>,
}

#[derive(Debug, Serialize)]
struct Place {
    first_block: u64,
    blocks: u64,
}

impl From<Finding> for FindingReply {
    fn from(Finding { message, needed_by }: Finding) -> Self {
        let needed_by = needed_by.into_iter().map(|backup| NeededByReply {
            name: format!("{}@{}", backup.source, backup.backup),
            blocks: backup.blocks,
            places: backup.places.iter().map(Place::of).collect(),
        });
        Self {
            message,
            needed_by: needed_by.collect(),
        }
    }
}

impl Place {
    fn of(range: &Range<u64>) -> Self {
        Self {
            first_block: range.start,
            blocks: range.end - range.start,
        }
    }
}

impl fmt::Display for FindingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.needed_by.iter().map(ToString::to_string);
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}; needed by {}", self.message, names.join(", "))
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.blocks {
            1 => write!(f, "{}", self.first_block),
            blocks => write!(f, "{}-{}", self.first_block, self.first_block + blocks - 1),
        }
    }
}

impl fmt::Display for NeededByReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.places.is_empty() {
            return Ok(());
        }
        let places: Vec<_> = self.places.iter().map(ToString::to_string).collect();
        let named: u64 = self.places.iter().map(|place| place.blocks).sum();
        let more = if named < self.blocks { ", ..." } else { "" };
        write!(
            f,
            " ({} at {}{more})",
            size::count(self.blocks, "block"),
            places.join(", ")
        )
    }
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let has_gone_back = opened.has_gone_back();
    let repository = opened.repository;
    let interrupted = interruption()?;
    let only = args.source.as_deref();
    let only = only
        .map(|name| find_source(&repository, name))
        .transpose()?;
    let progress = Progress::steps(&context.output, "verifying");
    let report = &mut reporting(&progress, &interrupted, "nothing was changed");
    let verified = verify(&repository, only.as_ref(), args.data, report);
    let verified = verified.map_err(backup_error)?;
    warn_if_not_remembered(context, &verified);
    let foreign = repository.foreign(only.map(|source| source.id));
    let Foreign { names, has_more } = foreign.map_err(repository_error)?;
    for name in &names {
        context
            .output
            .note(format_args!("{name} is not of onefold, and is ignored"));
    }
    if has_more {
        context.output.note("there is more that is not of onefold");
    }
    let reply = Reply {
        backups: verified.backups,
        objects: verified.objects,
        compared_bytes: verified.compared_bytes,
        findings: verified
            .findings
            .into_iter()
            .map(FindingReply::from)
            .collect(),
        foreign: names,
    };
    let is_whole = reply.findings.is_empty() && !has_gone_back;
    context.output.document(&reply)?;
    if is_whole {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(FOUND_DAMAGE))
    }
}

pub(super) fn warn_if_not_remembered(context: &Context, verified: &Verified) {
    if let Some(error) = &verified.not_remembered {
        context.output.warn(format_args!(
            "later backups may refer to damaged blocks, because it cannot be remembered in the repository: {error}"
        ));
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for finding in &self.findings {
            writeln!(out, "{finding}")?;
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
