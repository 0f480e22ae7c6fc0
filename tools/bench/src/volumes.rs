//! `cargo xtask bench`: measures the numbers in `docs/benchmarks.md` together in one run. Only a whole run writes into
//! `docs/`; a partial one is printed.

use std::time::Instant;

use anyhow::Result;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

use crate::plan::{Plan, QUICK, WHOLE, require_processors};
use crate::results::Results;
use crate::slices::{Contenders, Fill, Measured, Mode, ROWS, SETTINGS};
use crate::{checking, finder, import, large, open, report, sharing, snapshots};

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run fewer slices, for a quick impression
    #[arg(long)]
    quick: bool,
    /// Measure only rows whose name contains this text: 'host randread', 'depth 32', 'filled in 64k', 'direct',
    /// 'sharing', 'host sharing', 'finder', 'import', 'large pool', 'open', 'snapshots', 'check'
    #[arg(long)]
    rows: Option<String>,
    /// Run qemu-nbd in every place, to show the error of the method itself
    #[arg(long)]
    control: bool,
}

/// `cargo xtask bench`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    require_processors()?;
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

/// Returns the result, or prints the error: the row is missing from the page, but the others took too long to be lost.
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
            // The writeback of the previous row must not slow this one down.
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
