//! `onefold backup prune`

use super::{
    ASIDE_BYTES, LEVEL_DEFAULT, Opened, RepositoryArgs, find_source, is_full, now_unix_seconds,
    reporting,
};
use crate::context::Context;
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::{Error, Result, size};
use onefold_backup::{
    PruneOptions, PrunePlan, PrunedPopular, Report, plan_popular, prune, prune_popular,
};
use onefold_repository::{KnownSource, MakingRoom, Repository, Sources, Writer};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long popular blocks stay condemned in a folder that other hosts may see with a delay.
const GRACE: Duration = Duration::from_secs(3600);

/// Magic numbers of file systems that show the current content of folders (statfs(2)): ext2 to ext4, XFS,
/// Btrfs, tmpfs, ZFS, F2FS, bcachefs and overlays of them.
const LOCAL: [u32; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
    0x794c_7630,
];

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Prune only these sources.
    sources: Vec<String>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Repack a pack when at least this share of it is unused, or available as popular blocks. 0% removes all
    /// waste.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "30%")]
    wasted: u8,

    /// Maximum amount of pack data to read for repacking, per source.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    rewrite_max: Option<u64>,

    /// Minimum time between finding that no backup needs a popular block and removing it. [default: an hour
    /// on network file systems, which other hosts may see with a delay, and otherwise none]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    grace: Option<Duration>,

    /// Prune. Without this option the plan is printed and nothing is changed.
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
    /// Whether the plan was carried out.
    is_done: bool,
    sources: Vec<SourceReply>,
    /// Blocks that several sources share; they are pruned if no sources are named.
    popular: Vec<PopularReply>,
    /// Why sources were skipped: another process is changing them, or they are damaged.
    left: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SourceReply {
    /// Whether there was nothing to do.
    #[serde(skip)]
    is_pruned: bool,
    source: String,
    /// Bytes of content that backups need.
    needed_bytes: u64,
    /// Bytes of content that no backup needs, before pruning.
    wasted_bytes: u64,
    /// Bytes of needed content that popular blocks have, too, so that the source's copies can be removed.
    movable_bytes: u64,
    /// Bytes of wasted and movable content that are removed.
    given_back_bytes: u64,
    /// Bytes of all packs, before pruning.
    stored_bytes: u64,
    /// Bytes by which the packs shrank; `None` for a plan.
    freed_bytes: Option<u64>,
    removed_packs: u64,
    rewritten_packs: u64,
    /// Packs that are damaged and therefore kept.
    damaged: Vec<String>,
    /// Files with the name of an object to be removed that do not belong to this repository; they are kept.
    foreign: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PopularReply {
    /// Whether there was nothing to do.
    #[serde(skip)]
    is_pruned: bool,
    domain: String,
    /// Bytes of content that backups need.
    needed_bytes: u64,
    /// Bytes of content that no backup needs, before pruning.
    wasted_bytes: u64,
    /// Bytes of unneeded content that are removed.
    given_back_bytes: u64,
    /// Bytes of unneeded content that a later command removes, because backups in progress may need them.
    waiting_bytes: u64,
    /// Bytes of all packs, before pruning.
    stored_bytes: u64,
    /// Bytes by which the packs shrank; `None` for a plan.
    freed_bytes: Option<u64>,
    /// Packs that are damaged and therefore kept.
    damaged: Vec<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let (opened, interrupted) = args.repository.open_to_change(context)?;
    let repository = opened.repository();
    let sources = find_sources(repository, &args.sources)?;
    let options = PruneOptions {
        wasted_percent: args.wasted,
        rewrite_bytes_max: args.rewrite_max.unwrap_or(u64::MAX),
        level: LEVEL_DEFAULT,
    };
    let room = args.yes.then(|| repository.make_room(ASIDE_BYTES));
    let job = Job {
        context,
        args,
        opened: &opened,
        repository,
        options,
        interrupted: &interrupted,
        room: room.transpose()?,
    };
    let damaged = sources.damaged.into_iter().map(Error::from);
    let mut left: Vec<Error> = damaged.collect();
    let disks = sources.disks.into_iter();
    let all = job.free(disks.chain(sources.popular).collect(), &mut left)?;
    let (popular, disks): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|source| source.source.is_popular());
    let sources = each(&disks, &mut left, |source| {
        job.with_room(|| job.source(source))
    });
    let popular = each(&popular, &mut left, |popular| {
        job.with_room(|| job.popular(popular))
    });
    let is_damaged = sources.iter().any(|source| !source.damaged.is_empty())
        || popular.iter().any(|popular| !popular.damaged.is_empty());
    if sources.is_empty()
        && popular.is_empty()
        && let Some(error) = left.pop()
    {
        return Err(error);
    }
    for error in &left {
        context.output.warn(format_args!("{error}"));
    }
    for foreign in sources.iter().flat_map(|source| &source.foreign) {
        context.output.note(foreign);
    }
    if is_damaged {
        context.output.warn(format_args!(
            "some packs are damaged and stay as they are; see 'onefold backup verify'"
        ));
    }
    let reply = Reply {
        is_done: args.yes,
        sources,
        popular,
        left: left.iter().map(ToString::to_string).collect(),
    };
    context.print_plan(&reply, args.yes || reply.is_empty())?;
    if is_damaged || !left.is_empty() {
        Ok(ExitCode::FAILURE)
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// Finds the sources with these names; without names, all sources and the popular blocks.
fn find_sources(repository: &Repository, names: &[String]) -> Result<Sources> {
    if names.is_empty() {
        return repository.sources().map_err(Error::from);
    }
    let disks = names.iter().map(|name| find_source(repository, name));
    Ok(Sources {
        disks: disks.collect::<onefold_backup::Result<_>>()?,
        ..Sources::default()
    })
}

/// Prunes each source. Sources that are in use or damaged are skipped.
fn each<T>(
    sources: &[KnownSource],
    left: &mut Vec<Error>,
    prune: impl Fn(&KnownSource) -> Result<T>,
) -> Vec<T> {
    let mut done = Vec::new();
    for source in sources {
        match prune(source) {
            Ok(pruned) => done.push(pruned),
            Err(error) => left.push(error),
        }
    }
    done
}

struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    opened: &'a Opened,
    repository: &'a Repository,
    options: PruneOptions,
    interrupted: &'a AtomicBool,
    /// Set if anything is changed.
    room: Option<MakingRoom<'a>>,
}

impl Job<'_> {
    /// The sources whose lease is free. A plan needs no leases, so it includes all sources.
    fn free(
        &self,
        mut sources: Vec<KnownSource>,
        left: &mut Vec<Error>,
    ) -> Result<Vec<KnownSource>> {
        if self.args.yes {
            let ids: Vec<_> = sources.iter().map(|source| source.id).collect();
            let waited = self.repository.wait_for_leases(&ids);
            let mut waited = waited?.into_iter();
            sources.retain(|_| match waited.next() {
                Some(Err(error)) => {
                    left.push(Error::from(error));
                    false
                }
                _ => true,
            });
        }
        Ok(sources)
    }

    fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match &self.room {
            Some(room) => room.with(is_full, work),
            None => work(),
        }
    }

    fn source(&self, source: &KnownSource) -> Result<SourceReply> {
        self.opened.check(source.id)?;
        if !self.args.yes {
            let plan = PrunePlan::new(self.repository, source, &self.options);
            return Ok(SourceReply::of(source, plan?, None));
        }
        let writer = self.writer(source)?;
        let label = format!("pruning {}", source.source.name);
        let pruned = self.with_progress(&label, |report| prune(&writer, &self.options, report))?;
        Ok(SourceReply::of(
            source,
            pruned.plan,
            Some(pruned.freed_bytes),
        ))
    }

    fn popular(&self, popular: &KnownSource) -> Result<PopularReply> {
        // Backups that are missing after a rollback of the storage may need the blocks.
        self.opened.check_all()?;
        if !self.args.yes {
            let plan = plan_popular(self.repository, popular, &self.options);
            let plan = plan?;
            return Ok(PopularReply::of(
                popular,
                PrunedPopular::planned(plan),
                false,
            ));
        }
        let writer = self.writer(popular)?;
        let grace = self.args.grace.unwrap_or_else(|| self.usual_grace());
        let times = (now_unix_seconds(), grace.as_secs());
        let pruned = self.with_progress("pruning popular blocks", |report| {
            prune_popular(&writer, &self.options, times, report)
        })?;
        Ok(PopularReply::of(popular, pruned, true))
    }

    fn writer(&self, source: &KnownSource) -> Result<Writer<'_>> {
        let writer = self.repository.writer(source.id, "backup prune");
        writer.map_err(Error::from)
    }

    fn with_progress<T>(
        &self,
        label: &str,
        prune: impl FnOnce(Report<'_>) -> onefold_backup::Result<T>,
    ) -> Result<T> {
        let progress = Progress::bytes(&self.context.output, label);
        let state = "all backups are as they were, and the same command does the rest";
        let report = &mut reporting(&progress, self.interrupted, state);
        prune(report).map_err(Error::from)
    }

    /// The default grace period: other hosts may see an old listing of a folder on a network file system.
    fn usual_grace(&self) -> Duration {
        let root = self.args.repository.root();
        let is_local = root.is_ok_and(|root| {
            rustix::fs::statfs(root).is_ok_and(|stat| LOCAL.contains(&(stat.f_type as u32)))
        });
        if is_local { Duration::ZERO } else { GRACE }
    }
}

