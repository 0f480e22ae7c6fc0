//! `onefold snapshot delete`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::snapshot::{SnapshotDelete, SnapshotName};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    name: SnapshotName,

    /// Carry out the plan; without it, the plan is only printed.
    #[arg(long)]
    yes: bool,

    /// Disconnect the clients that have it attached.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let Args { name, yes, force } = args;
    let delete = SnapshotDelete { name, yes, force };
    let progress = Progress::bytes(&context.output, "deleting");
    let reply = context
        .with_session(|session| session.call(&delete, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    context.print_plan(&reply)
}
