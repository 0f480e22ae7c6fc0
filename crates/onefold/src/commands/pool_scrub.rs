//! `onefold pool scrub`

use super::pool_check::FOUND_DAMAGE;
use crate::context::{Bar, Context};
use onefold_api::{PoolBadBlocks, PoolScrub, Result};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    scrub: PoolScrub,

    /// Only list the known bad blocks and the volumes that use them.
    #[arg(long, conflicts_with_all = ["percent", "bytes_per_second"])]
    list: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let reply = if args.list {
        context.request(&PoolBadBlocks {}, Bar::None)
    } else {
        context.request(
            &args.scrub,
            Bar::Bytes(
                "scrubbing",
                "the daemon, or the same command, continues the scrub",
            ),
        )
    }?;
    context.output.document(&reply)?;
    if reply.is_damaged() {
        Ok(ExitCode::from(FOUND_DAMAGE))
    } else {
        Ok(ExitCode::SUCCESS)
    }
}
