//! `onefold volume stat`

use super::Context;
use crate::error::Result;
use crate::verbs::volume::VolumeStat;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The volume's name.
    name: String,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    context.call(&VolumeStat { name: args.name })
}
