//! `cargo xtask bench evaluation`: repeats measurements of Dmdedup and dedupv1 in kind, and compares their figures with
//! ours.
//!
//! `evaluation_figures` has the loads of Dmdedup's figures 4 to 6 and `evaluation_cell` one of them,
//! `evaluation_revisions` its table 2, `evaluation_generations` the two generations of dedupv1, and
//! `evaluation_report` the page.

use std::time::Instant;

use anyhow::Result;

use crate::evaluation_figures::{self, Figures};
use crate::evaluation_generations::{self, Generations};
use crate::evaluation_report::{self, NAME};
use crate::evaluation_revisions::{self, Revisions};
use crate::page;
use crate::plan::require_processors;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

const COMMAND: &str = "cargo xtask bench evaluation";

/// The back ends of the index, in the order of the tables.
pub(crate) const BACK_ENDS: [&str; 3] = ["memory", "btree", "hash"];

/// Options of `cargo xtask bench evaluation`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run fewer rounds with less data in the pool, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Run only this part
    #[arg(long)]
    part: Option<Part>,
}

/// The parts of the evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Dmdedup's figures 4 to 6: contents, patterns, back ends and memory of the index
    Figures,
    /// Dmdedup's table 2: many revisions of one source in a file system
    Revisions,
    /// Two generations of one image, as with dedupv1
    Generations,
}

/// The size of the measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Slices per server and cell.
    pub(crate) slices: usize,
    pub(crate) slice_seconds: u64,
    /// Whether pools hold enough rows for the smallest daemon memory to be a quarter of the memory that their index
    /// needs.
    pub(crate) holds_much: bool,
    pub(crate) revisions: usize,
    /// File systems made, and images written, with each server.
    pub(crate) rounds: usize,
}

const WHOLE: Plan = Plan {
    slices: 3,
    slice_seconds: 1,
    holds_much: true,
    revisions: 40,
    rounds: 3,
};
pub(crate) const QUICK: Plan = Plan {
    slices: 1,
    slice_seconds: 1,
    holds_much: false,
    revisions: 40,
    rounds: 1,
};

/// All results of the benchmark.
pub(crate) struct Results {
    pub(crate) figures: Option<Figures>,
    pub(crate) revisions: Option<Revisions>,
    pub(crate) generations: Option<Generations>,
    pub(crate) plan: Plan,
}

/// `cargo xtask bench evaluation`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    require_processors()?;
    let start = Instant::now();
    let plan = if arguments.quick { QUICK } else { WHOLE };
    let wanted = |part| arguments.part.is_none_or(|only| only == part);
    let results = Results {
        figures: wanted(Part::Figures)
            .then(|| evaluation_figures::measure(workspace, &plan))
            .transpose()?,
        revisions: wanted(Part::Revisions)
            .then(|| evaluation_revisions::measure(workspace, &plan))
            .transpose()?,
        generations: wanted(Part::Generations)
            .then(|| evaluation_generations::measure(workspace, &plan))
            .transpose()?,
        plan,
    };
    let conditions = page::conditions(workspace, COMMAND, start.elapsed())?;
    let page = evaluation_report::page(&conditions, &results);
    println!("\n{page}");
    if arguments.quick || arguments.part.is_some() {
        println!(
            "(not a whole run, {:.0} s: docs/{NAME}.md stays as it is)",
            start.elapsed().as_secs_f64()
        );
        return Ok(());
    }
    let raw = evaluation_report::raw(&conditions, &results);
    page::write(workspace, NAME, &page, &raw)
}