impl Reply {
    fn is_empty(&self) -> bool {
        let mut popular = self.popular.iter();
        self.sources.iter().all(|source| source.is_pruned)
            && popular.all(|popular| popular.is_pruned)
    }
}

impl SourceReply {
    fn of(source: &KnownSource, plan: PrunePlan, freed_bytes: Option<u64>) -> Self {
        let block_size = u64::from(source.source.block_size);
        Self {
            is_pruned: plan.is_empty(),
            source: source.source.name.clone(),
            needed_bytes: plan.needed_blocks * block_size,
            wasted_bytes: plan.wasted_blocks * block_size,
            movable_bytes: plan.movable_blocks * block_size,
            given_back_bytes: plan.freed_blocks * block_size,
            stored_bytes: plan.stored_bytes,
            freed_bytes,
            removed_packs: plan.dead_packs(),
            rewritten_packs: plan.rewritten_packs(),
            damaged: plan.damaged,
            foreign: plan.foreign,
        }
    }
}

impl PopularReply {
    fn of(popular: &KnownSource, pruned: PrunedPopular, is_done: bool) -> Self {
        let block_size = u64::from(popular.source.block_size);
        Self {
            is_pruned: pruned.plan.is_empty(),
            domain: popular.source.domain.clone(),
            needed_bytes: pruned.plan.needed_blocks * block_size,
            wasted_bytes: pruned.plan.wasted_blocks * block_size,
            given_back_bytes: pruned.freed_blocks * block_size,
            waiting_bytes: pruned.waiting_blocks * block_size,
            stored_bytes: pruned.plan.stored_bytes,
            freed_bytes: is_done.then_some(pruned.freed_bytes),
            damaged: pruned.plan.damaged,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (given_back, removed) = if self.is_done {
            ("are given back", "removed")
        } else {
            ("would be given back", "would be removed")
        };
        for source in &self.sources {
            writeln!(
                out,
                "{}: {} of data in {}; {} of it needed by no backup, {} popular, too, of which {} {given_back}; {} {removed}, {} written again",
                source.source,
                size::display(source.needed_bytes + source.wasted_bytes),
                size::display(source.stored_bytes),
                size::display(source.wasted_bytes),
                size::display(source.movable_bytes),
                size::display(source.given_back_bytes),
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
        for popular in &self.popular {
            let name = format!("the popular blocks of domain '{}'", popular.domain);
            writeln!(
                out,
                "{name}: {} of data in {}; {} of it needed by no backup, of which {} {given_back}",
                size::display(popular.needed_bytes + popular.wasted_bytes),
                size::display(popular.stored_bytes),
                size::display(popular.wasted_bytes),
                size::display(popular.given_back_bytes),
            )?;
            if popular.waiting_bytes > 0 {
                writeln!(
                    out,
                    "{name}: {} wait for backups in progress, or for --grace; prune again later",
                    size::display(popular.waiting_bytes)
                )?;
            }
            if let Some(freed) = popular.freed_bytes {
                writeln!(out, "{name}: {} freed", size::display(freed))?;
            }
            for damaged in &popular.damaged {
                writeln!(out, "{name}: {damaged}")?;
            }
        }
        Ok(())
    }
}
