//! Volumes on a pool: write, read, flush, trim, maps, log, commit, checkpoint, recovery, space.
//!
//! Start with [`Store`] (an open pool) and [`Volume`] (what a front end talks to), then follow a
//! write down:
//!
//! | file | what it does |
//! | --- | --- |
//! | `store.rs` | opens, closes, and changes the set of volumes |
//! | `volume.rs` `volume_options.rs` | checks requests and says where they failed; how volumes are made |
//! | `write.rs` `read.rs` `trim.rs` | the three paths of data |
//! | `blocking.rs` | whether a request may wait |
//! | `pool.rs` | what volumes share |
//! | `metadata/` | what records change: maps, free space, catalogue, queue, batches |
//! | `journal/` | how changes become durable, and blocks are used again |
//! | `finder.rs` `collector.rs` `index.rs` | publishing, sharing and releasing blocks, batch by batch; the index |
//! | `latency.rs` | how long requests take |
//! | `recovery.rs` | creating and opening |
//! | `references.rs` `check.rs` `stat.rs` | counting and proving what the maps say |
//! | `snapshot.rs` `deletion.rs` `deletions.rs` | making snapshots and clones, going back; deleting |
//! | `accounting.rs` `data.rs` `usage.rs` | what each volume and snapshot holds alone; what a reader finds in it |
//! | `export.rs` | all metadata in one file, and a pool's parts from it |
//! | `changes.rs` | what changed between two snapshots or volumes |
//! | `index_rebuild.rs` | making the index anew, or one of another kind |
//! | `scrub.rs` `repair.rs` | finding blocks that decayed, healing them |
//! | `affected.rs` | who uses a bad block |
//! | `discard.rs` `resize.rs` | letting the host have free space; changing the pool's size |
//!
//! `examples/volume.rs` makes a pool and a volume and uses them: `cargo run -p onefold-store --example
//! volume`.
//!
//! There are no threads here: every call does its work on its caller's thread, but for what
//! [`Store::set_background_executor`] lets others do.

mod accounting;
mod affected;
mod blocking;
mod changes;
mod check;
mod collector;
mod data;
mod deletion;
mod deletions;
mod discard;
mod error;
mod export;
mod finder;
mod guard;
mod import;
mod index;
mod index_rebuild;
mod journal;
mod latency;
mod limits;
mod metadata;
mod pool;
mod read;
mod recovery;
mod references;
mod repair;
mod resize;
mod scrub;
mod snapshot;
mod stat;
mod store;
mod sync;
mod trim;
mod usage;
mod volume;
mod volume_options;
mod write;

pub use affected::{BadBlockStat, BlockUse};
pub use blocking::Blocking;
pub use changes::{Change, ChangedExtent};
pub use check::{CheckReport, Finding};
pub use collector::{COLLECT_BATCH_BLOCKS, CollectReport};
pub use data::Data;
pub use deletion::DeletionStat;
pub use discard::Released;
pub use error::{Result, StoreError, StoreErrorKind};
pub use export::{LogAfter, MetadataExport};
pub use finder::{BatchReport, Ready};
pub use guard::Guard;
#[cfg(feature = "simulation")]
pub use guard::Scarcity;
pub use import::Import;
pub use journal::BackgroundExecutor;
pub use journal::IncompleteCommit;
pub use journal::SpaceLevel;
pub use latency::LatencyCounts;
pub use limits::REQUEST_BYTES_MAX;
pub use onefold_format::{DedupMode, IndexKind, Lba, Pba, WhenFull};
pub use recovery::{CreateOptions, OpenOptions, RecoveryReport};
pub use resize::{ShrinkPlan, ShrinkReport};
pub use scrub::{Scrub, ScrubReport, ScrubStatus};
pub use snapshot::SNAPSHOTS_AT_ONCE_MAX;
pub use stat::{IndexStat, PoolStat, SnapshotStat, VolumeStat};
pub use store::{Store, VolumeChange};
pub use usage::Usage;
pub use volume::{Extent, Volume};
pub use volume_options::{DEFAULT_DOMAIN, VolumeOptions};
