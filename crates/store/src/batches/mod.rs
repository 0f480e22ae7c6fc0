//! Batches that are announced to the index: calls it, and logs its answers.
//!
//! Finder, collector and counting each make a batch, and settle it; a crash between the two leaves it open. One batch
//! is open at a time in a pool, so the next of any kind settles it first. How a batch is announced is in
//! [`crate::dedup`].

mod claims;
mod collector;
mod compare;
mod counting;
mod decided;
mod execute;
mod finder;
mod index;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LockResult, PoisonError, TryLockError};

use onefold_format::{BatchKind, Pba};
use onefold_index::Fingerprint;
use onefold_journal::{BackgroundWork, Epoch, Journal};
use onefold_metadata::sync::{AtomicU64, Mutex, MutexGuard};
use onefold_metadata::{Guard, OpenBatch, Result, StoreError};
use rustc_hash::FxHashMap;

use crate::blocks::Blocks;
use crate::shared::Leases;

pub(crate) use claims::{ClaimedFingerprints, ClaimsAlarm};
pub use collector::CollectReport;
pub use counting::CountReport;
pub(crate) use decided::Granted;
pub(crate) use execute::{Executor, meet};
pub use finder::BatchReport;
pub(crate) use index::{IndexSlot, STREAM, blank, create, create_uncounted};

/// Items settled under one hold of the uncommitted state.
const ITEMS_PER_STEP: usize = 512;

/// The index, and the state from which batches are settled.
pub(crate) struct Batches {
    journal: Arc<Journal>,
    blocks: Arc<Blocks>,
    background: Arc<BackgroundWork>,
    /// Which blocks have the same content.
    index: IndexSlot,
    /// Fingerprints of references that the index does not count yet.
    claimed: ClaimedFingerprints,
    /// In a group of a shared pool.
    leases: Option<Arc<Leases>>,
    /// The index has not been called with this batch and later ones.
    uncalled: AtomicU64,
    /// The collector's batch and the moment of its announcement, while the batch waits for readers.
    awaited: Mutex<Option<(u64, Epoch)>>,
    /// Held from a batch's first record to its last. Taken before the turn to change the catalogue, for which
    /// commands wait: a holder of this lock may be waiting for an idle processor.
    jobs: Mutex<()>,
}

/// Whether a batch may wait for an idle processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Background,
    AtOnce,
}

impl Batches {
    pub(crate) fn new(
        journal: Arc<Journal>,
        blocks: Arc<Blocks>,
        background: Arc<BackgroundWork>,
        index: IndexSlot,
        claimed: ClaimedFingerprints,
        next_batch: u64,
        leases: Option<Arc<Leases>>,
    ) -> Self {
        Self {
            leases,
            uncalled: AtomicU64::new(next_batch),
            awaited: Mutex::default(),
            journal,
            blocks,
            background,
            index,
            claimed,
            jobs: Mutex::default(),
        }
    }

    /// Whether the index may have been called with a batch before. Notes that it is called now.
    fn may_be_repeated(&self, batch: &OpenBatch) -> bool {
        self.uncalled.fetch_max(batch.number + 1, Relaxed) > batch.number
    }

    pub(crate) fn index(&self) -> &IndexSlot {
        &self.index
    }

    pub(crate) fn claimed(&self) -> &ClaimedFingerprints {
        &self.claimed
    }

    /// Takes the job lock; fails if a job ended by a panic, and with `Paused` during a census of the pool. Only the next opening settles that job's
    /// unfinished work, in the index too, and guests are served until then. The lock's holder, which
    /// may be waiting for an idle processor, is hurried while the caller waits.
    pub(crate) fn job(&self) -> Result<MutexGuard<'_, ()>> {
        let job = lock_hurrying(&self.background, &self.jobs).map_err(job_panicked)?;
        self.check_not_paused()?;
        Ok(job)
    }

    /// Like [`Batches::job`], but does not hurry the holder, because nothing waits for the caller.
    pub(crate) fn job_in_background(&self) -> Result<MutexGuard<'_, ()>> {
        let job = self.jobs.lock().map_err(job_panicked)?;
        self.check_not_paused()?;
        Ok(job)
    }

    /// Like [`Batches::job`], for the census that has paused the jobs.
    pub(crate) fn job_in_pause(&self) -> Result<MutexGuard<'_, ()>> {
        lock_hurrying(&self.background, &self.jobs).map_err(job_panicked)
    }

    /// The pause begins under the job lock.
    fn check_not_paused(&self) -> Result<()> {
        let leases = self.leases.as_ref();
        leases.map_or(Ok(()), |leases| leases.pause().check())
    }

    pub(crate) fn job_for(&self, urgency: Urgency) -> Result<MutexGuard<'_, ()>> {
        match urgency {
            Urgency::Background => self.job_in_background(),
            Urgency::AtOnce => self.job(),
        }
    }

    /// Does work that holds nothing a guest could wait for.
    pub(crate) fn run<T: Send>(&self, urgency: Urgency, work: impl FnOnce() -> T + Send) -> T {
        match urgency {
            Urgency::Background => self.background.run(work),
            Urgency::AtOnce => work(),
        }
    }

    /// A commit of a batch.
    pub(crate) fn commit(&self, urgency: Urgency) -> Result<()> {
        match urgency {
            Urgency::Background => self.journal.commit_in_background(),
            Urgency::AtOnce => self.journal.commit(),
        }
    }

    /// Settles the batch that is open, if one is. The caller holds the job lock.
    pub(crate) fn settle_open_batch(&self) -> Result<BatchReport> {
        self.settle_open_batch_read(&FxHashMap::default())
    }

    /// Like [`Batches::settle_open_batch`], with the fingerprints of blocks of a finder's batch that were read before.
    pub(crate) fn settle_open_batch_read(
        &self,
        read: &FxHashMap<Pba, Fingerprint>,
    ) -> Result<BatchReport> {
        let open = self.journal.metadata()?.batches().open().cloned();
        let Some(batch) = open else {
            return Ok(BatchReport::default());
        };
        if Guard::IntentBeforeCall.holds() {
            self.journal.commit_in_background()?;
        }
        match batch.kind {
            BatchKind::Finder(layer) => self.settle_finder(layer, &batch, read),
            BatchKind::Collector => self
                .settle_collector(&batch, &FxHashMap::default(), Urgency::Background)
                .map(|_| BatchReport::default()),
            BatchKind::Counting => self
                .settle_counting(&batch, Urgency::Background)
                .map(|_| BatchReport::default()),
        }
    }
}

/// Takes a lock whose holder may do background work, or wait for another thread's: that work is
/// hurried while this waits.
pub(crate) fn lock_hurrying<'a>(
    background: &Arc<BackgroundWork>,
    mutex: &'a Mutex<()>,
) -> LockResult<MutexGuard<'a, ()>> {
    match mutex.try_lock() {
        Ok(held) => Ok(held),
        Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
        Err(TryLockError::WouldBlock) => {
            let _hurry = background.hurry();
            mutex.lock()
        }
    }
}

fn job_panicked<T>(_: PoisonError<T>) -> StoreError {
    StoreError::damaged(
        "no job and no deletion runs until the pool is opened again: a job ended by a panic; this is a \
         defect of onefold",
    )
}
