//! A repository of backups: objects in a folder, sealed, and never changed in place.
//!
//! May use: `format`. Must not: know pools, volumes or images.
//!
//! The manifest is the commit (B1): it is written last, after every pack and recipe that it needs is
//! durable. A block keeps its number for ever (B2). Whatever is read is authenticated before it is used
//! (B6).
//!
//! | file | what |
//! | --- | --- |
//! | `disk.rs` | the system calls on the folder, which is not left |
//! | `layout.rs` | which names are of ours |
//! | `folder.rs` | objects as files: written whole and durable, or not there |
//! | `seal.rs` | keys, and the chunks that they protect |
//! | `access.rs` | passphrases and key files, and the master key that they unwrap |
//! | `init.rs` | making a repository |
//! | `trial.rs` | what a file system must do for one |
//! | `identity.rs` | the object that says what a repository is, and its copy |
//! | `repository.rs` | a repository, its keys and its objects |
//! | `source.rs` | finding and adding sources |
//! | `sources.rs` | sources, as they are found |
//! | `packing.rs` | writing packs |
//! | `pack.rs` | listing packs, and reading them |
//! | `opening.rs` | opening packs |
//! | `table.rs` | copies of the tables of packs |
//! | `damage.rs` | blocks that were found damaged |
//! | `moved.rs` | blocks that popular blocks have in the place of a pack |
//! | `backup.rs` | recipes and manifests: the backups of a source |
//! | `history.rs` | which backups of a source there were: tombstones, and missing manifests |
//! | `history/course.rs` | how far a source has come |
//! | `history/closing.rs` | what a writer notes of a source: numbers that were used, its label |
//! | `label.rs` | the names and origins of sources |
//! | `marks.rs` | protections, and the users of popular blocks |
//! | `writer.rs` | the lease of whoever changes a source |
//! | `reader.rs` | the lease of whoever reads a backup |
//! | `waiting.rs` | how a command waits for other processes |
//! | `holders.rs` | who holds leases: waiting for signs of life of other processes |
//! | `foreign.rs` | files that are not of ours |
//! | `removal.rs` | a source goes with all that it has |
//! | `host.rs` | the name, the id and the clock of this machine |
//! | `reserve.rs` | room that is set aside, for a repository that is full |
//! | `simulation.rs` | what the death of the host may leave, for tests |
//! | `leftovers.rs` | what commands left that were killed |

mod access;
mod backup;
mod damage;
mod disk;
mod error;
mod folder;
mod foreign;
mod history;
mod holders;
mod host;
mod identity;
mod init;
mod label;
mod layout;
mod leftovers;
mod marks;
mod moved;
mod opening;
mod pack;
mod packing;
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
pub use history::{Course, History, Reached};
pub use host::{host_name, machine_id};
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
