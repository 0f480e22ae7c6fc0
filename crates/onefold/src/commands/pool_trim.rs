//! `onefold pool trim`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::verbs::trim::PoolTrim;
use std::process::ExitCode;

pub(super) fn run(context: &Context) -> Result<ExitCode> {
    let progress = Progress::bytes(&context.output, "trimming");
    let trim = PoolTrim {};
    let reply = context
        .with_session(|session| session.call(&trim, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    context.print(&reply)
}
