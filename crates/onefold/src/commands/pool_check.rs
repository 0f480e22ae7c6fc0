//! `onefold pool check`

use crate::context::Context;
use crate::foreground::end_when_interrupted;
use crate::progress::Progress;
use crate::session::Session;
use onefold_api::{ErrorKind, Result};
use onefold_api::{PoolCheck, PoolCheckReply};
use std::process::ExitCode;

/// The exit code for damage, as opposed to a failure of the check.
pub(super) const FOUND_DAMAGE: u8 = 3;

pub(super) type Args = PoolCheck;

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    end_when_interrupted(
        &context.output,
        if args.repair {
            "repairs that were made stay; the same command makes the rest"
        } else {
            "nothing was changed"
        },
    )?;
    let progress = Progress::steps(&context.output, "checking").of_pool(&context.output);
    let checked = Session::with(context.pool()?, &context.output, args.repair, |session| {
        session.call(args, &mut |done, all| progress.set(done, all))
    });
    drop(progress);
    let reply = match checked {
        Ok(reply) => reply,
        // Damage that prevents the pool from being opened is a finding, too.
        Err(error) if error.kind == ErrorKind::Damaged => {
            PoolCheckReply::unopenable(error.to_string())
        }
        Err(error) => return Err(error),
    };
    context.output.document(&reply)?;
    if reply.totals.findings > reply.totals.repaired {
        return Ok(ExitCode::from(FOUND_DAMAGE));
    }
    Ok(ExitCode::SUCCESS)
}
