//! `onefold volume delete`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::volume::VolumeDelete;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The volume's name.
    name: String,

    /// Carry out the plan; without it, the plan is only printed.
    #[arg(long)]
    yes: bool,

    /// Disconnect the clients that have it attached.
    #[arg(long)]
    force: bool,

    /// Delete its snapshots as well, which is refused otherwise.
    #[arg(long)]
    snapshots: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let Args {
        name,
        yes,
        force,
        snapshots,
    } = args;
    let delete = VolumeDelete {
        name,
        yes,
        force,
        snapshots,
    };
    let progress = Progress::bytes(&context.output, "deleting");
    let reply = context
        .with_session(|session| session.call(&delete, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    context.print_plan(&reply)
}
