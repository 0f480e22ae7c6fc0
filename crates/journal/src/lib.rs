//! How changes of a pool's metadata become durable: records are appended, applied and copied to memory
//! that outlives the process; a commit writes them to the log; a checkpoint folds them into the pages.
//!
//! May use: `metadata`, `engine`, `format`; the log, the data, the root and the list of bad blocks.
//! Must not: start threads, or know volumes, the index, or why blocks are shared.
//!
//! A [`Journal`] is an instance with private fields; a process can have several. Only a commit or a
//! checkpoint syncs. Other crates have read-only access to maps and metadata, and read and write
//! data.
//!
//! | file | purpose |
//! | --- | --- |
//! | `append.rs` | appends and applies records |
//! | `commit.rs` `group_commit.rs` `log.rs` `log_span.rs` | makes them durable |
//! | `checkpoint.rs` `reader.rs` | keeps the log short; reads a checkpoint |
//! | `replay.rs` `log_end.rs` `session_end.rs` | brings a pool to its state after the last commit |
//! | `tail_copy.rs` `tail_memory.rs` `new_blocks.rs` | how changes that are not durable outlive the process |
//! | `ledger.rs` `rewritten.rs` | how the next process learns of a failed sync, and of blocks rewritten in place
//! |
//! | `left_behind.rs` `losses.rs` | the losses of a failed sync |
//! | `data_disk.rs` `doubted.rs` `block_set.rs` `failure.rs` | the data; reads and writes that are refused after a failed sync |
//! | `reuse.rs` `epoch.rs` | hands out blocks, and frees them once they have no readers |
//! | `room.rs` `watermarks.rs` | free blocks, and those kept for some purpose |
//! | `host_space.rs` `freed.rs` | returns free space to the host |
//! | `size.rs` | the pool's size |
//! | `bad_blocks.rs` | the list of bad blocks, and the scrub's progress |
//! | `background.rs` | the hook for the background executor |
//!
//! Lock order: the root (checkpoints), the log (commits), the uncommitted state, then maps and
//! metadata.

mod append;
mod background;
mod bad_blocks;
mod block_set;
mod checkpoint;
mod commit;
mod data_disk;
mod doubted;
mod epoch;
mod failure;
mod freed;
mod group_commit;
mod host_space;
mod ledger;
mod left_behind;
mod log;
mod log_end;
mod log_span;
mod losses;
mod new_blocks;
mod reader;
mod replay;
mod reuse;
mod rewritten;
mod room;
mod session_end;
mod size;
mod tail_copy;
mod tail_memory;
mod version;
mod watermarks;

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::{BatchItem, Pba, Root, Superblock, VolumeId, WhenFull};
use onefold_metadata::sync::{AtomicU8, Condvar, Mutex, MutexGuard};
use onefold_metadata::{
    Guard, Limits, LookupVersion, Maps, MetadataState, Pages, PbaRun, PbaRuns, QueueKind, Result,
    StoreError,
};

use self::epoch::Epochs;
use self::failure::Failure;
use self::freed::Freed;
use self::group_commit::GroupCommit;
use self::log::Tail;
use self::log_span::LogSpan;
use self::rewritten::Rewritten;
use self::tail_copy::TailCopy;
use self::watermarks::SpaceReport;

pub use append::Admit;
pub use background::{BackgroundExecutor, BackgroundWork, Hurry};
pub use bad_blocks::BadBlocks;
pub use data_disk::DataDisk;
pub use epoch::{Epoch, LongPin, Pin};
pub use failure::StopsOnPanic;
pub use ledger::{FoundLedger, RewriteMark, SyncLedger};
pub use left_behind::{Doubt, LossReport};
pub use log::{Log, LogMark};
pub use log_end::IncompleteCommit;
pub use log_end::check_length;
pub use losses::LossList;
pub use reader::{CheckpointReader, HELD_BACK_MAX, MapPage, PAGES_AT_ONCE};
pub use replay::{Predecessor, TakenOver, follow_log};
pub use tail_memory::TailMemory;
pub use watermarks::SpaceLevel;
pub use watermarks::{PAGES_FOR_FINDER, Purpose};

