//! `onefold job pause`

use super::Context;
use crate::error::Result;
use crate::verbs::job::{JobPause, Jobs};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    jobs: Jobs,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    args.jobs.check()?;
    context.call_daemon(&JobPause { jobs: args.jobs })
}
