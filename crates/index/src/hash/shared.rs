//! The segments as batches and lookups share them.
//!
//! # Lookups during a batch
//!
//! A batch changes the directory only where it notes its rows, which are durable then, and where it puts a merged
//! segment into place. It takes the directory's lock for writing there, and for nothing else; lookups run during its
//! frame, its sync, and the reading and writing of a merge. A lookup takes the lock for reading where it asks memory,
//! and not while it reads a leaf.
//!
//! So the run that a lookup reads may be replaced during the read, and its pages may be used again. Pages of a run are
//! freed only when the directory has another in its place, and no two runs of one place are equal. So a lookup asks the
//! directory again after the read: if the run is still there, it has read that run, and if not, it begins again. (If it
//! held the lock instead, a batch that waits to note its rows would wait for a lookup's disk, and with it all other
//! lookups, including those that must not wait for a disk.)
//!
//! A row that is found was durable while it was looked for: the directory has only rows of synced
//! frames, in the changes or in a run that was made of them.

use std::sync::{Arc, PoisonError};

use onefold_engine::{Blocking, Disk};
use onefold_format::PoolId;
use smallvec::SmallVec;

use super::directory::{Directory, Known, Resident, Unloaded};
use super::reads::{read_leaves, try_read_leaves};
use super::segment::{self, LEAF_BYTES, Run};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Fingerprint, IndexError, LookedUp, LookupAnswers, Result};

/// The most fingerprints that are looked up together. Their leaves are read at once: as many as `reads` keeps in
/// flight.
const TOGETHER: usize = 32;

/// The segments, and the disk that has their runs.
pub(super) struct Shared {
    disk: Arc<dyn Disk>,
    pool: PoolId,
    /// Never held across I/O. The last lock of all.
    directory: RwLock<Directory>,
}

/// Fingerprints of a lookup, by position, that have no answer yet.
type Open = SmallVec<[usize; 8]>;

/// Leaves that were read. A single one is not worth an allocation.
type Leaves = SmallVec<[u8; LEAF_BYTES]>;

/// A leaf that a lookup has to read.
struct Wanted {
    /// The position of the fingerprint in the lookup.
    by: usize,
    run: Run,
    leaf: u64,
}

impl Shared {
    pub(super) fn new(disk: Arc<dyn Disk>, pool: PoolId, directory: Directory) -> Shared {
        Shared {
            disk,
            pool,
            directory: RwLock::new(directory),
        }
    }

    /// The directory, for a batch. A panic that left it half changed ended all use of the index.
    pub(super) fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory, for a batch that changes it.
    pub(super) fn directory_mut(&self) -> RwLockWriteGuard<'_, Directory> {
        self.directory
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks fingerprints up, concurrently with batches.
    ///
    /// # Errors
    /// [`IndexError::WouldBlock`], if the lookup may not wait and an answer is on the disk.
    pub(super) fn lookup(
        &self,
        fingerprints: &[Fingerprint],
        blocking: Blocking,
    ) -> Result<LookupAnswers> {
        let mut answers = LookupAnswers::from_elem(LookedUp::Absent, fingerprints.len());
        let pieces = answers.chunks_mut(TOGETHER);
        for (fingerprints, answers) in fingerprints.chunks(TOGETHER).zip(pieces) {
            self.look_up_together(fingerprints, blocking, answers)?;
        }
        Ok(answers)
    }

    fn look_up_together(
        &self,
        fingerprints: &[Fingerprint],
        blocking: Blocking,
        answers: &mut [LookedUp],
    ) -> Result<()> {
        let mut open: Open = (0..fingerprints.len()).collect();
        let mut leaves = Leaves::new();
        while !open.is_empty() {
            let wanted = self.ask_memory(fingerprints, &open, blocking, answers)?;
            self.read(&wanted, blocking, &mut leaves)?;
            open = self.answer(&wanted, &leaves, fingerprints, answers)?;
        }
        Ok(())
    }

