//! `onefold backup verify`

use super::{RepositoryArgs, find_source, reporting};
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::foreground::interruption;
use crate::output::Render;
use crate::progress::Progress;
use crate::rendering::backup::InWords;
use onefold_api::backup::FindingReply;
use onefold_api::{Result, size};
use onefold_backup::{Verified, verify};
use onefold_repository::Foreign;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

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

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let has_gone_back = opened.has_gone_back();
    let repository = Arc::clone(opened.repository());
    let interrupted = interruption()?;
    let only = args.source.as_deref();
    let only = only
        .map(|name| find_source(&repository, name))
        .transpose()?;
    let progress = Progress::steps(&context.output, "verifying");
    let report = &mut reporting(&progress, &interrupted, "nothing was changed");
    let verified = verify(&repository, only.as_ref(), args.data, report);
    let verified = verified?;
    warn_if_not_remembered(context, &verified);
    let foreign = repository.foreign(only.map(|source| source.id));
    let Foreign { names, has_more } = foreign?;
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
            writeln!(out, "{}", InWords(finding))?;
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
