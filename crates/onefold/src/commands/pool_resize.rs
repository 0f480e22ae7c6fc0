//! `onefold pool resize`

use super::{Context, parse_size};
use crate::error::Result;
use crate::verbs::pool::PoolResize;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The new size, a multiple of the pool's block size; at most that of the device, if it is on one.
    #[arg(long, value_parser = parse_size)]
    size: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let resize = PoolResize {
        size_bytes: args.size,
    };
    let reply = context.with_session(|session| session.call(&resize, &mut |_, _| {}))?;
    context.print_plan(&reply)
}