    /// Answers from memory, and returns the leaves that have the other answers.
    fn ask_memory(
        &self,
        fingerprints: &[Fingerprint],
        open: &[usize],
        blocking: Blocking,
        answers: &mut [LookedUp],
    ) -> Result<SmallVec<[Wanted; 1]>> {
        loop {
            let mut wanted = SmallVec::new();
            let mut unloaded = None;
            let directory = self.sound_directory()?;
            for by in open {
                match directory.known(fingerprints[*by]) {
                    Known::Answer(answer) => answers[*by] = answer,
                    Known::Leaf(run, leaf) => wanted.push(Wanted { by: *by, run, leaf }),
                    Known::Unloaded => {
                        unloaded = Some(fingerprints[*by]);
                        break;
                    }
                }
            }
            drop(directory);
            match unloaded {
                Some(fingerprint) => self.load(fingerprint, blocking)?,
                None => return Ok(wanted),
            }
        }
    }

    fn read(&self, wanted: &[Wanted], blocking: Blocking, into: &mut Leaves) -> Result<()> {
        let leaves: SmallVec<[u64; 8]> = wanted.iter().map(|wanted| wanted.leaf).collect();
        into.resize(leaves.len() * LEAF_BYTES, 0);
        match blocking {
            Blocking::Yes => read_leaves(&*self.disk, &leaves, into)?,
            Blocking::No if !try_read_leaves(&*self.disk, &leaves, into)? => {
                return Err(IndexError::WouldBlock);
            }
            Blocking::No => {}
        }
        Ok(())
    }

    /// Answers from leaves. Returns those whose run was replaced while they were read.
    fn answer(
        &self,
        wanted: &[Wanted],
        leaves: &[u8],
        fingerprints: &[Fingerprint],
        answers: &mut [LookedUp],
    ) -> Result<Open> {
        let mut open = Open::new();
        let mut read = SmallVec::<[(&Wanted, &[u8]); 1]>::new();
        let directory = self.sound_directory()?;
        for (wanted, bytes) in wanted.iter().zip(leaves.chunks_exact(LEAF_BYTES)) {
            if directory.run_of(fingerprints[wanted.by]) == Some(wanted.run) {
                read.push((wanted, bytes));
            } else {
                open.push(wanted.by);
            }
        }
        drop(directory);
        for (Wanted { by, run, leaf }, bytes) in read {
            let entries = segment::open_leaf(self.pool, *run, *leaf, bytes)?;
            answers[*by] = LookedUp::of(segment::find(entries, fingerprints[*by]).row());
        }
        Ok(open)
    }

    /// The directory, for a lookup, which may come before the panic of a batch is noticed.
    fn sound_directory(&self) -> Result<RwLockReadGuard<'_, Directory>> {
        self.directory.read().map_err(|_| IndexError::Failed)
    }

    /// Reads the data needed to look for a fingerprint, unless it is there already.
    ///
    /// # Errors
    /// The errors of [`Shared::lookup`].
    pub(super) fn load(&self, fingerprint: Fingerprint, blocking: Blocking) -> Result<()> {
        let Some(unloaded) = self.directory().unloaded(fingerprint) else {
            return Ok(());
        };
        let run = unloaded.run;
        let loaded = self.read_resident(unloaded, blocking);
        let mut directory = self.directory_mut();
        if directory.run_of(fingerprint) != Some(run) {
            // The data belongs to a run that is gone, so even an error of reading it does not matter.
            return Ok(());
        }
        directory.keep(fingerprint, run, loaded?)
    }

    fn read_resident(&self, unloaded: Unloaded, blocking: Blocking) -> Result<Resident> {
        let (disk, run) = (&*self.disk, unloaded.run);
        let fences = segment::read_fences(disk, self.pool, run, blocking)?;
        let signatures = if unloaded.has_room {
            Some(segment::read_signatures(disk, self.pool, run, blocking)?)
        } else {
            None
        };
        Ok(Resident { fences, signatures })
    }
}