/// Makes a pool's metadata durable.
pub struct Journal {
    superblock: Superblock,
    limits: Limits,
    data: DataDisk,
    pages: Arc<Pages>,
    maps: Maps,
    background: Arc<BackgroundWork>,
    /// The records in memory and the state that they change. The lock's holder sees maps and
    /// metadata exactly as the records left them.
    uncommitted: Mutex<Uncommitted>,
    commits: GroupCommit<Log>,
    checkpoints: GroupCommit<Root>,
    log_span: LogSpan,
    /// The syncs of the data that succeeded, for the next process.
    ledger: Arc<SyncLedger>,
    /// The new blocks that were rewritten in place, for the next process.
    rewritten: Arc<Rewritten>,
    epochs: Arc<Epochs>,
    lookup_version: Arc<LookupVersion>,
    /// Blocks that durable records released, until their readers have drained.
    deferred_frees: Mutex<VecDeque<(Epoch, PbaRuns)>>,
    /// Held while drained blocks are moved from `deferred_frees` to free space.
    reclaiming: Mutex<()>,
    freed: Mutex<Freed>,
    /// Where the walk over free space that follows opening continues.
    free_walk: Mutex<Option<u64>>,
    failure: Failure,
    /// How writes end for which there is no room; the next checkpoint makes it durable.
    when_full: AtomicU8,
    /// The minor version in the newest root.
    minor: AtomicU8,
    space_report: SpaceReport,
    due: (Mutex<bool>, Condvar),
}

/// The components of a journal.
pub struct JournalParts {
    /// The pool's identity.
    pub superblock: Superblock,
    /// Shares of the memory limit.
    pub limits: Limits,
    /// The part with the blocks.
    pub data: DataDisk,
    /// The part with the metadata.
    pub pages: Arc<Pages>,
    /// The maps according to the root.
    pub maps: Maps,
    /// The metadata according to the root.
    pub metadata: MetadataState,
    /// Memory that outlives the process.
    pub tail_memory: TailMemory,
    /// The ledger, which already counts the syncs of the opening.
    pub ledger: Arc<SyncLedger>,
    /// The log, at the root's position.
    pub log: Log,
    /// The newest root.
    pub root: Root,
    /// The hook for the background executor.
    pub background: Arc<BackgroundWork>,
}

/// The records in memory, and the state that records change besides the maps.
struct Uncommitted {
    tail: Tail,
    copy: TailCopy,
    metadata: MetadataState,
}

impl Uncommitted {
    /// Takes the records in memory; later ones belong to the next commit. The caller holds the log,
    /// and previously sealed records are durable.
    fn seal(&mut self) -> Tail {
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

impl Journal {
    /// A journal of the state that an opening found; the log still has to be replayed.
    pub fn new(parts: JournalParts) -> Self {
        let JournalParts {
            superblock,
            limits,
            data,
            pages,
            maps,
            metadata,
            tail_memory,
            ledger,
            log,
            root,
            background,
        } = parts;
        let end = log.end.position;
        let lookup_version = Arc::clone(metadata.lookup_version());
        let rewritten = Arc::new(Rewritten::new(&tail_memory));
        Self {
            superblock,
            limits,
            data,
            pages,
            maps,
            background,
            uncommitted: Mutex::new(Uncommitted {
                tail: Tail::new(end),
                copy: TailCopy::new(tail_memory, Arc::clone(&rewritten)),
                metadata,
            }),
            log_span: LogSpan::new(superblock.log_bytes, root.log_position, end),
            commits: GroupCommit::new(log),
            checkpoints: GroupCommit::new(root),
            ledger,
            rewritten,
            epochs: Arc::new(Epochs::new()),
            lookup_version,
            deferred_frees: Mutex::default(),
            reclaiming: Mutex::default(),
            freed: Mutex::default(),
            free_walk: Mutex::new(Some(0)),
            failure: Failure::default(),
            when_full: AtomicU8::new(root.when_full as u8),
            minor: AtomicU8::new(root.minor),
            space_report: SpaceReport::default(),
            due: (Mutex::new(false), Condvar::new()),
        }
    }

    fn block_size(&self) -> u64 {
        u64::from(self.superblock.block_size)
    }

    /// The maps of all layers.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Pages of metadata in use, the root slots included.
    pub fn page_count(&self) -> u64 {
        self.pages.used_count()
    }

    /// Inner pages of trees in memory.
    pub fn cached_pages(&self) -> usize {
        self.pages.cached_count()
    }

    /// The current epoch: blocks released from now on get this epoch or a later one.
    pub fn epoch(&self) -> Epoch {
        self.epochs.current()
    }

    /// The present lookup version: an answer of the index can admit a hit only if it was requested
    /// at this version.
    pub fn lookup_version(&self) -> u64 {
        self.lookup_version.now()
    }

    /// Makes all earlier answers of the index unfit for a hit, because the index is being counted
    /// again.
    pub fn outdate_lookups(&self) -> Result<()> {
        self.uncommitted()?.metadata.outdate_lookups();
        Ok(())
    }

    /// Stops writes from making claims, or lets them again: see
    /// [`onefold_metadata::Refusal::Held`].
    pub fn hold_hits(&self, held: bool) -> Result<()> {
        self.uncommitted()?.metadata.hold_hits(held);
        Ok(())
    }

    /// The data blocks.
    pub fn data(&self) -> &DataDisk {
        &self.data
    }

    /// Prevents the reuse of every block that is mapped now (P3).
    pub fn pin(&self) -> Pin<'_> {
        self.epochs.pin()
    }

    /// Like [`Journal::pin`], for a read that ends on another thread.
    pub fn pin_long(&self) -> LongPin {
        self.epochs.pin_long()
    }

    /// The metadata as the records left it.
    ///
    /// # Errors
    ///
    /// If a thread panicked while it changed the metadata.
    pub fn metadata(&self) -> Result<Metadata<'_>> {
        self.uncommitted().map(Metadata)
    }

