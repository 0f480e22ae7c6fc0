//! `onefold pool resize`

use super::{Context, parse_size};
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::pool::PoolResize;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The new size, rounded up to whole blocks; at most that of the device, if it is on one.
    #[arg(long, value_parser = parse_size)]
    size: u64,

    /// Carry out the plan to make it smaller; without it, the plan is only printed.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let resize = PoolResize {
        size_bytes: args.size,
        yes: args.yes,
    };
    let progress = Progress::bytes(&context.output, "resizing");
    let reply = context
        .with_session(|session| session.call(&resize, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    context.print_plan(&reply)
}
