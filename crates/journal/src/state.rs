//! What records change, the disks that hold it, and whether it may still be written.
//!
//! Everything in this crate that frees, counts or syncs shares it. It starts no commit and no checkpoint.

use std::ops::{Deref, Range};
use std::sync::Arc;

use onefold_format::{BatchItem, Pba};
use onefold_metadata::sync::{Mutex, MutexGuard, lock};
use onefold_metadata::{
    Guard, Limits, Maps, MetadataState, Pages, PbaRun, QueueKind, Result, StoreError,
};

use super::data_disk::DataDisk;
use super::failure::Failure;
use super::ledger::SyncLedger;
use super::log::Tail;
use super::shared_space::SharedSpace;
use super::tail_copy::TailCopy;

/// The uncommitted state, the maps, and the disks of data and metadata.
pub(super) struct State {
    pub(super) block_size: u64,
    pub(super) limits: Limits,
    pub(super) data: DataDisk,
    pub(super) pages: Arc<Pages>,
    pub(super) maps: Maps,
    /// The syncs of the data that succeeded, for the next process.
    pub(super) ledger: Arc<SyncLedger>,
    /// Of a group of a shared pool.
    pub(super) shared_space: Option<SharedSpace>,
    pub(super) failure: Failure,
    /// The records in memory and the state that they change. The lock's holder sees maps and
    /// metadata exactly as the records left them.
    uncommitted: Mutex<Uncommitted>,
}

/// The records in memory, and the state that records change besides the maps.
pub(super) struct Uncommitted {
    pub(super) tail: Tail,
    pub(super) copy: TailCopy,
    pub(super) metadata: MetadataState,
}

impl Uncommitted {
    /// Takes the records in memory; later ones belong to the next commit. The caller holds the log,
    /// and previously sealed records are durable.
    pub(super) fn seal(&mut self) -> Tail {
        let next = Tail::new(self.tail.end());
        if !self.tail.is_empty() {
            self.copy.begin(self.tail.end());
        }
        std::mem::replace(&mut self.tail, next)
    }
}

/// The metadata as the records left it. Nothing changes while this guard is held.
pub struct Metadata<'a>(MutexGuard<'a, Uncommitted>);

impl Deref for Metadata<'_> {
    type Target = MetadataState;

    fn deref(&self) -> &MetadataState {
        &self.0.metadata
    }
}

impl Metadata<'_> {
    /// Records in memory, in bytes.
    pub fn uncommitted_bytes(&self) -> usize {
        self.0.tail.bytes()
    }
}

/// Queries may load pages of the free-space map, and of the queue.
impl Metadata<'_> {
    /// The first mapped block of a range, or the range's end.
    pub fn next_named(&mut self, blocks: Range<u64>) -> Result<u64> {
        self.0.metadata.space_mut().next_named(blocks)
    }

    /// The mapped blocks from `start` to `end`.
    pub fn named_blocks(&mut self, start: u64, end: u64) -> Result<Vec<Pba>> {
        self.0.metadata.space_mut().named_blocks(start, end)
    }

    /// Free blocks before `end`.
    pub fn free_before(&mut self, end: u64) -> Result<u64> {
        self.0.metadata.space_mut().free_before(end)
    }

    /// The number of elements at the head of a queue that hold at most `blocks_max` blocks.
    pub fn count_head(&mut self, kind: QueueKind, blocks_max: u64) -> Result<u64> {
        self.0.metadata.queue_mut(kind).count_head(blocks_max)
    }

    /// The items that a batch of at most `blocks_max` blocks from the head of a queue would have now.
    pub fn peek_head(&mut self, kind: QueueKind, blocks_max: u64) -> Result<Vec<BatchItem>> {
        self.0.metadata.queue_mut(kind).peek_head(blocks_max)
    }
}

/// The disks and maps of a state.
pub(super) struct StateParts {
    pub(super) block_size: u64,
    pub(super) limits: Limits,
    pub(super) data: DataDisk,
    pub(super) pages: Arc<Pages>,
    pub(super) maps: Maps,
    pub(super) ledger: Arc<SyncLedger>,
    pub(super) shared_space: Option<SharedSpace>,
}

impl State {
    pub(super) fn new(parts: StateParts, uncommitted: Uncommitted) -> Self {
        let StateParts {
            block_size,
            limits,
            data,
            pages,
            maps,
            ledger,
            shared_space,
        } = parts;
        Self {
            block_size,
            limits,
            data,
            pages,
            maps,
            ledger,
            shared_space,
            failure: Failure::default(),
            uncommitted: Mutex::new(uncommitted),
        }
    }

    /// The uncommitted state, unless a thread panicked in the middle of changing it: then the state
    /// is unknown, and the pool takes no writes until recovery has read it from disk again.
    pub(super) fn uncommitted(&self) -> Result<MutexGuard<'_, Uncommitted>> {
        self.uncommitted.lock().map_err(|_| {
            let error = StoreError::damaged("a request panicked while it changed the maps");
            self.failure.set(&error);
            self.failure.read_only_error()
        })
    }

    pub(super) fn metadata(&self) -> Result<Metadata<'_>> {
        self.uncommitted().map(Metadata)
    }

    /// Fails with `ReadOnly` after a failure.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.failure.is_set() {
            Err(self.failure.read_only_error())
        } else {
            Ok(())
        }
    }

    /// Takes back blocks that were handed out and to which no record refers.
    pub(super) fn take_back(&self, runs: &[PbaRun]) -> Result<()> {
        let mut uncommitted = self.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        runs.iter().try_for_each(|run| space.release(*run))
    }

    /// Syncs the data. After a failure there are no more writes or records, so all records that are
    /// not durable are in the tail or in the tails of commits in progress.
    pub(super) fn sync_data(&self) -> Result<()> {
        let what = || format!("syncing the pool's data {}", self.data.name());
        let synced = self.ledger.counted(|| self.data.sync());
        synced
            .map_err(|error| StoreError::io(what(), error))
            .inspect_err(|error| {
                if Guard::FailedSyncStopsWrites.holds() {
                    self.failure.set(error);
                    self.data.doubt(&lock(&self.uncommitted).tail);
                }
            })
    }

    /// Whether there is anything for a checkpoint to write.
    pub(super) fn has_changes(&self, metadata: &MetadataState) -> bool {
        self.maps.dirty_count() + metadata.dirty_pages() > 0
    }

    /// The number of pages to reserve if the next checkpoint's pages, and `beyond` more, are not
    /// all there.
    pub(super) fn pages_lacking(&self, metadata: &MetadataState, beyond: u64) -> Option<u64> {
        let changes = self.maps.dirty_count() + metadata.dirty_pages();
        let wanted = 2 * changes as u64 + beyond;
        (self.pages.spare() < wanted).then_some(wanted)
    }
}