    /// The uncommitted state, unless a thread panicked in the middle of changing it: then the state
    /// is unknown, and the pool takes no writes until recovery has read it from disk again.
    fn uncommitted(&self) -> Result<MutexGuard<'_, Uncommitted>> {
        self.uncommitted.lock().map_err(|_| {
            let error = StoreError::damaged("a request panicked while it changed the maps");
            self.fail(&error);
            self.failure.read_only_error()
        })
    }

    /// Stops all writes until the pool is opened again (P8).
    pub fn fail(&self, error: &StoreError) {
        self.failure.set(error);
    }

    /// A guard that stops all writes when it is dropped during a panic.
    pub fn stops_on_panic(&self, what: &'static str) -> StopsOnPanic<'_> {
        StopsOnPanic::new(&self.failure, what)
    }

    /// Notes that a volume is about to rewrite blocks in place. The caller writes them only after
    /// this returns.
    pub fn begin_rewrite(&self, mark: &RewriteMark, volume: VolumeId, run: PbaRun) {
        self.ledger.mark(mark, volume);
        if Guard::RewritesMarked.holds() {
            self.rewritten.mark(run);
        }
    }

    /// Notes that a volume has rewritten blocks in place. The caller answers the request only after
    /// this returns.
    pub fn end_rewrite(&self, mark: &RewriteMark, volume: VolumeId) {
        self.ledger.mark(mark, volume);
    }

    /// Whether records with new blocks need checksums of them.
    pub fn wants_sums(&self) -> bool {
        self.ledger.is_counting()
    }

    /// Fails with `ReadOnly` after a failure.
    pub fn check_writable(&self) -> Result<()> {
        if self.failure.is_set() {
            Err(self.failure.read_only_error())
        } else {
            Ok(())
        }
    }

    /// Refuses data read from blocks whose content may be another volume's, after a failed sync.
    pub fn check_believed(&self, blocks: &Range<u64>) -> io::Result<()> {
        // While all is well, no lock is taken.
        if self.failure.is_set() {
            self.data.check_believed(blocks)
        } else {
            Ok(())
        }
    }

    /// How writes end when there is no room for them.
    pub fn when_full(&self) -> WhenFull {
        match self.when_full.load(SeqCst) {
            0 => WhenFull::Pause,
            _ => WhenFull::Fail,
        }
    }

    /// Sets how writes end when there is no room for them. Durable when it returns.
    pub fn set_when_full(&self, when_full: WhenFull) -> Result<()> {
        let before = self.when_full.swap(when_full as u8, SeqCst);
        self.checkpoint()
            .inspect_err(|_| self.when_full.store(before, SeqCst))
    }
}
