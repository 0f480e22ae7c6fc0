//! `pool check` of a pool with ten million mapped blocks, by a daemon within its memory limit; and
//! `pool scrub` of its data, on one processor.
//!
//! Each mapped block is an entry of a map. To map ten million without 40 GiB of disk, the benchmark imports one image
//! of distinct blocks again and again: all imports share its blocks, and `check` has to count every reference.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::import::{IMAGE_BYTES, import, make_image};
use crate::plan::{Plan, SERVER_PROCESSOR};
use onefold_harness::cleanup::Scratch;
use onefold_harness::distinct::BLOCK_BYTES;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "check";

/// Mapped blocks that the pool must have for the row to count, and the most seconds that a check may take.
pub(crate) const MAPPED_BLOCKS: u64 = 10_000_000;
pub(crate) const MUST_SECONDS: f64 = 60.0;

/// GB/s of shared blocks in the page cache that a scrub must reach.
pub(crate) const SCRUB_MUST: f64 = 1.0;

/// The daemon's memory limit, which is the default one.
const MEMORY: &str = "512M";
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;

#[derive(Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) mapped_blocks: u64,
    /// The time of each check.
    seconds: Vec<f64>,
    pub(crate) peak_memory_bytes: u64,
    /// The time of each scrub of [`IMAGE_BYTES`] except the first, opening and closing the pool included.
    scrub_seconds: Vec<f64>,
}

impl Check {
    /// The time of the slowest check.
    pub(crate) fn slowest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// GB/s of the slowest scrub.
    pub(crate) fn scrub_rate(&self) -> f64 {
        let slowest = self.scrub_seconds.iter().copied().fold(0.0, f64::max);
        IMAGE_BYTES as f64 / 1e9 / slowest
    }

    /// "met" or "missed", or the reason why the row is not shown.
    pub(crate) fn verdict(&self) -> &'static str {
        match self {
            _ if self.mapped_blocks < MAPPED_BLOCKS => "not shown: fewer blocks were mapped",
            _ if self.peak_memory_bytes > MEMORY_BYTES => "missed: beyond the memory limit",
            _ if self.slowest() <= MUST_SECONDS => "met",
            _ => "missed",
        }
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Check> {
    let scratch = Scratch::new(&workspace.scratch_parent(), NAME)?;
    let product = Product::build(workspace, scratch.path())?;
    product.create_pool("64G")?;
    let image = scratch.path().join("image.raw");
    make_image(&image, 0)?;
    let daemon = product.serve(&["--memory", MEMORY], &[])?;
    for n in 0..plan.check_imports {
        import(&product, &format!("import{n}"), &image, "offline")?;
    }
    let mapped_blocks = product.stat_number("logical_blocks")?;
    let distinct = IMAGE_BYTES / BLOCK_BYTES as u64;
    ensure!(
        mapped_blocks == plan.check_imports * distinct,
        "{mapped_blocks} blocks are mapped"
    );
    let mut seconds = Vec::new();
    for _ in 0..plan.opens {
        let start = Instant::now();
        product.check().context("the pool")?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let peak_memory_bytes = daemon.peak_memory_bytes()?;
    daemon.stop()?;
    let product = product.pin(Some(SERVER_PROCESSOR));
    let mut scrub_seconds = Vec::new();
    for n in 0..=plan.opens {
        let start = Instant::now();
        let scrub = product.pinned_command().args(["--quiet", "pool", "scrub"]);
        scrub.run().context("the scrub")?;
        // The first scrub brings the data into the page cache and is not counted.
        scrub_seconds.extend((n > 0).then(|| start.elapsed().as_secs_f64()));
    }
    let measured = Check {
        mapped_blocks,
        seconds,
        peak_memory_bytes,
        scrub_seconds,
    };
    println!(
        "{NAME}: {mapped_blocks} mapped blocks in {:.1} s, {} MiB of memory at most",
        measured.slowest(),
        measured.peak_memory_bytes >> 20
    );
    println!("{NAME}: scrub {:.2} GB/s", measured.scrub_rate());
    Ok(measured)
}
