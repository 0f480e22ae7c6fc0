//! onefold: volumes for virtual machines, every block stored once.
//!
//! The command line, and the daemon behind `onefold serve`. Reading order: [`commands`] has a file
//! for each command; most of them call one of the [`verbs`] through a [`session`], which opens the
//! pool itself or asks the [`daemon`] over its [`control`] socket. [`image`] is the other side of
//! import and export.

mod arguments;
mod commands;
mod control;
mod daemon;
mod descriptors;
mod duration;
mod error;
mod image;
mod limits;
mod output;
mod pool;
mod progress;
mod session;
mod sharing;
mod size;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match arguments::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            output::say(format_args!("error: {error}"));
            error.exit_code()
        }
    }
}
