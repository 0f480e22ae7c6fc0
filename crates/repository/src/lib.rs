//! A repository of backups: objects in a folder, sealed, and never changed in place.
//!
//! May use: `format`. Must not: know pools, volumes or images.
//!
//! The manifest is the commit (B1): it is written last, after every pack and recipe that it needs is
//! durable. A block keeps its number for ever (B2). Everything that is read is authenticated before it is used
//! (B6).
//!
//! | file | purpose |
//! | --- | --- |
//! | `disk.rs` | the system calls, confined to the repository's folder |
//! | `layout.rs` | the names of the repository's files |
//! | `folder.rs` | objects as files: complete and durable, or absent |
//! | `seal.rs` | keys, and the chunks that they protect |
//! | `objects.rs` | sealed objects: reading, writing, listing and removing them |
//! | `access.rs` | passphrases and key files, and the master key that they unwrap |
//! | `keys.rs` | the keys of a repository |
//! | `init.rs` | creating a repository |
//! | `trial.rs` | tests that a file system has the calls that a repository needs |
//! | `identity.rs` | the object with the repository's identity, and its copy |
//! | `repository.rs` | opening a repository, and requests that concern all of it |
//! | `repository/catalogue.rs` | requests that concern its sources |
//! | `repository/content.rs` | requests that concern the content of a source |
//! | `source.rs` | finding and adding sources |
//! | `sources.rs` | the list of sources, searched by name, id and origin |
//! | `packing.rs` | writing packs |
//! | `packs.rs` | listing and opening packs |
//! | `pack.rs` | reading a pack that is opened |
//! | `table.rs` | copies of the tables of packs |
//! | `damage.rs` | blocks that were found damaged |
//! | `moved.rs` | blocks that packs have replaced by popular blocks |
//! | `backup.rs` | recipes and manifests: the backups of a source |
//! | `history.rs` | used backup numbers of a source: tombstones, and missing manifests |
//! | `history/course.rs` | how far a source has come |
//! | `history/closing.rs` | closes the numbers of a source, and writes its label |
//! | `label.rs` | the names and origins of sources |
//! | `marks.rs` | protections, and the users of popular blocks |
//! | `process.rs` | identities of processes |
//! | `lease.rs` | a lease: a folder with a heartbeat |
//! | `leases.rs` | the leases for changing sources |
//! | `fenced.rs` | writing and removing objects under a lease |
//! | `writer.rs` | changing a source under its lease |
//! | `reader.rs` | the lease for reading a backup |
//! | `waiting.rs` | how a command waits for other processes |
//! | `holders.rs` | living holders of leases: watching the heartbeats of other processes |
//! | `foreign.rs` | foreign files |
//! | `removal.rs` | removing a source with all of its objects |
//! | `host.rs` | the name, the id and the clock of this machine |
//! | `reserve.rs` | space that is set aside, for a repository that is full |
//! | `simulation.rs` | possible states of the folder after a crash of the host, for tests |
//! | `leftovers.rs` | files left behind by killed commands |

mod access;
mod backup;
mod damage;
mod disk;
mod error;
mod fenced;
mod folder;
mod foreign;
mod history;
mod holders;
mod host;
mod identity;
mod init;
mod keys;
mod label;
mod layout;
mod lease;
mod leases;
mod leftovers;
mod marks;
mod moved;
mod objects;
mod pack;
mod packing;
mod packs;
mod process;
mod reader;
mod removal;
mod repository;
mod reserve;
mod seal;
#[cfg(feature = "simulation")]
pub mod simulation;
mod source;
mod sources;
mod table;
mod trial;
mod waiting;
mod writer;

pub use access::{Access, RecoveryKey};
pub use backup::{NeededPacks, NewRecipe, Recipe};
pub use damage::{DamagedBlocks, KnownDamage};
pub use error::{RepositoryError, RepositoryErrorKind, Result};
pub use foreign::Foreign;
pub use history::course::Course;
pub use history::{History, Reached};
pub use host::{host_name, machine_id, now_unix_seconds};
pub use leftovers::Leftovers;
pub use moved::MovedRun;
pub use pack::{OpenedGroup, Pack};
pub use packing::{GroupSealer, NewPack, SealedGroup};
pub use reader::Reading;
pub use repository::{Repository, Unopened};
pub use reserve::MakingRoom;
pub use sources::{KnownSource, Sources};
pub use waiting::Waiting;
pub use writer::Writer;
