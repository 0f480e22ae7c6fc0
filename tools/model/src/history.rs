//! The backups of a source, and the meaning of their numbers: two hosts that back up and prune, forgetting, killed
//! processes, leases that are taken away, and a storage that loses packs and manifests and puts old ones back. A disk
//! is one block here; `docs/model.md` lists the other omissions. The product's part is `history.rs`, `packs.rs` and
//! `writer.rs` of `repository/src`, and `create.rs`, `moves.rs` and `prune.rs` of `backup/src`.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The rules. With one off, the search must find a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A manifest names the witness of its pack, and a pack with another one is a different pack.
    Witness,
    /// A moved block names the witness of its popular pack.
    MovedWitness,
    /// A child copies the witness that its parent names, whichever pack is listed.
    WitnessOfParent,
    /// The tombstone is written before the manifest is removed.
    TombstoneFirst,
    /// A closed number outweighs a manifest that still exists, or exists again.
    TombstoneOutweighs,
    /// The next holder of the lease closes the number that a killed holder was working on.
    KilledIsClosed,
    /// A number whose manifest exists is not closed.
    PublishedNotClosed,
    /// No step of a holder whose lease was taken away takes effect.
    LateHasNoEffect,
    /// While a backup is missing, nothing is pruned.
    CompleteBeforePrune,
    /// The number of a backup is above the numbers of all recipes.
    NumbersOfRecipes,
    /// The number of a backup is above all closed numbers.
    NumbersOfClosed,
    /// The number of a pack is above all pack numbers that manifests name.
    PacksOfManifests,
    /// The number of a pack is above all pack numbers that closed numbers remember.
    PacksOfClosed,
}

impl Guard {
    /// The guards, in the order of their table in `docs/model.md`.
    pub const ALL: [Guard; 13] = [
        Guard::Witness,
        Guard::MovedWitness,
        Guard::WitnessOfParent,
        Guard::TombstoneFirst,
        Guard::TombstoneOutweighs,
        Guard::KilledIsClosed,
        Guard::PublishedNotClosed,
        Guard::LateHasNoEffect,
        Guard::CompleteBeforePrune,
        Guard::NumbersOfRecipes,
        Guard::NumbersOfClosed,
        Guard::PacksOfManifests,
        Guard::PacksOfClosed,
    ];
}

const HOSTS: usize = 2;

/// The most numbers that a search gives to backups, from 0 on.
const BACKUPS_MAX: usize = 3;

/// The size of a search. In each search the storage loses an object once and puts one back once, a holder of the lease
/// dies or loses it, a host prunes, and a backup is forgotten.
#[derive(Clone, Copy, Debug)]
struct Limits {
    backups: u8,
    popular: usize,
}

/// The searches, each small enough to be exhaustive.
const SEARCHES: [Limits; 2] = [
    Limits {
        backups: 2,
        popular: 2,
    },
    Limits {
        backups: 3,
        popular: 0,
    },
];

/// Events that the searches must reach.
const MET: [&str; 3] = [
    "a different pack is refused",
    "a moved block is read",
    "a forgotten manifest returns",
];

/// The number of all popular packs, above all numbers of a source. In the product it is random; here it is the same
/// every time.
const POPULAR: u8 = 7;

/// A pack that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pack {
    number: u8,
    content: u8,
    witness: u8,
    /// The witness of the popular pack that has the content. If set, this is the pack's next generation.
    moved: Option<u8>,
    is_there: bool,
}

/// A manifest that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Manifest {
    backup: u8,
    /// The content of the disk when it was backed up.
    content: u8,
    pack: u8,
    witness: u8,
    is_there: bool,
    /// The storage has lost the manifest, even if it exists again.
    was_taken: bool,
    /// The user wants to forget it.
    is_given_up: bool,
    /// `forget` has answered.
    is_forgotten: bool,
}

