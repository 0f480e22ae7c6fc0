//! Import of a raw image into an empty pool, the final sync included; beside it, a plain copy of
//! the same file with a sync, which is what the disk can do.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Plan;
use super::statistics::Estimate;
use crate::cleanup::Scratch;
use crate::command::Cmd;
use crate::server::Product;
use crate::workspace::Workspace;

pub(super) const NAME: &str = "import";

/// MB/s of non-zero data that it must and should reach.
pub(super) const MUST_MB_PER_SECOND: f64 = 400.0;
pub(super) const AIM_MB_PER_SECOND: f64 = 1000.0;

const IMAGE_BYTES: u64 = 1 << 30;

/// MB/s, of each run.
pub(super) struct Import {
    import: Vec<f64>,
    copy: Vec<f64>,
}

impl Import {
    pub(super) fn estimate(&self) -> Option<Estimate> {
        Estimate::of(&self.import)
    }

    pub(super) fn copy_estimate(&self) -> Option<Estimate> {
        Estimate::of(&self.copy)
    }

    pub(super) fn raw(&self) -> Value {
        json!({"image_bytes": IMAGE_BYTES, "import_mb_per_second": self.import,
               "copy_and_sync_mb_per_second": self.copy})
    }
}

pub(super) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Import> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "import")?;
    let image = scratch.path().join("image.raw");
    // Written just now and smaller than memory, so it is in the page cache.
    let mut file = BufWriter::new(create(&image)?);
    write_blocks(&mut file, IMAGE_BYTES).with_context(|| format!("cannot write {image:?}"))?;
    drop(file);
    let mut measured = Import {
        import: Vec::new(),
        copy: Vec::new(),
    };
    for round in 0..plan.imports {
        let copy = scratch.path().join("copy.raw");
        measured.copy.push(timed(|| {
            Cmd::new("dd")
                .arg(format!("if={}", image.display()))
                .arg(format!("of={}", copy.display()))
                .args(["bs=1M", "conv=fsync", "status=none"])
                .run()
        })?);
        std::fs::remove_file(&copy).context("cannot remove the copy")?;
        let directory = scratch.path().join(format!("round{round}"));
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        let product = Product::build(workspace, &directory)?;
        product.create_pool("8G")?;
        measured.import.push(timed(|| {
            product
                .command()
                .args(["--quiet", "volume", "import", "image"])
                .arg(&image)
                .args(["--image-format", "raw"])
                .run()
        })?);
        std::fs::remove_dir_all(&directory).context("cannot remove the pool")?;
    }
    if let Some(estimate) = measured.estimate() {
        println!("{NAME}: {:.0} MB/s", estimate.median);
    }
    Ok(measured)
}

/// Runs it after everything older is on the disk; MB/s of the image.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    Cmd::new("sync").run()?;
    let start = Instant::now();
    work()?;
    Ok(IMAGE_BYTES as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Blocks of 4 KiB that are all different and hold no zero byte run that anyone could skip.
pub(super) fn write_blocks(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    let mut block = [0_u8; 4096];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes / 4096 {
        // A xorshift generator: fast enough not to be what is measured.
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
        write_blocks(&mut bytes, 3 * 4096).unwrap();
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
