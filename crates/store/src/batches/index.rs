//! The pool's fingerprint index, as far as it can be used.
//!
//! Reading and writing volumes needs no index. So a pool whose index is missing or damaged still
//! opens; operations that need the index then report it, until `check --repair` has rebuilt it.

use std::sync::Arc;

use onefold_engine::{Disk, Engine, Part};
use onefold_format::{IndexKind, PoolId};
use onefold_index::sharded::Sharded;
use onefold_index::{FingerprintIndex, StreamId};
use onefold_metadata::sync::{Mutex, MutexGuard, RwLock, lock, read, write, yield_now};
use onefold_metadata::{Guard, OpenBatch, Result, StoreError, StoreErrorKind};

use super::execute::Executor;

/// All batches of a pool with one owner are one stream: P4 holds for each layer, as part of it.
pub(crate) const STREAM: StreamId = StreamId(1);

/// The index, or why there is none.
pub(crate) struct IndexSlot {
    state: RwLock<State>,
    /// Held while one index takes the place of another.
    replacing: Mutex<()>,
    /// The index of a shared pool, in place of an own one.
    shared: Option<Arc<Sharded>>,
}

struct State {
    kind: IndexKind,
    /// The kind of the index that will replace this one, while it is being made or a stop has left
    /// it unfinished.
    next: Option<IndexKind>,
    index: std::result::Result<Arc<dyn FingerprintIndex>, Unusable>,
}

/// Why the index cannot be used.
struct Unusable {
    kind: StoreErrorKind,
    reason: String,
}

impl IndexSlot {
    /// Opens the existing index. `created_with` is the kind with which the pool was created, in
    /// case nothing else is known.
    pub(crate) fn open(
        engine: &dyn Engine,
        created_with: IndexKind,
        pool: PoolId,
        bytes: usize,
    ) -> Self {
        let state = open(engine, created_with, pool, bytes).unwrap_or_else(|error| {
            tracing::error!("nothing is shared for the time being: {error}");
            State {
                kind: created_with,
                next: None,
                index: Err(Unusable {
                    kind: StoreErrorKind::Damaged,
                    reason: format!("{error}; `pool check --repair` rebuilds it"),
                }),
            }
        });
        Self {
            state: RwLock::new(state),
            replacing: Mutex::new(()),
            shared: None,
        }
    }

    /// The index that a group shares with the other groups of its pool.
    pub(crate) fn of_group(index: Arc<Sharded>) -> Self {
        let state = State {
            kind: IndexKind::Hash,
            next: None,
            index: Err(Unusable {
                kind: StoreErrorKind::Invalid,
                reason: "all groups of the pool share it".to_owned(),
            }),
        };
        Self {
            state: RwLock::new(state),
            replacing: Mutex::new(()),
            shared: Some(index),
        }
    }

    pub(crate) fn kind(&self) -> IndexKind {
        read(&self.state).kind
    }

    /// The kind that the index is being converted to, if any.
    pub(crate) fn next_kind(&self) -> Option<IndexKind> {
        read(&self.state).next
    }

    /// The index, whether or not it has to be counted again first.
    pub(crate) fn get(&self) -> Result<Arc<dyn FingerprintIndex>> {
        match &read(&self.state).index {
            Ok(index) => Ok(Arc::clone(index)),
            Err(Unusable { kind, reason }) => Err(StoreError::new(
                *kind,
                format!("the fingerprint index cannot be used: {reason}"),
            )),
        }
    }

    /// Like [`IndexSlot::get`], but waits until a replacement in progress has ended, so not for requests
    /// of guests.
    pub(crate) fn get_settled(&self) -> Result<Arc<dyn FingerprintIndex>> {
        let _settled = lock(&self.replacing);
        self.get()
    }

    /// The index, if its rows match the maps.
    pub(crate) fn ready(&self) -> Result<Arc<dyn FingerprintIndex>> {
        let index = self.get()?;
        if index.needs_rebuild() {
            return Err(StoreError::new(
                StoreErrorKind::Busy,
                "the fingerprint index is being counted again",
            ));
        }
        Ok(index)
    }

    /// Whether other groups of the pool have the index, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The index that other groups of the pool have, too; none where the store has its own.
    pub(crate) fn shared(&self) -> Option<&Sharded> {
        self.shared.as_deref()
    }

    /// The executor of batches, if the index's rows match the maps.
    pub(crate) fn executor(&self) -> Result<Executor> {
        match &self.shared {
            Some(index) => Ok(Executor::Shared(Arc::clone(index))),
            None => Ok(Executor::Own(self.ready()?)),
        }
    }

