//! `onefold backup share`

use super::{LEVEL_DEFAULT, MEMORY_DEFAULT, RepositoryArgs, parse_memory, reporting, threads};
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::{Error, ErrorKind, Result, size};
use onefold_backup::{Relatives, ShareOptions, Shared, plan_share, relatives, share};
use onefold_repository::Repository;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// Share only among the sources of this domain.
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,

    /// Memory for comparing the sources.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    memory: u64,

    /// Number of threads that compress and encrypt. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Share. Without this option the plan is printed, nothing is changed, and the exit code is 2.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Reply {
    /// Whether the plan was carried out.
    is_done: bool,
    domains: Vec<DomainReply>,
}

#[derive(Debug, Serialize)]
struct DomainReply {
    domain: String,
    sources: u64,
    /// Bytes of content that becomes popular and is copied once.
    copied_bytes: u64,
    /// Bytes of the sources' content that popular blocks have, too; pruning with --wasted 0% removes it.
    movable_bytes: u64,
    /// Bytes of the new packs; `None` for a plan.
    stored_bytes: Option<u64>,
    /// Objects that cannot be read and are left out.
    damaged: Vec<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let (opened, interrupted) = args.repository.open_to_change(context)?;
    opened.check_all()?;
    let repository = Arc::clone(opened.repository());
    let sources = repository.sources()?;
    for error in &sources.damaged {
        context.output.warn(format_args!("{error}; it is left out"));
    }
    let mut domains = relatives(&repository, sources.disks);
    if let Some(domain) = &args.domain {
        domains.retain(|relatives| relatives.domain() == domain);
        if domains.is_empty() {
            let message = format!("the repository has no source of domain '{domain}'");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    }
    let job = Job {
        context,
        args,
        repository: &repository,
        interrupted: &interrupted,
    };
    let domains = domains.iter().map(|relatives| {
        if args.yes {
            job.share(relatives)
        } else {
            job.plan(relatives)
        }
    });
    let reply = Reply {
        is_done: args.yes,
        domains: domains.collect::<Result<_>>()?,
    };
    let is_damaged = reply
        .domains
        .iter()
        .any(|domain| !domain.damaged.is_empty());
    context.print_plan(&reply, args.yes)?;
    if is_damaged || !sources.damaged.is_empty() {
        Ok(ExitCode::from(FOUND_DAMAGE))
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    repository: &'a Repository,
    interrupted: &'a AtomicBool,
}

impl Job<'_> {
    fn plan(&self, relatives: &Relatives) -> Result<DomainReply> {
        let plan = self.with_progress(relatives, |report| {
            plan_share(self.repository, relatives, self.memory_bytes(), report)
        })?;
        let planned = Shared {
            copied_blocks: plan.copied_blocks,
            stored_bytes: 0,
            plan,
        };
        Ok(DomainReply::of(relatives, planned, false))
    }

    fn share(&self, relatives: &Relatives) -> Result<DomainReply> {
        // A single source has nothing to share.
        let [first, _, ..] = &relatives.sources[..] else {
            return self.plan(relatives);
        };
        let popular = self.repository.popular(&first.source);
        let popular = popular?;
        let writer = self.repository.writer(popular.id, "backup share");
        let writer = writer?;
        let options = ShareOptions {
            level: LEVEL_DEFAULT,
            threads: threads(self.args.threads),
            memory_bytes: self.memory_bytes(),
        };
        let shared = self.with_progress(relatives, |report| {
            share(&writer, relatives, &options, report)
        })?;
        Ok(DomainReply::of(relatives, shared, true))
    }

    fn memory_bytes(&self) -> usize {
        usize::try_from(self.args.memory).unwrap_or(usize::MAX)
    }

    fn with_progress<T>(
        &self,
        relatives: &Relatives,
        share: impl FnOnce(onefold_backup::Report<'_>) -> onefold_backup::Result<T>,
    ) -> Result<T> {
        let label = format!("sharing in domain {}", relatives.domain());
        let progress = Progress::steps(&self.context.output, &label);
        let state = "all backups are as they were, and the same command does the rest";
        let report = &mut reporting(&progress, self.interrupted, state);
        share(report).map_err(Error::from)
    }
}

impl DomainReply {
    fn of(relatives: &Relatives, shared: Shared, is_done: bool) -> Self {
        let block_size = relatives.sources.first();
        let block_size = block_size.map_or(0, |known| u64::from(known.source.block_size));
        Self {
            domain: relatives.domain().to_owned(),
            sources: relatives.sources.len() as u64,
            copied_bytes: shared.copied_blocks * block_size,
            movable_bytes: shared.plan.freed_blocks * block_size,
            stored_bytes: is_done.then_some(shared.stored_bytes),
            damaged: shared.plan.damaged,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for domain in &self.domains {
            let copied = size::display(domain.copied_bytes);
            write!(
                out,
                "domain '{}': {}; ",
                domain.domain,
                size::count(domain.sources, "source")
            )?;
            match domain.stored_bytes {
                Some(stored) => write!(
                    out,
                    "{copied} became popular, stored in {}; ",
                    size::display(stored)
                )?,
                None => write!(out, "{copied} would become popular; ")?,
            }
            writeln!(
                out,
                "'backup prune --wasted 0%' {} {} of the sources' own copies",
                if self.is_done {
                    "frees"
                } else {
                    "would then free"
                },
                size::display(domain.movable_bytes)
            )?;
            for damaged in &domain.damaged {
                writeln!(out, "domain '{}': {damaged}", domain.domain)?;
            }
        }
        Ok(())
    }
}
