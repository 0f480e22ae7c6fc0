//! `cargo xtask`: everything that surrounds the product and is not part of it.
//!
//! Reading order: `command` (running programs), `cleanup` (leaving nothing behind), `workspace`
//! (where things lie), `packages` and `images` (real input), `server` and `fio` (the two ends of
//! a test), `background` (its finder and collector), `distinct` (what they must find), then the
//! subcommands: `demo`, `clients`, `sharing`, `reconnect`, `guest`, `kill_loop`, `ageing`, `study`, `docs`,
//! `tidy`, `fuzz`, `test`, `bench`.
//!
//! Nothing in the product may depend on this crate. Every subcommand does its own set-up, so that
//! a fresh Debian machine with Rust needs no step before it.

mod ageing;
mod answered;
mod background;
mod bench;
mod cleanup;
mod clients;
mod command;
mod demo;
mod distinct;
mod docs;
mod fio;
mod fuzz;
mod guest;
mod guest_image;
mod images;
mod kill_loop;
mod memory;
mod memory_limit;
mod packages;
mod reconnect;
mod server;
mod sharing;
mod study;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

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
    Demo(demo::Arguments),
    /// Run everything that CI runs
    Test(test::Arguments),
    /// Type what docs/operating tells people to type
    Docs,
    /// Check the rules of the house: floors, cited steps, format pages, sizes
    Tidy,
    /// Measure against the pass-through and qemu-nbd; write docs/benchmarks.md
    Bench(bench::Arguments),
    /// Run every fuzz target for a bounded time
    Fuzz(fuzz::Arguments),
    /// Make the two disk images that demo uses, and say where they are
    Images,
    /// Run the checks with foreign clients alone
    Clients(clients::Arguments),
    /// Share the duplicates of three disk images in every way, and count them alone; or say what
    /// can be saved on images of your own
    Sharing(sharing::Arguments),
    /// Run the kill -9 loop alone
    KillLoop(kill_loop::Arguments),
    /// Kill the server behind a client that reconnects, and look for every answered request
    Reconnect(reconnect::Arguments),
    /// Kill the server behind an emulated guest, which must find every block and file again
    Guest(guest::Arguments),
    /// Rewrite a deduplicated volume again and again, and print what becomes of it
    Ageing(ageing::Arguments),
    /// Make the study of João Paulo's dissertation with the files below some paths, and print its tables
    Study(study::Arguments),
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
    cleanup::install_signal_handler()?;
    let workspace = Workspace::find()?;
    match task {
        Task::Demo(arguments) => demo::run(&workspace, &arguments),
        Task::Test(arguments) => test::run(&workspace, &arguments),
        Task::Docs => docs::run(&workspace),
        Task::Tidy => tidy::run(&workspace),
        Task::Bench(arguments) => bench::run(&workspace, &arguments),
        Task::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Task::Images => images::run(&workspace),
        Task::Clients(arguments) => clients::run(&workspace, &arguments),
        Task::Sharing(arguments) => sharing::run(&workspace, &arguments),
        Task::KillLoop(arguments) => kill_loop::run(&workspace, &arguments),
        Task::Reconnect(arguments) => reconnect::run(&workspace, &arguments),
        Task::Guest(arguments) => guest::run(&workspace, &arguments),
        Task::Ageing(arguments) => ageing::run(&workspace, &arguments),
        Task::Study(arguments) => study::run(&workspace, &arguments),
    }
}
