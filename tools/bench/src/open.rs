//! Open after `kill -9`: from the start of the daemon until it greets a client, with four
//! million mapped blocks and a log that has much to replay.
//!
//! The fill level of the log at the kill cannot be chosen from outside: a checkpoint may just have emptied it. So the
//! load that fills it runs for a different time before each kill, and the slowest open counts; the table shows the most
//! records that one replayed. Checkpoints begin when half of the ring is used, so a ring of the usual size is rarely
//! full. This pool has a ring twice that size, whose half holds as much as a usual ring ever can.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::import::write_blocks;
use crate::plan::Plan;
use crate::statistics::verdict;
use onefold_harness::cleanup::Scratch;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::server::{Product, log_bytes_replayed, records_replayed};
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "open";

/// The most seconds that an open must and should take.
pub(crate) const MUST_SECONDS: f64 = 2.0;
pub(crate) const AIM_SECONDS: f64 = 0.3;

const MAPPED_BLOCKS: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 4096;

/// The log's size as `pool create` makes it: a usual log can never replay more. An open that replayed less than half of
/// it says nothing about a full log.
const LOG_BYTES: u64 = 32 << 20;

/// The log size of this pool.
const LOG_SIZE: &str = "64M";

/// Unmapped space of the volume, where each write must be logged.
const SPARE_BYTES: u64 = 16 << 30;

/// How long fio may take to notice that the daemon is gone.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// All opens of the run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Open {
    mapped_blocks_min: u64,
    opens: Vec<Replayed>,
}

#[derive(Serialize, Deserialize)]
struct Replayed {
    seconds: f64,
    #[serde(rename = "records_replayed")]
    records: u64,
    #[serde(rename = "log_bytes_replayed")]
    log_bytes: u64,
}

impl Open {
    /// Seconds of the slowest open.
    pub(crate) fn slowest(&self) -> f64 {
        self.opens
            .iter()
            .map(|open| open.seconds)
            .fold(0.0, f64::max)
    }

    /// The most records that an open replayed, and the most of the log, in MiB.
    pub(crate) fn replayed_max(&self) -> [u64; 2] {
        let most = |of: fn(&Replayed) -> u64| self.opens.iter().map(of).max().unwrap_or(0);
        [most(|open| open.records), most(|open| open.log_bytes) >> 20]
    }

    /// Whether the log was full enough for the time to be meaningful.
    fn log_was_full(&self) -> bool {
        self.opens
            .iter()
            .any(|open| open.log_bytes >= LOG_BYTES / 2)
    }

    /// The verdict on the slowest open. A log that was not full says nothing good.
    pub(crate) fn verdict(&self, most_seconds: f64) -> &'static str {
        let met = self.slowest() <= most_seconds;
        if met && !self.log_was_full() {
            return "not shown: the log was less than half full";
        }
        verdict(met)
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Open> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "open")?;
    let product = Product::build(workspace, scratch.path())?;
    product.create_pool_with("48G", &["--log-size", LOG_SIZE])?;
    let volume_bytes = MAPPED_BLOCKS * BLOCK_BYTES;
    import_stream(&product, &scratch, "large", volume_bytes)?;
    let size = (volume_bytes + SPARE_BYTES).to_string();
    product
        .command()
        .args(["volume", "resize", "large", "--size", &size])
        .run()?;
    let mapped = product.stat_number("logical_blocks")?;
    ensure!(mapped >= MAPPED_BLOCKS, "only {mapped} blocks are mapped");
    let mut opens = Vec::new();
    let mut daemon = product.serve(&[], &[])?;
    for round in 0..plan.opens {
        // Each round uses its own part of the spare space: only a first write is logged.
        let part = SPARE_BYTES / plan.opens as u64;
        let job = Section::new("map", &product.default_address().uri("large"))
            // Sequential, so that the log fills before the limit on changed segments is reached.
            .set("rw", "write")
            .set("bs", "4k")
            .set("iodepth", 32)
            .set("offset", volume_bytes + round as u64 * part)
            .set("size", part)
            .set("fsync", 4096);
        let mut fio = Fio::new(scratch.path(), "map").job(job).spawn()?;
        std::thread::sleep(Duration::from_millis(3000 + 700 * round as u64));
        ensure!(
            fio.is_running()?,
            "fio ended before the kill\n{}",
            fio.said()
        );
        daemon.kill()?;
        fio.wait_for_failure(NOTICE_LIMIT)?;
        daemon = product.serve(&[], &[])?;
        let line = daemon.recovery_line()?;
        let records = records_replayed(&line).context("no number of records replayed")?;
        let seconds = daemon.started_in.as_secs_f64();
        println!("{NAME}: {seconds:.3} s, {records} records replayed");
        let log_bytes = log_bytes_replayed(&line).context("no number of bytes replayed")?;
        opens.push(Replayed {
            seconds,
            records,
            log_bytes,
        });
    }
    daemon.stop()?;
    Ok(Open {
        mapped_blocks_min: MAPPED_BLOCKS,
        opens,
    })
}

/// Makes a volume of this many bytes without duplicates, through a pipe, so that the disk holds the data only once.
pub(crate) fn import_stream(
    product: &Product,
    scratch: &Scratch,
    name: &str,
    bytes: u64,
) -> Result<()> {
    let log = scratch.path().join("import.log");
    let mut import = product
        .command()
        // Sharing is off: it is not measured here.
        .args(["--quiet", "volume", "import", name, "-"])
        .args(["--image-format", "raw", "--dedup", "off"])
        .spawn_piped(&log)?;
    let mut input = import.take_stdin()?;
    let written = write_blocks(&mut input, bytes, 0);
    drop(input);
    let status = import.wait()?;
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    ensure!(status.success(), "the import failed ({status})\n{said}");
    written.context("cannot feed the import")
}
