//! Searches of groups by the names of configurations and guards, for the command line and the tests.

use std::fmt::Debug;

use super::config::{self, where_it_matters};
use super::extents;
use super::guards::Guard;
use super::model::search;
use super::search::Found;

/// A guard of one of the models of groups.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The guard's name.
    pub name: &'static str,
    /// The promise that the guard protects.
    pub promise: &'static str,
    /// The step that the guard constrains, and the condition.
    pub rule: &'static str,
    /// The configuration in which the guard's damage is found.
    pub config: &'static str,
}

/// The results of a search, in words.
#[derive(Debug)]
pub struct Report {
    /// Distinct states visited.
    pub states: usize,
    /// The length of the longest of the shortest paths to a state.
    pub depth: usize,
    /// The promise that was broken first.
    pub broken: Option<&'static str>,
    /// The steps to the broken promise.
    pub steps: Vec<String>,
    /// Milestones that no path reached.
    pub missed: Vec<&'static str>,
}

/// The names of all configurations.
pub fn configs() -> Vec<&'static str> {
    let groups = config::all().into_iter().map(|config| config.name);
    groups
        .chain(extents::CONFIGS.map(|config| config.name))
        .collect()
}

/// All guards.
pub fn guards() -> Vec<Rule> {
    let groups = Guard::ALL.iter().map(|guard| Rule {
        name: guard.name(),
        promise: guard.promise(),
        rule: guard.rule(),
        config: where_it_matters(*guard),
    });
    let extents = extents::Guard::ALL.iter().map(|guard| Rule {
        name: guard.name(),
        promise: guard.promise(),
        rule: guard.rule(),
        config: extents::CONFIGS[0].name,
    });
    groups.chain(extents).collect()
}

/// A search of a configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The guard that is off.
    pub off: Option<&'a str>,
    /// The configuration's large budget, if it has one.
    pub large: bool,
    /// The number of steps after which the search ends.
    pub depth: Option<usize>,
}

/// Searches a configuration; none if there is no such configuration, or its model has no such guard.
pub fn report(name: &str, options: Options<'_>) -> Option<Report> {
    if let Some(mut config) = config::all().into_iter().find(|config| config.name == name) {
        let off = match options.off {
            None => None,
            Some(off) => Some(*Guard::ALL.iter().find(|guard| guard.name() == off)?),
        };
        if options.large {
            config.budget = config.large.unwrap_or(config.budget);
        }
        return Some(in_words(search(&config, off, options.depth)));
    }
    let config = extents::CONFIGS.iter().find(|config| config.name == name)?;
    let off = match options.off {
        None => None,
        Some(off) => {
            let mut guards = extents::Guard::ALL.iter();
            Some(*guards.find(|guard| guard.name() == off)?)
        }
    };
    Some(in_words(extents::search(config, off, options.depth)))
}

fn in_words<S: Debug>(found: Found<S>) -> Report {
    let (broken, steps) = found
        .counterexample
        .map_or((None, Vec::new()), |(broken, steps)| {
            let steps = steps.iter().map(|step| format!("{step:?}")).collect();
            (Some(broken.name()), steps)
        });
    Report {
        states: found.states,
        depth: found.depth,
        broken,
        steps,
        missed: found.missed,
    }
}
