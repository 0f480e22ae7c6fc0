//! Import and finder in a pool that already holds millions of blocks: the cost of an index shows when it is large.
//! Works as `import` and `finder`, with other data each time.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::import::{self, IMAGE_BYTES};
use crate::plan::{Plan, SERVER_PROCESSOR};
use crate::statistics::Estimate;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::distinct::BLOCK_BYTES;
use onefold_harness::server::Product;
use onefold_harness::workspace::Workspace;

pub(crate) const NAME: &str = "large pool";

/// Distinct data in the pool before anything is measured: four million blocks.
pub(crate) const HELD_BYTES: u64 = 16 << 30;

/// The least ratio between the rates of the first and of the second of [`INDEXES`].
pub(crate) const MUST_RATIO: f64 = 3.0;

const INDEXES: [&str; 2] = ["hash", "btree"];

/// MB/s of each run.
#[derive(Serialize, Deserialize)]
struct Rates {
    index: String,
    #[serde(rename = "import_mb_per_second")]
    import: Vec<f64>,
    #[serde(rename = "finder_mb_per_second")]
    finder: Vec<f64>,
}

/// The rates with each of [`INDEXES`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Large {
    held_bytes: u64,
    image_bytes: u64,
    rates: [Rates; 2],
}

/// A rate with each of [`INDEXES`], and their ratio.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    pub(crate) rates: [Estimate; 2],
    pub(crate) ratio: f64,
}

impl Large {
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |title, of: fn(&Rates) -> &Vec<f64>| {
            let [hash, btree] = self.rates.each_ref().map(|rates| Estimate::of(of(rates)));
            let rates = [hash?, btree?];
            Some(Row {
                title,
                ratio: rates[0].median / rates[1].median,
                rates,
            })
        };
        let rows = [
            row("import", |rates| &rates.import),
            row("finder", |rates| &rates.finder),
        ];
        rows.into_iter().flatten().collect()
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Large> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "large")?;
    let mut measured = Large {
        held_bytes: HELD_BYTES,
        image_bytes: IMAGE_BYTES,
        rates: INDEXES.map(|index| Rates {
            index: index.to_owned(),
            import: Vec::new(),
            finder: Vec::new(),
        }),
    };
    for rates in &mut measured.rates {
        let directory = scratch.path().join("pool-directory");
        std::fs::create_dir(&directory).context("cannot make a directory")?;
        let product = Product::build(workspace, &directory)?;
        product.create_pool_with("64G", &["--index", &rates.index])?;
        hold(&product, &directory, HELD_BYTES)?;
        let product = product.pin(Some(SERVER_PROCESSOR));
        let image = scratch.path().join("image.raw");
        for run in 0..plan.imports as u64 {
            rates
                .import
                .push(one_import(&product, &image, 2 * run + 1)?);
            rates
                .finder
                .push(one_search(&product, &image, 2 * run + 2)?);
        }
        std::fs::remove_dir_all(&directory).context("cannot remove the pool")?;
    }
    for row in measured.rows() {
        let [hash, btree] = row.rates.each_ref().map(|rate| rate.median);
        println!(
            "{NAME}: {}: {hash:.0} MB/s with hash, {btree:.0} with btree, {:.1} times",
            row.title, row.ratio
        );
    }
    Ok(measured)
}

/// Imports this many bytes of distinct data through a pipe, while they are generated.
pub(crate) fn hold(product: &Product, directory: &Path, bytes: u64) -> Result<()> {
    let mut import = product
        .command()
        .args(["--quiet", "volume", "import", "held", "-", "--size"])
        .arg(bytes.to_string())
        .args(["--image-format", "raw", "--dedup", "offline"])
        .spawn_piped(&directory.join("import.log"))?;
    let written = import::write_blocks(&mut import.take_stdin()?, bytes, 0);
    let status = import.wait()?;
    ensure!(status.success(), "the import ended with {status}");
    written.context("cannot write to the import")
}

/// MB/s of an import, including its final sync.
fn one_import(product: &Product, image: &Path, seed: u64) -> Result<f64> {
    import::make_image(image, seed)?;
    import::timed(|| import::import(product, &format!("import{seed}"), image, "offline"))
}

/// MB/s of `pool dedup` over data imported without it.
fn one_search(product: &Product, image: &Path, seed: u64) -> Result<f64> {
    import::make_image(image, seed)?;
    let name = format!("search{seed}");
    import::import(product, &name, image, "off")?;
    // The writeback of the import must not slow the finder down.
    Cmd::new("sync").run()?;
    let dedup = product.dedup(Some(&name))?;
    ensure!(
        dedup.looked_at * BLOCK_BYTES as u64 == IMAGE_BYTES && dedup.duplicates == 0,
        "{} blocks were looked at, {} of them duplicates",
        dedup.looked_at,
        dedup.duplicates
    );
    Ok(dedup.mb_per_second(BLOCK_BYTES as u64))
}
