//! `onefold volume rename`

use super::Context;
use crate::error::Result;
use crate::verbs::check_name;
use crate::verbs::volume::VolumeRename;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The volume's name.
    name: String,

    /// The name that it gets.
    new_name: String,

    /// Disconnect the clients that have it attached.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    check_name(&args.new_name)?;
    let (name, new_name) = (args.name, args.new_name);
    context.call(&VolumeRename {
        name,
        new_name,
        force: args.force,
    })
}
