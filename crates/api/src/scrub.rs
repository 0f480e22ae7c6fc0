//! Requests about blocks that have decayed.

use std::ops::ControlFlow;
use std::thread;

use clap::Args;
use onefold_jobs::{JobKind, JobState, Maintenance, scrub_now};
use onefold_store::{AffectedPlace, BadBlockStat, ScrubStatus, Store};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::{PLACES_LISTED_MAX, SCRUB_POLL_INTERVAL};
use crate::request::{Report, Request};
use crate::service::Service;
use crate::size;

/// Scrubs the pool or a part of it: reads stored blocks and finds those that have decayed.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolScrub {
    /// Percentage of the pool to scrub, continuing where the last scrub ended [default: the rest of an
    /// interrupted scrub, otherwise all of it].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: Option<u8>,
    /// The most bytes to read per second [default: no limit].
    #[arg(long = "rate", value_name = "SIZE", value_parser = size::parse)]
    pub bytes_per_second: Option<u64>,
}

/// Lists the blocks that are known to be bad.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolBadBlocks {}

/// A block that is known to be bad.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BadBlock {
    /// Address of the block in the pool.
    pub pba: u64,
    /// Why the block is bad.
    pub fault: BlockFault,
    /// Whether writing or importing the same content repairs the block.
    pub repairable: bool,
    /// Number of places where it is mapped.
    pub affected: u64,
    /// The first of the places where it is mapped.
    pub places: Vec<AffectedPlace>,
}

/// The fault of a bad block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum BlockFault {
    /// The device cannot read the block.
    Unreadable,
    /// The content differs from the stored fingerprint.
    Changed,
}

/// The progress of scrubbing, and the known bad blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolScrubReply {
    /// Blocks of the pool.
    pub pool_blocks: u64,
    /// Block at which the next scrub continues.
    pub next_block: u64,
    /// Blocks that the current scrub has still to read.
    pub left_blocks: u64,
    /// When the last scrub ended, in seconds since the Unix epoch.
    pub ended: Option<u64>,
    /// The bad blocks, in ascending order: of a shared pool those that the groups know that are open here.
    pub bad_blocks: Vec<BadBlock>,
}

impl PoolScrubReply {
    fn of(service: &Service) -> Result<Self> {
        let mut places: Vec<(u64, AffectedPlace)> = Vec::new();
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        let mut bad: Vec<BadBlockStat> = Vec::new();
        for store in service.stores.all() {
            bad.extend(store.scrub().bad_blocks(&mut |user| {
                *counts.entry(user.pba).or_default() += 1;
                if places.len() < PLACES_LISTED_MAX {
                    places.push((user.pba, user.place));
                }
            })?);
        }
        // Groups of a shared pool can know the same block.
        bad.sort_by_key(|block| block.pba);
        bad.dedup_by(|next, block| {
            let is_same = next.pba == block.pba;
            block.is_shared |= is_same && next.is_shared;
            is_same
        });
        places.sort_by_key(|(pba, _)| *pba);
        let mut places = places.into_iter().peekable();
        let bad_blocks = bad.into_iter().map(|block| BadBlock {
            pba: block.pba,
            fault: if block.is_unreadable {
                BlockFault::Unreadable
            } else {
                BlockFault::Changed
            },
            repairable: block.is_shared,
            affected: counts.get(&block.pba).copied().unwrap_or_default(),
            places: std::iter::from_fn(|| places.next_if(|(pba, _)| *pba == block.pba))
                .map(|(_, place)| place)
                .collect(),
        });
        let bad_blocks = bad_blocks.collect();
        let ScrubStatus {
            pool_blocks,
            next_block,
            left_blocks,
            ended_unix_seconds,
            ..
        } = service.stores.scrub_status()?;
        Ok(Self {
            pool_blocks,
            next_block,
            left_blocks,
            ended: Some(ended_unix_seconds).filter(|ended| *ended > 0),
            bad_blocks,
        })
    }

    /// Whether a bad block is mapped anywhere.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.bad_blocks.iter().any(|block| block.affected > 0)
    }
}

impl Request for PoolBadBlocks {
    const PATH: &'static str = "/v1/pool/bad-blocks";
    type Reply = PoolScrubReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolScrubReply> {
        PoolScrubReply::of(service)
    }
}

impl Request for PoolScrub {
    const PATH: &'static str = "/v1/pool/scrub";
    type Reply = PoolScrubReply;

    fn check(&self) -> Result<()> {
        match self.percent {
            Some(0 | 101..) => Err(Error::usage("a scrub covers 1 to 100 percent of the pool")),
            _ => Ok(()),
        }
    }

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolScrubReply> {
        let rate = self.bytes_per_second.unwrap_or(0);
        let store = service.stores.sole("a scrub")?;
        match service.maintenance.as_deref() {
            Some(maintenance) => {
                maintenance.begin_scrub(&store, self.percent, rate)?;
                follow(service, &store, maintenance, &mut service.blocks(report))?;
            }
            None => {
                store.scrub().begin(self.percent, rate)?;
                let mut report = service.blocks(report);
                let ended = scrub_now(&store, &mut |done, all| {
                    report(done, all);
                    ControlFlow::Continue(())
                });
                let _ = ended?;
            }
        }
        PoolScrubReply::of(service)
    }
}

/// Waits until the daemon's scrub ends, or until it cannot end without help: paused, failed, or the daemon
/// stopping.
fn follow(
    service: &Service,
    store: &Store,
    maintenance: &Maintenance,
    report: Report<'_>,
) -> Result<()> {
    let all = store.scrub().status()?.left_blocks;
    loop {
        let left = store.scrub().status()?.left_blocks;
        report(all.saturating_sub(left), all);
        if left == 0 {
            return Ok(());
        }
        if service.is_stopping() {
            return Err(Error::failed(
                "the daemon was stopped; the scrub continues when it is started again",
            ));
        }
        let jobs = maintenance.jobs_of(store)?.into_iter();
        for job in jobs.filter(|job| job.kind == JobKind::Scrub) {
            match job.state {
                JobState::Paused => {
                    return Err(Error::failed(
                        "the scrub is paused; 'onefold job resume scrub' resumes it",
                    ));
                }
                JobState::Failed => return Err(Error::failed(job.message.unwrap_or_default())),
                _ => {}
            }
        }
        thread::sleep(SCRUB_POLL_INTERVAL);
    }
}
