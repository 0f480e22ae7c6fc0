//! When a source's stored block may be replaced by a popular one: `share`, which may die, a prune that moves the block,
//! the prune of popular blocks, forgetting, hosts that die, and a source's folder that is temporarily missing. One
//! content, one source; `docs/model.md` lists the omissions. The product's part is `backup/src/share.rs`, `moves.rs`
//! and `popular.rs`.

use stateright::{Checker, Model, Property};

/// The rules. With one off, the search must find a backup that needs a removed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The name of the popular pack is durable before a pack refers to it, whichever process wrote the popular pack.
    DurableBeforeMoved,
    /// The source is a user of the popular blocks before a pack refers to them.
    UserBeforeMoved,
    /// Blocks that moved blocks refer to count as needed.
    MovesCounted,
    /// A block is never moved to a condemned one.
    CondemnedIsAbsent,
    /// The block stays until a prune that may have seen it has ended.
    LeaseAwaited,
}

impl Guard {
    /// The guards, in the order of their table in `docs/model.md`.
    pub const ALL: [Guard; 5] = [
        Guard::DurableBeforeMoved,
        Guard::UserBeforeMoved,
        Guard::MovesCounted,
        Guard::CondemnedIsAbsent,
        Guard::LeaseAwaited,
    ];
}

/// The number of times that the source is pruned, and that its folder is missing.
const RUNS_MAX: u8 = 2;

/// The popular block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Popular {
    Absent,
    /// All hosts see the popular pack, and the host's death may remove it.
    Named,
    Durable,
}

/// The state of the source's prune.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mover {
    Idle,
    Leased,
    /// The prune has looked, and may move the block.
    Looked {
        /// Whether the prune has made the popular pack's name durable.
        is_synced: bool,
    },
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    popular: Popular,
    /// If the block is condemned: whether the prune that holds the lease began before that.
    condemned: Option<bool>,
    /// Whether the source stores the block itself.
    is_own: bool,
    is_user: bool,
    is_away: bool,
    is_needed: bool,
    mover: Mover,
    prunes: u8,
    absences: u8,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the product")]
pub enum Step {
    Share,
    Sync,
    HostDies,
    TakeLease,
    Look,
    AddUser,
    Move,
    End,
    Forget,
    GoAway,
    ComeBack,
    Condemn,
    Remove,
}

const STEPS: [Step; 13] = [
    Step::Share,
    Step::Sync,
    Step::HostDies,
    Step::TakeLease,
    Step::Look,
    Step::AddUser,
    Step::Move,
    Step::End,
    Step::Forget,
    Step::GoAway,
    Step::ComeBack,
    Step::Condemn,
    Step::Remove,
];

/// The protocol, with one guard off or none.
#[derive(Clone, Debug)]
pub struct Share {
    /// The guard that is off.
    pub off: Option<Guard>,
}

impl Share {
    fn holds(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }

    /// Takes a step. Returns whether it was possible.
    fn step(&self, state: &mut State, step: Step) -> bool {
        let is_there = state.popular != Popular::Absent;
        match step {
            Step::Share => {
                let is_possible = !is_there && state.is_own && !state.is_away;
                if is_possible {
                    state.popular = Popular::Named;
                }
                is_possible
            }
            // By the host that shared, or by the prune that moves the block.
            Step::Sync => {
                let is_new = matches!(state.mover, Mover::Looked { is_synced: false });
                let is_possible = is_there && (is_new || state.popular == Popular::Named);
                if is_possible {
                    state.popular = Popular::Durable;
                }
                if is_possible && is_new {
                    state.mover = Mover::Looked { is_synced: true };
                }
                is_possible
            }
            Step::HostDies => {
                if state.popular == Popular::Named {
                    state.popular = Popular::Absent;
                }
                end(state);
                true
            }
            Step::Forget => std::mem::replace(&mut state.is_needed, false),
            Step::GoAway => {
                let is_possible =
                    !state.is_away && state.absences < RUNS_MAX && state.mover == Mover::Idle;
                if is_possible {
                    state.is_away = true;
                    state.absences += 1;
                }
                is_possible
            }
            Step::ComeBack => std::mem::replace(&mut state.is_away, false),
            Step::TakeLease | Step::Look | Step::AddUser | Step::Move | Step::End => {
                self.move_on(state, step)
            }
            Step::Condemn | Step::Remove => self.prune(state, step),
        }
    }

