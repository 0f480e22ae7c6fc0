//! `onefold volume list`

use super::Context;
use crate::error::Result;
use crate::verbs::volume::VolumeList;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    context.call(&VolumeList {})
}
