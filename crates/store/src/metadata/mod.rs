//! The state that records change: the maps of volumes, free space, the catalogue of volumes, the
//! queue of dropped references and the open batch; and its layout in pages.
//!
//! Nothing here has a thread, writes the log, or decides what is durable. Only `apply.rs` changes a
//! map, a catalogue, the queue or the named bits of free space, and only for a record: other
//! callers read, or hand out blocks. Only the journal holds a [`MetadataState`] mutably.
//!
//! | file | content |
//! | --- | --- |
//! | `apply.rs` `state.rs` | the one function that changes a map; the state it changes besides |
//! | `map.rs` `segments.rs` `cache.rs` | maps, layer above layer; which segments may hold something |
//! | `space.rs` `placement.rs` `bits.rs` | free space, and where new blocks go |
//! | `space_limits.rs` | quotas and reservations of volumes |
//! | `catalogue.rs` `names.rs` | volumes and snapshots, and their names |
//! | `batch.rs` `queue.rs` | announced items of finder and collector; dropped references |
//! | `pages.rs` `tree.rs` | pages, and the trees that they form |
//! | `opening.rs` `sealed.rs` | from a checkpoint, and into one |
//! | `block_lock.rs` | locks on blocks |
//! | `heat.rs` `hash_cache.rs` | hints: blocks to leave alone; fingerprints made while blocks are written |
//! | `run.rs` | consecutive blocks of the pool |

mod apply;
mod batch;
pub(crate) mod bits;
mod block_lock;
mod cache;
mod catalogue;
mod hash_cache;
pub(crate) mod heat;
mod map;
mod names;
mod opening;
mod pages;
mod placement;
mod queue;
mod run;
mod sealed;
mod segments;
mod space;
mod space_limits;
mod state;
pub(crate) mod tree;

pub(crate) use apply::{Failed, apply, owned_runs};
pub(crate) use batch::{Batches, OpenBatch};
pub(crate) use catalogue::{Catalogue, free_slot};
pub(crate) use hash_cache::{HashCache, Room};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use map::shuttle_tests;
pub(crate) use map::{Entries, Layer, Maps, fill_absent};
pub(crate) use names::{check_name, full_name};
pub(crate) use opening::open;
pub(crate) use pages::{PageWriter, Pages, PagesHold};
pub(crate) use placement::{Placement, PlacementOffset};
pub(crate) use queue::read_elements;
pub(crate) use run::{BlockRange, PbaRun, PbaRuns};
pub(crate) use segments::Segments;
pub(crate) use space::Space;
pub(crate) use space_limits::SpaceLimits;
pub(crate) use state::MetadataState;
