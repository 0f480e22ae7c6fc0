//! Snapshots, clones and deletions: layers are frozen, put above one another, and merged away.

mod deletion;
mod deletion_list;
mod snapshot;

pub(crate) use deletion::clear_segment;
pub use deletion::{DeletionStat, Deletions};
pub(crate) use deletion_list::Deletion;
pub use snapshot::SNAPSHOTS_AT_ONCE_MAX;
