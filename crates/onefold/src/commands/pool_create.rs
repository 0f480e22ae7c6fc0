//! `onefold pool create`

use crate::context::Context;
use crate::output::Render;
use crate::overwriting::Overwritten;
use crate::pool::place::{CephPlace, PoolPlace};
use crate::pool::shared::{NewSharedPool, parse_shards};
use crate::pool::{NewPool, create_in_ceph};
use crate::progress::Progress;
use crate::rendering::word;
use onefold_api::size::{self, count};
use onefold_api::{Error, Result};
use onefold_store::CreateOptions;
use onefold_store::{IndexKind, Provisioning};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The default size of a pool, a sparse file that takes space only as it fills.
const SIZE_BYTES_DEFAULT: u64 = 100 << 30;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory of the pool, new or empty; or ceph:CEPHPOOL or ceph:CEPHPOOL/NAME.
    #[arg(value_name = "POOL")]
    place: OsString,

    /// The most data that the pool can hold, rounded up to whole blocks [default: 100G, or all of a device].
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,

    /// Store the blocks in a new file elsewhere, or on a block device.
    #[arg(long, value_name = "FILE|DEVICE")]
    data: Option<PathBuf>,

    /// Make a pool that hosts share, with this many shards of its index: a power of two, 1 to 1024. It cannot be
    /// changed later; 64 do for most clusters. Only for a pool in Ceph.
    #[arg(long, value_parser = parse_shards, value_name = "N", hide_short_help = true)]
    shards: Option<u16>,

    /// Block size, the unit of allocation and sharing: 4K, 8K, 16K or 64K.
    #[arg(long, value_parser = parse_block_size, default_value = "4K")]
    block_size: u32,

    /// Back end of the index of shared blocks' fingerprints.
    #[arg(long, value_enum, default_value = "hash")]
    index: IndexKind,

    /// Size of the log; a larger log makes checkpoints rarer and recovery longer.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", default_value = "32M")]
    log_size: u64,

    /// Allocate all of the pool's space now, and never give it back to the host: no write waits for the host to allocate
    /// space, and the pool cannot run out of it. Without this a pool is thin.
    #[arg(long)]
    allocate: bool,

    /// Overwrite the device given by --data.
    #[arg(long)]
    yes: bool,
}

fn parse_block_size(text: &str) -> std::result::Result<u32, String> {
    match size::parse(text)? {
        bytes @ (0x1000 | 0x2000 | 0x4000 | 0x10000) => Ok(bytes as u32),
        _ => Err("use 4K, 8K, 16K or 64K".to_owned()),
    }
}

/// The JSON document of `pool create`.
#[derive(Debug, Serialize)]
struct PoolCreateReply {
    pool: String,
    size_bytes: u64,
    block_size: u32,
    log_bytes: u64,
    index: IndexKind,
    data: Option<String>,
    provisioning: Provisioning,
    /// Free space of the file system that holds the blocks; `None` for a device.
    host_free_bytes: Option<u64>,
    /// The content of the device that is overwritten.
    overwrites: Option<String>,
    /// Shards of the index of a pool that hosts share; absent for a pool with one owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<u16>,
    done: bool,
}

