//! Holds: rows of a shard that stores may be about to refer to.
//!
//! A store in line looks a content up, and makes an entry refer to the block that was found. The index counts that
//! reference later. Until then the row must not lose its last reference: another store would get the block and write
//! over it (P3). So the lookup *holds* the row, and a release that would remove it is refused.
//!
//! - A hold has the store's *lookup version*. Once a store has had the references counted that it made under a version and
//!   all earlier ones, it ends its holds of these versions together.
//! - Holds are in memory, and gone with the shard's owner. So the index *lists* the stores that may have some, durably,
//!   before their first hold. Those that the next owner finds in the list *owe* it an end: until all of them have ended
//!   their holds in the new session, it removes no row.
//!
//! # Lookups and batches
//!
//! A lookup runs concurrently with a frame that removes rows, and finds such a row until the frame is durable. A frame
//! announces the rows that it removes (`Removing`), and each frame that removed some raises a number (`removals`). A
//! lookup reads that number first, then looks the rows up, and then notes its holds, unless the number has changed. A
//! row that is being removed is absent for it. So a row that is held was there, and no frame has decided to remove it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::{Fingerprint, LookedUp, StreamId};

/// The rows that are held in a shard.
pub struct Holds {
    /// Held briefly, and with no other lock.
    state: Mutex<State>,
    /// The most rows that a store may hold. Beyond that a lookup finds nothing.
    rows_max: usize,
}

#[derive(Default)]
struct State {
    /// The holders of a row, with the lookup version of each one's last hold.
    rows: FxHashMap<Fingerprint, Holders>,
    /// The holds of each store.
    stores: BTreeMap<StreamId, OfStore>,
    /// The stores that are listed, durably.
    listed: BTreeSet<StreamId>,
    /// Stores that may have holds from before the shard's session.
    owing: BTreeSet<StreamId>,
    /// Rows that a frame in progress removes.
    removing: FxHashSet<Fingerprint>,
    /// The number of frames that have removed rows.
    removals: u64,
}

type Holders = SmallVec<[(StreamId, u64); 1]>;

#[derive(Default)]
struct OfStore {
    /// Rows by the lookup version of the hold. A row that was held again is in several.
    by_version: BTreeMap<u64, Vec<Fingerprint>>,
    rows: usize,
    /// The last version whose holds have ended: a lookup of it, or of an earlier one, comes too late.
    ended: u64,
}

/// The outcome of noting the holds of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// The rows that were found are held, except those that are absent now.
    Held,
    /// Rows were removed since they were looked up: the lookup has to be repeated.
    Outdated,
    /// The store is not listed.
    Unlisted,
}

impl Holds {
    /// The holds of a shard with a new owner: none, but the stores that are listed may have some. A store may hold up to
    /// `rows_max` rows.
    #[must_use]
    pub fn new(listed: BTreeSet<StreamId>, rows_max: usize) -> Holds {
        let state = State {
            owing: listed.clone(),
            listed,
            ..State::default()
        };
        Holds {
            state: Mutex::new(state),
            rows_max,
        }
    }

    /// The number of frames that have removed rows: to be read before a lookup.
    pub(crate) fn removals(&self) -> u64 {
        self.state().removals
    }

    /// Holds the rows that a lookup has found. `removals` was read before it. Rows that cannot be held become absent.
    pub(crate) fn note(
        &self,
        (store, version): (StreamId, u64),
        removals: u64,
        fingerprints: &[Fingerprint],
        answers: &mut [LookedUp],
    ) -> Noted {
        let mut state = self.state();
        let found = fingerprints.iter().zip(answers);
        let mut found = found
            .filter(|(_, answer)| answer.pba().is_some())
            .peekable();
        if found.peek().is_none() {
            return Noted::Held;
        }
        if !state.listed.contains(&store) && lists_holders() {
            return Noted::Unlisted;
        }
        if state.removals != removals {
            return Noted::Outdated;
        }
        for (fingerprint, answer) in found {
            let is_held = !state.removing.contains(fingerprint)
                && state.hold(*fingerprint, store, version, self.rows_max);
            if !is_held {
                *answer = LookedUp::Absent;
            }
        }
        Noted::Held
    }

