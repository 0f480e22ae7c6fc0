//! onefold: volumes for virtual machines, every block stored once.
//!
//! The command line, and the daemon behind `onefold serve`. Reading order: [`commands`] has a file
//! for each command; most of them call one of the [`verbs`] through a [`session`], which opens the
//! pool itself or asks the [`daemon`] over its [`control`] socket. [`image`] is the other side of
//! import and export.

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

use clap::Parser;
use clap::error::ErrorKind as ClapErrorKind;
use commands::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            output::say(format_args!("error: {error}"));
            error.exit_code()
        }
    }
}

/// Prints help where that was asked for, and otherwise what is wrong in one line.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    if !error.use_stderr()
        || error.kind() == ClapErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // As with every other word to the user, there is nobody to tell when it cannot be said.
        let _ = error.print();
        return ExitCode::from(u8::from(error.use_stderr()) * 2);
    }
    let rendered = error.render().to_string();
    let message = rendered.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = message.split_whitespace().collect();
    output::say(format_args!("{} (see 'onefold --help')", words.join(" ")));
    ExitCode::from(2)
}
