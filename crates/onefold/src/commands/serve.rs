//! `onefold serve`

use crate::arguments::parse_duration;
use crate::context::Context;
use crate::daemon::{self, ServeOptions, Sharing};
use crate::limits::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
use onefold_api::size;
use onefold_api::{Error, Result, check_name};
use onefold_engine::embedded::CacheMode;
use onefold_nbd::ListenAddress;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address for clients: unix:PATH or HOST:PORT; may be repeated [default: unix:nbd.sock in the pool's
    /// directory, unless systemd passes sockets].
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    nbd: Vec<ListenAddress>,

    /// Volume for clients that name no export. [default: the volume, if the pool has exactly one]
    #[arg(long, value_name = "VOLUME")]
    default_export: Option<String>,

    /// Ask the host that owns the pool to give it up, and wait until it has. Only for a pool in Ceph.
    #[arg(long)]
    take: bool,

    /// Whether data is cached in the host's page cache, or not at all (O_DIRECT).
    #[arg(long, value_enum, default_value = "host")]
    cache: Cache,

    /// Memory limit for all caches and requests together [default: 512M].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    memory: Option<u64>,

    /// Name of this host among those that share the pool [default: the system's host name].
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    host_name: Option<String>,

    /// The most groups of a shared pool that this host opens at a time; each gets an equal share of the memory
    /// [default: as many as the memory allows, at most 64].
    #[arg(long, value_name = "N", hide_short_help = true)]
    groups_max: Option<u64>,

    /// Latency budget for guests' requests while duplicates are searched: if more than 1 % of the requests
    /// take longer, background work is throttled. For example 500us or 2ms.
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "2ms")]
    latency_budget: Duration,

    /// Answer GET /metrics (for Prometheus), /healthz and /readyz on this address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,

    /// Permissions of the clients' unix sockets, in octal.
    #[arg(long, value_parser = parse_mode, default_value = "0660")]
    socket_mode: u32,

    /// Group of the clients' unix sockets, by name or number.
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,

    /// Allow addresses other than loopback. Anybody who can reach them can read and write every volume, and
    /// read the metrics.
    #[arg(long)]
    insecure_listen: bool,
}

/// [`CacheMode`] as a command-line option.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Cache {
    Host,
    Direct,
}

fn parse_mode(text: &str) -> std::result::Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("use three octal digits, for example 0660".to_owned()),
    }
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let memory_bytes = args.memory.unwrap_or(MEMORY_BYTES_DEFAULT);
    if memory_bytes < MEMORY_BYTES_MIN {
        return Err(Error::usage(format!(
            "--memory must be at least {}",
            size::display(MEMORY_BYTES_MIN)
        )));
    }
    args.default_export.as_deref().map_or(Ok(()), check_name)?;
    let options = ServeOptions {
        pool: context.pool()?.clone(),
        take: args.take,
        addresses: args.nbd,
        cache: match args.cache {
            Cache::Host => CacheMode::Host,
            Cache::Direct => CacheMode::Direct,
        },
        memory_bytes,
        sharing: Sharing {
            host_name: args.host_name,
            groups_max: args.groups_max,
        },
        latency_budget: args.latency_budget,
        metrics: args.metrics,
        socket_mode: args.socket_mode,
        socket_group: args.socket_group,
        insecure_listen: args.insecure_listen,
        default_export: args.default_export,
    };
    daemon::serve(&options)?;
    Ok(ExitCode::SUCCESS)
}
