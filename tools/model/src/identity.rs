//! Which source of a repository a disk belongs to: two hosts, each with a pool of its own and a disk, and both disks
//! have the same name. `docs/model.md` lists the omissions. The product's part is `identity.rs` of the commands, and
//! `Catalogue::add` of `repository/src/source.rs`.

use std::collections::BTreeMap;

use stateright::{Checker, Model, Property};

/// The rules. With one off, the search must find a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A source with the disk's name is continued only if it also has the disk's origin.
    OriginCompared,
    /// If no source has the disk's name, the disk's origin is looked for.
    OriginLookedFor,
    /// A host that creates a source lists all sources after it has written the object, and yields to one of the same
    /// name.
    ListedAfterWritten,
}

impl Guard {
    /// The guards, in the order of their table in `docs/model.md`.
    pub const ALL: [Guard; 3] = [
        Guard::OriginCompared,
        Guard::OriginLookedFor,
        Guard::ListedAfterWritten,
    ];

    /// The property that is violated with the guard off.
    #[must_use]
    pub fn protects(self) -> &'static str {
        match self {
            Guard::OriginCompared => ONE_DISK,
            Guard::OriginLookedFor => ONE_HISTORY,
            Guard::ListedAfterWritten => ONE_NAME,
        }
    }
}

const ONE_DISK: &str = "a history has one disk";
const ONE_HISTORY: &str = "a disk has one history";
const ONE_NAME: &str = "a name is of one history";

/// Events that the search must reach.
const MET: [&str; 2] = ["a renamed disk goes on", "a source is adopted"];

/// The number of disks. A disk is identified by its origin: a pool and a volume's number there.
const DISKS: usize = 2;

/// The number of sources that can be made.
const SOURCES_MAX: usize = 3;

/// The number of times that a disk can be renamed.
const RENAMED_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Disk {
    name: u8,
    renamed: u8,
    create: Create,
}

/// The progress of a disk's `create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Create {
    Idle,
    /// The disk continues a source.
    Continues(usize),
    /// The disk has no source yet.
    IsNew,
    /// The object of a new source is written.
    Written(usize),
}

/// A source that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source {
    name: u8,
    origin: usize,
    is_there: bool,
    /// Disks whose backups are in the history of the source.
    has: [bool; DISKS],
    /// The user has assigned the source to another disk.
    is_adopted: bool,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    disks: [Disk; DISKS],
    sources: Vec<Source>,
}

/// A step, of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the product")]
pub enum Step {
    Identify(usize),
    Adopt(usize),
    Write(usize),
    ListAgain(usize),
    BackUp(usize),
    Rename(usize),
}

/// The protocol, with one guard off or none.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The guard that is off.
    pub off: Option<Guard>,
}

impl Identity {
    fn holds(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }

    /// Takes a step. Returns `None` if it is refused.
    fn step(&self, state: &mut State, step: Step) -> Option<()> {
        let (Step::Identify(n)
        | Step::Adopt(n)
        | Step::Write(n)
        | Step::ListAgain(n)
        | Step::BackUp(n)
        | Step::Rename(n)) = step;
        let disk = state.disks[n];
        state.disks[n].create = match (step, disk.create) {
            (Step::Identify(_), Create::Idle) => self.identify(state, n)?,
            (Step::Adopt(_), Create::Idle) => {
                let source = named(state, disk.name).ok()??;
                (state.sources[source].origin != n).then_some(())?;
                state.sources[source].origin = n;
                state.sources[source].is_adopted = true;
                Create::Continues(source)
            }
            (Step::Write(_), Create::IsNew) => {
                let source = state.sources.len();
                (source < SOURCES_MAX).then_some(())?;
                state.sources.push(Source {
                    name: disk.name,
                    origin: n,
                    is_there: true,
                    has: [false; DISKS],
                    is_adopted: false,
                });
                if self.holds(Guard::ListedAfterWritten) {
                    Create::Written(source)
                } else {
                    Create::Continues(source)
                }
            }
            (Step::ListAgain(_), Create::Written(source)) => {
                let is_first = named(state, disk.name) == Ok(Some(source));
                state.sources[source].is_there = is_first;
                if is_first {
                    Create::Continues(source)
                } else {
                    Create::Idle
                }
            }
            (Step::BackUp(_), Create::Continues(source)) => {
                state.sources[source].has[n] = true;
                Create::Idle
            }
            (Step::Rename(_), Create::Idle) if disk.renamed < RENAMED_MAX => {
                state.disks[n].name = 1 - disk.name;
                state.disks[n].renamed += 1;
                Create::Idle
            }
            _ => return None,
        };
        Some(())
    }

