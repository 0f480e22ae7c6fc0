//! `onefold snapshot list`

use super::Context;
use crate::error::Result;
use crate::verbs::snapshot::SnapshotList;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only those of this volume.
    volume: Option<String>,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    context.call(&SnapshotList {
        volume: args.volume,
    })
}
