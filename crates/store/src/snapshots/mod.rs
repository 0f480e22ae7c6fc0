//! Snapshots, clones and deletions: layers are frozen, put above one another, and merged away.

mod deletion;
mod deletions;
mod snapshot;

pub use deletion::DeletionStat;
pub(crate) use deletions::{Deletion, Deletions};
pub use snapshot::SNAPSHOTS_AT_ONCE_MAX;
