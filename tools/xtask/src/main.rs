//! `cargo xtask`: the one command for everything that surrounds the product and is not part of it.
//!
//! May use: the harness, for programs and packages. May not use any crate of the product, servers
//! or plots, so that `cargo xtask tidy` is built in seconds. Checks that run the product are in
//! `onefold-acceptance` and measurements in `onefold-bench`; this builds and starts them. Nothing
//! uses this crate.
//!
//! Reading order: `tools` (starting the others), `tidy`, `compiled` (what Cargo compiled), `fuzz`, `mutations`, `ceph`,
//! `test` (all steps of CI).

mod ceph;
mod compiled;
mod fuzz;
mod mutations;
mod test;
mod tidy;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use onefold_harness::cleanup;
use onefold_harness::workspace::Workspace;

use crate::tools::Forwarded;

/// Development tasks of onefold.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = CHECKS)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// The checks have their list in `onefold-acceptance`.
const CHECKS: &str = "Every other command is a check of the product as its users see it: 'cargo xtask checks' lists them.";

#[derive(Subcommand)]
enum Task {
    /// Run everything that CI runs
    Test(test::Arguments),
    /// List the checks of the product as its users see it
    Checks,
    /// Check the rules of the house: floors, import cycles, sizes, cited steps, names, format pages
    Tidy,
    /// Measure against the pass-through and qemu-nbd; write docs/benchmarks.md
    Bench(Forwarded),
    /// Run every fuzz target for a bounded time
    Fuzz(fuzz::Arguments),
    /// Break the product in one place at a time, and see that a test notices
    Mutations(mutations::Arguments),
    /// Start and stop a throw-away Ceph cluster, and make its OSDs fail
    Ceph(ceph::Arguments),
    /// Make the study of João Paulo's dissertation with the files below some paths, and print its tables
    Study(Forwarded),
    /// A check, with its options
    #[command(external_subcommand)]
    Check(Vec<OsString>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match &task {
        Task::Test(arguments) => {
            cleanup::install_signal_handler()?;
            test::run(&workspace, arguments)
        }
        Task::Tidy => tidy::run(&workspace),
        Task::Fuzz(arguments) => {
            cleanup::install_signal_handler()?;
            fuzz::run(&workspace, arguments, &mut |line| println!("{line}"))
        }
        Task::Mutations(arguments) => {
            cleanup::install_signal_handler()?;
            mutations::run(&workspace, arguments)
        }
        Task::Ceph(arguments) => ceph::run(&workspace, arguments),
        Task::Bench(arguments) => arguments.run(tools::bench(&workspace)?, NO_COMMAND),
        Task::Study(arguments) => arguments.run(tools::bench(&workspace)?, &["dissertation"]),
        Task::Checks => Err(tools::acceptance(&workspace)?.arg("--help").exec()),
        Task::Check(words) => Err(tools::acceptance(&workspace)?.args(words).exec()),
    }
}

/// The tool's own arguments are the user's.
const NO_COMMAND: &[&str] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_fit_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_other_tools_are_left_to_them() {
        for arguments in [&["--against", "qemu-nbd"][..], &["--help"], &["a", "-x"]] {
            let typed = |command| [&["xtask", command], arguments].concat();
            let parsed = Arguments::try_parse_from(typed("kill-loop")).unwrap();
            let Task::Check(words) = parsed.task else {
                panic!("another task");
            };
            assert_eq!(words[0], "kill-loop");
            assert_eq!(words[1..], *arguments);
            let parsed = Arguments::try_parse_from(typed("bench")).unwrap();
            let Task::Bench(forwarded) = parsed.task else {
                panic!("another task");
            };
            assert_eq!(forwarded.arguments, arguments);
        }
    }
}
