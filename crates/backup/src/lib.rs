//! Backing disks up into a repository, and restoring them.
//!
//! May use: the repository, disk images, fingerprints, and the sorter. Must not: know pools; whoever does gives a
//! [`Disk`].
//!
//! Backups are made in the stages of [Zhang14 §4.2], of all sources of a command together:
//!
//! | file | stage |
//! | --- | --- |
//! | `scan.rs` | reads what changed, and sorts the fingerprints of its blocks |
//! | `detect.rs` | a content at a time: which ones the sources have already, and which are new, or popular |
//! | `store.rs` | reads the new blocks again, in the order of their addresses, and writes packs |
//! | `publish.rs` | the recipe, and then the manifest, with which the backup exists (B1) |
//!
//! `cache.rs` keeps what this host has read of the tables of packs, in files of `cached_tables.rs`: most tables need not be read again.
//!
//! `parent.rs` checks that a backup can be the one with which changes are compared.
//!
//! `prune.rs` gives back what no backup of a source needs any more, and `popular.rs` what none of any source does.
//! `share.rs` makes popular what several sources have stored, each for itself; `prune.rs` then drops their copies, which
//! `moves.rs` finds.
//! `verify.rs` proves that all that backups need is there, and with `compare.rs` that it is what was stored; `follow.rs` looks for
//! blocks where they were moved to.
//! `repair.rs` takes out what is damaged, so that it is stored again, and puts it back when it was.
//! `by_pack.rs` reads a whole backup in the order of its packs, which is fast;
//! `restore.rs` reads a backup: all of it, or any part, and what differs from another one; `blocks.rs` finds the
//! blocks. `lost.rs` notes what a restore past damage does without.
//!
//! Memory is bounded (B7): what does not fit is sorted in temporary files (`records.rs`, `temporary.rs`, `ranks.rs`). Only what is
//! known of packs grows with the disks, by some 100 bytes for each 64 MiB.

mod blocks;
mod by_pack;
mod cache;
mod cached_tables;
mod compare;
mod contents;
mod create;
mod detect;
mod disk;
mod error;
mod follow;
mod lost;
mod moves;
mod numbers;
mod parent;
mod partitions;
mod popular;
mod prune;
mod publish;
mod ranks;
mod records;
mod repair;
mod restore;
mod scan;
mod share;
mod store;
mod temporary;
mod verify;

pub use blocks::BlockReader;
pub use by_pack::{ReadCounts, ReceiveAnywhere};
pub use cache::TableCache;
pub use create::{Batch, Created, DiskToBackUp, Options, Report, create};
pub use disk::{Change, Disk, ImageDisk};
pub use error::{BackupError, Result};
pub use lost::LostBlocks;
pub use parent::check_parent;
pub use popular::{PrunedPopular, plan_popular, prune_popular};
pub use prune::{PruneOptions, PrunePlan, Pruned, prune};
pub use repair::{RepairPlan, Repaired, SickPacks, repair};
pub use restore::{Difference, Receive, Restore, Run};
pub use share::{Relatives, ShareOptions, SharePlan, Shared, plan_share, relatives, share};
pub use verify::{Finding, NeededBy, Verified, verify};
