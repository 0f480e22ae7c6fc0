//! `onefold-acceptance`: the product as its users see it, each check by itself.
//!
//! May use: the harness, and of the product its binary and its NBD client. Must not: use other crates of the product,
//! because the checks see only what users see. Nothing uses this crate; `cargo xtask` runs it, and passes it every
//! command that xtask itself does not have.
//!
//! Every subcommand does its own set-up, so that a fresh Debian machine with Rust needs no preparation.

mod ageing;
mod answered;
mod ceph_faults;
mod ceph_losses;
mod ceph_refusals;
mod clients;
mod cluster;
mod demo;
mod demo_backup;
mod docs;
mod forgetful;
mod guest;
mod guest_backup;
mod guest_image;
mod inline;
mod kill_loop;
mod memory_limit;
mod metrics;
mod mirror;
mod ownership;
mod reconnect;
mod sharing;
mod sick_disk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use onefold_harness::workspace::Workspace;
use onefold_harness::{cleanup, images};

/// Checks of the product as its users see it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the main job on real input: import two disk images, serve, kill, recover, verify
    Demo,
    /// Run the commands that docs/operating prints
    Docs,
    /// Make the two disk images that demo uses, and say where they are
    Images,
    /// Run the checks with foreign clients
    Clients(clients::Arguments),
    /// Share the duplicates of three disk images in every way, and count them independently; or measure what can be
    /// saved on images of your own
    Sharing(sharing::Arguments),
    /// Compare the daemon's peak memory under load with its limit
    MemoryLimit,
    /// Check metrics and alerts with Prometheus, and fire every alert
    Metrics,
    /// Kill the server again and again, and verify the flushed data
    KillLoop(kill_loop::Arguments),
    /// Take over a pool in Ceph from a host that is alive, dead, or wakes up later
    Ownership(ownership::Arguments),
    /// Share a pool in Ceph between three daemons; count, move and delete what they store, or let hosts and OSDs fail
    Cluster(cluster::Arguments),
    /// Freeze, kill and fill the Ceph cluster below a pool, and check that the daemon reports each fault
    CephFaults,
    /// Remove objects and the Ceph pool below a pool, fill its cluster, and revoke a right
    CephLosses,
    /// Kill the server behind a client that reconnects, and verify every answered request
    Reconnect(reconnect::Arguments),
    /// Let the disk below a pool hang and fail, and kill the daemon while it does
    SickDisk(sick_disk::Arguments),
    /// Kill the server behind an emulated guest, which must find every block and file again
    Guest(guest::Arguments),
    /// Rewrite a deduplicated volume again and again, and print its rates, space and backlog
    Ageing(ageing::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    cleanup::install_signal_handler()?;
    let workspace = Workspace::find()?;
    match task {
        Task::Demo => demo::run(&workspace),
        Task::Docs => docs::run(&workspace),
        Task::Images => images::run(&workspace),
        Task::Clients(arguments) => clients::run(&workspace, &arguments),
        Task::Sharing(arguments) => sharing::run(&workspace, &arguments),
        Task::MemoryLimit => memory_limit::run(&workspace),
        Task::Metrics => metrics::run(&workspace),
        Task::KillLoop(arguments) => kill_loop::run(&workspace, &arguments),
        Task::Ownership(arguments) => ownership::run(&workspace, &arguments),
        Task::Cluster(arguments) => cluster::run(&workspace, &arguments),
        Task::CephFaults => ceph_faults::run(&workspace),
        Task::CephLosses => ceph_losses::run(&workspace),
        Task::Reconnect(arguments) => reconnect::run(&workspace, &arguments),
        Task::SickDisk(arguments) => sick_disk::run(&workspace, &arguments),
        Task::Guest(arguments) => guest::run(&workspace, &arguments),
        Task::Ageing(arguments) => ageing::run(&workspace, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_fit_together() {
        Arguments::command().debug_assert();
    }
}