/// The work of a host while it holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// The lease notes the number of the backup.
    Begun {
        backup: u8,
    },
    /// Pack and recipe are stored.
    Stored {
        backup: u8,
        content: u8,
        pack: u8,
        /// The witness of the new pack; none to use the witness of the pack listed at the end, which only a guard that
        /// is off permits.
        witness: Option<u8>,
    },
    /// The manifest is published, and the lease still notes the number.
    Published {
        backup: u8,
    },
    Prune,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Idle,
    Holds(Work),
    /// The host's lease was taken away without its knowledge. With all guards on, this equals death.
    Late(Work),
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    packs: Vec<Pack>,
    manifests: Vec<Manifest>,
    recipes: [bool; BACKUPS_MAX],
    /// For each closed number, the number of the next pack.
    tombstones: [Option<u8>; BACKUPS_MAX],
    hosts: [Host; HOSTS],
    /// The backup that the last holder was working on when it lost the lease.
    remains: Option<u8>,
    /// The manifest of the backup that is being forgotten.
    forgetting: Option<usize>,
    /// Numbers of packs that the storage lost or replaced.
    taken_packs: u8,
    /// A pack got a number by which a manifest refers to another pack.
    is_confused: bool,
    happened: Happened,
}

/// Events that happen once at most, and whether they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Happened {
    losses: bool,
    returns: bool,
    deaths: bool,
    prunes: bool,
    forgets: bool,
}

/// An object of the storage, numbered in the order in which objects of its kind were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the product")]
pub enum Object {
    Pack(usize),
    Manifest(usize),
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the words of the product")]
pub enum Step {
    Create(usize),
    /// Stores the disk's content, which has changed, or whose parent is unusable.
    Store(usize),
    /// Continues with the parent's block, because the disk has not changed.
    Continue(usize),
    Publish(usize),
    Prune(usize),
    End(usize),
    Die(usize),
    Fence(usize),
    Share(usize),
    Move(usize),
    RemovePack(usize),
    RemoveRecipe(usize),
    Forget(usize),
    ForgetTheRest,
    ForgetterDies,
    Lose(Object),
    PutBack(Object),
}

/// The protocol, with one guard off or none.
#[derive(Clone, Debug)]
pub struct History {
    off: Option<Guard>,
    limits: Limits,
}

impl History {
    fn holds(&self, guard: Guard) -> bool {
        self.off != Some(guard)
    }

    fn step(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Create(n) => {
                self.take_lease(state, n)?;
                let backup = self.next_backup(state);
                (backup < self.limits.backups).then_some(())?;
                state.hosts[n] = Host::Holds(Work::Begun { backup });
            }
            Step::Prune(n) => {
                once(&mut state.happened.prunes)?;
                self.take_lease(state, n)?;
                state.hosts[n] = Host::Holds(Work::Prune);
            }
            Step::Store(n) | Step::Continue(n) | Step::Publish(n) => self.make(state, step, n)?,
            Step::End(n) => {
                let Host::Holds(work) = state.hosts[n] else {
                    return None;
                };
                if let Work::Begun { backup } | Work::Stored { backup, .. } = work {
                    self.close(state, backup);
                }
                state.hosts[n] = Host::Idle;
            }
            Step::Die(n) | Step::Fence(n) => {
                let Host::Holds(work) = state.hosts[n] else {
                    return None;
                };
                once(&mut state.happened.deaths)?;
                state.remains = work.noted();
                let is_late = matches!(step, Step::Fence(_)) && !self.holds(Guard::LateHasNoEffect);
                state.hosts[n] = if is_late {
                    Host::Late(work)
                } else {
                    Host::Idle
                };
            }
            Step::Share(_) | Step::Move(_) | Step::RemovePack(_) | Step::RemoveRecipe(_) => {
                self.prune(state, step)?;
            }
            Step::Forget(_) | Step::ForgetTheRest | Step::ForgetterDies => {
                self.forget(state, step)?;
            }
            Step::Lose(object) => {
                once(&mut state.happened.losses)?;
                take(state, object)?;
            }
            Step::PutBack(object) => {
                once(&mut state.happened.returns)?;
                put_back(state, object)?;
            }
        }
        Some(())
    }

    /// Takes the lease, and first finishes the work that the last holder left.
    fn take_lease(&self, state: &mut State, n: usize) -> Option<()> {
        let mut hosts = state.hosts.iter();
        let is_held = hosts.any(|host| matches!(host, Host::Holds(_)));
        // Two idle hosts are alike: only the first one acts.
        let is_first = state.hosts.iter().position(|host| *host == Host::Idle) == Some(n);
        (!is_held && is_first).then_some(())?;
        if let Some(backup) = state.remains.take()
            && self.holds(Guard::KilledIsClosed)
        {
            self.close(state, backup);
        }
        Some(())
    }

