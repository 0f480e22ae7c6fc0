//! Space that is set aside, so that a full repository can be pruned: a prune needs some for leases and tombstones.

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{ObjectHeader, ObjectName};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::objects::Objects;

/// With less free space than this, in bytes, the reserve is released first: some file systems need space to overwrite a
/// file, as heartbeats do.
const NEARLY_FULL_BYTES: u64 = 1 << 20;

/// A section in which space is freed: the reserve is released if that needs space. Dropping this sets the reserve aside
/// again, if it fits.
pub struct MakingRoom<'a> {
    reserve: Reserve<'a>,
    aside_bytes: u64,
}

/// Space that is set aside in a repository.
pub(crate) struct Reserve<'a> {
    objects: &'a Objects,
}

impl<'a> Reserve<'a> {
    pub(crate) fn of(objects: &'a Objects) -> Self {
        Self { objects }
    }

    /// Sets space aside: an object of `bytes` allocated bytes. Returns whether it is there afterwards; without free
    /// space, it is not created.
    pub(crate) fn set_aside(&self, bytes: u64) -> Result<bool> {
        if self.objects.check_removable(ObjectName::Reserve).is_ok() {
            return Ok(true);
        }
        let path = ObjectName::Reserve.path();
        let header = ObjectHeader {
            repository: self.objects.id(),
            name: ObjectName::Reserve,
            salt: [0; 16],
        };
        let more = bytes.saturating_sub(OBJECT_HEADER_BYTES as u64);
        let folder = self.objects.folder();
        let written = folder.put_with_room(&path, &header.encode(), more);
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
    pub(crate) fn give_up(&self) -> Result<bool> {
        match self.objects.remove(ObjectName::Reserve) {
            Err(error) if error.is_of_object() => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    /// Begins to free space. At the end, `aside_bytes` are set aside.
    pub(crate) fn make_room(self, aside_bytes: u64) -> Result<MakingRoom<'a>> {
        let free = self.objects.root().free_bytes();
        if free.is_ok_and(|free| free < NEARLY_FULL_BYTES) {
            self.give_up()?;
        }
        Ok(MakingRoom {
            reserve: self,
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
            Err(error) if is_full(&error) && self.reserve.give_up().is_ok_and(|gave| gave) => {
                work()
            }
            done => done,
        }
    }
}

impl Drop for MakingRoom<'_> {
    fn drop(&mut self) {
        // On failure, the next command that frees space tries again.
        let _ = self.reserve.set_aside(self.aside_bytes);
    }
}
