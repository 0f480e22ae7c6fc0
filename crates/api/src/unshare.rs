//! Requests that replace a volume's shared blocks by private copies.

use std::ops::{ControlFlow, RangeInclusive};

use clap::Args;
use onefold_jobs::{Unshared, unshare_now};
use onefold_store::{MIN_RUN, Store, UnsharePlan, range_parser};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::request::{Report, Request};
use crate::service::Service;
use crate::size;
use crate::volume::PlanReply;

/// The shortest run that defrag leaves shared, if neither the command nor the volume sets one. On images of
/// virtual machines this default gives up 3 % of the savings and leaves 40 % of the runs.
const MIN_RUN_DEFAULT: u16 = 4;

/// Allowed values of `--min-run`, in blocks. A run of one block is never too short.
const DEFRAG_MIN_RUN: RangeInclusive<u16> = 2..=*MIN_RUN.end();

/// Copies the blocks that a volume shares in short runs, so that it is read in longer runs.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeDefrag {
    /// The volume's name, or VOLUME@SNAPSHOT.
    pub name: String,
    /// Copy shared blocks whose run is shorter than this many blocks, 2 to 256 [default: the volume's own
    /// setting, or 4 if it has none].
    #[arg(long, value_parser = range_parser(DEFRAG_MIN_RUN), value_name = "BLOCKS")]
    pub min_run: Option<u16>,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// Copies all blocks that a volume shares.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeUnshare {
    /// The volume's name, or VOLUME@SNAPSHOT.
    pub name: String,
    /// Carry out the plan; without it, the plan is only returned.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

/// Cost and benefit of copying a volume's shared blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnshareReply {
    #[serde(flatten)]
    /// The plan, and whether it was carried out.
    pub plan: PlanReply,
    /// Blocks that were copied, or would be.
    pub copied_blocks: u64,
    /// The space that the copies take.
    pub copied_bytes: u64,
    /// Free space that the volume may use.
    pub available_bytes: u64,
    /// Extents in which the volume lies in the pool before the copy.
    pub extents_before: u64,
    /// Extents in which the volume lies in the pool after the copy. A plan assumes that neighbouring blocks
    /// are placed together.
    pub extents_after: u64,
    /// The pool's dedup ratio before the copy.
    pub dedup_ratio_before: f64,
    /// The pool's dedup ratio after the copy. A plan assumes that all copied blocks stay shared by others.
    pub dedup_ratio_after: f64,
}

impl Request for VolumeDefrag {
    const PATH: &'static str = "/v1/volume/defrag";
    type Reply = UnshareReply;

    fn check(&self) -> Result<()> {
        let (first, last) = DEFRAG_MIN_RUN.into_inner();
        match self.min_run {
            Some(blocks) if !DEFRAG_MIN_RUN.contains(&blocks) => Err(Error::usage(format!(
                "a run that is too short has fewer than {first} to {last} blocks"
            ))),
            _ => Ok(()),
        }
    }

    fn run(&self, service: &Service, report: Report<'_>) -> Result<UnshareReply> {
        let own = service.find(&self.name)?.settings.min_run;
        let usual = if own > 1 { own } else { MIN_RUN_DEFAULT };
        let wanted = Wanted {
            name: &self.name,
            min_run: Some(self.min_run.unwrap_or(usual)),
        };
        wanted.run(self.yes, service, report)
    }
}

impl Request for VolumeUnshare {
    const PATH: &'static str = "/v1/volume/unshare";
    type Reply = UnshareReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<UnshareReply> {
        let wanted = Wanted {
            name: &self.name,
            min_run: None,
        };
        wanted.run(self.yes, service, report)
    }
}

/// A request to copy shared blocks: in short runs if `min_run` is set, else all.
struct Wanted<'a> {
    name: &'a str,
    min_run: Option<u16>,
}

