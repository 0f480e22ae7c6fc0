//! `onefold snapshot create`

use super::Context;
use crate::error::Result;
use crate::verbs::snapshot::{SnapshotCreate, SnapshotName};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The new snapshots, one for each volume; all are of one moment.
    #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
    names: Vec<SnapshotName>,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    args.names.iter().try_for_each(SnapshotName::check)?;
    context.call(&SnapshotCreate { names: args.names })
}
