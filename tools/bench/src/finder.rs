//! The finder's rate on fresh data: `pool dedup` over a volume that was not scanned yet and has no duplicates, so that
//! every block is a new row of the index. The data is in the page cache, and the program runs on one processor;
//! starting and ending it are included.

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

pub(crate) const NAME: &str = "finder";

/// An index, and the MB/s that the finder must and should reach with it, where there are such goals.
pub(crate) struct Index {
    pub(crate) name: &'static str,
    pub(crate) numbers: Option<(f64, f64)>,
}

const INDEXES: [Index; 3] = [
    Index {
        name: "memory",
        numbers: Some((400.0, 1500.0)),
    },
    Index {
        name: "hash",
        numbers: None,
    },
    Index {
        name: "btree",
        numbers: None,
    },
];

/// The rates with each of [`INDEXES`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Finder {
    volume_bytes: u64,
    rates: [Rates; 3],
}

/// MB/s of each run.
#[derive(Serialize, Deserialize)]
struct Rates {
    index: String,
    mb_per_second: Vec<f64>,
}

impl Finder {
    pub(crate) fn estimates(&self) -> impl Iterator<Item = (&'static Index, Estimate)> {
        INDEXES
            .iter()
            .zip(&self.rates)
            .filter_map(|(index, rates)| Some((index, Estimate::of(&rates.mb_per_second)?)))
    }
}

pub(crate) fn measure(workspace: &Workspace, plan: &Plan) -> Result<Finder> {
    let scratch = Scratch::new(&workspace.scratch_parent(), "finder")?;
    let image = scratch.path().join("image.raw");
    import::make_image(&image, 0)?;
    let mut measured = Finder {
        volume_bytes: IMAGE_BYTES,
        rates: INDEXES.map(|index| Rates {
            index: index.name.to_owned(),
            mb_per_second: Vec::new(),
        }),
    };
    for _ in 0..plan.imports {
        for rates in &mut measured.rates {
            let directory = scratch.path().join("pool-directory");
            std::fs::create_dir(&directory).context("cannot make a directory")?;
            let product = Product::build(workspace, &directory)?.pin(Some(SERVER_PROCESSOR));
            product.create_pool_with("8G", &["--index", &rates.index])?;
            import::import(&product, "image", &image, "off")?;
            // The writeback of the import must not slow the finder down.
            Cmd::new("sync").run()?;
            let dedup = product.dedup(Some("image"))?;
            ensure!(
                dedup.looked_at * BLOCK_BYTES as u64 == IMAGE_BYTES && dedup.duplicates == 0,
                "{} blocks were looked at, {} of them duplicates",
                dedup.looked_at,
                dedup.duplicates
            );
            rates
                .mb_per_second
                .push(dedup.mb_per_second(BLOCK_BYTES as u64));
            std::fs::remove_dir_all(&directory).context("cannot remove the pool")?;
        }
    }
    for (index, estimate) in measured.estimates() {
        println!("{NAME}, {} index: {:.0} MB/s", index.name, estimate.median);
    }
    Ok(measured)
}
