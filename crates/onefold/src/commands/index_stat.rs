//! `onefold index stat`

use super::Context;
use crate::error::Result;
use crate::verbs::index::IndexStat;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    context.call(&IndexStat {})
}