    fn close(&self, state: &mut State, backup: u8) {
        let is_published = self
            .backups(state)
            .any(|manifest| manifest.backup == backup);
        let tombstone = state.tombstones[usize::from(backup)];
        if tombstone.is_none() && !(is_published && self.holds(Guard::PublishedNotClosed)) {
            state.tombstones[usize::from(backup)] = Some(self.next_pack(state));
        }
    }

    /// The steps of a backup after its number was noted.
    fn make(&self, state: &mut State, step: Step, n: usize) -> Option<()> {
        let (Host::Holds(work) | Host::Late(work)) = state.hosts[n] else {
            return None;
        };
        let is_late = matches!(state.hosts[n], Host::Late(_));
        (!is_late || !self.holds(Guard::LateHasNoEffect)).then_some(())?;
        let work = match (step, work) {
            (Step::Store(_), Work::Begun { backup }) => {
                let pack = self.next_pack_above_manifests(state);
                let is_confused = self.backups(state).any(|manifest| manifest.pack == pack);
                state.is_confused = is_confused;
                let content = write_pack(state, pack, None);
                let witness = Some(content);
                Work::Stored {
                    backup,
                    content,
                    pack,
                    witness,
                }
            }
            (Step::Continue(_), Work::Begun { backup }) => {
                let parent = *self.backups(state).max_by_key(|manifest| manifest.backup)?;
                self.restored(state, &parent)?;
                Work::Stored {
                    backup,
                    content: parent.content,
                    pack: parent.pack,
                    witness: self.holds(Guard::WitnessOfParent).then_some(parent.witness),
                }
            }
            (
                Step::Publish(_),
                Work::Stored {
                    backup,
                    content,
                    pack,
                    witness,
                },
            ) => {
                let witness = witness.or_else(|| Some(newest(state, pack)?.witness))?;
                let is_new = there(state).all(|manifest| manifest.backup != backup);
                is_new.then_some(())?;
                state.manifests.push(Manifest {
                    backup,
                    content,
                    pack,
                    witness,
                    is_there: true,
                    was_taken: false,
                    is_given_up: false,
                    is_forgotten: false,
                });
                Work::Published { backup }
            }
            _ => return None,
        };
        if let Work::Stored { backup, .. } = work {
            state.recipes[usize::from(backup)] = true;
        }
        state.hosts[n] = if is_late {
            Host::Late(work)
        } else {
            Host::Holds(work)
        };
        Some(())
    }

    /// Sharing, and the steps of a prune.
    fn prune(&self, state: &mut State, step: Step) -> Option<()> {
        let popular = newest(state, POPULAR).copied();
        if let Step::Share(n) = step {
            let pack = state.packs[n];
            let is_possible = pack.is_there && pack.number != POPULAR && pack.moved.is_none();
            (is_possible && popular.is_none()).then_some(())?;
            write_pack(state, POPULAR, Some(pack.content));
            return Some(());
        }
        let is_held = state.hosts.contains(&Host::Holds(Work::Prune));
        is_held.then_some(())?;
        let is_complete = self.missing(state).next().is_none();
        (is_complete || !self.holds(Guard::CompleteBeforePrune)).then_some(())?;
        match step {
            Step::Move(n) => {
                let (pack, to) = (state.packs[n], popular?);
                let is_newest = newest(state, pack.number) == Some(&pack);
                let is_possible = is_newest && pack.number != POPULAR && pack.moved.is_none();
                (is_possible && to.content == pack.content).then_some(())?;
                state.packs[n].is_there = false;
                let moved = Some(to.witness);
                state.packs.push(Pack { moved, ..pack });
            }
            Step::RemovePack(n) => {
                let number = state.packs[n].number;
                let is_needed = self.backups(state).any(|manifest| manifest.pack == number);
                (number != POPULAR && !is_needed).then_some(())?;
                std::mem::replace(&mut state.packs[n].is_there, false).then_some(())?;
            }
            Step::RemoveRecipe(n) => {
                let is_needed = self
                    .backups(state)
                    .any(|manifest| usize::from(manifest.backup) == n);
                (!is_needed).then_some(())?;
                std::mem::replace(&mut state.recipes[n], false).then_some(())?;
            }
            _ => return None,
        }
        Some(())
    }

