//! `onefold volume resize`

use super::{Context, parse_size};
use crate::error::Result;
use crate::verbs::volume::VolumeResize;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The volume's name.
    name: String,

    /// The new size, rounded up to whole blocks.
    #[arg(long, value_parser = parse_size)]
    size: u64,

    /// Carry out the plan although it discards data.
    #[arg(long)]
    yes: bool,

    /// Disconnect the clients that have it attached.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let Args {
        name,
        size: size_bytes,
        yes,
        force,
    } = args;
    let resize = VolumeResize {
        name,
        size_bytes,
        yes,
        force,
    };
    let reply = context.with_session(|session| session.call(&resize, &mut |_, _| {}))?;
    context.print_plan(&reply)
}