    /// Takes the index out and waits until no thread uses it, so that its part can be opened again.
    /// The state is unlocked during the wait: a guest's write must never wait for an index to be
    /// opened. The caller holds the guard until another index is in place.
    fn close(&self, why: Unusable) -> MutexGuard<'_, ()> {
        let replacing = lock(&self.replacing);
        let taken = std::mem::replace(&mut write(&self.state).index, Err(why));
        let is_used = || {
            taken
                .as_ref()
                .is_ok_and(|index| Arc::strong_count(index) > 1)
        };
        // Writes in line hold it for one lookup, and no other thread can get it any more.
        while Guard::ReplacedWhenUnused.holds() && is_used() {
            yield_now();
        }
        replacing
    }

    /// Replaces the existing index by an empty one of some kind. The caller holds the job lock, and
    /// not the index.
    pub(crate) fn replace(
        &self,
        engine: &dyn Engine,
        kind: IndexKind,
        pool: PoolId,
        bytes: usize,
    ) -> Result<()> {
        let _replacing = self.close(Unusable {
            kind: StoreErrorKind::Damaged,
            reason: "its rebuild has not ended; `pool check --repair` rebuilds it".to_owned(),
        });
        let disk = blank(engine, Part::Index, pool)?;
        // A crash before it has been counted must not leave one that seems to be whole.
        onefold_index::replace(kind, &disk, pool)?;
        let opened = onefold_index::open(kind, disk, pool, bytes as u64)?;
        let mut state = write(&self.state);
        state.kind = kind;
        state.index = Ok(opened);
        Ok(())
    }

    /// Makes an index without rows that will replace the existing one, which stays in use until then.
    pub(crate) fn begin_next(
        &self,
        engine: &dyn Engine,
        kind: IndexKind,
        pool: PoolId,
        bytes: usize,
    ) -> Result<Arc<dyn FingerprintIndex>> {
        let disk = blank(engine, Part::NextIndex, pool)?;
        write(&self.state).next = Some(kind);
        onefold_index::replace(kind, &disk, pool)?;
        let next = onefold_index::open(kind, disk, pool, bytes as u64)?;
        next.begin_rebuild()?;
        Ok(next)
    }

    /// Removes the index that [`IndexSlot::begin_next`] made, or the remains of it.
    pub(crate) fn give_up_next(&self, engine: &dyn Engine) -> Result<()> {
        let part = Part::NextIndex;
        let removed = engine.remove(part);
        removed.map_err(|error| StoreError::io(engine.describe(part), error))?;
        write(&self.state).next = None;
        Ok(())
    }

    /// Replaces the existing index by the next one, which is closed. After an error there is none
    /// until the pool is opened again, and either of the two may be in place then. The caller holds
    /// the job lock, and not the index.
    pub(crate) fn install_next(
        &self,
        engine: &dyn Engine,
        created_with: IndexKind,
        pool: PoolId,
        bytes: usize,
    ) -> Result<()> {
        let _replacing = self.close(Unusable {
            kind: StoreErrorKind::Io,
            reason: "another was to take its place; the pool must be opened again".to_owned(),
        });
        let installed = engine.replace(Part::Index, Part::NextIndex);
        installed.map_err(|error| StoreError::io("putting the new index into place", error))?;
        let opened = open(engine, created_with, pool, bytes)?;
        *write(&self.state) = opened;
        Ok(())
    }
}

/// A part in which to rebuild an index: the existing one if it is an index of this pool. Any other
/// file is removed and not overwritten, because its content may belong to another owner.
pub(crate) fn blank(engine: &dyn Engine, part: Part, pool: PoolId) -> Result<Arc<dyn Disk>> {
    let failed = |error| StoreError::io(engine.describe(part), error);
    if let Ok(disk) = engine.open(part)
        && let Ok(Some(_)) = onefold_index::kind_of(&*disk, pool)
    {
        return Ok(disk);
    }
    engine.remove(part).map_err(failed)?;
    engine.create(part, 0).map_err(failed)
}

/// Makes the index of a new pool.
pub(crate) fn create(engine: &dyn Engine, kind: IndexKind, pool: PoolId) -> Result<()> {
    let disk = engine
        .create(Part::Index, 0)
        .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?;
    Ok(onefold_index::create(kind, &disk, pool)?)
}

/// Makes an index that has to be counted before it can be used.
pub(crate) fn create_uncounted(engine: &dyn Engine, kind: IndexKind, pool: PoolId) -> Result<()> {
    let disk = engine
        .create(Part::Index, 0)
        .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?;
    Ok(onefold_index::replace(kind, &disk, pool)?)
}

fn open(engine: &dyn Engine, created_with: IndexKind, pool: PoolId, bytes: usize) -> Result<State> {
    let disk = engine
        .open(Part::Index)
        .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?;
    let found = onefold_index::kind_of(&*disk, pool)?;
    let kind = found.unwrap_or(created_with);
    if found.is_none() {
        // Opening some kinds writes to the part, which must be known to be the pool's.
        onefold_index::check_header(&*disk, kind, pool)?;
    }
    let next = engine.open(Part::NextIndex).ok();
    let next = next.and_then(|disk| onefold_index::kind_of(&*disk, pool).ok().flatten());
    Ok(State {
        kind,
        next: next.filter(|next| *next != kind),
        index: Ok(onefold_index::open(kind, disk, pool, bytes as u64)?),
    })
}

/// The answers to a batch's unsettled items. The index got these items only, or, in a call before a
/// crash, all that were unsettled then: the present ones are the last of them.
pub(crate) fn last_answers<'a, T>(answers: &'a [T], batch: &OpenBatch) -> Result<&'a [T]> {
    let wanted = batch.unsettled().len();
    let first = answers.len().checked_sub(wanted);
    first.map(|first| &answers[first..]).ok_or_else(|| {
        StoreError::damaged(format!(
            "the index has {} answers for a batch of {wanted}",
            answers.len()
        ))
    })
}
