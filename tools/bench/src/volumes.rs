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
use crate::{checking, finder, import, large, open, page, report, sharing, snapshots};

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
    /// Measure nothing; write docs/benchmarks.md again from the raw results of the last whole run
    #[arg(long, conflicts_with_all = ["quick", "rows", "control"])]
    render: bool,
    /// Run qemu-nbd in every place, to show the error of the method itself
    #[arg(long)]
    control: bool,
}

/// `cargo xtask bench`
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if arguments.render {
        return report::render(workspace);
    }
    packages::require(packages::CLIENTS)?;
    require_processors()?;
    let start = Instant::now();
    let plan = Plan {
        control: arguments.control,
        ..if arguments.quick { QUICK } else { WHOLE }
    };
    let run = Run {
        workspace,
        plan: &plan,
        rows: arguments.rows.as_deref(),
    };
    let mut results = Results::default();
    for setting in SETTINGS {
        run.measure_rows(setting, &mut results)?;
    }
    for mode in [Mode::Host, Mode::Direct] {
        let part = run.part(&sharing::name(mode), |workspace, plan| {
            sharing::measure(workspace, plan, mode)
        });
        results.sharing.extend(part);
    }
    results.finder = run.part(finder::NAME, finder::measure);
    results.import = run.part(import::NAME, import::measure);
    results.large = run.part(large::NAME, large::measure);
    results.open = run.part(open::NAME, open::measure);
    results.snapshots = run.part(snapshots::NAME, snapshots::measure);
    results.check = run.part(checking::NAME, checking::measure);
    let conditions = page::conditions(workspace, "cargo xtask bench", start.elapsed())?;
    let page = report::page(&conditions, &plan, &results);
    let whole = !arguments.quick && !arguments.control && arguments.rows.is_none();
    if !whole {
        println!("\n{page}\n(not a whole run: docs/benchmarks.md stays as it is)");
        return Ok(());
    }
    let raw = report::raw(&conditions, &plan, &results);
    page::write(workspace, report::NAME, &page, &raw)
}

/// A run, whole or of the rows whose name contains a text.
struct Run<'a> {
    workspace: &'a Workspace,
    plan: &'a Plan,
    rows: Option<&'a str>,
}

impl Run<'_> {
    fn wants(&self, name: &str) -> bool {
        self.rows.is_none_or(|rows| name.contains(rows))
    }

    /// Measures a part, if it is wanted. An error is printed: the part is missing from the page, but the others took
    /// too long to be lost.
    fn part<T>(
        &self,
        name: &str,
        measure: impl FnOnce(&Workspace, &Plan) -> Result<T>,
    ) -> Option<T> {
        if self.plan.control || !self.wants(name) {
            return None;
        }
        measure(self.workspace, self.plan)
            .inspect_err(|error| println!("{name} could not be measured: {error:#}"))
            .ok()
    }

    fn measure_rows(&self, setting: (Mode, Fill), results: &mut Results) -> Result<()> {
        let rows: Vec<_> = ROWS
            .iter()
            .filter(|row| (row.mode, row.fill) == setting && self.wants(&row.name()))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let mut measured: Vec<Measured> = rows.iter().map(|_| Measured::default()).collect();
        for _ in 0..self.plan.layouts {
            let contenders = Contenders::start(self.workspace, self.plan, setting)?;
            for (row, measured) in rows.iter().zip(&mut measured) {
                // The writeback of the previous row must not slow this one down.
                Cmd::new("sync").run()?;
                contenders.measure(row, self.plan, measured)?;
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
}
