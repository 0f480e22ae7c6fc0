//! State that all volumes of an open pool share.

use std::sync::{Arc, LockResult, OnceLock, PoisonError, TryLockError};

use onefold_format::{Secret, Superblock};
use onefold_journal::{BackgroundWork, BadBlocks, DataDisk, Journal, LossList};
use onefold_metadata::sync::{AtomicBool, Mutex, MutexGuard};
use onefold_metadata::{Limits, Maps, Result, Room, StoreError};

use crate::dedup::{ClaimedFingerprints, ClaimsAlarm, Fingerprinter, IndexSlot};
use crate::latency::Latencies;
use crate::volume::Recent;

pub(crate) struct Pool {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) journal: Journal,
    pub(crate) background: Arc<BackgroundWork>,
    /// Which blocks have the same content.
    pub(crate) index: IndexSlot,
    pub(crate) fingerprinter: Fingerprinter,
    pub(crate) bad: BadBlocks,
    /// Blocks and volumes that a failed sync damaged.
    pub(crate) losses: LossList,
    /// Of references that the index does not count yet.
    pub(crate) claimed: ClaimedFingerprints,
    pub(crate) claims_alarm: OnceLock<ClaimsAlarm>,
    /// Held from a batch's first record to its last. Taken before [`Store::changing`](crate::Store), which
    /// commands wait for: a holder of it may be waiting for an idle processor.
    jobs: Mutex<()>,
    /// Held while the memory of [`Limits::check_bytes`] is in use.
    pub(crate) scan_memory: Mutex<()>,
    /// Held while blocks are moved from beyond the pool's new end.
    pub(crate) shrinking: Mutex<()>,
    pub(crate) latencies: Latencies,
    pub(crate) hash_cache_room: Arc<Room>,
    pub(crate) recent: Recent,
    /// Relaxed: a hint, which nothing else depends on.
    pub(crate) guests_strained: AtomicBool,
}

/// The components of a pool.
pub(crate) struct PoolParts {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) journal: Journal,
    pub(crate) background: Arc<BackgroundWork>,
    pub(crate) index: IndexSlot,
    pub(crate) secret: Secret,
    pub(crate) bad: BadBlocks,
    pub(crate) losses: LossList,
}

impl Pool {
    pub(crate) fn new(parts: PoolParts) -> Self {
        let PoolParts {
            superblock,
            limits,
            journal,
            background,
            index,
            secret,
            bad,
            losses,
        } = parts;
        Self {
            superblock,
            limits,
            journal,
            background,
            index,
            fingerprinter: Fingerprinter::new(secret, superblock.block_size),
            bad,
            losses,
            claimed: ClaimedFingerprints::new(limits.claim_fingerprints_max),
            claims_alarm: OnceLock::new(),
            jobs: Mutex::default(),
            scan_memory: Mutex::default(),
            shrinking: Mutex::default(),
            latencies: Latencies::new(),
            hash_cache_room: Room::new(limits.hash_cache_bytes),
            recent: Recent::new(limits.recent_bytes),
            guests_strained: AtomicBool::new(false),
        }
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.superblock.block_size)
    }

    pub(crate) fn maps(&self) -> &Maps {
        self.journal.maps()
    }

    pub(crate) fn data(&self) -> &DataDisk {
        self.journal.data()
    }

    /// The job lock, unless a job ended by a panic: only the next opening settles its unfinished
    /// work, in the index too. Guests go on until then. Its holder, which may be waiting for an idle
    /// processor, is hurried while the caller waits.
    pub(crate) fn job(&self) -> Result<MutexGuard<'_, ()>> {
        self.lock_hurrying(&self.jobs).map_err(job_panicked)
    }

    /// As [`Pool::job`], of a caller for which nobody waits: the holder is not hurried.
    pub(crate) fn job_in_background(&self) -> Result<MutexGuard<'_, ()>> {
        self.jobs.lock().map_err(job_panicked)
    }

    /// Takes a lock whose holder may do background work, or wait for somebody who does: it is hurried
    /// while this waits.
    pub(crate) fn lock_hurrying<'a>(&self, mutex: &'a Mutex<()>) -> LockResult<MutexGuard<'a, ()>> {
        match mutex.try_lock() {
            Ok(held) => Ok(held),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => {
                let _hurry = self.background.hurry();
                mutex.lock()
            }
        }
    }
}

fn job_panicked<T>(_: PoisonError<T>) -> StoreError {
    StoreError::damaged(
        "no job and no deletion runs until the pool is opened again: a job ended by a panic; this is a \
         defect of onefold",
    )
}
