//! Room that is set aside, so that a full repository can be pruned: whoever makes room needs a little for leases and tombstones.

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{ObjectHeader, ObjectName};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::repository::Repository;

/// With less room than this, in bytes, what is set aside is given up before anything is tried: some file systems need room to
/// write over a file, as signs of life are.
const NEARLY_FULL_BYTES: u64 = 1 << 20;

/// A repository in which room is made: what is set aside is given up if that takes room. Dropped, it is set aside again,
/// if there is room for it.
pub struct MakingRoom<'a> {
    repository: &'a Repository,
    aside_bytes: u64,
}

impl Repository {
    /// Sets room aside: an object of so many bytes, for which the file system has blocks. Returns whether it is there then:
    /// without room for it, it is not made.
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
            // Another process was sooner.
            Err(error) if error.kind() == RepositoryErrorKind::InUse => Ok(true),
            written => written.map(|()| true),
        }
    }

    /// Gives the room up that is set aside. Returns whether any was.
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

    /// Begins to make room. At the end, so many bytes are set aside.
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
    /// Does something; once more, if no room was left and there was some set aside.
    ///
    /// # Errors
    ///
    /// Those of `work`.
    pub fn with<T, E>(
        &self,
        is_full: impl Fn(&E) -> bool,
        mut work: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match work() {
            Err(error) if is_full(&error) && self.repository.give_up_room().is_ok_and(|it| it) => {
                work()
            }
            done => done,
        }
    }
}

impl Drop for MakingRoom<'_> {
    fn drop(&mut self) {
        // The next command that makes room tries again.
        let _ = self.repository.set_room_aside(self.aside_bytes);
    }
}
