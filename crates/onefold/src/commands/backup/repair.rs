//! `onefold backup repair`

use super::verify::warn_if_not_remembered;
use super::{ASIDE_BYTES, LEVEL_DEFAULT, RepositoryArgs, is_full, reporting};
use crate::commands::pool_check::FOUND_DAMAGE;
use crate::context::Context;
use crate::output::Render;
use crate::progress::Progress;
use crate::rendering::backup::InWords;
use onefold_api::backup::FindingReply;
use onefold_api::{Error, Result, size};
use onefold_backup::{RepairPlan, Repaired, SickPacks, repair, verify};
use onefold_repository::{KnownSource, Leftovers, Repository};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The state after an interruption.
const STATE: &str = "the same command does the rest";

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// Repair. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Reply {
    /// Whether the plan was carried out.
    is_done: bool,
    sources: Vec<SourceReply>,
    /// Damage that remains; without --yes, the damage found.
    findings: Vec<FindingReply>,
    /// Number of files that killed commands left.
    leftovers: u64,
    leftover_bytes: u64,
}

#[derive(Debug, Serialize)]
struct SourceReply {
    /// Title for messages.
    #[serde(skip)]
    title: String,
    /// Name of the source; `None` for the popular blocks of a domain.
    source: Option<String>,
    domain: String,
    /// Damaged blocks that are removed, so that the next backup stores them again.
    damaged_blocks: u64,
    /// Blocks that are restored from an intact copy.
    mended_blocks: u64,
    /// Blocks that are still missing afterwards.
    missing_blocks: u64,
    /// Packs whose table, or its copy, is rebuilt.
    tables: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let (opened, interrupted) = args.repository.open_to_change(context)?;
    opened.check_all()?;
    let repository = Arc::clone(opened.repository());
    let plan = {
        let progress = Progress::steps(&context.output, "verifying");
        RepairPlan::new(&repository, &mut reporting(&progress, &interrupted, STATE))
    };
    let plan = plan?;
    warn_if_not_remembered(context, &plan.verified);
    let mut reply = Reply {
        is_done: args.yes,
        sources: Vec::new(),
        findings: Vec::new(),
        leftovers: 0,
        leftover_bytes: 0,
    };
    let room = args.yes.then(|| repository.make_room(ASIDE_BYTES));
    let room = room.transpose()?;
    if args.yes {
        // Wait for all leases at the same time. Holders that keep theirs are reported later.
        let sick = plan.sick.iter().map(|sick| sick.of.id);
        let waited = repository.wait_for_leases(&sick.collect::<Vec<_>>());
        waited?;
    }
    for sick in &plan.sick {
        let repaired = match &room {
            None => sick.expected,
            Some(room) => room.with(is_full, || {
                do_repair(context, &repository, sick, &interrupted)
            })?,
        };
        reply.sources.push(SourceReply::of(&sick.of, repaired));
    }
    let mended_copies = match &room {
        Some(room) => room.with(is_full, || mend_copies(&repository))?,
        None => 0,
    };
    let verified = if args.yes && (!plan.sick.is_empty() || mended_copies > 0) {
        let progress = Progress::steps(&context.output, "verifying again");
        let report = &mut reporting(&progress, &interrupted, STATE);
        verify(&repository, None, false, report)?
    } else {
        plan.verified
    };
    let findings = verified.findings.into_iter();
    reply.findings = findings.map(FindingReply::from).collect();
    let Leftovers { files, bytes } = if args.yes {
        repository.remove_leftovers()
    } else {
        repository.leftovers()
    }?;
    (reply.leftovers, reply.leftover_bytes) = (files, bytes);
    context.print_plan(&reply, args.yes || reply.is_empty())?;
    if reply.findings.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(FOUND_DAMAGE))
    }
}

/// Restores small objects of the repository and of its sources that are missing or damaged.
fn mend_copies(repository: &Repository) -> Result<u64> {
    let mut mended = repository.mend_identity()?;
    let sources = repository.sources()?;
    let mut wrong = Vec::new();
    for known in sources.disks.iter().chain(&sources.popular) {
        let marks = repository.wrong_marks(known)?;
        if !repository.wrong_copies(known).is_empty() || !marks.is_empty() {
            wrong.push(known.id);
        }
    }
    let writers = repository.writers(&wrong, "backup repair");
    for writer in writers? {
        let writer = writer?;
        mended += writer.mend_copies()?;
        mended += writer.mend_marks()?;
    }
    Ok(mended)
}

fn do_repair(
    context: &Context,
    repository: &Arc<Repository>,
    sick: &SickPacks,
    interrupted: &AtomicBool,
) -> Result<Repaired> {
    let writer = repository.writer(sick.of.id, "backup repair");
    let writer = writer?;
    let progress = Progress::steps(&context.output, "repairing");
    let report = &mut reporting(&progress, interrupted, STATE);
    repair(&writer, repository, sick, LEVEL_DEFAULT, report).map_err(Error::from)
}

impl Reply {
    fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.sources.is_empty() && self.leftovers == 0
    }
}

impl SourceReply {
    fn of(known: &KnownSource, repaired: Repaired) -> Self {
        let source = &known.source;
        Self {
            title: known.to_string(),
            source: (!source.is_popular()).then(|| source.name.clone()),
            domain: source.domain.clone(),
            damaged_blocks: repaired.lost,
            mended_blocks: repaired.mended,
            missing_blocks: repaired.missing,
            tables: repaired.tables,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (mended, removed) = if self.is_done {
            ("mended", "removed")
        } else {
            ("would be mended", "would be removed")
        };
        for source in &self.sources {
            writeln!(
                out,
                "{}: {} damaged, {} {mended} from elsewhere, {} missing until a backup has their content",
                source.title,
                size::count(source.damaged_blocks, "block"),
                source.mended_blocks,
                source.missing_blocks,
            )?;
            if source.tables > 0 {
                let tables = size::count(source.tables, "table");
                writeln!(out, "{}: {tables} of packs made again", source.title)?;
            }
        }
        for finding in &self.findings {
            writeln!(out, "{}", InWords(finding))?;
        }
        if self.leftovers > 0 {
            writeln!(
                out,
                "{} of commands that were killed, {}, {removed}",
                size::count(self.leftovers, "file"),
                size::display(self.leftover_bytes)
            )?;
        }
        match (self.is_done, self.findings.is_empty()) {
            _ if self.is_empty() => writeln!(out, "nothing to repair"),
            (false, _) => Ok(()),
            (true, true) => writeln!(out, "repaired"),
            (true, false) => writeln!(
                out,
                "back the sources up with --full and repair again: what their disks still have is mended then"
            ),
        }
    }
}
