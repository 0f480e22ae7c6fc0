//! Freeing space that no backup needs.

use std::time::Duration;

use clap::Args;
use onefold_backup::{PruneAll, PruneOptions, PrunedAll, PrunedPopular, PrunedSource};
use onefold_repository::KnownSource;
use serde::{Deserialize, Serialize};

use super::options::LEVEL_DEFAULT;
use super::request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::{Error, Result};
use crate::size;

/// The default of `wasted_percent`.
const WASTED_PERCENT: u8 = 30;

/// Frees space that no backup needs.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupPrune {
    /// Prune only these sources.
    #[serde(default)]
    pub sources: Vec<String>,

    /// Repack a pack when at least this share of it is unused, or available as popular blocks. 0% removes all
    /// waste.
    #[arg(long = "wasted", value_name = "PERCENT", value_parser = parse_percent, default_value = "30%")]
    #[serde(default = "wasted_percent")]
    pub wasted_percent: u8,

    /// Maximum amount of pack data to read for repacking, per source.
    #[arg(long = "rewrite-max", value_name = "SIZE", value_parser = size::parse)]
    pub rewrite_max_bytes: Option<u64>,

    /// Minimum time between finding that no backup needs a popular block and removing it. [default: an hour
    /// on network file systems, which other hosts may see with a delay, and otherwise none]
    #[arg(long = "grace", value_name = "DURATION", value_parser = parse_seconds)]
    pub grace_seconds: Option<u64>,

    /// Prune. Without this option the plan is printed and nothing is changed.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

fn wasted_percent() -> u8 {
    WASTED_PERCENT
}

fn parse_percent(text: &str) -> std::result::Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let number = number.filter(|number| *number <= 100);
    number.ok_or_else(|| format!("'{text}' is no percentage from 0% to 100%"))
}

fn parse_seconds(text: &str) -> std::result::Result<u64, humantime::DurationError> {
    humantime::parse_duration(text).map(|duration| duration.as_secs())
}

/// What was pruned, or would be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupPruneReply {
    /// Whether the plan was carried out.
    pub is_done: bool,
    /// The sources, one entry each.
    pub sources: Vec<PrunedSourceReply>,
    /// Blocks that several sources share; they are pruned if no sources are named.
    pub popular: Vec<PrunedPopularReply>,
    /// Why sources were skipped: another process is changing them, or they are damaged.
    pub left: Vec<String>,
}

/// A source that was pruned, or a plan for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrunedSourceReply {
    /// Whether there was nothing to do.
    #[serde(skip)]
    pub is_pruned: bool,
    /// Name of the source.
    pub source: String,
    /// Bytes of content that backups need.
    pub needed_bytes: u64,
    /// Bytes of content that no backup needs, before pruning.
    pub wasted_bytes: u64,
    /// Bytes of needed content that popular blocks have, too, so that the source's copies can be removed.
    pub movable_bytes: u64,
    /// Bytes of wasted and movable content that are removed.
    pub given_back_bytes: u64,
    /// Bytes of all packs, before pruning.
    pub stored_bytes: u64,
    /// Bytes by which the packs shrank; null for a plan.
    pub freed_bytes: Option<u64>,
    /// Number of packs that are removed.
    pub removed_packs: u64,
    /// Number of packs that are written again.
    pub rewritten_packs: u64,
    /// Packs that are damaged and therefore kept.
    pub damaged: Vec<String>,
    /// Files with the name of an object to be removed that do not belong to this repository; they are kept.
    pub foreign: Vec<String>,
}

/// The popular blocks of a domain that were pruned, or a plan for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrunedPopularReply {
    /// Whether there was nothing to do.
    #[serde(skip)]
    pub is_pruned: bool,
    /// Domain of the blocks.
    pub domain: String,
    /// Bytes of content that backups need.
    pub needed_bytes: u64,
    /// Bytes of content that no backup needs, before pruning.
    pub wasted_bytes: u64,
    /// Bytes of unneeded content that are removed.
    pub given_back_bytes: u64,
    /// Bytes of unneeded content that a later command removes, because backups in progress may need them.
    pub waiting_bytes: u64,
    /// Bytes of all packs, before pruning.
    pub stored_bytes: u64,
    /// Bytes by which the packs shrank; null for a plan.
    pub freed_bytes: Option<u64>,
    /// Packs that are damaged and therefore kept.
    pub damaged: Vec<String>,
}

impl Planned for BackupPruneReply {
    fn is_settled(&self) -> bool {
        let mut popular = self.popular.iter();
        let mut sources = self.sources.iter();
        self.is_done
            || sources.all(|source| source.is_pruned) && popular.all(|popular| popular.is_pruned)
    }
}

impl RepositoryVerb for BackupPrune {
    const NAME: &'static str = "backup prune";
    type Reply = BackupPruneReply;

    fn check(&self) -> Result<()> {
        if self.wasted_percent > 100 {
            let percent = self.wasted_percent;
            return Err(Error::usage(format!(
                "'{percent}' is no percentage from 0% to 100%"
            )));
        }
        Ok(())
    }
}

impl RepositoryRequest for BackupPrune {
    const USE: RepositoryUse = RepositoryUse::Change;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupPruneReply> {
        let job = PruneAll {
            opened: at.opened(),
            options: PruneOptions {
                wasted_percent: self.wasted_percent,
                rewrite_bytes_max: self.rewrite_max_bytes.unwrap_or(u64::MAX),
                level: LEVEL_DEFAULT,
            },
            grace: self.grace_seconds.map(Duration::from_secs),
            is_to_change: self.yes,
        };
        let done = job.run(&self.sources)?;
        tell(at, &done);
        let sources = done.sources.into_iter().map(PrunedSourceReply::from);
        let popular = done.popular.into_iter();
        let popular =
            popular.map(|(popular, pruned)| PrunedPopularReply::of(&popular, pruned, self.yes));
        Ok(BackupPruneReply {
            is_done: self.yes,
            sources: sources.collect(),
            popular: popular.collect(),
            left: done.left.iter().map(ToString::to_string).collect(),
        })
    }
}

/// Tells the caller what was left out and what is damaged.
fn tell(at: &mut RepositoryService<'_>, done: &PrunedAll) {
    let mut sources = done.sources.iter();
    let mut popular = done.popular.iter();
    let is_damaged = sources.any(|source| !source.plan.damaged.is_empty())
        || popular.any(|(_, pruned)| !pruned.plan.damaged.is_empty());
    for error in &done.left {
        at.warn(error);
    }
    for foreign in done.sources.iter().flat_map(|source| &source.plan.foreign) {
        at.supervision().note(foreign);
    }
    if is_damaged {
        at.warn("some packs are damaged and stay as they are; see 'onefold backup verify'");
    }
    if is_damaged || !done.left.is_empty() {
        at.found(Outcome::Incomplete);
    }
}

impl From<PrunedSource> for PrunedSourceReply {
    fn from(pruned: PrunedSource) -> Self {
        let PrunedSource {
            source,
            plan,
            freed_bytes,
        } = pruned;
        let block_size = u64::from(source.source.block_size);
        Self {
            is_pruned: plan.is_empty(),
            source: source.source.name,
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

impl PrunedPopularReply {
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
