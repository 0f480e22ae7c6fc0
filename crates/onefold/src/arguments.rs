//! Parses the command line into a [`Cli`], or prints a one-line error that points to the help.

use crate::commands::Cli;
use crate::output::{Format, Output};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};
use onefold_api::{Error, size};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Wider lines are hard to read, however wide the terminal is.
const HELP_WIDTH_MAX: usize = 100;

/// Name of size arguments in the help.
const SIZE: &str = "SIZE";

/// Returns the command line; on an error, prints it and returns the exit code.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    let mut command = with_help_on_sizes(Cli::command().max_term_width(HELP_WIDTH_MAX));
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let matches = command.try_get_matches_from_mut(&arguments);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| refuse(&error, &command, &arguments))
}

/// Adds an explanation of sizes to the help of every command that takes one.
fn with_help_on_sizes(command: Command) -> Command {
    let command = command.mut_subcommands(with_help_on_sizes);
    let takes_size = command.get_arguments().any(|argument| {
        let names = argument.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.as_str() == SIZE)
    });
    if takes_size {
        command.after_help(size::HELP)
    } else {
        command
    }
}

/// Prints help if it was requested, otherwise a one-line error.
fn refuse(error: &clap::Error, command: &Command, arguments: &[OsString]) -> ExitCode {
    let asked = !error.use_stderr();
    if asked || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A failure to print cannot be reported, as with every other message.
        let _ = error.print();
        return ExitCode::from(u8::from(error.use_stderr()) * 2);
    }
    let reached = reached(command, arguments);
    let rendered = error.render().to_string();
    let message = rendered.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = message.split_whitespace().collect();
    let hint = hint(error, command, &reached).map(|hint| format!("; {hint}"));
    let message = format!(
        "{}{}; see 'onefold {}--help'",
        words.join(" "),
        hint.unwrap_or_default(),
        reached
            .iter()
            .map(|name| format!("{name} "))
            .collect::<String>()
    );
    // clap's own messages begin with "error: ".
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    Output::new(wanted_format(arguments), true).failure(&Error::usage(message));
    ExitCode::from(2)
}

/// The output format that the user requested, even if the arguments as a whole are invalid.
fn wanted_format(arguments: &[OsString]) -> Format {
    let pairs = arguments.windows(2);
    let is_json = arguments.iter().any(|argument| argument == "--format=json")
        || pairs.into_iter().any(|pair| pair == ["--format", "json"]);
    if is_json { Format::Json } else { Format::Text }
}

/// The subcommands up to the error, such as `["volume", "create"]`.
fn reached(command: &Command, arguments: &[OsString]) -> Vec<String> {
    let mut command = command;
    let mut names = Vec::new();
    let mut arguments = arguments
        .iter()
        .skip(1)
        .filter_map(|argument| argument.to_str());
    let options: Vec<_> = command.get_arguments().collect();
    while let Some(argument) = arguments.next() {
        let option = argument.strip_prefix("--");
        let option = options
            .iter()
            .find(|known| known.get_long() == option && option.is_some());
        if option.is_some_and(|option| option.get_action().takes_values()) {
            // The next word is the option's value, whatever it looks like.
            arguments.next();
        } else if let Some(subcommand) = command.find_subcommand(argument) {
            names.push(subcommand.get_name().to_owned());
            command = subcommand;
        }
    }
    names
}

/// Suggests a correction of the arguments.
fn hint(error: &clap::Error, command: &Command, reached: &[String]) -> Option<String> {
    let suggested = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    if let Some(suggested) = suggested.iter().find_map(|kind| error.get(*kind)) {
        let words = match suggested {
            ContextValue::Strings(words) => words.join("' or '"),
            other => other.to_string(),
        };
        return Some(format!("did you mean '{words}'?"));
    }
    // A verb without its noun: suggest the nouns that have this verb.
    let ContextValue::String(verb) = error.get(ContextKind::InvalidSubcommand)? else {
        return None;
    };
    let nouns = command.get_subcommands().filter(|_| reached.is_empty());
    let places = nouns.filter_map(|noun| {
        let found = noun.find_subcommand(verb)?;
        Some(format!("'{} {}'", noun.get_name(), found.get_name()))
    });
    let places: Vec<String> = places.collect();
    (!places.is_empty()).then(|| format!("did you mean {}?", places.join(" or ")))
}

/// Value parser for clap: a duration such as `2ms`, greater than 0.
pub(crate) fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let unusable = || format!("'{text}' is not a time; write for example 500us, 2ms or 1s");
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("the time must be above 0".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err(unusable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Vec<String> {
        let arguments: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        reached(&Cli::command(), &arguments)
    }

    #[test]
    fn what_the_user_had_come_to_is_found() {
        assert!(of("onefold").is_empty());
        assert!(of("onefold --quiet").is_empty());
        assert_eq!(of("onefold volume create x --size y"), ["volume", "create"]);
        assert_eq!(of("onefold --pool volume pool ls"), ["pool"]);
        assert_eq!(of("onefold --pool=volume pool status"), ["pool", "stat"]);
        assert_eq!(of("onefold volume rm pool"), ["volume", "delete"]);
    }

    #[test]
    fn the_arguments_fit_together() {
        with_help_on_sizes(Cli::command()).debug_assert();
    }
}
