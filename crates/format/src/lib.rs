//! The on-disk structures of onefold: bytes only, no I/O, no clock, no threads.
//!
//! One structure, one file, one page in `docs/format/`. Everything is little-endian at fixed
//! offsets; reserved bytes are zero and checked. Decoding never panics: bytes from a disk give a
//! [`FormatError`] that says what is wrong with them.
//!
//! | file | structure |
//! | --- | --- |
//! | [`units`] | numbers with a unit: [`Lba`], [`Pba`], [`LayerId`], ... |
//! | [`entry`] | what a layer says of one block |
//! | [`page`] | the header that every metadata page carries |
//! | [`superblock`] | the pool's identity |
//! | [`root`] | the switch between checkpoints |
//! | [`node`] | inner pages of the copy-on-write trees, and their pointers |
//! | [`map_page`] | leaf of a layer's map: one segment |
//! | [`space_page`] | leaf of the free-space tree: one bit per block |
//! | [`catalogue_page`] | leaf of the catalogue: volume records |
//! | [`frame`] | the unit in which the log is written |
//! | [`record`] | what a frame carries: changes of maps and catalogue |

mod bytes;
pub mod catalogue_page;
pub mod entry;
mod error;
pub mod frame;
pub mod map_page;
pub mod node;
pub mod page;
pub mod record;
pub mod root;
pub mod space_page;
pub mod superblock;
pub mod units;

pub use catalogue_page::{VolumeRecord, VolumeState};
pub use entry::Entry;
pub use error::FormatError;
pub use node::{Pointer, TreeRoot};
pub use record::{Record, UnmapTo};
pub use root::Root;
pub use superblock::Superblock;
pub use units::{LayerId, Lba, PageNumber, Pba, PoolId, SegmentIndex, VolumeId};

/// Major version of everything written by this build: a higher one is refused.
pub const MAJOR_VERSION: u8 = 1;

/// Minor version of everything written by this build: a higher one opens read-only.
pub const MINOR_VERSION: u8 = 0;
