//! `onefold pool convert`

use crate::context::Context;
use crate::output::Render;
use crate::pool::place::{CephPlace, PoolPlace};
use crate::pool::shared::{SharedConversion, host_name, is_shared, parse_shards, remove_converted};
use crate::pool::{self, Claim};
use crate::progress::Progress;
use crate::session::recovery_line;
use onefold_api::size::{self, count};
use onefold_api::{Error, Result};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Shards of the index: a power of two, 1 to 1024. The number cannot be changed later; 64 do for most clusters.
    #[arg(long, value_parser = parse_shards, value_name = "N", default_value = "64")]
    shards: u16,

    /// Name of the host that opens the volumes afterwards [default: this system's host name].
    #[arg(long, value_name = "NAME")]
    host_name: Option<String>,

    /// Convert the pool.
    #[arg(long)]
    yes: bool,
}

/// The JSON document of `pool convert`.
#[derive(Debug, Serialize)]
struct PoolConvertReply {
    pool: String,
    shards: u16,
    /// The host that opens the volumes.
    host: String,
    /// Size of the shared pool: rounded up to whole space extents.
    size_bytes: u64,
    /// Volumes of the pool, without snapshots.
    volumes: u64,
    done: bool,
}

impl Render for PoolConvertReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.done { "done" } else { "plan" };
        writeln!(
            out,
            "{mark}: let hosts share the pool {}, with {} and its index in {}",
            self.pool,
            size::display(self.size_bytes),
            count(u64::from(self.shards), "shard")
        )?;
        writeln!(
            out,
            "{mark}: {} in group 1, which host {} opens",
            count(self.volumes, "volume"),
            self.host
        )?;
        if !self.done {
            writeln!(
                out,
                "{mark}: copy metadata and index, and then remove the old ones; the data stays where it is"
            )?;
        }
        Ok(())
    }
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let place = context.pool()?;
    let PoolPlace::Ceph(ceph) = place else {
        return Err(Error::usage(
            "hosts share pools in Ceph only; a pool in a directory has one owner",
        ));
    };
    let host = host_name(args.host_name)?;
    let _lock = match pool::claim(place)? {
        Claim::Ours(lock) => lock,
        Claim::Held { holder } => {
            return Err(Error::failed(format!(
                "the pool {place} is in use by {holder}: stop it first"
            )));
        }
    };
    if is_shared(ceph)? {
        return remove_rest(context, ceph);
    }
    let pool = SharedConversion::begin(ceph)?;
    let recovery = pool.conversion.report();
    if !recovery.clean {
        context.output.note(recovery_line(recovery));
    }
    for warning in recovery.warnings() {
        context.output.warn(warning);
    }
    let mut reply = PoolConvertReply {
        pool: place.to_string(),
        shards: args.shards,
        size_bytes: pool.conversion.size_bytes(),
        volumes: pool.conversion.volumes() as u64,
        host,
        done: false,
    };
    if args.yes {
        let progress = Progress::bytes(&context.output, "converting");
        pool.run(args.shards, &reply.host, &mut |done, all| {
            progress.set(done, all);
        })?;
        reply.done = true;
    }
    context.print_plan(&reply, reply.done)
}

/// Ends an earlier conversion, which was interrupted after the pool had become a shared one.
fn remove_rest(context: &Context, ceph: &CephPlace) -> Result<ExitCode> {
    let title = ceph.rados.title();
    if !remove_converted(ceph)? {
        return Err(Error::failed(format!(
            "hosts share the pool {title} already"
        )));
    }
    context.output.note(format_args!(
        "hosts share the pool {title} already; what an interrupted conversion had left is removed now"
    ));
    Ok(ExitCode::SUCCESS)
}