impl Render for PoolCreateReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.done { "done" } else { "plan" };
        let (size, block) = (
            size::display(self.size_bytes),
            size::display(self.block_size.into()),
        );
        writeln!(
            out,
            "{mark}: create a pool of {size} in {}, block size {block}, {} index",
            self.pool,
            word(self.index)
        )?;
        if let Some(data) = &self.data {
            writeln!(out, "{mark}: keep its blocks in {data}")?;
        }
        if let Some(shards) = self.shards {
            writeln!(
                out,
                "{mark}: let hosts share it, with its index in {}",
                count(u64::from(shards), "shard")
            )?;
        }
        if self.provisioning == Provisioning::Thick {
            writeln!(out, "{mark}: allocate all of its space")?;
        }
        match &self.overwrites {
            Some(content) => writeln!(out, "{mark}: overwrite {content}"),
            None => Ok(()),
        }
    }
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let device_bytes = args
        .data
        .as_deref()
        .map(device_bytes)
        .transpose()?
        .flatten();
    let whole = |bytes: u64| bytes.checked_next_multiple_of(args.block_size.into());
    let size_bytes = args.size.map(|bytes| whole(bytes).unwrap_or(bytes));
    let size_bytes = size_bytes.or(device_bytes).unwrap_or(SIZE_BYTES_DEFAULT);
    let place = PoolPlace::parse(&args.place, &context.ceph)?;
    let provisioning = if args.allocate {
        Provisioning::Thick
    } else {
        Provisioning::Thin
    };
    if args.allocate && device_bytes.is_some() {
        return Err(Error::usage(
            "--allocate is for pools on a file system; a device has all of its space",
        ));
    }
    let mut reply = PoolCreateReply {
        pool: place.to_string(),
        size_bytes,
        block_size: args.block_size,
        log_bytes: args.log_size,
        index: args.index,
        data: args.data.as_ref().map(|data| data.display().to_string()),
        provisioning,
        host_free_bytes: None,
        overwrites: None,
        shards: None,
        done: false,
    };
    let options = CreateOptions {
        block_size: args.block_size,
        size_bytes,
        log_bytes: args.log_size,
        index: args.index,
        provisioning,
    };
    let directory = match place {
        PoolPlace::Directory(_) if args.shards.is_some() => {
            return Err(Error::usage(
                "--shards is for pools in Ceph, which hosts can share; a pool in a directory has one owner",
            ));
        }
        PoolPlace::Directory(directory) => directory,
        PoolPlace::Ceph(ceph) => {
            create_in_cluster(&ceph, &args, &options, &mut reply)?;
            reply.done = true;
            return context.print(&reply);
        }
    };
    let pool = NewPool {
        directory,
        data: args.data,
        options,
    };
    if let (Some(device), Some(_)) = (&pool.data, device_bytes) {
        let overwritten = Overwritten::new(device);
        reply.overwrites = Some(overwritten.content().to_owned());
        if !args.yes {
            pool.check()?;
            context.output.document(&reply)?;
            return Err(overwritten.refusal(size_bytes));
        }
    }
    let progress = Progress::bytes(&context.output, "allocating");
    pool.create(&mut |done, all| progress.set(done, all))?;
    drop(progress);
    reply.done = true;
    if device_bytes.is_none() && !args.allocate {
        reply.host_free_bytes = host_free_bytes(pool.data.as_deref().unwrap_or(&pool.directory));
    }
    if let Some(host_free) = reply.host_free_bytes.filter(|free| *free < size_bytes) {
        context.output.note(format_args!(
            "its file system has {} free, less than the pool's {}: the pool is full when that is used up",
            size::display(host_free),
            size::display(size_bytes)
        ));
    }
    context.print(&reply)
}

/// Creates a pool in Ceph, which hosts share if `--shards` is given.
fn create_in_cluster(
    ceph: &CephPlace,
    args: &Args,
    options: &CreateOptions,
    reply: &mut PoolCreateReply,
) -> Result<()> {
    if args.data.is_some() {
        return Err(Error::usage("--data is for pools in a directory"));
    }
    if args.allocate {
        return Err(Error::usage("--allocate is for pools in a directory"));
    }
    let Some(shards) = args.shards else {
        return create_in_ceph(ceph, options);
    };
    if args.index != IndexKind::Hash {
        return Err(Error::usage(
            "the index of a pool that hosts share is a hash index",
        ));
    }
    let pool = NewSharedPool::new(options.block_size, options.size_bytes, shards)?;
    pool.create(ceph)?;
    reply.size_bytes = pool.size_bytes;
    reply.shards = Some(shards);
    Ok(())
}

/// Free space of the file system that contains this file or directory.
fn host_free_bytes(path: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(path).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// The size of the block device at `path`, or `None` if it is not a block device.
fn device_bytes(path: &Path) -> Result<Option<u64>> {
    if !path
        .metadata()
        .is_ok_and(|metadata| metadata.file_type().is_block_device())
    {
        return Ok(None);
    }
    let found = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
    found
        .map(Some)
        .map_err(|e| Error::io(format_args!("cannot find the size of {path:?}"), &e))
}
