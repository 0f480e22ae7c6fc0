//! Extents of the data space: two groups that lease them, give them back, and lose their owners. A former owner is
//! fenced, but writes and exchanges that it has sent may land until the storage daemon of their object has heard of the
//! fence.
//!
//! An extent is one object of one block here, on a storage daemon of its own. A write's content is the number of its
//! client, so an entry shows whose write its object must have.

mod state;
mod steps;

use stateright::{Model, Property};

use super::config::GROUPS;
use super::milestone::{Milestone, Reached};
use super::search::{Found, HOLDS, Searched, run};
use super::violation::Violation;
use crate::guards::guards;
use state::EXTENTS;
pub use state::{Exchange, Operation, State};

guards! {
    LatestMapBeforeExtent, "latest-map-before-extent", "P7",
        "exchange: the owner waits for the newest map of the cluster before it uses an extent that it takes";
    ExtentNumberRecorded, "extent-number-recorded", "P6",
        "exchange: its number and what it gives are durable before the call; an owner that opens the group repeats it";
    GivenAtDecision, "given-at-decision", "P6",
        "exchange: what it gives leaves the group's free-space map with that record, not with the answer's";
    ExchangeNumberGuarded, "exchange-number-guarded", "P6",
        "exchange: executed only if its number follows the group's last one, with which the answer is stored";
    PublishedIsRead, "published-is-read", "P7",
        "finder: an owner publishes only blocks that it has read or written itself";
}

/// The events that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Budget {
    pub exchanges: u8,
    pub writes: u8,
    pub takes: u8,
    pub publications: u8,
}

/// A search.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub struct Config {
    pub name: &'static str,
    pub budget: Budget,
}

/// The searches, each small enough to be exhaustive.
pub const CONFIGS: [Config; 2] = [
    Config {
        name: "share-fence",
        budget: Budget {
            exchanges: 3,
            writes: 3,
            takes: 1,
            publications: 1,
        },
    },
    Config {
        name: "share-fence-again",
        budget: Budget {
            exchanges: 2,
            writes: 2,
            takes: 2,
            publications: 1,
        },
    },
];

/// Events that the search must reach.
const MILESTONES: [Milestone; 5] = [
    Milestone::ExtentMoved,
    Milestone::ExchangeRepeated,
    Milestone::LateWriteLanded,
    Milestone::LateWriteRefused,
    Milestone::PassedThroughIndex,
];

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub enum Step {
    /// A group decides on an exchange.
    Decide {
        group: usize,
        gives: Option<u8>,
        takes: bool,
    },
    /// The owner sends the exchange in progress.
    Send {
        group: usize,
    },
    /// The owner gets the answer, and records it.
    Record {
        group: usize,
    },
    Write {
        group: usize,
    },
    /// The owner's write is acknowledged, and its record durable.
    Acknowledge {
        group: usize,
    },
    Trim {
        group: usize,
    },
    Read {
        group: usize,
    },
    Publish {
        group: usize,
    },
    /// The other group refers to the published block, and releases the last reference.
    PassOn {
        group: usize,
    },
    /// Another client fences the owner, and takes the group.
    Take {
        group: usize,
    },
    /// An operation arrives at the daemon of its object.
    Land(Operation),
}

/// The custody of extents, with one guard off or none.
#[derive(Debug)]
pub struct Extents {
    off: Option<Guard>,
    budget: Budget,
    reached: Reached,
}

impl Extents {
    fn on(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }
}

impl Searched for Extents {
    fn broken(&self, state: &State) -> Option<Violation> {
        self.violation(state)
    }

    fn reached(&self) -> Option<&Reached> {
        self.off.is_none().then_some(&self.reached)
    }
}

impl Model for Extents {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.budget)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for group in 0..GROUPS {
            let extents = (0..EXTENTS).map(Some).chain([None]);
            for gives in extents {
                let decide = |takes| Step::Decide {
                    group,
                    gives,
                    takes,
                };
                steps.push(decide(true));
                if gives.is_some() {
                    steps.push(decide(false));
                }
            }
            steps.extend([
                Step::Send { group },
                Step::Record { group },
                Step::Write { group },
                Step::Acknowledge { group },
                Step::Trim { group },
                Step::Read { group },
                Step::Publish { group },
                Step::PassOn { group },
                Step::Take { group },
            ]);
        }
        steps.extend(state.operations.iter().map(Step::Land));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(HOLDS, |model: &Extents, state: &State| {
            model.violation(state).is_none()
        })]
    }
}

/// Visits every state within the budget, breadth first, or until a promise is broken.
pub fn search(config: &Config, off: Option<Guard>, depth: Option<usize>) -> Found<Step> {
    let extents = Extents {
        off,
        budget: config.budget,
        reached: Reached::default(),
    };
    run(extents, &MILESTONES, depth)
}
