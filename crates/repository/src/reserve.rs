//! Space that is set aside, so that a full repository can be pruned: a prune needs some for leases and tombstones.

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{ObjectHeader, ObjectName};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::repository::Repository;

/// With less free space than this, in bytes, the reserve is released first: some file systems need space to overwrite a
/// file, as heartbeats do.
const NEARLY_FULL_BYTES: u64 = 1 << 20;

/// A section in which space is freed: the reserve is released if that needs space. Dropping this sets the reserve aside
/// again, if it fits.
pub struct MakingRoom<'a> {
    repository: &'a Repository,
    aside_bytes: u64,
}

impl Repository {
    /// Sets space aside: an object of `bytes` allocated bytes. Returns whether it is there afterwards; without free
    /// space, it is not created.
    ///
    /// # Errors
    ///
    /// Any other failure of writing.
    pub fn set_room_aside(&self, bytes: u64) -> Result<bool> {
        if self.check_removable(ObjectName::Reserve).is_ok() {
            return Ok(true);
        }
        let path = ObjectName::Reserve.path();
        let header = ObjectHeader {
            repository: self.id(),
            name: ObjectName::Reserve,
            salt: [0; 16],
        };
        let more = bytes.saturating_sub(OBJECT_HEADER_BYTES as u64);
        let written = self.folder.put_with_room(&path, &header.encode(), more);
        let written = written
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e));
        match written {
            Err(error) if error.kind() == RepositoryErrorKind::NoSpace => Ok(false),
            // Another process has created it.
            Err(error) if error.kind() == RepositoryErrorKind::InUse => Ok(true),
            written => written.map(|()| true),
        }
    }

    /// Releases the space that is set aside. Returns whether there was any.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn give_up_room(&self) -> Result<bool> {
        match self.remove(ObjectName::Reserve) {
            Err(error) if error.is_of_object() => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// Begins to free space. At the end, `aside_bytes` are set aside.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn make_room(&self, aside_bytes: u64) -> Result<MakingRoom<'_>> {
        if self
            .folder
            .root()
            .free_bytes()
            .is_ok_and(|free| free < NEARLY_FULL_BYTES)
        {
            self.give_up_room()?;
        }
        Ok(MakingRoom {
            repository: self,
            aside_bytes,
        })
    }
}

impl MakingRoom<'_> {
    /// Runs `work`, and once more if the file system was full and a reserve could be released.
    ///
    /// # Errors
    ///
    /// The errors of `work`.
    pub fn with<T, E>(
        &self,
        is_full: impl Fn(&E) -> bool,
        mut work: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match work() {
            Err(error)
                if is_full(&error) && self.repository.give_up_room().is_ok_and(|gave| gave) =>
            {
                work()
            }
            done => done,
        }
    }
}

impl Drop for MakingRoom<'_> {
    fn drop(&mut self) {
        // On failure, the next command that frees space tries again.
        let _ = self.repository.set_room_aside(self.aside_bytes);
    }
}
