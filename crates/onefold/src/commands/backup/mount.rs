//! `onefold backup mount`

use super::RepositoryArgs;
use crate::backup_exports::BackupExports;
use crate::context::Context;
use crate::foreground::stop_when_interrupted;
use crate::logging::log_to_stderr;
use onefold_api::backup::{BackupMount, RepositoryUse, RepositoryVerb};
use onefold_api::{Error, Result, size};
use onefold_nbd::{ListenAddress, ListenOptions, Listener, Server, ServerLimits};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The least memory: half of it is for clients, each of which takes about 290 KiB, and a program that copies
/// a disk counts as four clients.
const MEMORY_MIN: u64 = 8 << 20;

/// Time that requests in progress have to finish at shutdown.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// Address for NBD clients: unix:PATH or HOST:PORT. May be given several times.
    #[arg(long = "nbd", value_name = "ADDRESS", required = true)]
    addresses: Vec<ListenAddress>,

    /// Allow addresses other than loopback. Any client that reaches them can read the backups.
    #[arg(long)]
    insecure_listen: bool,

    #[command(flatten)]
    request: BackupMount,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let request = &args.request;
    request.check()?;
    check_memory(request.memory)?;
    log_to_stderr();
    let opened = args.repository.open_for(context, RepositoryUse::Read)?;
    let exports = BackupExports::new(opened, &request.names, request.memory as usize)?;
    let count = exports.named();
    let listeners = listen(args)?;
    let (stop, stopped) = channel();
    let is_stopping = AtomicBool::new(false);
    stop_when_interrupted(move || {
        let _ = stop.send(());
        is_stopping.swap(true, Ordering::Relaxed)
    })?;
    let server = Server::start(listeners, Arc::new(exports), &limits(request.memory));
    let server = server.map_err(|e| Error::io("cannot serve the backups", &e))?;
    let addresses = args.addresses.iter().map(ToString::to_string);
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    let served = count.map_or_else(
        || "all backups are".to_owned(),
        |count| size::count(count, "backup"),
    );
    context
        .output
        .note(format_args!("{served} served on {addresses}"));
    // The channel closes only when the process ends.
    let _ = stopped.recv();
    let ended = server.shutdown(DRAIN_TIME_MAX);
    if ended.cut_off > 0 {
        let clients = size::count(ended.cut_off as u64, "client");
        context.output.note(format_args!("{clients} cut off"));
    }
    Ok(ExitCode::SUCCESS)
}

fn limits(memory_bytes: u64) -> ServerLimits {
    ServerLimits {
        memory_bytes: memory_bytes as usize,
        ..ServerLimits::default()
    }
}

fn check_memory(memory_bytes: u64) -> Result<()> {
    if memory_bytes >= MEMORY_MIN {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--memory {} is too little: {} are needed, and serve {} clients",
        size::display(memory_bytes),
        size::display(MEMORY_MIN),
        limits(MEMORY_MIN).clients_max()
    )))
}

fn listen(args: &Args) -> Result<Vec<Listener>> {
    let options = ListenOptions {
        insecure_listen: args.insecure_listen,
        ..ListenOptions::default()
    };
    let listeners = args.addresses.iter().map(|address| {
        Listener::bind(address, &options).map_err(|error| Error::failed(error.to_string()))
    });
    listeners.collect()
}
