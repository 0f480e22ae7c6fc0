//! The structures of a backup repository. They have a separate version, and share nothing with a
//! pool's.
//!
//! | file | structure |
//! | --- | --- |
//! | [`object`] | the header of every object, and its name |
//! | [`repository`] | the repository's identity |
//! | [`key`] | the master key, wrapped |
//! | [`source`] | the disk that is backed up |
//! | [`label`] | the name and the origin of a source |
//! | [`pack`] | the table of a pack: its groups, and the fingerprints of its blocks |
//! | [`recipe`] | a page of a recipe: which block is at which address |
//! | [`manifest`] | the object that makes a backup exist |
//! | [`lease`] | the process that changes a source |
//! | [`condemned`] | popular blocks that will be removed |
//! | [`closed`] | numbers of backups that do not exist |
//! | [`table`] | the copy of a pack's table |
//! | [`damage`] | stored blocks that were found damaged |
//! | [`cache`] | a host's cache of pack tables |

pub mod cache;
pub mod closed;
pub mod condemned;
pub mod damage;
pub mod key;
pub mod label;
pub mod lease;
pub mod manifest;
pub mod object;
pub mod pack;
pub mod recipe;
pub mod repository;
pub mod source;
pub mod table;

pub use cache::{CacheHeader, CachedPack, CachedRow};
pub use closed::Closed;
pub use condemned::{Condemned, LeaseName};
pub use damage::{Damage, DamagedPack};
pub use key::{Derivation, WrappedKey};
pub use label::{Label, MachineId, Origin};
pub use lease::{Lease, ProcessId};
pub use manifest::{
    ChangedBy, Counts, Manifest, NumberRun, PackReference, PoolSnapshot, packs_of, witness_of,
};
pub use object::{BackupNumber, ObjectHeader, ObjectName, Place, RepositoryId, SourceId};
pub use pack::{PackTable, PackTrailer, Slot, StoredGroup, Witness};
pub use recipe::{RecipeRun, Target};
pub use repository::{RepositoryObject, Sealing, Writers};
pub use source::Source;
pub use table::TableCopy;

/// Major version of every object that this build writes; any other is refused.
pub const REPOSITORY_MAJOR_VERSION: u8 = 2;

/// Minor version of every object that this build writes: a repository with a higher one can be read.
pub const REPOSITORY_MINOR_VERSION: u8 = 0;

/// Bytes that sealing adds to a chunk: its authentication.
pub const TAG_BYTES: usize = 16;