impl Wanted<'_> {
    fn run(&self, yes: bool, service: &Service, report: Report<'_>) -> Result<UnshareReply> {
        let store = &service.store_of(self.name)?;
        if store.space().shrinking_to()?.is_some() {
            return Err(Error::failed(
                "the pool is being made smaller, and has no room for copies until that is done; 'onefold \
                 pool resize' continues or cancels it",
            ));
        }
        let plan = UnsharePlan::of(&*store.volume(self.name)?, self.min_run)?;
        let stat = store.stat()?;
        let copied_blocks = plan.copied_blocks;
        let mut reply = UnshareReply {
            plan: PlanReply::without_clients(Vec::new(), false),
            copied_blocks,
            copied_bytes: copied_blocks * u64::from(stat.block_size),
            available_bytes: plan.available_blocks * u64::from(stat.block_size),
            extents_before: plan.runs_before,
            extents_after: plan.runs_after,
            dedup_ratio_before: ratio(stat.logical_blocks, stat.physical_blocks),
            dedup_ratio_after: ratio(stat.logical_blocks, stat.physical_blocks + copied_blocks),
        };
        reply.plan.plan = self.sentences(&plan, &reply);
        if plan.copied_blocks == 0 {
            reply.plan.done = true;
            return Ok(reply);
        }
        store.check_writable()?;
        if !yes {
            return Ok(reply);
        }
        let copied = self.copy(&plan, service, store, report)?;
        let stat = store.stat()?;
        reply.copied_blocks = copied;
        reply.copied_bytes = copied * u64::from(stat.block_size);
        if let Some(found) = store
            .volume(self.name)
            .and_then(|volume| store.accounting().locality(&volume, u64::MAX))?
        {
            reply.extents_after = found.runs;
        }
        reply.dedup_ratio_after = ratio(stat.logical_blocks, stat.physical_blocks);
        reply.plan.plan = self.sentences(&plan, &reply);
        reply.plan.done = true;
        Ok(reply)
    }

    fn copy(
        &self,
        plan: &UnsharePlan,
        service: &Service,
        store: &Store,
        report: Report<'_>,
    ) -> Result<u64> {
        let mut report = service.blocks(report);
        let mut progress = |copied: u64| {
            report(copied.min(plan.copied_blocks), plan.copied_blocks);
            if service.is_stopping() || service.is_abandoned() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let unshared = match &service.maintenance {
            Some(jobs) => jobs.unshare(store, self.name, self.min_run, &mut progress)?,
            None => unshare_now(store, self.name, self.min_run, &mut progress)?,
        };
        let Unshared {
            copied_blocks,
            was_broken_off,
            failure,
        } = unshared;
        let so_far = size::count(copied_blocks, "block");
        if let Some(error) = failure {
            let error = Error::from(error);
            let remedy = match error.kind {
                ErrorKind::NoSpace => "make room, and run this again for the rest",
                _ => "run this again for the rest",
            };
            let message = format!("{so_far} copied before this: {error}; {remedy}");
            return Err(Error::new(error.kind, message));
        }
        if was_broken_off {
            return Err(Error::failed(format!(
                "interrupted with {so_far} copied; run this again for the rest"
            )));
        }
        Ok(copied_blocks)
    }

    fn sentences(&self, plan: &UnsharePlan, reply: &UnshareReply) -> Vec<String> {
        let shared = match self.min_run {
            Some(blocks) => format!("shares in runs of fewer than {blocks} blocks"),
            None => "shares".to_owned(),
        };
        if plan.copied_blocks == 0 {
            return vec![format!(
                "leave volume '{}' as it is: there is nothing that it {shared}",
                self.name
            )];
        }
        let mut sentences = vec![
            format!(
                "copy {}, {}, that volume '{}' {shared}",
                size::display(reply.copied_bytes),
                size::count(reply.copied_blocks, "block"),
                self.name
            ),
            format!(
                "use {} of the {} that are free for this volume",
                size::display(reply.copied_bytes),
                size::display(reply.available_bytes)
            ),
            format!(
                "change the data that a reader finds from {} to {}",
                size::count(reply.extents_before, "extent"),
                size::count(reply.extents_after, "extent")
            ),
            format!(
                "lower the pool's dedup ratio from {:.2} to {:.2}",
                reply.dedup_ratio_before, reply.dedup_ratio_after
            ),
        ];
        if plan.copied_blocks > plan.available_blocks {
            sentences.push(
                "stop when no more is free, unless enough of these blocks turn out to be shared with \
                 nobody"
                    .to_owned(),
            );
        }
        sentences
    }
}

/// The dedup ratio. An empty pool has the ratio of a pool without deduplication.
fn ratio(logical_blocks: u64, physical_blocks: u64) -> f64 {
    match physical_blocks {
        0 => 1.0,
        physical_blocks => logical_blocks as f64 / physical_blocks as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_states_the_range_and_the_default_that_are_used() {
        let command = VolumeDefrag::augment_args(clap::Command::new("defrag"));
        let mut arguments = command.get_arguments();
        let argument = arguments.find(|argument| argument.get_id() == "min_run");
        let help = argument.unwrap().get_help().unwrap().to_string();
        let (first, last) = DEFRAG_MIN_RUN.into_inner();
        for stated in [
            format!("blocks, {first} to {last} "),
            format!("or {MIN_RUN_DEFAULT} if it has none"),
        ] {
            assert!(help.contains(&stated), "{help}");
        }
    }
}