    /// A backup is forgotten in two steps, without the lease. For a missing backup, this accepts the loss.
    fn forget(&self, state: &mut State, step: Step) -> Option<()> {
        if matches!(step, Step::Forget(_)) {
            once(&mut state.happened.forgets)?;
        }
        let (n, is_first) = match (step, state.forgetting) {
            (Step::Forget(n), None) if !state.manifests[n].is_given_up => (n, true),
            (Step::ForgetTheRest, Some(n)) => (n, false),
            (Step::ForgetterDies, Some(_)) => {
                state.forgetting = None;
                return Some(());
            }
            _ => return None,
        };
        let of = state.manifests[n];
        if is_first == self.holds(Guard::TombstoneFirst) {
            let named = if of.is_there { of.pack + 1 } else { 0 };
            let next_pack = self.next_pack(state).max(named);
            state.tombstones[usize::from(of.backup)] = Some(next_pack);
        } else {
            state.manifests[n].is_there = false;
        }
        state.manifests[n].is_given_up = true;
        state.manifests[n].is_forgotten = !is_first;
        state.forgetting = is_first.then_some(n);
        Some(())
    }

    fn is_closed(&self, state: &State, backup: u8) -> bool {
        state.tombstones[usize::from(backup)].is_some()
    }

    /// The backups that exist: manifests that no closed number outweighs.
    fn backups<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Manifest> {
        let outweighs = self.holds(Guard::TombstoneOutweighs);
        there(state).filter(move |manifest| !(outweighs && self.is_closed(state, manifest.backup)))
    }

    /// Used numbers that have neither a manifest nor a tombstone, and that no lease notes as in progress.
    fn missing<'a>(&'a self, state: &'a State) -> impl Iterator<Item = u8> + 'a {
        let is_noted = move |backup| {
            let held = state.hosts.iter().filter_map(|host| match host {
                Host::Holds(work) => work.noted(),
                _ => None,
            });
            held.chain(state.remains).any(|noted| noted == backup)
        };
        let is_there = |backup| there(state).any(|manifest| manifest.backup == backup);
        let used = manifests_end(state)
            .max(recipes_end(state))
            .max(closed_end(state));
        (0..used).filter(move |backup| {
            !self.is_closed(state, *backup) && !is_there(*backup) && !is_noted(*backup)
        })
    }

    fn next_backup(&self, state: &State) -> u8 {
        let mut next = manifests_end(state);
        if self.holds(Guard::NumbersOfRecipes) {
            next = next.max(recipes_end(state));
        }
        if self.holds(Guard::NumbersOfClosed) {
            next = next.max(closed_end(state));
        }
        next
    }

    /// The number after the listed packs and the packs that closed numbers remember.
    fn next_pack(&self, state: &State) -> u8 {
        let own = state.packs.iter().filter(|pack| pack.number != POPULAR);
        let listed = own
            .filter(|pack| pack.is_there)
            .map(|pack| pack.number + 1)
            .max();
        let closed = state.tombstones.iter().flatten().copied().max();
        let closed = closed.filter(|_| self.holds(Guard::PacksOfClosed));
        listed.max(closed).unwrap_or(0)
    }

    fn next_pack_above_manifests(&self, state: &State) -> u8 {
        let named = self.backups(state).map(|manifest| manifest.pack + 1).max();
        let named = named.filter(|_| self.holds(Guard::PacksOfManifests));
        self.next_pack(state).max(named.unwrap_or(0))
    }

    /// The content that restoring a backup gives; none if the restore is refused.
    fn restored(&self, state: &State, manifest: &Manifest) -> Option<u8> {
        let pack = newest(state, manifest.pack)?;
        let is_it = pack.witness == manifest.witness;
        (is_it || !self.holds(Guard::Witness)).then_some(())?;
        let Some(moved) = pack.moved else {
            return Some(pack.content);
        };
        let popular = newest(state, POPULAR)?;
        let is_it = popular.witness == moved;
        (is_it || !self.holds(Guard::MovedWitness)).then_some(())?;
        Some(popular.content)
    }

    fn is_own(&self, state: &State, manifest: &Manifest) -> bool {
        let restored = self.restored(state, manifest);
        restored.is_none_or(|content| content == manifest.content)
    }

    /// Whether the objects that a backup needs exist. Losses by the storage are excused, because the repository cannot
    /// know them; a manifest that is missing when its writer is found dead is closed like one that was never written.
    fn is_kept(&self, state: &State, manifest: &Manifest) -> bool {
        let is_taken = |number: u8| state.taken_packs & (1 << number) != 0;
        manifest.is_given_up
            || manifest.was_taken && self.is_closed(state, manifest.backup)
            || is_taken(manifest.pack)
            || is_moved(state, manifest) && is_taken(POPULAR)
            || self.restored(state, manifest).is_some()
    }

