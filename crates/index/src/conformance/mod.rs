//! The requirements on every back end, the same for all.
//!
//! A back end passes if none of the public functions panics for it. They run on the simulated
//! engine, which can stop at every I/O and lose unsynced data.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failed unwrap is how a test fails"
)]

mod failures;
mod lookups;
mod model;
mod rebuild;
mod semantics;
mod story;

pub use failures::{a_failed_disk_makes_errors, a_full_disk_is_told_apart};
pub use lookups::{
    a_lookup_that_fails_ends_all_use, a_rebuild_refuses_lookups, batches_go_on_beside_a_lookup,
    lookups_are_answered, lookups_name_only_durable_rows, no_row_is_named_whose_sync_failed,
    what_may_not_wait_does_not_read,
};
pub use rebuild::{
    a_rebuild_replaces_everything, a_rebuild_survives_every_crash, a_rebuild_survives_failed_syncs,
    what_is_no_index_is_rebuilt, what_is_replaced_is_rebuilt,
};
pub use semantics::{
    a_full_index_declines, agrees_with_the_model, answers_as_it_should, pools_do_not_mix,
    threads_take_turns,
};
pub use story::{survives_every_crash, survives_many_crashes};

use std::sync::Arc;

use onefold_engine::simulated::SimulatedEngine;
use onefold_engine::{Disk, Engine, Part};
use onefold_format::{Pba, PoolId};

use crate::batch::Item;
use crate::{Fingerprint, FingerprintIndex, Result, StreamId};

/// A kind of index, as the suite needs it.
pub trait BackEnd {
    /// Makes the index of a new pool.
    fn create(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()>;

    /// Discards the content, for an index that has to be rebuilt.
    fn replace(&self, disk: &Arc<dyn Disk>, pool: PoolId) -> Result<()>;

    /// Opens the index, with memory for everything that the suite does.
    fn open(&self, disk: Arc<dyn Disk>, pool: PoolId) -> Result<Box<dyn FingerprintIndex>>;

    /// Opens the index with room for at least ten and at most ten thousand rows; `None` if it has no such limit.
    fn open_small(
        &self,
        _disk: Arc<dyn Disk>,
        _pool: PoolId,
    ) -> Option<Result<Box<dyn FingerprintIndex>>> {
        None
    }

    /// Whether rows and answers survive a crash. If not, it must report that it needs a rebuild.
    fn survives_crashes(&self) -> bool;
}

const POOL: PoolId = PoolId([0xab; 16]);

const STREAM: StreamId = StreamId(1);

/// A machine with the index of a new pool.
fn machine(back_end: &dyn BackEnd, seed: u64) -> SimulatedEngine {
    let engine = SimulatedEngine::new(seed);
    let disk = engine.create(Part::Index, 0).unwrap();
    back_end.create(&disk, POOL).unwrap();
    engine
}

fn open(back_end: &dyn BackEnd, engine: &SimulatedEngine) -> Result<Box<dyn FingerprintIndex>> {
    back_end.open(engine.open(Part::Index)?, POOL)
}

/// The `n`-th of a few fingerprints that look as random as real ones.
fn fingerprint(n: u64) -> Fingerprint {
    let hash = fastrand::Rng::with_seed(n).u128(..);
    Fingerprint(hash.to_le_bytes())
}

fn item(fingerprint_number: u64, pba: u64) -> Item {
    (fingerprint(fingerprint_number), Pba(pba))
}
