//! When a popular block of a repository of backups is removed: writers, forgetting, pruning in two steps, deaths, and
//! leases that are taken from unresponsive holders. One block, two writers, a pruner; `docs/model.md` lists the
//! omissions. The product's part is `backup/src/popular.rs`.

use stateright::{Checker, Model, Property};

/// The rules. With one off, the search must find a backup that needs a removed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A backup takes a lease before it reads which blocks are stored and which are condemned.
    LeaseBeforeLook,
    /// A backup treats a condemned block as absent.
    CondemnedIsAbsent,
    /// The list of condemned blocks is written before leases are listed.
    CondemnedBeforeListed,
    /// The block stays until all listed leases have ended.
    LeasesAwaited,
    /// Manifests are read again before the block is removed.
    ManifestsReadAgain,
    /// Manifests are read again only after the leases have ended.
    AwaitedBeforeRead,
    /// An incomplete list of leases is made again.
    ListedAgain,
    /// A writer whose lease was taken away cannot publish.
    FencedCannotPublish,
}

impl Guard {
    /// The guards, in the order of their table in `docs/model.md`.
    pub const ALL: [Guard; 8] = [
        Guard::LeaseBeforeLook,
        Guard::CondemnedIsAbsent,
        Guard::CondemnedBeforeListed,
        Guard::LeasesAwaited,
        Guard::ManifestsReadAgain,
        Guard::AwaitedBeforeRead,
        Guard::ListedAgain,
        Guard::FencedCannotPublish,
    ];
}

const WRITERS: usize = 2;

/// The number of backups that each writer can begin.
const RUNS_MAX: u8 = 2;

/// The state of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    /// The writer has looked without a lease, which only a guard that is off permits.
    LookedEarly {
        uses: bool,
    },
    Leased,
    Looked {
        uses: bool,
    },
    /// The writer has died, and its lease still exists.
    Dead,
    /// The writer's lease was taken away without its knowledge.
    Fenced {
        uses: bool,
    },
}

/// A lease: the writer, and the number of its run.
type Lease = (usize, u8);

/// The state of the pruner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pruner {
    Idle,
    /// The pruner has found that no manifest needs the block.
    FoundUnneeded,
    /// The leases were listed before the block was condemned, which only a guard that is off permits.
    ListedEarly([Option<Lease>; WRITERS]),
    /// The block is condemned, and the leases are not listed yet.
    Condemned,
    /// The list of leases is complete.
    Waiting,
    /// The listed leases have ended, or a guard that is off made waiting for them unnecessary.
    Awaited,
    /// Manifests were read before the leases had ended, which only a guard that is off permits.
    ReadEarly,
    /// No manifest needs the block, which is removed next.
    Removing,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    is_stored: bool,
    /// The list of leases, once it is complete.
    condemned: Option<Option<[Option<Lease>; WRITERS]>>,
    writers: [Writer; WRITERS],
    runs: [u8; WRITERS],
    /// Whether a manifest needs the block: first an older backup's, then each writer's.
    needed_by: [bool; WRITERS + 1],
    pruner: Pruner,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the product")]
pub enum Step {
    TakeLease(usize),
    Look(usize),
    Publish(usize),
    Die(usize),
    Fence(usize),
    GiveUp(usize),
    Forget(usize),
    FindUnneeded,
    Condemn,
    ListLeases,
    Await,
    ReadManifests,
    Remove,
    PrunerDies,
}

/// The protocol, with one guard off or none.
#[derive(Clone, Debug)]
pub struct Popular {
    /// The guard that is off.
    pub off: Option<Guard>,
}

impl Popular {
    fn holds(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }

    fn step(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::TakeLease(n) => {
                state.writers[n] = match state.writers[n] {
                    Writer::Idle
                        if self.holds(Guard::LeaseBeforeLook) && state.runs[n] < RUNS_MAX =>
                    {
                        state.runs[n] += 1;
                        Writer::Leased
                    }
                    Writer::LookedEarly { uses } => Writer::Looked { uses },
                    _ => return None,
                };
            }
            Step::Look(n) => {
                let is_absent = self.holds(Guard::CondemnedIsAbsent) && state.condemned.is_some();
                let uses = state.is_stored && !is_absent;
                state.writers[n] = match state.writers[n] {
                    Writer::Leased => Writer::Looked { uses },
                    Writer::Idle
                        if !self.holds(Guard::LeaseBeforeLook) && state.runs[n] < RUNS_MAX =>
                    {
                        state.runs[n] += 1;
                        Writer::LookedEarly { uses }
                    }
                    _ => return None,
                };
            }
            Step::Publish(n) => {
                let uses = match state.writers[n] {
                    Writer::Looked { uses } => uses,
                    Writer::Fenced { uses } if !self.holds(Guard::FencedCannotPublish) => uses,
                    _ => return None,
                };
                state.needed_by[n + 1] |= uses;
                state.writers[n] = Writer::Idle;
            }
            Step::Forget(n) => {
                state.needed_by[n].then_some(())?;
                state.needed_by[n] = false;
            }
            Step::Die(n) | Step::Fence(n) | Step::GiveUp(n) => {
                state.writers[n] = ended(state.writers[n], step)?;
            }
            _ => return self.prune(state, step),
        }
        Some(())
    }

    /// The pruner's steps.
    fn prune(&self, state: &mut State, step: Step) -> Option<()> {
        let is_needed = state.needed_by.contains(&true);
        state.pruner = match (step, state.pruner) {
            (Step::FindUnneeded, Pruner::Idle) => match state.condemned {
                // Continues the work of a pruner that died.
                Some(Some(_)) => Pruner::Waiting,
                Some(None) if self.holds(Guard::ListedAgain) => Pruner::Condemned,
                Some(None) => Pruner::Awaited,
                None if state.is_stored && !is_needed => Pruner::FoundUnneeded,
                None => return None,
            },
            (Step::Condemn, Pruner::FoundUnneeded) if self.holds(Guard::CondemnedBeforeListed) => {
                state.condemned = Some(None);
                Pruner::Condemned
            }
            (Step::Condemn, Pruner::ListedEarly(leases)) => {
                state.condemned = Some(Some(leases));
                Pruner::Waiting
            }
            (Step::ListLeases, Pruner::Condemned) => {
                state.condemned = Some(Some(leases(state)));
                Pruner::Waiting
            }
            (Step::ListLeases, Pruner::FoundUnneeded)
                if !self.holds(Guard::CondemnedBeforeListed) =>
            {
                Pruner::ListedEarly(leases(state))
            }
            (Step::Await, Pruner::Waiting) => {
                self.have_ended(state).then_some(())?;
                Pruner::Awaited
            }
            (Step::Await, Pruner::ReadEarly) => {
                self.have_ended(state).then_some(())?;
                Pruner::Removing
            }
            (Step::ReadManifests, Pruner::Awaited) => {
                if is_needed && self.holds(Guard::ManifestsReadAgain) {
                    state.condemned = None;
                    Pruner::Idle
                } else {
                    Pruner::Removing
                }
            }
            (Step::ReadManifests, Pruner::Waiting)
                if !self.holds(Guard::AwaitedBeforeRead) && !is_needed =>
            {
                Pruner::ReadEarly
            }
            (Step::Remove, Pruner::Removing) => {
                state.is_stored = false;
                state.condemned = None;
                Pruner::Idle
            }
            (Step::PrunerDies, Pruner::Idle) => return None,
            (Step::PrunerDies, _) => Pruner::Idle,
            _ => return None,
        };
        Some(())
    }

    fn have_ended(&self, state: &State) -> bool {
        let Some(Some(listed)) = state.condemned else {
            return true;
        };
        let held = leases(state);
        let mut listed = listed.iter().flatten();
        !self.holds(Guard::LeasesAwaited) || !listed.any(|lease| held.contains(&Some(*lease)))
    }
}

/// The new state of a writer that dies, loses its lease, or notices the loss.
fn ended(writer: Writer, step: Step) -> Option<Writer> {
    match (step, writer) {
        (Step::Die(_), Writer::Leased | Writer::Looked { .. }) => Some(Writer::Dead),
        (Step::Die(_), Writer::LookedEarly { .. }) | (Step::Fence(_), Writer::Dead) => {
            Some(Writer::Idle)
        }
        (Step::Fence(_), Writer::Leased) => Some(Writer::Fenced { uses: false }),
        (Step::Fence(_), Writer::Looked { uses }) => Some(Writer::Fenced { uses }),
        (Step::GiveUp(_), Writer::Fenced { .. }) => Some(Writer::Idle),
        _ => None,
    }
}

/// The leases that exist.
fn leases(state: &State) -> [Option<Lease>; WRITERS] {
    std::array::from_fn(|n| match state.writers[n] {
        Writer::Leased | Writer::Looked { .. } | Writer::Dead => Some((n, state.runs[n])),
        Writer::Idle | Writer::LookedEarly { .. } | Writer::Fenced { .. } => None,
    })
}

impl Model for Popular {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            is_stored: true,
            condemned: None,
            writers: [Writer::Idle; WRITERS],
            runs: [0; WRITERS],
            needed_by: [true, false, false],
            pruner: Pruner::Idle,
        }]
    }

    fn actions(&self, _: &State, steps: &mut Vec<Step>) {
        for n in 0..WRITERS {
            steps.extend([
                Step::TakeLease(n),
                Step::Look(n),
                Step::Publish(n),
                Step::Die(n),
                Step::Fence(n),
                Step::GiveUp(n),
            ]);
        }
        steps.extend((0..=WRITERS).map(Step::Forget));
        steps.extend([
            Step::FindUnneeded,
            Step::Condemn,
            Step::ListLeases,
            Step::Await,
            Step::ReadManifests,
            Step::Remove,
            Step::PrunerDies,
        ]);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what a backup needs is there", |_, state: &State| {
                state.is_stored || !state.needed_by.contains(&true)
            }),
            Property::sometimes("the block goes", |_, state: &State| !state.is_stored),
            Property::sometimes("a condemned block comes back", |_, state: &State| {
                state.condemned.is_some() && state.needed_by.contains(&true)
            }),
        ]
    }
}

/// Visits every state. Returns their number, and the steps to a backup that needs a removed block.
#[must_use]
pub fn search(off: Option<Guard>) -> (usize, Option<Vec<Step>>) {
    let checker = Popular { off }.checker().threads(1).spawn_bfs().join();
    let found = checker.discovery("what a backup needs is there");
    let states = checker.unique_state_count();
    if off.is_none() {
        checker.assert_any_discovery("the block goes");
        checker.assert_any_discovery("a condemned block comes back");
    }
    (states, found.map(stateright::Path::into_actions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_order_of_steps_loses_a_block_that_a_backup_needs() {
        let (states, found) = search(None);
        println!("{states} states");
        assert_eq!(found, None);
        assert!(states > 1000, "{states}");
    }

    #[test]
    fn every_rule_is_needed() {
        for guard in Guard::ALL {
            let (states, found) = search(Some(guard));
            let steps = found.unwrap_or_else(|| panic!("{guard:?} is not needed"));
            println!("{guard:?} off: {} steps, {states} states", steps.len());
        }
    }
}