    fn was_lost(state: &State, backup: u8) -> bool {
        let mut manifests = state.manifests.iter();
        manifests.any(|manifest| manifest.backup == backup && manifest.was_taken)
    }
}

impl Work {
    fn noted(self) -> Option<u8> {
        match self {
            Work::Begun { backup } | Work::Stored { backup, .. } | Work::Published { backup } => {
                Some(backup)
            }
            Work::Prune => None,
        }
    }
}

fn once(happened: &mut bool) -> Option<()> {
    (!std::mem::replace(happened, true)).then_some(())
}

/// Writes a new pack, with a unique content or with the content of another pack. Returns its witness.
fn write_pack(state: &mut State, number: u8, content: Option<u8>) -> u8 {
    let witness = state.packs.len() as u8;
    state.packs.push(Pack {
        number,
        content: content.unwrap_or(witness),
        witness,
        moved: None,
        is_there: true,
    });
    witness
}

/// The newest pack with this number: of two generations, the one with moved blocks.
fn newest(state: &State, number: u8) -> Option<&Pack> {
    let packs = state.packs.iter();
    let there = packs.filter(|pack| pack.is_there && pack.number == number);
    there.max_by_key(|pack| pack.moved.is_some())
}

fn is_moved(state: &State, manifest: &Manifest) -> bool {
    newest(state, manifest.pack).is_some_and(|pack| pack.moved.is_some())
}

fn there(state: &State) -> impl Iterator<Item = &Manifest> {
    state.manifests.iter().filter(|manifest| manifest.is_there)
}

/// The number after the last manifest's.
fn manifests_end(state: &State) -> u8 {
    there(state)
        .map(|manifest| manifest.backup + 1)
        .max()
        .unwrap_or(0)
}

fn recipes_end(state: &State) -> u8 {
    let last = state.recipes.iter().rposition(|is_there| *is_there);
    last.map_or(0, |last| last as u8 + 1)
}

fn closed_end(state: &State) -> u8 {
    let last = state.tombstones.iter().rposition(Option::is_some);
    last.map_or(0, |last| last as u8 + 1)
}

/// The storage loses an object.
fn take(state: &mut State, object: Object) -> Option<()> {
    let is_there = match object {
        Object::Pack(n) => {
            state.taken_packs |= 1 << state.packs[n].number;
            &mut state.packs[n].is_there
        }
        Object::Manifest(n) => {
            state.manifests[n].was_taken = true;
            &mut state.manifests[n].is_there
        }
    };
    std::mem::replace(is_there, false).then_some(())
}

/// Puts a lost or removed object back, in the place of another one of the same name.
fn put_back(state: &mut State, object: Object) -> Option<()> {
    let same = match object {
        Object::Pack(n) => {
            let name = |pack: &Pack| (pack.is_there, pack.number, pack.moved.is_some());
            let this = name(&Pack {
                is_there: true,
                ..state.packs[n]
            });
            let same = state.packs.iter().position(|pack| name(pack) == this);
            same.map(Object::Pack)
        }
        Object::Manifest(n) => {
            let this = (true, state.manifests[n].backup);
            let mut all = state.manifests.iter();
            let same = all.position(|manifest| (manifest.is_there, manifest.backup) == this);
            same.map(Object::Manifest)
        }
    };
    (same != Some(object)).then_some(())?;
    if let Some(same) = same {
        take(state, same)?;
    }
    match object {
        Object::Pack(n) => state.packs[n].is_there = true,
        Object::Manifest(n) => state.manifests[n].is_there = true,
    }
    Some(())
}

