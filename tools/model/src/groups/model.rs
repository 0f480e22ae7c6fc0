//! Which steps there are, and the search of a configuration.

use stateright::{Model, Property};

use super::config::{Config, GROUPS};
use super::guards::Guard;
use super::milestone::Reached;
use super::protocol::Groups;
use super::search::{Found, HOLDS, Searched, run};
use super::state::{CONTENTS, Message, State};
use super::violation::Violation;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of docs/model.md")]
pub enum Step {
    Write {
        group: usize,
        lba: usize,
        content: u8,
    },
    Trim {
        group: usize,
        lba: usize,
    },
    Read {
        group: usize,
    },
    FinishRead {
        group: usize,
    },
    LookUp {
        group: usize,
        content: u8,
    },
    Abandon {
        group: usize,
    },
    Hit {
        group: usize,
    },
    Publish {
        group: usize,
    },
    Collect {
        group: usize,
    },
    Count {
        group: usize,
    },
    /// Recalls the open batch, and calls it.
    Ask {
        group: usize,
    },
    CallOff {
        group: usize,
    },
    Settle {
        group: usize,
    },
    Raise {
        group: usize,
    },
    EndHolds {
        group: usize,
    },
    Learn {
        group: usize,
        shard: usize,
    },
    OwnerDies {
        group: usize,
    },
    Deliver(Message),
    /// A message arrives, and will arrive again.
    DeliverTwice(Message),
    ShardDies {
        shard: usize,
    },
    LoseIndex {
        shard: usize,
    },
    ReportUse {
        group: usize,
        shard: usize,
    },
    SettleLost {
        group: usize,
        shard: usize,
    },
    CountReferences {
        group: usize,
        shard: usize,
    },
    Rebuild {
        shard: usize,
    },
}

impl Groups {
    fn step(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Write {
                group,
                lba,
                content,
            } => self.write(state, group, lba, content),
            Step::Trim { group, lba } => self.trim(state, group, lba),
            Step::Read { group } => self.read(state, group),
            Step::FinishRead { group } => self.finish_read(state, group),
            Step::LookUp { group, content } => self.look_up(state, group, content),
            Step::Abandon { group } => self.abandon(state, group),
            Step::Hit { group } => self.hit(state, group),
            Step::Publish { group } => self.publish(state, group),
            Step::Collect { group } => self.collect(state, group),
            Step::Count { group } => self.count(state, group),
            Step::Ask { group } => self.ask(state, group),
            Step::CallOff { group } => self.call_off(state, group),
            Step::Settle { group } => self.settle(state, group),
            Step::Raise { group } => self.raise(state, group),
            Step::EndHolds { group } => self.end_holds(state, group),
            Step::Learn { group, shard } => self.learn(state, group, shard),
            Step::OwnerDies { group } => self.die(state, group),
            Step::Deliver(message) => self.deliver(state, message, false),
            Step::DeliverTwice(message) => self.deliver(state, message, true),
            Step::ShardDies { shard } => self.shard_dies(state, shard),
            Step::LoseIndex { shard } => self.lose_index(state, shard),
            Step::ReportUse { group, shard } => self.report_use(state, group, shard),
            Step::SettleLost { group, shard } => self.settle_lost(state, group, shard),
            Step::CountReferences { group, shard } => self.count_references(state, group, shard),
            Step::Rebuild { shard } => self.rebuild(state, shard),
        }
    }

    fn steps_of_group(&self, group: usize, steps: &mut Vec<Step>) {
        let contents = &CONTENTS[..self.config.contents];
        for lba in 0..self.config.lbas {
            let writes = contents.iter().map(|content| Step::Write {
                group,
                lba,
                content: *content,
            });
            steps.extend(writes);
            steps.push(Step::Trim { group, lba });
        }
        steps.extend([
            Step::Read { group },
            Step::FinishRead { group },
            Step::Publish { group },
            Step::Collect { group },
            Step::Ask { group },
            Step::CallOff { group },
            Step::Settle { group },
            Step::OwnerDies { group },
        ]);
        if self.config.budget.lookups > 0 {
            let lookups = contents.iter().map(|content| Step::LookUp {
                group,
                content: *content,
            });
            steps.extend(lookups);
            steps.extend([
                Step::Abandon { group },
                Step::Hit { group },
                Step::Count { group },
            ]);
        }
        if self.config.has_holders() {
            steps.extend([Step::Raise { group }, Step::EndHolds { group }]);
            for shard in 0..self.config.shards {
                steps.push(Step::Learn { group, shard });
            }
        }
        if self.config.counts_apart {
            for shard in 0..self.config.shards {
                steps.extend([
                    Step::ReportUse { group, shard },
                    Step::SettleLost { group, shard },
                    Step::CountReferences { group, shard },
                ]);
            }
        }
    }
}

impl Searched for Groups {
    fn broken(&self, state: &State) -> Option<Violation> {
        self.violation(state)
    }

    fn reached(&self) -> Option<&Reached> {
        self.off.is_none().then_some(&self.reached)
    }
}

impl Model for Groups {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.config.free, self.config.budget)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for group in 0..GROUPS {
            self.steps_of_group(group, steps);
        }
        for message in state.messages.iter() {
            steps.push(Step::Deliver(message));
            if state.budget.doubles > 0 {
                steps.push(Step::DeliverTwice(message));
            }
        }
        for shard in 0..self.config.shards {
            steps.extend([
                Step::ShardDies { shard },
                Step::LoseIndex { shard },
                Step::Rebuild { shard },
            ]);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(HOLDS, |model: &Groups, state: &State| {
            model.violation(state).is_none()
        })]
    }
}

/// Visits every state within the budget, breadth first, or until a promise is broken.
pub fn search(config: &Config, off: Option<Guard>, depth: Option<usize>) -> Found<Step> {
    let groups = Groups {
        config: *config,
        off,
        reached: Reached::default(),
    };
    run(groups, config.milestones, depth)
}
