//! Finding blocks that have decayed, and naming who uses them.

use super::{Report, Service, Verb};
use crate::error::{Error, Result};
use crate::limits::{SCRUB_POLL_INTERVAL, USERS_LISTED_MAX};
use crate::output::Document;
use crate::size;
use onefold_jobs::{JobKind, JobState, Maintenance, scrub_now};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::thread;

/// Scrubs the pool, or a part of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolScrub {
    /// How much of it, from where the last scrub ended; with none, what is left of one that was cut
    /// short, or all.
    pub(crate) percent: Option<u8>,
    /// 0: as many as it can.
    pub(crate) bytes_per_second: u64,
}

/// Names the blocks that are known to be bad.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolBadBlocks {}

/// A place at which a bad block is read.
#[derive(Debug, Serialize, Deserialize)]
struct User {
    volume: String,
    snapshot: Option<String>,
    lba: u64,
}

/// One bad block.
#[derive(Debug, Serialize, Deserialize)]
struct BadBlock {
    pba: u64,
    /// `unreadable` or `changed`.
    fault: String,
    /// Whether it heals when the same content is written or imported.
    heals: bool,
    /// All of its users.
    used_by: u64,
    /// The first of them.
    users: Vec<User>,
}

/// The document of `pool scrub`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolScrubReply {
    pool_blocks: u64,
    /// Where the next scrub goes on.
    next_block: u64,
    /// What the one under way has still to pass.
    left_blocks: u64,
    /// When the last one ended, in seconds since the Unix epoch.
    ended: Option<u64>,
    bad_blocks: Vec<BadBlock>,
}

impl PoolScrubReply {
    fn of(service: &Service) -> Result<Self> {
        let mut users: Vec<(u64, User)> = Vec::new();
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        let bad = service.store.bad_blocks(&mut |user| {
            *counts.entry(user.pba).or_default() += 1;
            if users.len() < USERS_LISTED_MAX {
                let place = User {
                    volume: user.volume,
                    snapshot: user.snapshot,
                    lba: user.lba,
                };
                users.push((user.pba, place));
            }
        })?;
        users.sort_by_key(|(pba, _)| *pba);
        let mut users = users.into_iter().peekable();
        let bad_blocks = bad.into_iter().map(|block| BadBlock {
            pba: block.pba,
            fault: if block.is_unreadable {
                "unreadable"
            } else {
                "changed"
            }
            .to_owned(),
            heals: block.is_shared,
            used_by: counts.get(&block.pba).copied().unwrap_or_default(),
            users: std::iter::from_fn(|| users.next_if(|(pba, _)| *pba == block.pba))
                .map(|(_, user)| user)
                .collect(),
        });
        let bad_blocks = bad_blocks.collect();
        let status = service.store.scrub_status()?;
        Ok(Self {
            pool_blocks: status.pool_blocks,
            next_block: status.next_block,
            left_blocks: status.left_blocks,
            ended: Some(status.ended_unix_seconds).filter(|ended| *ended > 0),
            bad_blocks,
        })
    }

    /// Whether anybody uses a block that is bad.
    pub(crate) fn is_damaged(&self) -> bool {
        self.bad_blocks.iter().any(|block| block.used_by > 0)
    }
}

impl Verb for PoolBadBlocks {
    const PATH: &'static str = "/v1/pool/bad-blocks";
    type Reply = PoolScrubReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<PoolScrubReply> {
        PoolScrubReply::of(service)
    }
}

impl Verb for PoolScrub {
    const PATH: &'static str = "/v1/pool/scrub";
    type Reply = PoolScrubReply;

    fn run(&self, service: &Service, report: Report<'_>) -> Result<PoolScrubReply> {
        match service.maintenance.as_deref() {
            Some(maintenance) => {
                maintenance.begin_scrub(self.percent, self.bytes_per_second)?;
                follow(service, maintenance, &mut service.blocks(report))?;
            }
            None => {
                service
                    .store
                    .begin_scrub(self.percent, self.bytes_per_second)?;
                let mut report = service.blocks(report);
                let ended = scrub_now(&service.store, &mut |done, all| {
                    report(done, all);
                    ControlFlow::Continue(())
                });
                let _ = ended?;
            }
        }
        PoolScrubReply::of(service)
    }
}

/// Waits until the daemon's scrub has ended, or until that is known not to happen by itself.
fn follow(service: &Service, maintenance: &Maintenance, report: Report<'_>) -> Result<()> {
    let all = service.store.scrub_status()?.left_blocks;
    loop {
        let left = service.store.scrub_status()?.left_blocks;
        report(all.saturating_sub(left), all);
        if left == 0 {
            return Ok(());
        }
        if service.is_stopping() {
            return Err(Error::failed(
                "the daemon was stopped; the scrub goes on when it is started again",
            ));
        }
        let jobs = maintenance.jobs()?.into_iter();
        for job in jobs.filter(|job| job.kind == JobKind::Scrub) {
            match job.state {
                JobState::Paused => {
                    return Err(Error::failed(
                        "the scrub is paused; 'onefold job resume scrub' lets it go on",
                    ));
                }
                JobState::Failed(message) => return Err(Error::failed(message)),
                _ => {}
            }
        }
        thread::sleep(SCRUB_POLL_INTERVAL);
    }
}

impl Document for PoolScrubReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for block in &self.bad_blocks {
            let fault = match &*block.fault {
                "unreadable" => "cannot be read",
                _ => "is not what was stored",
            };
            let remedy = match (block.heals, block.used_by) {
                (_, 0) => "nobody uses it, and nobody will",
                (true, _) => "heals when the same content is written or imported",
                (false, _) => "heals when it is written over",
            };
            writeln!(out, "block {} {fault}; {remedy}", block.pba)?;
            for user in &block.users {
                let snapshot = user.snapshot.as_ref();
                let snapshot = snapshot.map(|name| format!("@{name}")).unwrap_or_default();
                writeln!(out, "  {}{snapshot}  LBA {}", user.volume, user.lba)?;
            }
            let unlisted = block.used_by - block.users.len() as u64;
            if unlisted > 0 {
                writeln!(out, "  and {unlisted} more")?;
            }
        }
        match self.left_blocks {
            0 => writeln!(
                out,
                "{}",
                size::count(self.bad_blocks.len() as u64, "bad block")
            ),
            left => writeln!(
                out,
                "{}; {left} of {} blocks of the pool are still to be looked at",
                size::count(self.bad_blocks.len() as u64, "bad block"),
                self.pool_blocks
            ),
        }
    }
}
