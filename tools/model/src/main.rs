//! Searches the model from the command line and prints the results.

use std::process::ExitCode;

use onefold_model::configs;
use onefold_model::groups::report;
use onefold_model::guards::{Guard, Guards};
use onefold_model::search::search;
use onefold_model::state::Config;

const USAGE: &str =
    "usage: onefold-model [--config NAME] [--depth STEPS] [--off GUARD] [--large] [--list]";

/// The guard that is off.
#[derive(Clone, Copy)]
enum Off {
    /// A guard of the protocol inside a pool, or a group.
    Pool(Guard),
    /// A guard of the protocol between groups.
    Groups(report::Rule),
}

struct Options {
    config: Option<String>,
    depth: Option<usize>,
    off: Option<Off>,
    large: bool,
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
        large: false,
        list: false,
    };
    while let Some(arg) = args.next() {
        if arg == "--list" {
            options.list = true;
            continue;
        }
        if arg == "--large" {
            options.large = true;
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
                let off = guard(&value).ok_or(format!("--off {value}: no such guard"))?;
                options.off = Some(off);
            }
            _ => return Err(format!("{arg}: unknown option")),
        }
    }
    Ok(options)
}

fn guard(name: &str) -> Option<Off> {
    let pool = Guard::ALL.iter().find(|guard| guard.name() == name);
    let groups = || {
        report::guards()
            .into_iter()
            .find(|guard| guard.name == name)
    };
    pool.map(|guard| Off::Pool(*guard))
        .or_else(|| groups().map(Off::Groups))
}

fn list() -> ExitCode {
    let pool = configs::all().into_iter().map(|config| config.name);
    for name in pool.chain(report::configs()) {
        println!("configuration {name}");
    }
    for guard in Guard::ALL {
        let (name, promise, rule) = (guard.name(), guard.promise(), guard.rule());
        println!("guard {name} ({promise}) {rule}");
    }
    for guard in report::guards() {
        println!("guard {} ({}) {}", guard.name, guard.promise, guard.rule);
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> ExitCode {
    let is_wanted = |name: &str| options.config.as_ref().is_none_or(|wanted| wanted == name);
    let mut pool = configs::all();
    pool.retain(|config| is_wanted(config.name) && !matches!(options.off, Some(Off::Groups(_))));
    let mut groups = report::configs();
    groups.retain(|name| match options.off {
        None => is_wanted(name),
        Some(Off::Groups(rule)) => match &options.config {
            Some(wanted) => wanted == name,
            None => rule.config == *name,
        },
        Some(Off::Pool(_)) => false,
    });
    if pool.is_empty() && groups.is_empty() {
        let name = options.config.as_deref().unwrap_or("");
        eprintln!("--config {name}: no such configuration, or its model has no such guard");
        return ExitCode::from(2);
    }
    let mut holds = true;
    for config in pool {
        holds &= search_pool(config, options);
    }
    for name in groups {
        holds &= search_groups(name, options);
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Searches a configuration of one pool. Returns whether it holds.
fn search_pool(mut config: Config, options: &Options) -> bool {
    if let Some(Off::Pool(guard)) = options.off {
        config.guards = Guards::without(guard);
    }
    let found = search(&config, options.depth);
    let mut steps = Vec::new();
    let broken = found.counterexample.map(|(violation, all)| {
        steps.extend(all.iter().map(|step| format!("{step:?}")));
        violation.name()
    });
    print(
        config.name,
        &report::Report {
            states: found.states,
            depth: found.depth,
            broken,
            steps,
            missed: found.missed,
        },
    )
}

/// Searches a configuration of groups. Returns whether it holds.
fn search_groups(name: &str, options: &Options) -> bool {
    let off = match &options.off {
        Some(Off::Groups(rule)) => Some(rule.name),
        _ => None,
    };
    let wanted = report::Options {
        off,
        large: options.large,
        depth: options.depth,
    };
    match report::report(name, wanted) {
        Some(report) => print(name, &report),
        None => {
            eprintln!("{name}: the model of this configuration has no such guard");
            false
        }
    }
}

fn print(name: &str, report: &report::Report) -> bool {
    println!("{name}: {} states, depth {}", report.states, report.depth);
    for missed in &report.missed {
        println!("  the search never {missed}");
    }
    if let Some(broken) = report.broken {
        println!("  violated: {broken}");
    }
    for (at, step) in report.steps.iter().enumerate() {
        println!("  {:3} {step}", at + 1);
    }
    report.broken.is_none() && report.missed.is_empty()
}