impl Model for History {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            packs: Vec::new(),
            manifests: Vec::new(),
            recipes: [false; BACKUPS_MAX],
            tombstones: [None; BACKUPS_MAX],
            hosts: [Host::Idle; HOSTS],
            remains: None,
            forgetting: None,
            taken_packs: 0,
            is_confused: false,
            happened: Happened::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (n, host) in state.hosts.iter().enumerate() {
            match host {
                Host::Idle => steps.extend([Step::Create(n), Step::Prune(n)]),
                Host::Holds(work) | Host::Late(work) => {
                    steps.extend([Step::End(n), Step::Die(n), Step::Fence(n)]);
                    match work {
                        Work::Begun { .. } => steps.extend([Step::Store(n), Step::Continue(n)]),
                        Work::Stored { .. } => steps.push(Step::Publish(n)),
                        Work::Published { .. } => {}
                        Work::Prune => {
                            steps.extend((0..state.packs.len()).map(Step::Move));
                            steps.extend((0..state.packs.len()).map(Step::RemovePack));
                            steps.extend((0..BACKUPS_MAX).map(Step::RemoveRecipe));
                        }
                    }
                }
            }
        }
        let popular = state.packs.iter().filter(|pack| pack.number == POPULAR);
        if popular.count() < self.limits.popular {
            steps.extend((0..state.packs.len()).map(Step::Share));
        }
        steps.extend((0..state.manifests.len()).map(Step::Forget));
        steps.extend([Step::ForgetTheRest, Step::ForgetterDies]);
        let packs = (0..state.packs.len()).map(Object::Pack);
        let manifests = (0..state.manifests.len()).map(Object::Manifest);
        for object in packs.chain(manifests) {
            if !state.happened.losses {
                steps.push(Step::Lose(object));
            }
            if !state.happened.returns {
                steps.push(Step::PutBack(object));
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a backup restores its own content", |this: &Self, state| {
                this.backups(state).all(|backup| this.is_own(state, backup))
            }),
            Property::always(
                "what a backup needs is kept",
                |this: &Self, state: &State| {
                    state.manifests.iter().all(|of| this.is_kept(state, of))
                },
            ),
            Property::always("what is forgotten is no backup", |this: &Self, state| {
                !this.backups(state).any(|backup| backup.is_forgotten)
            }),
            Property::always(
                "only what is forgotten goes",
                |this: &Self, state: &State| {
                    let mut kept = state.manifests.iter().filter(|of| !of.is_given_up);
                    kept.all(|of| of.was_taken || !this.is_closed(state, of.backup))
                },
            ),
            Property::always("only what was lost is missing", |this: &Self, state| {
                this.missing(state)
                    .all(|backup| Self::was_lost(state, backup))
            }),
            Property::always("a number is of one backup", |_, state: &State| {
                let numbers = state.manifests.iter().map(|manifest| manifest.backup);
                numbers.collect::<BTreeSet<_>>().len() == state.manifests.len()
            }),
            Property::always("a number is of one pack", |_, state: &State| {
                !state.is_confused
            }),
            Property::sometimes(MET[0], |this: &Self, state| {
                let is_another = |pack: &Pack, of: &Manifest| pack.witness != of.witness;
                let newest = |of: &Manifest| newest(state, of.pack);
                let mut backups = this.backups(state);
                backups.any(|of| newest(of).is_some_and(|pack| is_another(pack, of)))
            }),
            Property::sometimes(MET[1], |this: &Self, state| {
                let is_read = |of: &Manifest| this.restored(state, of).is_some();
                this.backups(state)
                    .any(|of| is_moved(state, of) && is_read(of))
            }),
            Property::sometimes(MET[2], |_, state| {
                there(state).any(|manifest| manifest.is_forgotten)
            }),
        ]
    }
}

/// Visits every state of each search, or the states up to the first violation. Returns their number, the property that
/// is violated, and the steps that lead there.
#[must_use]
pub fn search(off: Option<Guard>) -> (usize, Option<(&'static str, Vec<Step>)>) {
    let mut states = 0;
    let mut met = BTreeSet::new();
    for limits in SEARCHES {
        let checker = History { off, limits }.checker().threads(1);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.spawn_bfs().join();
        states += checker.unique_state_count();
        for (name, path) in checker.discoveries() {
            if !MET.contains(&name) {
                return (states, Some((name, path.into_actions())));
            }
            met.insert(name);
        }
    }
    assert!(off.is_some() || met.len() == MET.len(), "only met {met:?}");
    (states, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_backup_restores_with_another_content_or_loses_what_it_needs() {
        let (states, found) = search(None);
        println!("{states} states");
        assert_eq!(found, None);
        assert!(states > 1000, "{states}");
    }

    #[test]
    fn every_rule_is_needed() {
        for guard in Guard::ALL {
            let (states, found) = search(Some(guard));
            let (violated, steps) = found.unwrap_or_else(|| panic!("{guard:?} is not needed"));
            println!(
                "{guard:?} off: {violated}: {} steps, {states} states {steps:?}",
                steps.len()
            );
        }
    }
}
