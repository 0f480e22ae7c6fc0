//! Volumes on a pool: write, read, flush, trim, snapshots, sharing, checks, administration.
//!
//! May use: `journal`, `metadata` and the crates below them. Must not: sync, or touch the root, the log or a
//! page of metadata, except to create, open, import and export a pool; start threads; know clients and
//! protocols.
//!
//! Start with [`Store`] (an open pool) and [`Volume`] (for front ends), then follow a write down:
//!
//! | folder, file | purpose |
//! | --- | --- |
//! | `store.rs` `checks.rs` `creation.rs` `recovery.rs` | creates, opens and closes a pool, and changes its set of volumes |
//! | `volume_table.rs` `catalogue.rs` | the volumes in use, and the records that change them |
//! | `volume/` `volume_options.rs` | the data path: requests are checked, read, written, trimmed; volumes compared |
//! | `pool.rs` | state that volumes share |
//! | `shared/` | what a group has in common with the other groups of a shared pool, and the pool as one host serves it |
//! | `snapshots/` | snapshots and clones, rollback, deletion |
//! | `dedup/` | blocks are published, shared and released, batch by batch; volumes get blocks of their own; the index is rebuilt |
//! | `integrity/` | decayed blocks are found and reported; the maps are checked |
//! | `accounting/` | figures: what a pool and its volumes hold, and what each holds alone |
//! | `space/` | the pool's size, and space for the host |
//! | `moving.rs` | copies the blocks of entries elsewhere |
//! | `import.rs` `export.rs` | loads a volume from an image; writes and reads all metadata |
//! | `batches/` | batches are settled: the index is called, and its answers are logged |
//! | `blocks/` | blocks as the disk has them: read back, fingerprinted, listed as bad, repaired |
//! | `latency.rs` | how long requests take |
//!
//! The state that records change is in the crate `metadata`, and its durability in `journal`: see
//! `docs/decisions/0025-walls-inside-the-store.md`.
//!
//! `examples/volume.rs` makes a pool and a volume and uses them: `cargo run -p onefold-store --example
//! volume`.
//!
//! There are no threads here: every call does its work on its caller's thread, except for work that
//! runs on the executor of [`Store::set_background_executor`].

mod accounting;
mod batches;
mod blocks;
mod catalogue;
mod checks;
mod creation;
mod dedup;
mod export;
mod import;
mod integrity;
mod latency;
mod moving;
mod pool;
mod recovery;
mod shared;
mod snapshots;
mod space;
mod store;
mod version;
mod volume;
mod volume_options;
mod volume_table;

pub use accounting::{
    Accounting, Data, Locality, MemoryStat, PoolStat, SnapshotStat, Usage, VolumeStat,
};
pub use batches::{BatchReport, CollectReport, CountReport};
pub use creation::{CreateOptions, GroupOptions};
pub use dedup::{COLLECT_BATCH_BLOCKS, Dedup, HitsHeld, Pace, Pacing, Ready};
pub use dedup::{IndexStat, PoolIndex, UnsharePlan, Unsharing};
pub use export::{Exporter, LogAfter, MetadataExport};
pub use import::Import;
pub use integrity::{AffectedPlace, BadBlockStat, BlockUse};
pub use integrity::{CheckReport, Finding};
pub use integrity::{Scrub, ScrubReport, ScrubRun, ScrubStatus};
pub use latency::LatencyCounts;
pub use onefold_format::catalogue_page::{COLD_PASSES, INTERVAL_SECONDS, MIN_RUN};
pub use onefold_format::units::SECTOR_BYTES;
pub use onefold_format::{DedupMode, IndexKind, Lba, Pba, Provisioning, VolumeSettings, WhenFull};
pub use onefold_journal::SpaceLevel;
pub use onefold_journal::{BackgroundExecutor, Hurry};
pub use onefold_journal::{IncompleteCommit, LossReport};
#[cfg(feature = "simulation")]
pub use onefold_metadata::Scarcity;
pub use onefold_metadata::{
    Blocking, Change, Guard, REQUEST_BYTES_MAX, Result, StoreError, StoreErrorKind, display_bytes,
    full_name, parse_bytes, split_name,
};
pub use recovery::{OpenOptions, RecoveryReport};
pub use shared::{
    Conversion, GROUP_BYTES_MIN, HostOptions, RebuildReport, Shared, SharedDescription, SharedPool,
    Wake, groups_max,
};
pub use snapshots::SNAPSHOTS_AT_ONCE_MAX;
pub use snapshots::{DeletionStat, Deletions};
pub use space::{Released, ShrinkPlan, ShrinkReport, Space};
pub use store::Store;
pub use volume::ChangedExtent;
pub use volume::{AutoHeldBack, AutoSwitch, Extent, InlineStat, RefusedCounts, Volume};
pub use volume::{FoundBytes, PreparedRead, PreparedWrite};
#[cfg(feature = "api")]
pub use volume_options::range_parser;
pub use volume_options::{DEFAULT_DOMAIN, SettingsChange, VolumeOptions};
pub use volume_table::VolumeTable;
