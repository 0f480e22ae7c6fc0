//! `onefold pool dedup`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::pool::PoolDedup;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Look only at this volume, even if its dedup is off.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let dedup = PoolDedup {
        volume: args.volume,
    };
    let progress = Progress::bytes(&context.output, "deduplicating");
    let reply = context
        .with_session(|session| session.call(&dedup, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    for warning in reply.warnings() {
        context.output.warn(warning);
    }
    context.print(&reply)
}
