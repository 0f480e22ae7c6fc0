//! The pool's fingerprint index, as far as it can be used.
//!
//! Reading and writing volumes needs no index. So a pool whose index is missing or damaged opens
//! all the same; what needs the index then says so, until `check --repair` has made it anew.

use std::sync::Arc;

use onefold_engine::{Disk, Engine, Part};
use onefold_format::{IndexKind, PoolId};
use onefold_index::{FingerprintIndex, IndexError, StreamId, btree, memory};

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::sync::{RwLock, read, write};

/// All batches of a pool are one stream: P4 holds for each layer, as part of it.
pub(crate) const STREAM: StreamId = StreamId(1);

/// The index, or why there is none.
pub(crate) struct IndexSlot {
    pub(crate) kind: IndexKind,
    state: RwLock<State>,
}

enum State {
    Open(Arc<dyn FingerprintIndex>),
    Unusable(String),
}

impl IndexSlot {
    pub(crate) fn open(engine: &dyn Engine, kind: IndexKind, pool: PoolId, bytes: usize) -> Self {
        let state = open(engine, kind, pool, bytes).unwrap_or_else(|error| {
            tracing::error!("nothing is shared for the time being: {error}");
            State::Unusable(error.to_string())
        });
        Self {
            kind,
            state: RwLock::new(state),
        }
    }

    /// The index, whether or not it has to be counted again first.
    pub(crate) fn get(&self) -> Result<Arc<dyn FingerprintIndex>> {
        match &*read(&self.state) {
            State::Open(index) => Ok(Arc::clone(index)),
            State::Unusable(reason) => Err(StoreError::damaged(format!(
                "the fingerprint index cannot be used: {reason}; `pool check --repair` makes it \
                 anew"
            ))),
        }
    }

    /// The index, if its rows are those of the maps.
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

    /// Puts an empty index into the place of one that cannot be used.
    pub(crate) fn replace(&self, engine: &dyn Engine, pool: PoolId, bytes: usize) -> Result<()> {
        let mut state = write(&self.state);
        // Whoever holds the part must let go of it before it can be opened again.
        *state = State::Unusable("it is being made anew".to_owned());
        let disk = match engine.open(Part::Index) {
            Ok(disk) => disk,
            Err(_) => engine
                .create(Part::Index, 0)
                .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?,
        };
        // A crash before it has been counted must not leave one that seems to be whole.
        match self.kind {
            IndexKind::Btree => btree::replace(&disk, pool)?,
            IndexKind::Memory => memory::replace(&disk, pool)?,
        }
        let index = open_kind(disk, self.kind, pool, bytes)?;
        *state = State::Open(index);
        Ok(())
    }
}

/// Makes the index of a new pool.
pub(crate) fn create(engine: &dyn Engine, kind: IndexKind, pool: PoolId) -> Result<()> {
    let disk = engine
        .create(Part::Index, 0)
        .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?;
    match kind {
        IndexKind::Btree => btree::create(&disk, pool)?,
        IndexKind::Memory => memory::create(&disk, pool)?,
    }
    Ok(())
}

fn open(engine: &dyn Engine, kind: IndexKind, pool: PoolId, bytes: usize) -> Result<State> {
    let disk = engine
        .open(Part::Index)
        .map_err(|error| StoreError::io(engine.describe(Part::Index), error))?;
    open_kind(disk, kind, pool, bytes).map(State::Open)
}

fn open_kind(
    disk: Arc<dyn Disk>,
    kind: IndexKind,
    pool: PoolId,
    bytes: usize,
) -> Result<Arc<dyn FingerprintIndex>> {
    Ok(match kind {
        IndexKind::Btree => Arc::new(btree::open(disk, pool, bytes as u64)?),
        IndexKind::Memory => Arc::new(memory::open(disk, pool, bytes as u64)?),
    })
}

impl From<IndexError> for StoreError {
    fn from(error: IndexError) -> Self {
        let kind = match &error {
            error if error.is_storage_full() => StoreErrorKind::NoSpace,
            IndexError::Io(_) | IndexError::Failed => StoreErrorKind::Io,
            IndexError::Newer(_) => StoreErrorKind::NewerFormat,
            IndexError::Closed => StoreErrorKind::Gone,
            _ => StoreErrorKind::Damaged,
        };
        Self::new(kind, error.to_string())
    }
}