    /// The steps of a prune of the source.
    fn move_on(&self, state: &mut State, step: Step) -> bool {
        match (step, state.mover) {
            (Step::TakeLease, Mover::Idle) if !state.is_away && state.prunes < RUNS_MAX => {
                state.prunes += 1;
                state.mover = Mover::Leased;
            }
            (Step::Look, Mover::Leased) => {
                let is_absent = self.holds(Guard::CondemnedIsAbsent) && state.condemned.is_some();
                if is_absent || state.popular == Popular::Absent || !state.is_own {
                    return false;
                }
                state.mover = Mover::Looked { is_synced: false };
            }
            (Step::AddUser, Mover::Looked { .. }) if !state.is_user => state.is_user = true,
            (Step::Move, Mover::Looked { is_synced }) => {
                if self.holds(Guard::DurableBeforeMoved) && !is_synced
                    || self.holds(Guard::UserBeforeMoved) && !state.is_user
                {
                    return false;
                }
                state.is_own = false;
                end(state);
            }
            (Step::End, Mover::Leased | Mover::Looked { .. }) => end(state),
            _ => return false,
        }
        true
    }

    /// The steps of the prune of popular blocks.
    fn prune(&self, state: &mut State, step: Step) -> bool {
        if state.popular == Popular::Absent || state.is_away && state.is_user {
            return false;
        }
        let is_seen = !state.is_away && self.holds(Guard::MovesCounted);
        let is_needed = is_seen && state.is_needed && !state.is_own;
        match (step, state.condemned) {
            (Step::Condemn, None) if !is_needed => {
                state.condemned = Some(state.mover != Mover::Idle);
            }
            (Step::Remove, Some(is_under_way)) => {
                if is_under_way && self.holds(Guard::LeaseAwaited) {
                    return false;
                }
                state.condemned = None;
                if !is_needed {
                    state.popular = Popular::Absent;
                }
            }
            _ => return false,
        }
        true
    }
}

/// The prune of the source ends, and with it its lease.
fn end(state: &mut State) {
    state.mover = Mover::Idle;
    state.condemned = state.condemned.map(|_| false);
}

impl Model for Share {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            popular: Popular::Absent,
            condemned: None,
            is_own: true,
            is_user: false,
            is_away: false,
            is_needed: true,
            mover: Mover::Idle,
            prunes: 0,
            absences: 0,
        }]
    }

    fn actions(&self, _: &State, steps: &mut Vec<Step>) {
        steps.extend(STEPS);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what a backup needs is there", |_, state: &State| {
                !state.is_needed || state.is_own || state.popular != Popular::Absent
            }),
            Property::sometimes("the block is moved", |_, state: &State| !state.is_own),
            Property::sometimes("and goes", |_, state: &State| {
                !state.is_own && state.popular == Popular::Absent
            }),
        ]
    }
}

/// Visits every state. Returns their number, and the steps to a backup that needs a removed block.
#[must_use]
pub fn search(off: Option<Guard>) -> (usize, Option<Vec<Step>>) {
    let checker = Share { off }.checker().threads(1).spawn_bfs().join();
    let found = checker.discovery("what a backup needs is there");
    let states = checker.unique_state_count();
    if off.is_none() {
        checker.assert_any_discovery("the block is moved");
        checker.assert_any_discovery("and goes");
    }
    (states, found.map(stateright::Path::into_actions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_order_of_steps_loses_a_block_that_was_moved() {
        let (states, found) = search(None);
        println!("{states} states");
        assert_eq!(found, None);
        assert!(states > 100, "{states}");
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
