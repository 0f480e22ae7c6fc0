//! `cargo xtask ageing`: rewriting a fully deduplicated volume again and again.
//!
//! A published block is never changed in place: its next write goes to a new block, and its reference is dropped
//! (docs/life-of-a-write.md). The first rewrite of a deduplicated volume pays that for every block, and each later one
//! for the blocks that were published since the rewrite before. Here each round writes every block once, in random
//! order, while finder and collector run with their usual latency budget. When the load stops, both queues must become
//! empty, and then the pool must hold every distinct block once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::sharing;
use onefold_harness::background::Backlog;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct;
use onefold_harness::fio::{Fio, Section};
use onefold_harness::packages;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

const VOLUME: &str = "aged";
const BLOCK_BYTES: u64 = 4096;

/// How long finder and collector may take to finish after the last write.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);

/// Options of `cargo xtask ageing`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many times to rewrite the volume
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// The volume's size in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
}

/// The result of one round.
struct Round {
    seconds: f64,
    writes: u64,
    p99_us: f64,
    /// Dropped references: one for each write to a published block.
    released: u64,
    /// The backlog when the last write was answered.
    backlog: Backlog,
}

impl Round {
    fn print(&self, number: u32) {
        let bytes = self.writes * BLOCK_BYTES;
        println!(
            "{number:5}  {:7.0}  {:6.0}  {:7.0}  {:13.1} %  {:8}  {:8}",
            self.writes as f64 / self.seconds,
            bytes as f64 / 1e6 / self.seconds,
            self.p99_us,
            100.0 * self.released as f64 / self.writes as f64,
            self.backlog.dirty,
            self.backlog.queued
        );
    }
}

/// `cargo xtask ageing`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    let scratch = Scratch::new(&workspace.scratch_parent(), "ageing")?;
    let product = Product::build(workspace, scratch.path())?;
    product.create_pool("32G")?;
    let size = (arguments.mib << 20).to_string();
    product
        .command()
        .args(["volume", "create", VOLUME, "--size", &size])
        .args(["--interval", "1", "--cold-passes", "1"])
        .run()?;
    let daemon = product.serve(&[], &[])?;
    write_all(&product, &scratch, &size, "write")?;
    product.dedup(None)?;
    let start = product.stat_number("physical_blocks")?;
    println!(
        "{} MiB, half of it duplicates: {start} blocks stored",
        arguments.mib
    );
    println!("round  writes/s    MB/s  p99, us  copy-on-write      dirty    queued");
    for number in 1..=arguments.rounds {
        round(&product, &scratch, &size)?.print(number);
    }
    let drained = product.wait_for_backlog(DRAIN_LIMIT, |backlog| {
        backlog.dirty == 0 && backlog.queued == 0
    })?;
    println!(
        "both queues were empty {:.1} s after the load",
        drained.as_secs_f64()
    );
    compare_counts(&product, &scratch)?;
    daemon.stop()?;
    product.check().map(drop)
}

fn round(product: &Product, scratch: &Scratch, size: &str) -> Result<Round> {
    let given_up_before = released(product)?;
    let start = Instant::now();
    let (writes, p99_us) = write_all(product, scratch, size, "randwrite")?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Round {
        seconds,
        writes,
        p99_us,
        released: released(product)?.saturating_sub(given_up_before),
        backlog: product.backlog()?,
    })
}

/// References dropped since the daemon was started.
fn released(product: &Product) -> Result<u64> {
    // The collector is paused, because a release between the two queries would be counted twice.
    product.pause_jobs()?;
    let released = product.work()?.released + product.backlog()?.queued;
    product.resume_jobs()?;
    Ok(released)
}

/// Writes every block once. Returns the number of requests, and their p99.
fn write_all(product: &Product, scratch: &Scratch, size: &str, rw: &str) -> Result<(u64, f64)> {
    let job = Section::new("age", &product.default_address().uri(VOLUME))
        .set("rw", rw)
        .set("bs", "4k")
        .set("iodepth", 32)
        .set("size", size)
        .set("refill_buffers", 1)
        .set("dedupe_percentage", 50)
        // Each round writes new content.
        .set("randrepeat", 0)
        .set("end_fsync", 1);
    let results = Fio::new(scratch.path(), "age").job(job).run()?;
    let result = results.first().context("fio reported no job")?;
    Ok((result.write.requests, result.write.p99_us))
}

fn compare_counts(product: &Product, scratch: &Scratch) -> Result<()> {
    let file = scratch.path().join("aged.raw");
    Cmd::new("nbdcopy")
        .arg(product.default_address().uri(VOLUME))
        .arg(&file)
        .run()?;
    let counted = distinct::count(&[&file])?;
    sharing::expect(product, &counted)?;
    println!(
        "{} different blocks counted in the volume, and as many stored",
        counted.distinct
    );
    Ok(())
}
