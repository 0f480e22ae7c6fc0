//! Runs a search and reports the results.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

use super::milestone::{Milestone, Reached};
use super::violation::Violation;

/// The property that no promise is broken.
pub(super) const HOLDS: &str = "all promises hold";

/// A model that notes the milestones it reaches.
pub(super) trait Searched: Model {
    /// The promise that a state breaks.
    fn broken(&self, state: &Self::State) -> Option<Violation>;

    /// The milestones that the search has reached; none if a guard is off, because then it may end early.
    fn reached(&self) -> Option<&Reached>;
}

/// The results of a search.
#[derive(Debug)]
pub struct Found<S> {
    /// Distinct states visited.
    pub states: usize,
    /// The length of the longest of the shortest paths to a state.
    pub depth: usize,
    /// The violation that was found first, and the steps to it.
    pub counterexample: Option<(Violation, Vec<S>)>,
    /// Milestones that no path reached.
    pub missed: Vec<&'static str>,
}

/// Visits every state within the budget, breadth first, or until a promise is broken.
///
/// One thread finds the same counterexample each time.
pub(super) fn run<M>(model: M, milestones: &[Milestone], depth: Option<usize>) -> Found<M::Action>
where
    M: Searched + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let mut builder = model
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(depth) = depth {
        builder = builder.target_max_depth(depth);
    }
    let checker = builder.spawn_bfs().join();
    let model = checker.model();
    let counterexample = checker.discovery(HOLDS).and_then(|path| {
        let violation = model.broken(path.last_state())?;
        Some((violation, path.into_actions()))
    });
    let reached = model.reached();
    let is_missed =
        |milestone: &&Milestone| reached.is_some_and(|reached| !reached.has(**milestone));
    Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        counterexample,
        missed: milestones
            .iter()
            .filter(is_missed)
            .map(|m| m.name())
            .collect(),
    }
}
