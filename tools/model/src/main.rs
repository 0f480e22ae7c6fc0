//! Searches the model from the command line and prints the results.

use std::process::ExitCode;

use onefold_model::configs;
use onefold_model::guards::{Guard, Guards};
use onefold_model::search::search;

const USAGE: &str = "usage: onefold-model [--config NAME] [--depth STEPS] [--off GUARD] [--list]";

struct Options {
    config: Option<String>,
    depth: Option<usize>,
    off: Option<Guard>,
    list: bool,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(options) if options.list => list(),
        Ok(options) => run(&options),
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        config: None,
        depth: None,
        off: None,
        list: false,
    };
    while let Some(arg) = args.next() {
        if arg == "--list" {
            options.list = true;
            continue;
        }
        let value = args.next().ok_or(format!("{arg}: a value is missing"))?;
        match arg.as_str() {
            "--config" => options.config = Some(value),
            "--depth" => {
                let depth = value
                    .parse()
                    .map_err(|_| format!("--depth {value}: not a number"))?;
                options.depth = Some(depth);
            }
            "--off" => {
                let guard = Guard::ALL.iter().find(|guard| guard.name() == value);
                options.off = Some(*guard.ok_or(format!("--off {value}: no such guard"))?);
            }
            _ => return Err(format!("{arg}: unknown option")),
        }
    }
    Ok(options)
}

fn list() -> ExitCode {
    for config in configs::all() {
        println!("configuration {}", config.name);
    }
    for guard in Guard::ALL {
        println!(
            "guard {} ({}) {}",
            guard.name(),
            guard.promise(),
            guard.rule()
        );
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> ExitCode {
    let mut configs = configs::all();
    if let Some(name) = &options.config {
        configs.retain(|config| config.name == name);
    }
    if configs.is_empty() {
        eprintln!(
            "--config {}: no such configuration",
            options.config.as_deref().unwrap_or("")
        );
        return ExitCode::from(2);
    }
    let mut holds = true;
    for mut config in configs {
        if let Some(guard) = options.off {
            config.guards = Guards::without(guard);
        }
        let found = search(&config, options.depth);
        println!(
            "{}: {} states, depth {}",
            config.name, found.states, found.depth
        );
        for missed in &found.missed {
            println!("  the search never {missed}");
        }
        if let Some((violation, steps)) = &found.counterexample {
            println!("  violated: {} ({violation:?})", violation.name());
            for (at, step) in steps.iter().enumerate() {
                println!("  {:3} {step:?}", at + 1);
            }
        }
        holds &= found.counterexample.is_none() && found.missed.is_empty();
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
