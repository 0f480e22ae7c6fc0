//! `onefold pool scrub`

use super::Context;
use super::pool_check::FOUND_DAMAGE;
use crate::error::Result;
use crate::progress::Progress;
use crate::size;
use crate::verbs::scrub::{PoolBadBlocks, PoolScrub};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Go over so much of the pool, from where the last scrub ended [default: what is left of one
    /// that was cut short, else all of it].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=100))]
    percent: Option<u8>,

    /// Bytes to read in a second, at most.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    rate: Option<u64>,

    /// Only name the blocks that are known to be bad, and who uses them.
    #[arg(long, conflicts_with_all = ["percent", "rate"])]
    list: bool,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let scrub = PoolScrub {
        percent: args.percent,
        bytes_per_second: args.rate.unwrap_or(0),
    };
    let progress = Progress::bytes(&context.output, "scrubbing");
    let reply = context.with_session(|session| {
        let mut report = |done, all| progress.set(done, all);
        match args.list {
            true => session.call(&PoolBadBlocks {}, &mut report),
            false => session.call(&scrub, &mut report),
        }
    })?;
    drop(progress);
    context.output.document(&reply)?;
    match reply.is_damaged() {
        true => Ok(ExitCode::from(FOUND_DAMAGE)),
        false => Ok(ExitCode::SUCCESS),
    }
}