    /// Ends a store's holds of all versions up to this one, and what it owes. With `is_last` the store has no later ones.
    /// Returns whether it is to be taken off the list: it does not count as listed from here on.
    pub(crate) fn end(&self, store: StreamId, version: u64, is_last: bool) -> bool {
        let mut state = self.state();
        state.owing.remove(&store);
        state.end(store, version);
        let has_holds = state.stores.get(&store).is_some_and(|held| held.rows > 0);
        is_last && !has_holds && state.listed.remove(&store)
    }

    /// Lists these stores, which are in the index's list. Those that were taken off it and are not in there stay off.
    pub(crate) fn list(&self, stores: impl IntoIterator<Item = StreamId>) {
        self.state().listed.extend(stores);
    }

    /// The stores that count as listed.
    pub(crate) fn listed(&self) -> BTreeSet<StreamId> {
        self.state().listed.clone()
    }

    /// Decides which rows a frame removes. Only one frame does so at a time.
    pub(crate) fn removing(&self) -> Removing<'_> {
        Removing(self)
    }

    /// How many rows are held, and how many stores owe an end.
    #[cfg(all(test, not(feature = "shuttle")))]
    fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.rows.len(), state.owing.len())
    }

    /// A panic under the lock leaves holds that are too many at most.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hold(
        &mut self,
        fingerprint: Fingerprint,
        store: StreamId,
        version: u64,
        rows_max: usize,
    ) -> bool {
        if !notes_holds() {
            return true;
        }
        let held = self.stores.entry(store).or_default();
        if version <= held.ended {
            return false;
        }
        let holders = self.rows.entry(fingerprint).or_default();
        match holders.iter_mut().find(|(holder, _)| *holder == store) {
            Some((_, last)) if *last >= version => return true,
            Some((_, last)) => *last = version,
            None if held.rows >= rows_max => {
                if holders.is_empty() {
                    self.rows.remove(&fingerprint);
                }
                return false;
            }
            None => {
                holders.push((store, version));
                held.rows += 1;
            }
        }
        held.by_version
            .entry(version)
            .or_default()
            .push(fingerprint);
        true
    }

    fn end(&mut self, store: StreamId, version: u64) {
        let held = self.stores.entry(store).or_default();
        held.ended = held.ended.max(version);
        while let Some(first) = held.by_version.first_entry()
            && *first.key() <= version
        {
            for fingerprint in first.remove() {
                let Some(holders) = self.rows.get_mut(&fingerprint) else {
                    continue;
                };
                let before = holders.len();
                holders.retain(|(holder, last)| *holder != store || *last > version);
                held.rows -= before - holders.len();
                if holders.is_empty() {
                    self.rows.remove(&fingerprint);
                }
            }
        }
    }
}

/// The rows that a frame removes. Dropped once the frame is durable and its rows are gone, or once it has failed.
pub(crate) struct Removing<'a>(&'a Holds);

impl Removing<'_> {
    /// Whether the frame may take the last reference of a row.
    pub(crate) fn may_remove(&mut self, fingerprint: Fingerprint) -> bool {
        let mut state = self.0.state();
        let is_owed = !state.owing.is_empty() && owing_frees_nothing();
        if is_owed || state.rows.contains_key(&fingerprint) && held_is_not_freed() {
            return false;
        }
        state.removing.insert(fingerprint);
        true
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if !state.removing.is_empty() {
            state.removing.clear();
            state.removals += 1;
        }
    }
}

/// A rule about holds that a simulation turns off.
#[cfg(feature = "simulation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldRule {
    /// A lookup notes its hold before it is answered.
    HeldBeforeAnswered,
    /// The last reference of a held row is not taken.
    HeldNotFreed,
    /// A store is listed before its first hold.
    HoldersListed,
    /// No row is removed while a store owes an end.
    OwingFreesNothing,
    /// An end from before the shard's session ends nothing.
    EndOfThisSession,
}

/// Makes every shard, on this thread from now on, break this rule; or none.
#[cfg(feature = "simulation")]
pub fn break_hold_rule(rule: Option<HoldRule>) {
    BROKEN.set(rule);
}

#[cfg(feature = "simulation")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<HoldRule>> = const { std::cell::Cell::new(None) };
}

/// Defines functions that return whether a rule is kept: always, outside simulations.
macro_rules! kept {
    ($($function:ident $rule:ident;)*) => {$(
        pub(crate) fn $function() -> bool {
            #[cfg(feature = "simulation")]
            return BROKEN.get() != Some(HoldRule::$rule);
            #[cfg(not(feature = "simulation"))]
            true
        }
    )*};
}

