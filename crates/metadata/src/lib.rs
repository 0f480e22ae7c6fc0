//! What records change: the maps of volumes, free space, the catalogue of volumes, the queue of released
//! references and the open batch; and how they are laid out in pages.
//!
//! May use: `format`, `engine` and `index`; memory, and the pages of the part `meta`.
//! Must not: start threads, decide when to sync, write the log or the root, touch data, or know volumes
//! in use.
//!
//! All state is private. Only `apply.rs` changes a map, the catalogue, the queue, or the blocks that free
//! space counts as mapped, and only for a record; other calls look, or hand out blocks. The journal alone
//! holds a [`MetadataState`] mutably.
//!
//! | file | contents |
//! | --- | --- |
//! | `apply.rs` `state.rs` | the one function that changes a map; the other state that it changes |
//! | `map.rs` `map/` `segments.rs` `branches.rs` `cache.rs` | maps, layer above layer; which segments may hold
//! something; differences between two layers |
//! | `space.rs` `space/` `placement.rs` `bits.rs` | free space, and where new blocks go |
//! | `space_limits.rs` `limits.rs` | quotas and reservations of volumes; shares of the memory limit |
//! | `catalogue.rs` `names.rs` | volumes and snapshots, and their names |
//! | `batch.rs` `queue.rs` | the open batch of finder, collector or counting; released references |
//! | `pages.rs` `tree.rs` | pages, and the trees that they form |
//! | `opening.rs` `sealed.rs` | reading a checkpoint, and writing one |
//! | `block_lock.rs` | locks on the blocks of a volume |
//! | `candidates.rs` | blocks that the finder reads before it publishes them |
//! | `heat.rs` `hash_cache.rs` | hints: blocks to leave alone; fingerprints made while blocks are written
//! |
//! | `run.rs` | consecutive blocks, of the pool and of a volume |
//! | `error.rs` `display.rs` `guard.rs` `sync.rs` | errors, and the amounts in them; guards that simulations turn off; locks and atomics |

mod apply;
mod batch;
pub mod bits;
mod block_lock;
mod branches;
mod cache;
mod candidates;
mod catalogue;
mod display;
mod error;
mod guard;
mod hash_cache;
pub mod heat;
mod hits;
mod limits;
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
pub mod sync;
pub mod tree;

pub use apply::{Failed, Target, owned_runs};
pub use batch::{Batches, OpenBatch};
pub use block_lock::{BlockGuard, BlockLocks};
pub use branches::{Branches, Change};
pub use candidates::Candidates;
pub use catalogue::{Catalogue, free_slot};
pub use display::{display_bytes, parse_bytes};
pub use error::{Result, StoreError, StoreErrorKind};
pub use guard::Guard;
#[cfg(feature = "simulation")]
pub use guard::Scarcity;
pub use hash_cache::{HashCache, Room};
pub use hits::{Hits, Refusal};
pub use limits::{
    CLAIM_FINGERPRINT_BYTES, LAYERS_DEEP_MAX, LEAF_BYTES, Limits, NODE_BYTES, REQUEST_BYTES_MAX,
    SPACE_PAGE_BYTES, SPARE_PAGE_BYTES, VOLUMES_MAX,
};
pub use map::{Entries, Layer, Leaf, Maps, Wanted, fill_absent};
pub use names::{check_name, full_name, split_name};
pub use onefold_engine::Blocking;
pub use opening::open;
pub use pages::{PageWriter, Pages, PagesHold};
pub use placement::{Placement, PlacementOffset};
pub use queue::{Queue, QueueKind, StoredQueue, read_elements};
pub use run::{BlockRange, PbaRun, PbaRuns};
pub use sealed::{Sealed, Trees};
pub use segments::Segments;
pub use space::{Space, SpaceOf, SpareUse, stored_extents};
pub use space_limits::SpaceLimits;
pub use state::{LookupVersion, MetadataState};
