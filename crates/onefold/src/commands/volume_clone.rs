//! `onefold volume clone`

use super::Context;
use crate::error::Result;
use crate::verbs::check_name;
use crate::verbs::volume::VolumeClone;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to clone: a volume as it is now, or a snapshot.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    source: String,

    /// The new volume's name.
    name: String,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    check_name(&args.name)?;
    let Args { source, name } = args;
    context.call(&VolumeClone { source, name })
}
