//! `onefold backup prune`

use super::{Context, RepositoryArgs, backup_error, find_source, repository_error};
use crate::commands::foreground::interruption;
use crate::commands::parse_size;
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::{Error, Result, size};
use onefold_backup::{BackupError, PruneOptions, PrunePlan, Pruned, prune};
use onefold_repository::{KnownSource, Repository};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of zstd: as `create` has it.
const LEVEL: i32 = 1;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Only these sources.
    sources: Vec<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Write a pack again if so much of it, or more, is needed by no backup. At 0% no waste stays.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "30%")]
    wasted: u8,

    /// Read no more than so much of packs, for each source, to write them again.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rewrite_max: Option<u64>,

    /// Prune. Without this the plan is printed, and nothing is changed.
    #[arg(long)]
    yes: bool,
}

fn parse_percent(text: &str) -> std::result::Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let number = number.filter(|number| *number <= 100);
    number.ok_or_else(|| format!("'{text}' is no percentage from 0% to 100%"))
}

#[derive(Debug, Serialize)]
struct Reply {
    /// Whether it was done, or is only planned.
    is_done: bool,
    sources: Vec<SourceReply>,
}

#[derive(Debug, Serialize)]
struct SourceReply {
    source: String,
    /// Content that backups need.
    needed_bytes: u64,
    /// Content that no backup needs, before.
    wasted_bytes: u64,
    /// That of it which is given back.
    given_back_bytes: u64,
    /// Of all packs, before.
    stored_bytes: u64,
    /// By how much the packs became smaller; nothing for a plan.
    freed_bytes: Option<u64>,
    removed_packs: u64,
    rewritten_packs: u64,
    /// Packs that are damaged, and stay as they are.
    damaged: Vec<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let repository = args.repository.open()?;
    let sources = match &args.sources[..] {
        [] => repository.sources().map_err(repository_error)?,
        names => {
            let sources = names.iter().map(|name| find_source(&repository, name));
            sources.collect::<Result<_>>()?
        }
    };
    let options = PruneOptions {
        wasted_percent: args.wasted,
        rewrite_bytes_max: args.rewrite_max.unwrap_or(u64::MAX),
        level: LEVEL,
    };
    let interrupted = interruption()?;
    let replies = sources.iter().map(|source| {
        let reply = match args.yes {
            true => {
                let pruned = do_prune(context, &repository, source, &options, &interrupted)?;
                SourceReply::of(source, pruned.plan, Some(pruned.freed_bytes))
            }
            false => {
                let plan = PrunePlan::new(&repository, source.id, &options);
                SourceReply::of(source, plan.map_err(backup_error)?, None)
            }
        };
        Ok(reply)
    });
    let sources = replies.collect::<Result<Vec<_>>>()?;
    let is_damaged = sources.iter().any(|source| !source.damaged.is_empty());
    let printed = context.print(&Reply {
        is_done: args.yes,
        sources,
    })?;
    match is_damaged {
        true => Err(Error::new(
            onefold_api::ErrorKind::Damaged,
            "some packs are damaged and stay as they are; see 'onefold backup verify'",
        )),
        false => Ok(printed),
    }
}

fn do_prune(
    context: &Context,
    repository: &Repository,
    source: &KnownSource,
    options: &PruneOptions,
    interrupted: &AtomicBool,
) -> Result<Pruned> {
    let writer = repository.writer(source.id, "backup prune");
    let mut writer = writer.map_err(repository_error)?;
    let label = format!("pruning {}", source.source.name);
    let progress = Progress::bytes(&context.output, &label);
    let report = &mut |done, all| {
        progress.set(done, all);
        match interrupted.load(Ordering::Relaxed) {
            true => Err(BackupError::Receiver(
                "interrupted; all backups are as they were, and the same command does what is left"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    };
    prune(&mut writer, options, report).map_err(backup_error)
}

impl SourceReply {
    fn of(source: &KnownSource, plan: PrunePlan, freed_bytes: Option<u64>) -> Self {
        let block_size = u64::from(source.source.block_size);
        Self {
            source: source.source.name.clone(),
            needed_bytes: plan.needed_blocks * block_size,
            wasted_bytes: plan.wasted_blocks * block_size,
            given_back_bytes: plan.freed_blocks * block_size,
            stored_bytes: plan.stored_bytes,
            freed_bytes,
            removed_packs: plan.dead_packs(),
            rewritten_packs: plan.rewritten_packs(),
            damaged: plan.damaged,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for source in &self.sources {
            writeln!(
                out,
                "{}: {} of data in {}; {} of it needed by no backup, of which {} {}; {} removed, {} written again",
                source.source,
                size::display(source.needed_bytes + source.wasted_bytes),
                size::display(source.stored_bytes),
                size::display(source.wasted_bytes),
                size::display(source.given_back_bytes),
                if self.is_done {
                    "are given back"
                } else {
                    "can be given back"
                },
                size::count(source.removed_packs, "pack"),
                source.rewritten_packs,
            )?;
            if let Some(freed) = source.freed_bytes {
                writeln!(out, "{}: {} freed", source.source, size::display(freed))?;
            }
            for damaged in &source.damaged {
                writeln!(out, "{}: {damaged}", source.source)?;
            }
        }
        if !self.is_done {
            writeln!(out, "nothing was changed, --yes goes on")?;
        }
        Ok(())
    }
}
