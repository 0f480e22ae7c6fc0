//! The on-disk structures of onefold: bytes only, no I/O, no clock, no threads.
//!
//! May use: no other crate of onefold.
//!
//! One structure, one file, one page in `docs/format/`. Everything is little-endian at fixed
//! offsets; reserved bytes are zero and checked. Decoding never panics: bytes from a disk yield a
//! [`FormatError`] that describes the fault.
//!
//! | file | structure |
//! | --- | --- |
//! | [`units`] | numbers with a unit: [`Lba`], [`Pba`], [`LayerId`], ... |
//! | [`entry`] | the state of one block in one layer |
//! | [`page`] | the header that every metadata page carries |
//! | [`superblock`] | the pool's identity |
//! | [`root`] | the switch between checkpoints |
//! | [`node`] | inner pages of the copy-on-write trees, and their pointers |
//! | [`map_page`] | leaf of a layer's map: one segment |
//! | [`space_page`] | leaf of the free-space tree: one bit per block |
//! | [`catalogue_page`] | leaf of the catalogue: volume records |
//! | [`queue_page`] | leaf of the queue: dropped references |
//! | [`batch_page`] | leaf of the open batch: its items |
//! | [`frame`] | the unit in which the log is written |
//! | [`record`] | the payload of a frame: changes of maps, catalogue, queue, open batch and leased space |
//! | [`tail`] | records and counts of syncs in memory that outlives the process |
//! | [`secret`] | the key from which the keys of fingerprints are derived |
//! | [`export`] | both ends of an export of metadata |
//! | [`trace`] | the unit of a trace: the chunks of some data |
//! | [`scrub_page`] | the scrub's progress, and the list of bad blocks |
//! | [`loss_page`] | the losses of a failed sync |
//! | [`index_message`] | messages between a store and a shard of the fingerprint index |
//! | [`census_message`] | messages between the host that counts a shared pool and the owner of a group |
//! | [`backup`] | the objects of a backup repository |

pub mod backup;
pub mod batch_page;
mod bytes;
pub mod catalogue_page;
pub mod census_message;
mod cursor;
pub mod entry;
mod error;
pub mod export;
pub mod frame;
pub mod index_message;
pub mod loss_page;
pub mod map_page;
mod message;
pub mod node;
pub mod page;
pub mod queue_page;
pub mod record;
pub mod root;
pub mod scrub_page;
pub mod secret;
pub mod space_page;
pub mod superblock;
pub mod tail;
pub mod trace;
pub mod units;

pub use batch_page::BatchItem;
pub use catalogue_page::{DedupMode, LayerCounts, VolumeRecord, VolumeSettings, VolumeState};
pub use cursor::TEXT_BYTES_MAX;
pub use entry::Entry;
pub use error::FormatError;
pub use export::ExportMark;
pub use loss_page::{DamagedVolume, LossPage, Losses, LostRun};
pub use node::{Pointer, TreeRoot};
pub use queue_page::QueueElement;
pub use record::{ClaimOutcome, GivenRun, Outcome, PublishRun, Record, Release, UnmapTo};
pub use root::{BatchKind, OpenBatchHead, Provisioning, Root, WhenFull};
pub use scrub_page::{BadBlock, Fault, ScrubPage, ScrubProgress};
pub use secret::Secret;
pub use superblock::{IndexKind, Superblock};
pub use tail::{Ledger, TailHeader, TailOwner};
pub use units::{DomainId, GroupId, LayerId, Lba, PageNumber, Pba, PoolId, SegmentIndex, Shard};
pub use units::{SpaceExtent, VolumeId};

/// Major version of everything written by this build: a higher one is refused.
pub const MAJOR_VERSION: u8 = 1;

/// Minor version of everything written by this build, except the superblock and the roots of a group of a shared pool.
pub const MINOR_VERSION: u8 = 2;

/// The minor version of the superblock and the roots of a group: a higher one opens read-only.
pub const MINOR_OF_GROUPS: u8 = 3;

/// The minor version that a pool needs for deduplication in line, for shortest runs of more than one block, and for a
/// list of lost blocks.
pub const MINOR_OF_CLAIMS: u8 = 1;

/// The minor version that a pool needs for a volume whose size is not a multiple of the block size.
pub const MINOR_OF_SHORT_BLOCKS: u8 = 2;
