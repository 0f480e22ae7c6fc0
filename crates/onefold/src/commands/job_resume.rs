//! `onefold job resume`

use super::Context;
use crate::error::Result;
use crate::verbs::job::{JobResume, Jobs};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    jobs: Jobs,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    args.jobs.check()?;
    context.call_daemon(&JobResume { jobs: args.jobs })
}
