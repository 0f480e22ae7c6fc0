//! `onefold pool upgrade`

use super::Context;
use crate::error::Result;
use crate::verbs::pool::PoolUpgrade;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    context.call(&PoolUpgrade {})
}