    /// Looks for the source by name, and by origin if no source has the name.
    fn identify(&self, state: &State, n: usize) -> Option<Create> {
        if let Some(source) = named(state, state.disks[n].name).ok()? {
            let is_it = state.sources[source].origin == n;
            let continues = is_it || !self.holds(Guard::OriginCompared);
            return continues.then_some(Create::Continues(source));
        }
        let is_of_disk = |source: &Source| source.is_there && source.origin == n;
        let of_disk = if self.holds(Guard::OriginLookedFor) {
            only(state, is_of_disk).ok()?
        } else {
            None
        };
        Some(of_disk.map_or(Create::IsNew, Create::Continues))
    }
}

/// The error that several sources match.
#[derive(PartialEq)]
struct Several;

fn named(state: &State, name: u8) -> Result<Option<usize>, Several> {
    only(state, |source| source.is_there && source.name == name)
}

fn only(state: &State, is_it: impl Fn(&Source) -> bool) -> Result<Option<usize>, Several> {
    let mut found = (0..state.sources.len()).filter(|source| is_it(&state.sources[*source]));
    match (found.next(), found.next()) {
        (_, Some(_)) => Err(Several),
        (first, None) => Ok(first),
    }
}

impl Model for Identity {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let disk = Disk {
            name: 0,
            renamed: 0,
            create: Create::Idle,
        };
        vec![State {
            disks: [disk; DISKS],
            sources: Vec::new(),
        }]
    }

    fn actions(&self, _: &State, steps: &mut Vec<Step>) {
        for n in 0..DISKS {
            steps.extend([
                Step::Identify(n),
                Step::Adopt(n),
                Step::Write(n),
                Step::ListAgain(n),
                Step::BackUp(n),
                Step::Rename(n),
            ]);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_DISK, |_, state: &State| {
                let mut sources = state.sources.iter();
                sources.all(|source| source.is_adopted || source.has != [true; DISKS])
            }),
            Property::always(ONE_HISTORY, |_, state: &State| {
                let is_adopted = state.sources.iter().any(|source| source.is_adopted);
                is_adopted
                    || (0..DISKS).all(|n| {
                        let histories = state.sources.iter().filter(|source| source.has[n]);
                        histories.count() <= 1
                    })
            }),
            Property::always(ONE_NAME, |_, state: &State| {
                (0..2).all(|name| {
                    let named = |source: &Source| source.name == name && source.has.contains(&true);
                    only(state, named).is_ok()
                })
            }),
            Property::sometimes(MET[0], |_, state: &State| {
                let mut sources = state.sources.iter().enumerate();
                sources.any(|(n, source)| {
                    source.has[source.origin]
                        && state.disks[source.origin].create == Create::Continues(n)
                        && state.disks[source.origin].name != source.name
                })
            }),
            Property::sometimes(MET[1], |_, state: &State| {
                state
                    .sources
                    .iter()
                    .any(|source| source.has == [true; DISKS])
            }),
        ]
    }
}

/// Visits every state. Returns their number, and the violated properties, each with the steps that lead there.
#[must_use]
pub fn search(off: Option<Guard>) -> (usize, BTreeMap<&'static str, Vec<Step>>) {
    let checker = Identity { off }.checker().threads(1).spawn_bfs().join();
    if off.is_none() {
        for name in MET {
            checker.assert_any_discovery(name);
        }
    }
    let found = checker.discoveries().into_iter();
    let violated = found.filter(|(name, _)| !MET.contains(name));
    let violated = violated.map(|(name, path)| (name, path.into_actions()));
    (checker.unique_state_count(), violated.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_disks_of_one_name_have_two_histories() {
        let (states, violated) = search(None);
        println!("{states} states");
        assert_eq!(violated, BTreeMap::new());
        assert!(states > 1000, "{states}");
    }

    #[test]
    fn every_rule_is_needed() {
        for guard in Guard::ALL {
            let (states, violated) = search(Some(guard));
            let steps = violated.get(guard.protects());
            let steps = steps.unwrap_or_else(|| panic!("{guard:?} off: {violated:?}"));
            let count = steps.len();
            println!("{guard:?} off: {count} steps, {states} states");
        }
    }
}
