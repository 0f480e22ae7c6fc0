//! Backs up disks into a repository, and restores them.
//!
//! May use: the repository, retention rules, disk images, fingerprints, and the sorter. Must not: know pools; a caller that does
//! passes a [`Disk`], or a [`SnapshotHost`].
//!
//! All sources of one command are backed up together, in the stages of [Zhang14 §4.2]:
//!
//! | file | stage |
//! | --- | --- |
//! | `scan.rs` | reads what changed, and sorts the fingerprints of its blocks |
//! | `detect.rs` | decides, one content at a time, whether the sources have it already, or it is new or popular |
//! | `store.rs` | reads the new blocks again, in the order of their addresses, and writes packs |
//! | `publish.rs` | the recipe, and then the manifest, with which the backup exists (B1) |
//!
//! `cache.rs` keeps the pack tables that this host has read, in files of `cached_tables.rs`, so that backups read few
//! of them again.
//!
//! `create_all.rs` prepares these stages for the disks of a command: it finds their sources (`identify.rs`) and the base
//! snapshots of their last backups (`base.rs`), through the pool that the caller passes (`host.rs`). `parent.rs` checks
//! that a backup can be the parent of the next one.
//!
//! `prune.rs` removes blocks that no backup of a source needs any more, and `popular.rs` removes popular blocks that
//! no backup of any source needs. `share.rs` makes popular the contents that several sources have stored, each for
//! itself; `prune.rs` then drops the sources' copies, which `moves.rs` finds. `verify.rs` proves that everything that
//! backups need is present, and `compare.rs` that it matches its fingerprints; `follow.rs` follows moved blocks, and
//! `verified.rs` is what was found.
//! `repair.rs` takes out damaged blocks, so that the next backup stores them again, and puts intact copies back.
//! `by_pack.rs` reads a whole backup in the order of its packs, which is fast; `restore.rs` reads a backup, whole or
//! any range, and compares it with another backup; `blocks.rs` reads the stored blocks. `restoring.rs`
//! restores a whole backup, and `overwriting.rs` restores into a disk that exists; `lost.rs` records the blocks that a
//! restore past damage leaves out.
//!
//! `prune_all.rs`, `share_all.rs` and `repair_all.rs` plan and do this for whole repositories.
//!
//! `init.rs` creates a repository, and `keys.rs` changes the keys that open it. `opening.rs` opens it and compares
//! it with what this host remembers of it (`memory.rs`), so that it notices a repository that was replaced or went
//! back; `folders.rs` finds the folder of that memory. `forget.rs` forgets the backups (`candidates.rs`) that no
//! rule keeps; `clock.rs` finds dates that may be wrong; `room.rs` is the space for that in a full repository.
//! `rename.rs` renames a source, `remove.rs` removes one, and `stat.rs` counts what sources have.
//! `finding.rs` finds sources and backups by the names that users give. `supervision.rs` passes notes,
//! warnings and progress to the caller, who may interrupt the work.
//!
//! Memory is bounded (B7): larger sets are sorted in temporary files (`records.rs`, `temporary.rs`, `ranks.rs`). Only
//! the state per pack grows with the disks, by some 100 bytes for each 64 MiB.

mod base;
mod blocks;
mod by_pack;
mod cache;
mod cached_tables;
mod candidates;
mod clock;
mod compare;
mod contents;
mod create;
mod create_all;
mod detect;
mod disk;
mod error;
mod finding;
pub mod folders;
mod follow;
mod forget;
mod host;
mod identify;
mod init;
mod keys;
mod lost;
mod memory;
mod moves;
mod numbers;
mod opening;
mod overwriting;
mod parent;
mod partitions;
mod popular;
mod prune;
mod prune_all;
mod publish;
mod ranks;
mod records;
mod remove;
mod rename;
mod repair;
mod repair_all;
mod restore;
mod restoring;
mod room;
mod scan;
mod share;
mod share_all;
mod stat;
mod store;
mod supervision;
mod temporary;
mod verified;
mod verify;

pub use base::BACKUP_SNAPSHOT;
pub use blocks::BlockReader;
pub use by_pack::{ReadCounts, ReceiveAnywhere};
pub use cache::TableCache;
pub use clock::{DatedBackup, StepBack, last_step_back};
pub use create::{Batch, Created, DiskToBackUp, Options, Report, create};
pub use create_all::{CreateAll, CreatedAll, MadeBackup, WantedDisk};
pub use disk::{Change, Disk, ImageDisk};
pub use error::{BackupError, Result};
pub use finding::{find_backup, find_source};
pub use forget::{ForgetPlan, PlannedBackup};
pub use host::{DiskHost, HostSnapshot, HostVolume, SnapshotDisk, SnapshotHost};
pub use identify::SourceChoice;
pub use init::{InitOptions, NewRepository};
pub use keys::{add_key, export_recovery_key, remove_key};
pub use lost::LostBlocks;
pub use opening::{Found, Opened, OpeningOptions};
pub use overwriting::DiskToOverwrite;
pub use parent::check_parent;
pub use popular::{PrunedPopular, plan_popular, prune_popular};
pub use prune::{PruneOptions, PrunePlan, Pruned, prune};
pub use prune_all::{PruneAll, PrunedAll, PrunedSource};
pub use remove::RemovePlan;
pub use rename::rename_source;
pub use repair::{RepairPlan, Repaired, SickPacks, repair};
pub use repair_all::{RepairAll, RepairedAll};
pub use restore::{Difference, Receive, Restore, Run};
pub use restoring::{ReadingOptions, RestoredBackup};
pub use room::ASIDE_BYTES;
pub use share::{Relatives, ShareOptions, SharePlan, Shared, plan_share, relatives, share};
pub use share_all::{ShareAll, SharedAll};
pub use stat::{PackFigures, shareable_bytes};
pub use supervision::{Observer, ProgressUnit, ShowProgress, Stage, Supervision};
pub use verified::{AffectedRun, Finding, NeededBy, Verified};
pub use verify::verify;
