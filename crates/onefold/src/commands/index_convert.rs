//! `onefold index convert`

use super::{Context, index_rebuild};
use crate::error::Result;
use crate::sharing::Index;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The kind that it is to be.
    #[arg(long, value_enum, value_name = "KIND")]
    to: Index,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    index_rebuild::run(context, Some(args.to))
}
