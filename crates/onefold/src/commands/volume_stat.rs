//! `onefold volume stat`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::volume::VolumeStat;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The volume's name, or VOLUME@SNAPSHOT.
    name: String,

    /// Go through all maps now, to say what it holds alone.
    #[arg(long)]
    exact: bool,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let Args { name, exact } = args;
    let progress = Progress::steps(&context.output, "going through the maps");
    let reply = context.with_session(|session| {
        session.call(&VolumeStat { name, exact }, &mut |done, all| {
            progress.set(done, all);
        })
    })?;
    drop(progress);
    context.print(&reply)
}
