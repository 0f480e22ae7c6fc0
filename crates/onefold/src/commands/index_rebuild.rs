//! `onefold index rebuild`

use super::Context;
use crate::error::Result;
use crate::progress::Progress;
use crate::sharing::Index;
use crate::verbs::index::IndexRebuild;
use std::process::ExitCode;

pub(super) fn run(context: &Context, kind: Option<Index>) -> Result<ExitCode> {
    let rebuild = IndexRebuild { kind };
    let progress = Progress::bytes(&context.output, "counting the index");
    let reply = context
        .with_session(|session| session.call(&rebuild, &mut |done, all| progress.set(done, all)))?;
    drop(progress);
    context.print(&reply)
}