kept! {
    notes_holds HeldBeforeAnswered;
    held_is_not_freed HeldNotFreed;
    lists_holders HoldersListed;
    owing_frees_nothing OwingFreesNothing;
    ends_in_its_session EndOfThisSession;
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use onefold_format::Pba;

    use super::*;

    const ONE: StreamId = StreamId(1);
    const TWO: StreamId = StreamId(2);

    fn fingerprint(n: u8) -> Fingerprint {
        Fingerprint([n; 16])
    }

    fn listed() -> Holds {
        let holds = Holds::new(BTreeSet::new(), 2);
        holds.list([ONE, TWO]);
        holds
    }

    /// Holds a row that a lookup has found. Returns whether the store gets it.
    fn hold(holds: &Holds, store: StreamId, version: u64, n: u8) -> bool {
        let mut answers = [LookedUp::Present(Pba(u64::from(n)))];
        let noted = holds.note(
            (store, version),
            holds.removals(),
            &[fingerprint(n)],
            &mut answers,
        );
        noted == Noted::Held && answers[0].pba().is_some()
    }

    fn may_remove(holds: &Holds, n: u8) -> bool {
        holds.removing().may_remove(fingerprint(n))
    }

    #[test]
    fn a_row_stays_until_all_its_holders_have_ended_their_last_hold() {
        let holds = listed();
        assert!(hold(&holds, ONE, 1, 7) && hold(&holds, TWO, 5, 7));
        assert!(hold(&holds, ONE, 3, 7), "again, later");
        assert!(!may_remove(&holds, 7) && may_remove(&holds, 8));
        holds.end(ONE, 2, false);
        holds.end(TWO, 5, false);
        assert!(!may_remove(&holds, 7), "the hold of version 3");
        assert!(!hold(&holds, ONE, 2, 9), "a lookup of version 2 is late");
        holds.end(ONE, 3, false);
        assert!(may_remove(&holds, 7));
        assert_eq!(holds.counts(), (0, 0));
    }

    #[test]
    fn a_row_that_a_frame_removes_is_absent() {
        let holds = listed();
        let mut removing = holds.removing();
        assert!(removing.may_remove(fingerprint(7)));
        assert!(!hold(&holds, ONE, 1, 7));
        let before = holds.removals();
        drop(removing);
        let mut answers = [LookedUp::Present(Pba(7))];
        let noted = holds.note((ONE, 1), before, &[fingerprint(7)], &mut answers);
        assert_eq!(noted, Noted::Outdated);
        assert!(hold(&holds, ONE, 1, 7), "the row is there again");
    }

    #[test]
    fn a_store_holds_a_limited_number_of_rows() {
        let holds = listed();
        assert!(hold(&holds, ONE, 1, 1) && hold(&holds, ONE, 1, 2));
        assert!(!hold(&holds, ONE, 1, 3));
        assert!(hold(&holds, ONE, 2, 1), "it holds this one already");
        assert!(hold(&holds, TWO, 1, 3));
        holds.end(ONE, 1, false);
        assert!(hold(&holds, ONE, 2, 3), "one of its rows is free");
    }

    #[test]
    fn an_owner_removes_nothing_before_the_holders_of_the_one_before_have_ended() {
        let holds = Holds::new(BTreeSet::from([ONE, TWO]), 2);
        assert!(!may_remove(&holds, 7));
        holds.end(ONE, 1, false);
        assert!(!may_remove(&holds, 7));
        holds.end(TWO, 1, false);
        assert!(may_remove(&holds, 7));
    }

    #[test]
    fn a_store_is_taken_off_the_list_with_its_last_hold() {
        let holds = listed();
        assert!(hold(&holds, ONE, 2, 7));
        assert!(!holds.end(ONE, 1, true), "it has a later hold");
        assert!(!holds.end(ONE, 2, false), "it says that it has");
        assert!(holds.end(ONE, 2, true));
        assert_eq!(holds.listed(), BTreeSet::from([TWO]));
        let mut answers = [LookedUp::Present(Pba(7))];
        let noted = holds.note((ONE, 3), 0, &[fingerprint(7)], &mut answers);
        assert_eq!(noted, Noted::Unlisted);
        let mut answers = [LookedUp::Absent];
        let noted = holds.note((ONE, 3), 0, &[fingerprint(7)], &mut answers);
        assert_eq!(noted, Noted::Held, "nothing was found");
    }
}
