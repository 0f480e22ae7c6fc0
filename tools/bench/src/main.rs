//! `onefold-bench`: measures onefold against simpler servers.
//!
//! May use: the harness, the product's binary, and two crates of the product: the NBD server for the pass-through, and
//! the index to measure it alone. Must not: use the store, because volumes are measured as users have them. Nothing
//! uses this crate; `cargo xtask bench` and `cargo xtask study` run it.
//!
//! Reading order: `volumes` (the benchmark as a whole), `plan` (sizes), `slices` (throughput rows), `sharing` (rows
//! with the finder running), `snapshots`, `finder`, `import`, `large`, `open`, `checking`, `statistics` (the decision),
//! `results`, `report` (the output), `expectations` (its first section). The other commands are: `index` with
//! `index_worker` and `index_report`; `study` with `study_report`; `inline` (rows) with `inline_load` (its client),
//! `inline_images`, `request_limit` and `inline_report`; `guest` (`bench sharing`) with `kernel_workers` and
//! `guest_report`; `evaluation` with the modules it names; `locality`; `chains`; `backup` with `backup_report`; `ceph`
//! with `ceph_report`; `hosts` with `hosts_callers` and `hosts_report`; `dedis` with `dedis_report`; `growth`. They share `goals`, `page`, `table` and `windows`. `dissertation` counts in the user's own files.

mod backup;
mod backup_report;
mod ceph;
mod ceph_report;
mod chains;
mod checking;
mod dedis;
mod dedis_report;
mod dissertation;
mod evaluation;
mod evaluation_cell;
mod evaluation_figures;
mod evaluation_generations;
mod evaluation_report;
mod evaluation_revisions;
mod expectations;
mod finder;
mod goals;
mod growth;
mod guest;
mod guest_report;
mod hosts;
mod hosts_callers;
mod hosts_report;
mod import;
mod index;
mod index_report;
mod index_worker;
mod inline;
mod inline_images;
mod inline_load;
mod inline_report;
mod kernel_workers;
mod large;
mod locality;
mod memory_limit;
mod open;
mod page;
mod plan;
mod report;
mod request_limit;
mod results;
mod sharing;
mod slices;
mod snapshots;
mod statistics;
mod steadiness;
mod study;
mod study_report;
mod table;
mod volumes;
mod windows;

use std::process::ExitCode;

use clap::Parser;
use onefold_harness::cleanup;
use onefold_harness::workspace::Workspace;

/// Measure against the pass-through and qemu-nbd; write docs/benchmarks.md
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    volumes: volumes::Arguments,
    #[command(subcommand)]
    of: Option<Of>,
}

#[derive(clap::Subcommand)]
enum Of {
    /// Measure the index back ends by themselves; write docs/benchmarks-index.md
    Index(index::Arguments),
    #[command(hide = true)]
    IndexWorker(index_worker::Arguments),
    /// Measure volumes whose writes find duplicates; write docs/benchmarks-inline.md
    Inline(inline::Arguments),
    /// Measure how much deduplication delays a guest's requests; write docs/benchmarks-sharing.md
    Sharing(guest::Arguments),
    /// Repeat figures of Dmdedup and dedupv1 in kind; write docs/evaluation-inline.md
    Evaluation(evaluation::Arguments),
    /// Compare backups and restores with restic and borg; write docs/benchmarks-backup.md
    Backup(backup::Arguments),
    /// Compare volumes of a pool in Ceph with images in RBD; write docs/benchmarks-ceph.md
    Ceph(ceph::Arguments),
    /// Compare a group of a pool that hosts share with a pool of one owner and with RBD; write docs/benchmarks-hosts.md
    Hosts(hosts::Arguments),
    /// Repeat tables of DEDIS in kind, with hosts that share a pool; write docs/evaluation-dedis.md
    Dedis(dedis::Arguments),
    /// Count the objects and bytes of a shared pool that grows; write docs/benchmarks-growth.md
    Growth(growth::Arguments),
    /// Read an image alone in its pool, shared, with short runs left private, and defragmented
    Locality(locality::Arguments),
    /// Read a volume with many snapshots, with small caches
    Snapshots(chains::Arguments),
    /// Measure `onefold analyze` on data in the page cache; write docs/benchmarks-study.md
    Study(study::Arguments),
    /// Repeat the study of João Paulo's dissertation with the files below some paths, and print its tables
    Dissertation(dissertation::Arguments),
}

fn main() -> ExitCode {
    let arguments = Cli::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Cli) -> anyhow::Result<()> {
    match &arguments.of {
        None => volumes::run(&prepare()?, &arguments.volumes),
        Some(Of::Index(arguments)) => index::run(&prepare()?, arguments),
        Some(Of::IndexWorker(arguments)) => index_worker::run(arguments),
        Some(Of::Inline(arguments)) => inline::run(&prepare()?, arguments),
        Some(Of::Sharing(arguments)) => guest::run(&prepare()?, arguments),
        Some(Of::Evaluation(arguments)) => evaluation::run(&prepare()?, arguments),
        Some(Of::Backup(arguments)) => backup::run(&prepare()?, arguments),
        Some(Of::Ceph(arguments)) => ceph::run(&prepare()?, arguments),
        Some(Of::Hosts(arguments)) => hosts::run(&prepare()?, arguments),
        Some(Of::Dedis(arguments)) => dedis::run(&prepare()?, arguments),
        Some(Of::Growth(arguments)) => growth::run(&prepare()?, arguments),
        Some(Of::Locality(arguments)) => locality::run(&prepare()?, arguments),
        Some(Of::Snapshots(arguments)) => chains::run(&prepare()?, arguments),
        Some(Of::Study(arguments)) => study::run(&prepare()?, arguments),
        Some(Of::Dissertation(arguments)) => dissertation::run(&prepare()?, arguments),
    }
}

fn prepare() -> anyhow::Result<Workspace> {
    cleanup::install_signal_handler()?;
    Workspace::find()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_fit_together() {
        Cli::command().debug_assert();
    }
}
