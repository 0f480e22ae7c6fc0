//! Import of a raw image into an empty pool, the final sync included, with and without the search for duplicates. A
//! plain copy of the same file with a sync shows the disk's limit.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::statistics::Estimate;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "import";

pub(crate) const IMAGE_BYTES: u64 = 1 << 30;

/// A way to import, and the MB/s of non-zero data that it must and should reach, where there are such goals.
pub(crate) struct Way {
    pub(crate) title: &'static str,
    dedup: &'static str,
    index: &'static str,
    pub(crate) must: f64,
    pub(crate) aim: Option<f64>,
}

pub(crate) const WAYS: [Way; 4] = [
    Way {
        title: "no dedup",
        dedup: "off",
        index: "hash",
        must: 400.0,
        aim: Some(1000.0),
    },
    Way {
        title: "dedup, `memory` index",
        dedup: "offline",
        index: "memory",
        must: 300.0,
        aim: Some(1000.0),
    },
    Way {
        title: "dedup, `hash` index",
        dedup: "offline",
        index: "hash",
        must: 300.0,
        aim: Some(1000.0),
    },
    Way {
        title: "dedup, `btree` index",
        dedup: "offline",
        index: "btree",
        must: 100.0,
        aim: None,
    },
];

/// The rates of each of [`WAYS`], and of a copy.
#[derive(Serialize, Deserialize)]
pub(crate) struct Import {
    image_bytes: u64,
    imports: [Rates; 4],
    #[serde(rename = "copy_and_sync_mb_per_second")]
    copy: Vec<f64>,
}

/// MB/s of each run.
#[derive(Serialize, Deserialize)]
struct Rates {
    dedup: String,
    index: String,
    mb_per_second: Vec<f64>,
}

impl Import {
    /// The rate of each way.
    pub(crate) fn estimates(&self) -> impl Iterator<Item = (&'static Way, Estimate)> {
        WAYS.iter()
            .zip(&self.imports)
            .filter_map(|(way, rates)| Some((way, Estimate::of(&rates.mb_per_second)?)))
    }

    pub(crate) fn copy_estimate(&self) -> Option<Estimate> {
        Estimate::of(&self.copy)
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Import> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "import")?;
    let image = scratch.path().join("image.raw");
    make_image(&image, 0)?;
    let mut measured = Import {
        image_bytes: IMAGE_BYTES,
        imports: WAYS.map(|way| Rates {
            dedup: way.dedup.to_owned(),
            index: way.index.to_owned(),
            mb_per_second: Vec::new(),
        }),
        copy: Vec::new(),
    };
    for _ in 0..plan.imports {
        let copy = scratch.path().join("copy.raw");
        measured.copy.push(timed(|| {
            Cmd::new("dd")
                .arg(format!("if={}", image.display()))
                .arg(format!("of={}", copy.display()))
                .args(["bs=1M", "conv=fsync", "status=none"])
                .run()
        })?);
        std::fs::remove_file(&copy).context("cannot remove the copy")?;
        for rates in &mut measured.imports {
            let directory = scratch.path().join("imported");
            std::fs::create_dir(&directory).context("cannot make a directory")?;
            let product = Product::build(workspace, &directory)?;
            product.create_pool_with("8G", &["--index", &rates.index])?;
            let rate = timed(|| import(&product, "image", &image, &rates.dedup))?;
            rates.mb_per_second.push(rate);
            std::fs::remove_dir_all(&directory).context("cannot remove the pool")?;
        }
    }
    for (way, estimate) in measured.estimates() {
        println!("{NAME}, {}: {:.0} MB/s", way.title, estimate.median);
    }
    Ok(measured)
}

/// Makes a raw image without zeros and without duplicates. It was just written and is smaller than memory, so it is in
/// the page cache. Each seed gives other blocks.
pub(crate) fn make_image(path: &Path, seed: u64) -> Result<()> {
    let mut file = BufWriter::new(create(path)?);
    write_blocks(&mut file, IMAGE_BYTES, seed).with_context(|| format!("cannot write {path:?}"))
}

/// Imports the image as a volume of this name.
pub(crate) fn import(product: &Product, name: &str, image: &Path, dedup: &str) -> Result<()> {
    product
        .command()
        .args(["--quiet", "volume", "import", name])
        .arg(image)
        .args(["--image-format", "raw", "--dedup", dedup])
        .run()
}

/// Syncs the disks, runs `work`, and returns the MB/s of the image.
pub(crate) fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    Cmd::new("sync").run()?;
    let start = Instant::now();
    work()?;
    Ok(IMAGE_BYTES as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Writes blocks of 4 KiB that are all different, also from the blocks of any other seed, and hold no run of zeros that
/// could be skipped.
pub(crate) fn write_blocks(out: &mut impl Write, bytes: u64, seed: u64) -> std::io::Result<()> {
    let mut block = [0_u8; 4096];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * seed + 1);
    for _ in 0..bytes / 4096 {
        // A xorshift generator: fast enough not to be the bottleneck.
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&(state | 1).to_le_bytes());
        }
        out.write_all(&block)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_differ_and_are_not_zero() {
        let mut bytes = Vec::new();
        write_blocks(&mut bytes, 2 * 4096, 0).unwrap();
        write_blocks(&mut bytes, 4096, 1).unwrap();
        let blocks: Vec<_> = bytes.chunks(4096).collect();
        assert_eq!(blocks.len(), 3);
        assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2] && blocks[0] != blocks[2]);
        assert!(
            bytes
                .chunks(8)
                .all(|word| word.iter().any(|byte| *byte != 0))
        );
    }
}
