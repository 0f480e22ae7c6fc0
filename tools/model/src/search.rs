//! Runs the search of one configuration and reports the results.

use stateright::{Checker, HasDiscoveries, Model};

use crate::model::{Protocol, Step};
use crate::properties::Violation;
use crate::state::Config;

/// The results of a search.
#[derive(Debug)]
pub struct Found {
    /// Distinct states visited.
    pub states: usize,
    /// Length of the longest path.
    pub depth: usize,
    /// The first violation and the steps that lead to it.
    pub counterexample: Option<(Violation, Vec<Step>)>,
    /// Milestones that no path reached.
    pub missed: Vec<&'static str>,
}

/// Visits every state within the budget (and `depth` steps, if given), breadth first.
///
/// With a guard off the search ends at the first violation. One thread finds the same counterexample each time; two
/// threads need a third more processor time.
pub fn search(config: &Config, depth: Option<usize>) -> Found {
    let is_complete = config.guards == crate::guards::Guards::ON;
    let milestones = if is_complete { config.milestones } else { &[] };
    let protocol = Protocol {
        config: Config {
            milestones,
            ..config.clone()
        },
    };
    let mut builder = protocol
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(depth) = depth {
        builder = builder.target_max_depth(depth);
    }
    let checker = builder.spawn_bfs().join();
    let mut discoveries = checker.discoveries();
    let counterexample = Violation::ALL.iter().find_map(|violation| {
        let path = discoveries.remove(violation.name())?;
        Some((*violation, path.into_actions()))
    });
    let missed = milestones.iter().map(|m| m.name());
    let missed = missed
        .filter(|name| !discoveries.contains_key(name))
        .collect();
    Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        counterexample,
        missed,
    }
}
