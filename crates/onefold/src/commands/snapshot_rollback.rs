//! `onefold snapshot rollback`

use super::Context;
use crate::error::Result;
use crate::verbs::snapshot::{SnapshotName, SnapshotRollback};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot that its volume goes back to.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    name: SnapshotName,

    /// Carry out the plan; without it, the plan is only printed.
    #[arg(long)]
    yes: bool,

    /// Disconnect the clients that have the volume attached.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let Args { name, yes, force } = args;
    let reply = context.with_session(|session| {
        session.call(&SnapshotRollback { name, yes, force }, &mut |_, _| {})
    })?;
    context.print_plan(&reply)
}
