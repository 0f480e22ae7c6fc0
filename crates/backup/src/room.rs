//! Space that is set aside in a repository, so that a full one can be freed.

use onefold_repository::{MakingRoom, Repository, RepositoryErrorKind};

use crate::error::{BackupError, Result};

/// The reserved space: leases, tombstones and heartbeats of a command take some KiB for each source.
pub const ASIDE_BYTES: u64 = 8 << 20;

/// A command that frees space, or that only plans to.
pub(crate) struct Room<'a>(Option<MakingRoom<'a>>);

impl<'a> Room<'a> {
    /// Begins to free space, if anything is changed.
    pub(crate) fn new(repository: &'a Repository, is_to_change: bool) -> Result<Self> {
        let room = is_to_change.then(|| repository.make_room(ASIDE_BYTES));
        Ok(Self(room.transpose()?))
    }

    /// Runs `work`, and once more if the file system was full and a reserve could be released.
    pub(crate) fn with<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match &self.0 {
            Some(room) => room.with(is_full, work),
            None => work(),
        }
    }
}

/// Whether the error says that the file system is full.
pub(crate) fn is_full(error: &BackupError) -> bool {
    error.kind() == RepositoryErrorKind::NoSpace
}
