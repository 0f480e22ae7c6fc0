//! `cargo xtask`: the one command for everything that surrounds the product and is not part of it.
//!
//! May use: the harness, for programs and packages. May not use any crate of the product, servers
//! or plots, so that `cargo xtask tidy` is built in seconds. Checks that run the product are in
//! `onefold-acceptance` and measurements in `onefold-bench`; this builds and starts them. Nothing
//! uses this crate.
//!
//! Reading order: `tools` (starting the others), `tidy`, `fuzz`, `mutations`, `ceph`, `test` (all steps of CI).

mod ceph;
mod fuzz;
mod mutations;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use onefold_harness::cleanup;
use onefold_harness::workspace::Workspace;

use crate::tools::Forwarded;

/// Development tasks of onefold.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the main job on real input: import two disk images, serve, kill, recover, verify
    Demo(Forwarded),
    /// Run everything that CI runs
    Test(test::Arguments),
    /// Type what docs/operating tells people to type
    Docs(Forwarded),
    /// Check the rules of the house: floors, import cycles, sizes, cited steps, names, format pages
    Tidy,
    /// Measure against the pass-through and qemu-nbd; write docs/benchmarks.md
    Bench(Forwarded),
    /// Run every fuzz target for a bounded time
    Fuzz(fuzz::Arguments),
    /// Break the product in one place at a time, and see that a test notices
    Mutations(mutations::Arguments),
    /// Make the two disk images that demo uses, and say where they are
    Images(Forwarded),
    /// Run the checks with foreign clients alone
    Clients(Forwarded),
    /// Share the duplicates of three disk images in every way, and count them alone; or say what
    /// can be saved on images of your own
    Sharing(Forwarded),
    /// Compare the daemon's peak memory under load with its limit
    MemoryLimit(Forwarded),
    /// Check metrics and alerts with Prometheus, and fire every alert
    Metrics(Forwarded),
    /// Run the kill -9 loop alone
    KillLoop(Forwarded),
    /// Take a pool in Ceph from hosts that live, are dead, or wake up later
    Ownership(Forwarded),
    /// Freeze, kill and fill the Ceph cluster below a pool, and look for words about what is wrong
    CephFaults(Forwarded),
    /// Remove objects and the Ceph pool below a pool, fill its cluster, and take a right away
    CephLosses(Forwarded),
    /// Kill the server behind a client that reconnects, and look for every answered request
    Reconnect(Forwarded),
    /// Let the disk below a pool hang and fail, and kill the daemon in the sync
    SickDisk(Forwarded),
    /// Kill the server behind an emulated guest, which must find every block and file again
    Guest(Forwarded),
    /// Rewrite a deduplicated volume again and again, and print what becomes of it
    Ageing(Forwarded),
    /// Start and stop a throw-away Ceph cluster, and make its OSDs fail
    Ceph(ceph::Arguments),
    /// Make the study of João Paulo's dissertation with the files below some paths, and print its tables
    Study(Forwarded),
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
    let forward = |arguments: &Forwarded, command: &str| {
        arguments.run(tools::acceptance(&workspace)?, &[command])
    };
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
        Task::Demo(arguments) => forward(arguments, "demo"),
        Task::Docs(arguments) => forward(arguments, "docs"),
        Task::Images(arguments) => forward(arguments, "images"),
        Task::Clients(arguments) => forward(arguments, "clients"),
        Task::Sharing(arguments) => forward(arguments, "sharing"),
        Task::MemoryLimit(arguments) => forward(arguments, "memory-limit"),
        Task::Metrics(arguments) => forward(arguments, "metrics"),
        Task::KillLoop(arguments) => forward(arguments, "kill-loop"),
        Task::Ownership(arguments) => forward(arguments, "ownership"),
        Task::CephFaults(arguments) => forward(arguments, "ceph-faults"),
        Task::CephLosses(arguments) => forward(arguments, "ceph-losses"),
        Task::Reconnect(arguments) => forward(arguments, "reconnect"),
        Task::SickDisk(arguments) => forward(arguments, "sick-disk"),
        Task::Guest(arguments) => forward(arguments, "guest"),
        Task::Ageing(arguments) => forward(arguments, "ageing"),
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
            let typed = ["xtask", "kill-loop"].iter().chain(arguments);
            let parsed = Arguments::try_parse_from(typed).unwrap();
            let Task::KillLoop(forwarded) = parsed.task else {
                panic!("another task");
            };
            assert_eq!(forwarded.arguments, arguments);
        }
    }
}
