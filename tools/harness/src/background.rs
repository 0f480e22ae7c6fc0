//! Runs and controls finder and collector as a user does, with `pool dedup` and `job`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::server::Product;

/// The poll interval while a queue must become empty.
const DRAIN_POLL: Duration = Duration::from_millis(100);

/// The result of one `pool dedup`.
pub struct Dedup {
    /// Blocks that were read and fingerprinted.
    pub looked_at: u64,
    /// Scanned blocks whose content was stored already.
    pub duplicates: u64,
    /// The duration of the whole command.
    pub took: Duration,
}

impl Dedup {
    /// Megabytes scanned per second, for blocks of this size.
    pub fn mb_per_second(&self, block_bytes: u64) -> f64 {
        (self.looked_at * block_bytes) as f64 / 1e6 / self.took.as_secs_f64()
    }
}

/// Counts of the daemon's jobs since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes that the finder has read and fingerprinted.
    pub found_bytes: u64,
    /// References that the collector has released.
    pub released: u64,
}

/// Pending work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Blocks that are pending dedup, and those of a batch of the finder that has not ended.
    pub dirty: u64,
    /// Dropped references that are not released yet, and blocks that deletions have not released yet.
    pub queued: u64,
    /// Hits in line that the index does not count yet.
    pub claimed: u64,
}

impl Product {
    /// Finds and shares all present duplicates: of one volume whatever its mode, or of all volumes whose dedup is on.
    pub fn dedup(&self, volume: Option<&str>) -> Result<Dedup> {
        let mut command = self
            .pinned_command()
            .args(["--quiet", "--format", "json", "pool", "dedup"]);
        if let Some(volume) = volume {
            command = command.args(["--volume", volume]);
        }
        let start = Instant::now();
        let text = command.read()?;
        let took = start.elapsed();
        let reply: Value = serde_json::from_str(&text).context("pool dedup did not print JSON")?;
        Ok(Dedup {
            looked_at: number(&reply, "scanned").context("pool dedup")?,
            duplicates: number(&reply, "duplicates").context("pool dedup")?,
            took,
        })
    }

    /// Pauses finder and collector; both have stopped when this returns.
    pub fn pause_jobs(&self) -> Result<()> {
        self.command().args(["--quiet", "job", "pause"]).run()
    }

    /// Resumes finder and collector.
    pub fn resume_jobs(&self) -> Result<()> {
        self.command().args(["--quiet", "job", "resume"]).run()
    }

    /// Pauses finder and collector, but not deletions.
    pub fn only_delete(&self) -> Result<()> {
        self.pause_jobs()?;
        self.command()
            .args(["--quiet", "job", "resume", "deletion"])
            .run()
    }

    /// The counts of all jobs together.
    pub fn work(&self) -> Result<Work> {
        let mut work = Work::default();
        for job in self.jobs()? {
            work.found_bytes += number(&job, "bytes")?;
            work.released += number(&job, "released")?;
        }
        Ok(work)
    }

    /// The number of passes of the finder over a volume.
    pub fn finder_rounds(&self, volume: &str) -> Result<u64> {
        let job = self.finder_of(volume)?;
        job.map_or(Ok(0), |job| number(&job, "passes"))
    }

    /// The blocks of a volume that the finder has processed, and those of them that were duplicates.
    pub fn found_in(&self, volume: &str) -> Result<[u64; 2]> {
        let job = self.finder_of(volume)?;
        job.map_or(Ok([0; 2]), |job| {
            Ok([number(&job, "scanned")?, number(&job, "duplicates")?])
        })
    }

    fn finder_of(&self, volume: &str) -> Result<Option<Value>> {
        let of_volume = |job: &Value| job.get("volume").and_then(Value::as_str) == Some(volume);
        Ok(self.jobs()?.into_iter().find(of_volume))
    }

    /// The pending work of finder and collector.
    pub fn backlog(&self) -> Result<Backlog> {
        let stat = self.stat()?;
        Ok(Backlog {
            dirty: number(&stat, "pending_dedup_blocks").context("pool stat")?
                + number(&stat, "unsettled_blocks").context("pool stat")?,
            queued: number(&stat, "pending_release_blocks").context("pool stat")?
                + deleted_blocks(&stat),
            claimed: number(&stat, "claimed_blocks").context("pool stat")?,
        })
    }

    /// Waits until the backlog is as wanted. A backlog that does not get there in time is an error.
    pub fn wait_for_backlog(
        &self,
        limit: Duration,
        wanted: impl Fn(Backlog) -> bool,
    ) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let backlog = self.backlog()?;
            if wanted(backlog) {
                return Ok(start.elapsed());
            }
            if start.elapsed() > limit {
                bail!(
                    "finder and collector do not come to an end: after {} s there are still \
                     {} blocks to be looked at and {} references to be released",
                    limit.as_secs(),
                    backlog.dirty,
                    backlog.queued
                );
            }
            std::thread::sleep(DRAIN_POLL);
        }
    }

    fn jobs(&self) -> Result<Vec<Value>> {
        let text = self
            .command()
            .args(["--format", "json", "job", "list"])
            .read()?;
        let reply: Value = serde_json::from_str(&text).context("job list did not print JSON")?;
        let jobs = reply.get("jobs").and_then(Value::as_array);
        jobs.cloned().context("job list lacks jobs")
    }
}

fn number(document: &Value, key: &str) -> Result<u64> {
    let number = document.get(key).and_then(Value::as_u64);
    number.with_context(|| format!("there is no number {key}"))
}

/// Blocks of deleted layers that no other layer needs, and that are not released yet.
fn deleted_blocks(stat: &Value) -> u64 {
    let deletions = stat["being_deleted"].as_array().into_iter().flatten();
    let gone =
        deletions.filter(|deletion| deletion["needed_by"].as_array().is_none_or(Vec::is_empty));
    // One more than the count of blocks: a deletion without blocks still has a record.
    gone.map(|deletion| deletion["own_blocks"].as_u64().unwrap_or(0) + 1)
        .sum()
}
