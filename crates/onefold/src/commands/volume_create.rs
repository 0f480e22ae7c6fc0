//! `onefold volume create`

use super::{Context, parse_size};
use crate::error::Result;
use crate::sharing::Sharing;
use crate::verbs::check_name;
use crate::verbs::volume::VolumeCreate;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The new volume's name.
    name: String,

    /// Its size, rounded up to whole blocks; for example 20G.
    #[arg(long, value_parser = parse_size)]
    size: u64,

    #[command(flatten)]
    sharing: Sharing,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    check_name(&args.name)?;
    args.sharing.check()?;
    context.call(&VolumeCreate {
        name: args.name,
        size_bytes: args.size,
        sharing: args.sharing,
    })
}
