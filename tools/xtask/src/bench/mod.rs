//! `cargo xtask bench`: the numbers in `docs/benchmarks.md`, measured side by side in one run.
//!
//! Reading order: `slices` (throughput rows), `sharing` (rows with the finder at work), `snapshots`,
//! `finder`, `import`, `large`, `open`, `checking`, `statistics` (what decides), `report` (what is
//! written). `index` and `index_report` are a command of their own, and so are `study` and
//! `study_report`; `goals` is what both are held to. Only a whole run writes into `docs/`; a part of
//! one is printed.

mod checking;
mod finder;
mod goals;
mod import;
pub(crate) mod index;
mod index_report;
mod large;
mod open;
mod report;
mod sharing;
mod slices;
mod snapshots;
mod statistics;
mod steadiness;
mod study;
mod study_report;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::checking::Check;
use self::finder::Finder;
use self::import::Import;
use self::large::Large;
use self::open::Open;
use self::sharing::Sharing;
use self::slices::{Comparison, Contenders, Fill, Measured, Mode, ROWS, SETTINGS};
use self::snapshots::Snapshots;
use crate::command::Cmd;
use crate::packages;
use crate::workspace::Workspace;

/// fio runs here, and every server on the other: neither steals the other's time, and no server
/// gains by luck of placement.
const CLIENT_PROCESSOR: usize = 0;
pub(crate) const SERVER_PROCESSOR: usize = 1;

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fewer slices: an impression, not a result
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains this text: 'host randread', 'depth 32', 'filled in 64k', 'direct',
    /// 'sharing', 'host sharing', 'finder', 'import', 'large pool', 'open', 'snapshots', 'check'
    #[arg(long)]
    rows: Option<String>,
    /// qemu-nbd in every place: shows what the method itself makes of equals
    #[arg(long)]
    control: bool,
    #[command(subcommand)]
    of: Option<Of>,
}

#[derive(Debug, clap::Subcommand)]
enum Of {
    /// The index back ends by themselves; writes docs/benchmarks-index.md
    Index(index::Arguments),
    /// `onefold analyze` on data in the page cache; writes docs/benchmarks-study.md
    Study(study::Arguments),
}

/// How much to measure.
struct Plan {
    slices: usize,
    /// How often servers and their files are made anew, with as many slices each time: where a
    /// file lies on the disk decides what its I/O costs.
    layouts: usize,
    slice_seconds: u32,
    sharing_slices: usize,
    sharing_slice_seconds: u32,
    /// Of the load whose latency counts.
    latency_slices: usize,
    imports: usize,
    opens: usize,
    /// Snapshots made and deleted under load.
    snapshot_rounds: usize,
    /// Imports of one image into the pool that is checked.
    check_imports: u64,
    control: bool,
}

const WHOLE: Plan = Plan {
    slices: 12,
    layouts: 4,
    slice_seconds: 2,
    sharing_slices: 8,
    sharing_slice_seconds: 8,
    latency_slices: 12,
    imports: 5,
    opens: 5,
    snapshot_rounds: 12,
    check_imports: 39,
    control: false,
};
const QUICK: Plan = Plan {
    slices: 4,
    layouts: 2,
    slice_seconds: 1,
    sharing_slices: 2,
    sharing_slice_seconds: 8,
    latency_slices: 4,
    imports: 2,
    opens: 2,
    snapshot_rounds: 2,
    check_imports: 4,
    control: false,
};

/// What a run found.
#[derive(Default)]
struct Results {
    comparisons: Vec<Comparison>,
    raw_slices: Vec<Value>,
    sharing: Vec<Sharing>,
    finder: Option<Finder>,
    import: Option<Import>,
    large: Option<Large>,
    open: Option<Open>,
    snapshots: Option<Snapshots>,
    check: Option<Check>,
}

/// `cargo xtask bench`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    match &arguments.of {
        Some(Of::Index(arguments)) => return index::run(workspace, arguments),
        Some(Of::Study(arguments)) => return study::run(workspace, arguments),
        None => {}
    }
    packages::require(packages::CLIENTS)?;
    let processors = std::thread::available_parallelism().context("cannot count processors")?;
    if processors.get() <= SERVER_PROCESSOR {
        bail!("this needs two processors, one for the client and one for the server");
    }
    let start = Instant::now();
    let plan = Plan {
        control: arguments.control,
        ..if arguments.quick { QUICK } else { WHOLE }
    };
    let wanted = |name: &str| {
        arguments
            .rows
            .as_ref()
            .is_none_or(|rows| name.contains(rows.as_str()))
    };
    let mut results = Results::default();
    for setting in SETTINGS {
        measure_rows(workspace, &plan, setting, &wanted, &mut results)?;
    }
    for mode in [Mode::Host, Mode::Direct] {
        let name = sharing::name(mode);
        if !plan.control && wanted(&name) {
            let measured = sharing::measure(workspace, &plan, mode);
            results.sharing.extend(attempt(&name, measured));
        }
    }
    if !plan.control && wanted(finder::NAME) {
        results.finder = attempt(finder::NAME, finder::measure(workspace, &plan));
    }
    if !plan.control && wanted(import::NAME) {
        results.import = attempt(import::NAME, import::measure(workspace, &plan));
    }
    if !plan.control && wanted(large::NAME) {
        results.large = attempt(large::NAME, large::measure(workspace, &plan));
    }
    if !plan.control && wanted(open::NAME) {
        results.open = attempt(open::NAME, open::measure(workspace, &plan));
    }
    if !plan.control && wanted(snapshots::NAME) {
        results.snapshots = attempt(snapshots::NAME, snapshots::measure(workspace, &plan));
    }
    if !plan.control && wanted(checking::NAME) {
        results.check = attempt(checking::NAME, checking::measure(workspace, &plan));
    }
    let conditions = report::conditions(workspace, "cargo xtask bench", start.elapsed())?;
    let page = report::page(&conditions, &plan, &results);
    let whole = !arguments.quick && !arguments.control && arguments.rows.is_none();
    if !whole {
        println!("\n{page}\n(not a whole run: docs/benchmarks.md stays as it is)");
        return Ok(());
    }
    report::write(workspace, &page, &report::raw(&conditions, &plan, &results))
}

/// A row that cannot be measured is missing from the page; the others took too long to be lost.
fn attempt<T>(name: &str, measured: Result<T>) -> Option<T> {
    measured
        .inspect_err(|error| println!("{name} could not be measured: {error:#}"))
        .ok()
}

fn measure_rows(
    workspace: &Workspace,
    plan: &Plan,
    setting: (Mode, Fill),
    wanted: &dyn Fn(&str) -> bool,
    results: &mut Results,
) -> Result<()> {
    let rows: Vec<_> = ROWS
        .iter()
        .filter(|row| (row.mode, row.fill) == setting && wanted(&row.name()))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut measured: Vec<Measured> = rows.iter().map(|_| Measured::default()).collect();
    for _ in 0..plan.layouts {
        let contenders = Contenders::start(workspace, plan, setting)?;
        for (row, measured) in rows.iter().zip(&mut measured) {
            // What the row before left to be written to the disk must not slow this one.
            Cmd::new("sync").run()?;
            contenders.measure(row, plan, measured)?;
        }
        contenders.end()?;
    }
    for (row, measured) in rows.iter().zip(&measured) {
        for comparison in measured.compare(row)? {
            println!("{}", report::line(&comparison));
            results.comparisons.push(comparison);
        }
        results.raw_slices.push(measured.raw(row));
    }
    Ok(())
}
