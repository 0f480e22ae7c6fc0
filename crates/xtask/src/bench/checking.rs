//! `pool check` of a pool with ten million mapped blocks, by a daemon within its memory limit.
//!
//! Mapped blocks are entries of maps. So that they need no 40 GiB of disk, they are those of one
//! image of distinct blocks, imported again and again: each is shared by all imports, and `check`
//! has to count all references to it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Plan;
use super::import::{IMAGE_BYTES, import, make_image};
use crate::cleanup::Scratch;
use crate::distinct::BLOCK_BYTES;
use crate::server::Product;
use crate::workspace::Workspace;

pub(super) const NAME: &str = "check";

/// What must be mapped for the row to count, and seconds that it must take at most.
pub(super) const MAPPED_BLOCKS: u64 = 10_000_000;
pub(super) const MUST_SECONDS: f64 = 60.0;

/// The daemon's limit, as it is by default.
const MEMORY: &str = "512M";
pub(super) const MEMORY_BYTES: u64 = 512 << 20;

pub(super) struct Check {
    pub(super) mapped_blocks: u64,
    /// Of each check.
    seconds: Vec<f64>,
    pub(super) peak_memory_bytes: u64,
}

impl Check {
    /// Of the slowest.
    pub(super) fn slowest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// Whether it was met, or why nothing is shown.
    pub(super) fn verdict(&self) -> &'static str {
        match self {
            _ if self.mapped_blocks < MAPPED_BLOCKS => "not shown: fewer blocks were mapped",
            _ if self.peak_memory_bytes > MEMORY_BYTES => "missed: beyond the memory limit",
            _ if self.slowest() <= MUST_SECONDS => "met",
            _ => "missed",
        }
    }

    pub(super) fn raw(&self) -> Value {
        json!({"mapped_blocks": self.mapped_blocks, "seconds": self.seconds,
               "peak_memory_bytes": self.peak_memory_bytes})
    }
}

pub(super) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Check> {
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
    let measured = Check {
        mapped_blocks,
        seconds,
        peak_memory_bytes: daemon.peak_memory_bytes()?,
    };
    daemon.stop()?;
    println!(
        "{NAME}: {mapped_blocks} mapped blocks in {:.1} s, {} MiB of memory at most",
        measured.slowest(),
        measured.peak_memory_bytes >> 20
    );
    Ok(measured)
}
