//! A [`Disk`] as a file for redb.
//!
//! redb's file begins behind our header. redb needs a length that it can set, and that a clean
//! shutdown leaves exactly as it was; a disk only grows. So the length is kept here:
//!
//! - Growing writes the last sector if the disk is too short. redb syncs before it relies on that.
//! - Shrinking gives the space back and remembers the new length, but the disk stays as long.
//! - When redb opens, it finds the disk's length. That is not shorter than the length redb last
//!   relied on, and redb treats the excess as free space.
//!
//! redb requires new bytes to be zeros. On a host that does not take space back they are not, after
//! a shrink; but redb does not read bytes that it has not written, and fills new pages with ones
//! itself in debug builds.
//!
//! The first error of the disk is kept: redb reports some of them as no more than "previous I/O
//! error".

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::Disk;

use crate::header::BODY_OFFSET;

const SECTOR_BYTES: u64 = 512;

/// redb's file on a disk. Clones are handles on the same one.
#[derive(Clone)]
pub(super) struct Storage {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Arc<dyn Disk>,
    len: Mutex<u64>,
    failure: Mutex<Option<io::Error>>,
}

impl Storage {
    /// The existing file.
    pub(super) fn existing(disk: Arc<dyn Disk>) -> io::Result<Storage> {
        let len = disk.len()?.saturating_sub(BODY_OFFSET);
        Ok(Storage::new(disk, len))
    }

    /// An empty file. The space of the old one is discarded.
    pub(super) fn empty(disk: Arc<dyn Disk>) -> io::Result<Storage> {
        let len = disk.len()?.saturating_sub(BODY_OFFSET);
        if len > 0 {
            disk.discard(BODY_OFFSET, len)?;
        }
        Ok(Storage::new(disk, 0))
    }

    fn new(disk: Arc<dyn Disk>, len: u64) -> Storage {
        Storage {
            shared: Arc::new(Shared {
                disk,
                len: Mutex::new(len),
                failure: Mutex::new(None),
            }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self.current_len() == 0
    }

    /// The first error of the disk since the last call.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.failure().take()
    }

    /// A copy of the first error, which stays there for [`Storage::take_failure`].
    pub(super) fn failed(&self) -> Option<io::Error> {
        self.failure().as_ref().map(copy)
    }

    /// Keeps an error, and makes one of the same kind for redb.
    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let for_redb = copy(&error);
            self.failure().get_or_insert(error);
            for_redb
        })
    }

    fn failure(&self) -> MutexGuard<'_, Option<io::Error>> {
        let failure = self.shared.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner)
    }

    fn current_len(&self) -> MutexGuard<'_, u64> {
        self.shared
            .len
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn grow_disk(&self, len: u64) -> io::Result<()> {
        let disk = &self.shared.disk;
        let end = BODY_OFFSET + len;
        if disk.len()? < end {
            disk.write_at(&[0; SECTOR_BYTES as usize], end - SECTOR_BYTES)?;
        }
        Ok(())
    }
}

/// An error of the same kind and text.
fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Storage")
    }
}

impl redb::StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(*self.current_len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        // Only damaged pages make redb read there, which is not a failure of the disk.
        if end.is_none_or(|end| end > *self.current_len()) {
            let what = format!("a page of {} bytes at {offset}, beyond the end", out.len());
            return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
        }
        self.noted(self.shared.disk.read_at(out, BODY_OFFSET + offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut current = self.current_len();
        let result = if len < *current {
            self.shared.disk.discard(BODY_OFFSET + len, *current - len)
        } else {
            self.grow_disk(len)
        };
        self.noted(result)?;
        *current = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.noted(self.shared.disk.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.noted(self.shared.disk.write_at(data, BODY_OFFSET + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::simulated::{Op, SimulatedEngine};
    use onefold_engine::{Engine, Part};
    use redb::StorageBackend;

    const PAGE: u64 = 4096;

    #[test]
    fn a_length_that_was_set_is_there_when_it_is_opened_again() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        let storage = Storage::empty(disk.clone()).unwrap();
        assert!(storage.is_empty());
        storage.set_len(100 * PAGE).unwrap();
        let again = Storage::existing(disk.clone()).unwrap();
        assert_eq!(
            (storage.len().unwrap(), again.len().unwrap()),
            (100 * PAGE, 100 * PAGE)
        );
        let mut page = [7; PAGE as usize];
        storage.read(99 * PAGE, &mut page).unwrap();
        assert_eq!(page, [0; PAGE as usize]);
        assert!(disk.allocated_bytes().unwrap() <= PAGE, "it stays sparse");
    }

    #[test]
    fn a_shorter_length_gives_space_back() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        let storage = Storage::empty(disk.clone()).unwrap();
        storage.set_len(50 * PAGE).unwrap();
        storage.write(0, &vec![1; 50 * PAGE as usize]).unwrap();
        storage.set_len(20 * PAGE).unwrap();
        assert_eq!(storage.len().unwrap(), 20 * PAGE);
        assert_eq!(disk.allocated_bytes().unwrap(), 20 * PAGE);
        let again = Storage::existing(disk).unwrap();
        assert!(
            again.len().unwrap() >= 20 * PAGE,
            "longer, perhaps, but never shorter"
        );
        let mut page = [0; PAGE as usize];
        storage.read(19 * PAGE, &mut page).unwrap();
        assert_eq!(page, [1; PAGE as usize]);
        // Nothing is there now, and the disk is fine.
        let error = storage.read(20 * PAGE, &mut page).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(storage.take_failure().is_none());
        storage.set_len(30 * PAGE).unwrap();
        storage.read(29 * PAGE, &mut page).unwrap();
        assert_eq!(page, [0; PAGE as usize]);
    }

    #[test]
    fn it_leaves_the_header_alone_and_keeps_the_first_error() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Index, 0).unwrap();
        disk.write_at(&[9; 512], 0).unwrap();
        let storage = Storage::empty(disk.clone()).unwrap();
        storage.set_len(2 * PAGE).unwrap();
        storage.write(0, &[1; PAGE as usize]).unwrap();
        engine.fail_once(Part::Index, Op::Write, 1, ErrorKind::StorageFull);
        engine.fail_once(Part::Index, Op::Sync, 1, ErrorKind::TimedOut);
        let error = storage.write(0, &[2; PAGE as usize]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(storage.sync_data().unwrap_err().kind(), ErrorKind::TimedOut);
        let first = storage.take_failure().unwrap();
        assert_eq!(
            (first.kind(), first.to_string()),
            (error.kind(), error.to_string())
        );
        assert!(storage.take_failure().is_none());
        storage.set_len(0).unwrap();
        assert_eq!(engine.read_raw(Part::Index, 0, 512), [9; 512]);
    }
}
