//! `onefold job list`

use super::Context;
use crate::error::Result;
use crate::verbs::job::JobList;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    context.call_daemon(&JobList {})
}
