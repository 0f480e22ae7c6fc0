//! `onefold pool set`

use super::Context;
use crate::error::Result;
use crate::verbs::pool::{Full, PoolSet};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What becomes of clients' writes when the pool is full.
    #[arg(long, value_enum)]
    when_full: Full,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    context.call(&PoolSet {
        when_full: args.when_full,
    })
}
