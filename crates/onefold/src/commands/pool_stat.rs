//! `onefold pool stat`

use super::Context;
use crate::error::Result;
use crate::verbs::pool::PoolStat;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    context.call(&PoolStat {})
}
