//! onefold: volumes for virtual machines, every block stored once.
//!
//! This crate contains the command line and the daemon behind `onefold serve`. Reading order: [`commands`]
//! parses requests of `onefold-api`; a [`session`] opens the pool and carries them out, or sends them to the
//! [`daemon`] over its [`control`] socket; [`rendering`] prints the replies for people. [`image`] reads and
//! writes the images of import and export.
//!
//! May use every crate of the product. Must not decide what a request does: `onefold-api` does.

mod arguments;
mod backup_exports;
mod backup_source;
mod commands;
mod context;
mod control;
mod daemon;
mod descriptors;
mod foreground;
mod http;
mod image;
mod limits;
mod logging;
mod output;
mod overwriting;
mod pool;
mod progress;
mod rendering;
mod restoring;
mod session;
mod version;

use onefold_api::{Error, ErrorKind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match arguments::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let output = cli.output();
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            output.failure(&error);
            exit_code(&error)
        }
    }
}

/// Damage found by `pool check` and `pool scrub` has an exit code of its own and is not an error.
fn exit_code(error: &Error) -> ExitCode {
    match error.kind {
        ErrorKind::Usage => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
