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
//! | `state.rs` | the records in memory, the state that they change, and the disks |
//! | `append.rs` | appends and applies records |
//! | `commit.rs` `group_commit.rs` `log.rs` `log_span.rs` | makes them durable |
//! | `checkpoint.rs` `reader.rs` | keeps the log short; reads a checkpoint |
//! | `replay.rs` `log_end.rs` `session.rs` | brings a pool to its state after the last commit |
//! | `tail_copy.rs` `tail_memory.rs` `new_blocks.rs` | how changes that are not durable outlive the process |
//! | `ledger.rs` `rewritten.rs` | how the next process learns of a failed sync, and of blocks rewritten in place
//! |
//! | `left_behind.rs` `losses.rs` | the losses of a failed sync |
//! | `data_disk.rs` `doubted.rs` `block_set.rs` `failure.rs` | the data; reads and writes that are refused after a failed sync |
//! | `allocation.rs` | hands out blocks |
//! | `shared_space.rs` | the space of a shared pool, as far as one of its groups knows it |
//! | `reuse.rs` `epoch.rs` | frees blocks once they have no readers |
//! | `room.rs` `watermarks.rs` | free blocks, and those kept for some purpose |
//! | `host_space.rs` | returns free space to the host, and has some of it ready |
//! | `root/` | the root, with the pool's size and version |
//! | `bad_blocks.rs` | the list of bad blocks, and the scrub's progress |
//! | `background.rs` | the hook for the background executor |
//!
//! Lock order: the turn to exchange space, the root (checkpoints), the log (commits), the uncommitted state, then maps and
//! metadata.

mod allocation;
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
mod root;
mod session;
mod shared_space;
mod state;
mod tail_copy;
mod tail_memory;
mod watermarks;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::{Root, Superblock, VolumeId, WhenFull};
use onefold_metadata::sync::{AtomicU8, Condvar, Mutex};
use onefold_metadata::{
    Guard, Limits, LookupVersion, Maps, MetadataState, Pages, PbaRun, Result, StoreError,
};

use self::group_commit::GroupCommit;
use self::log::Tail;
use self::log_span::LogSpan;
use self::rewritten::Rewritten;
use self::state::{State, StateParts, Uncommitted};
use self::tail_copy::TailCopy;

pub use append::Admit;
pub use background::{BackgroundExecutor, BackgroundWork, Hurry};
pub use bad_blocks::BadBlocks;
pub use data_disk::DataDisk;
pub use epoch::{Epoch, Epochs, LongPin, Pin};
pub use failure::StopsOnPanic;
pub use host_space::HostSpace;
pub use ledger::{FoundLedger, RewriteMark, SyncLedger};
pub use left_behind::{Doubt, LossReport};
pub use log::{Log, LogMark};
pub use log_end::IncompleteCommit;
pub use log_end::check_length;
pub use losses::LossList;
pub use reader::{CheckpointReader, HELD_BACK_MAX, MapPage, PAGES_AT_ONCE};
pub use replay::{Predecessor, TakenOver, follow_log};
pub use reuse::Reuse;
pub use room::{FreeSpace, Room};
pub use root::PoolRoot;
pub use shared_space::{MoreSpace, SharedSpace};
pub use state::Metadata;
pub use tail_memory::TailMemory;
pub use watermarks::SpaceLevel;
pub use watermarks::{PAGES_FOR_FINDER, Purpose};

/// Makes a pool's metadata durable.
pub struct Journal {
    state: Arc<State>,
    background: Arc<BackgroundWork>,
    commits: GroupCommit<Log>,
    root: PoolRoot,
    log_span: LogSpan,
    /// The new blocks that were rewritten in place, for the next process.
    rewritten: Arc<Rewritten>,
    lookup_version: Arc<LookupVersion>,
    reuse: Reuse,
    free_space: FreeSpace,
    /// How writes end for which there is no room; the next checkpoint makes it durable.
    when_full: AtomicU8,
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
    /// Of a group of a shared pool.
    pub shared_space: Option<SharedSpace>,
    /// The hook for the background executor.
    pub background: Arc<BackgroundWork>,
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
            mut metadata,
            tail_memory,
            ledger,
            log,
            root,
            shared_space,
            background,
        } = parts;
        let end = log.end.position;
        let lookup_version = Arc::clone(metadata.lookup_version());
        let rewritten = Arc::new(Rewritten::new(&tail_memory));
        if data.waits_to_allocate() {
            metadata.space_mut().spare_first();
        }
        let uncommitted = Uncommitted {
            tail: Tail::new(end),
            copy: TailCopy::new(tail_memory, Arc::clone(&rewritten)),
            metadata,
        };
        let parts = StateParts {
            block_size: superblock.block_size.into(),
            limits,
            data,
            pages,
            maps,
            ledger,
            shared_space,
        };
        let state = Arc::new(State::new(parts, uncommitted));
        Self {
            background,
            log_span: LogSpan::new(superblock.log_bytes, root.log_position, end),
            commits: GroupCommit::new(log),
            root: PoolRoot::new(Arc::clone(&state), superblock.pool, root),
            rewritten,
            lookup_version,
            reuse: Reuse::new(HostSpace::new(Arc::clone(&state))),
            free_space: FreeSpace::new(Arc::clone(&state)),
            when_full: AtomicU8::new(root.when_full as u8),
            due: (Mutex::new(false), Condvar::new()),
            state,
        }
    }

    /// The root, with the pool's size and version.
    pub fn root(&self) -> &PoolRoot {
        &self.root
    }

    /// Released blocks, which are used again once they have no readers.
    pub fn reuse(&self) -> &Reuse {
        &self.reuse
    }

    /// Free blocks, and the requests that may take them.
    pub fn free_space(&self) -> &FreeSpace {
        &self.free_space
    }

    /// The maps of all layers.
    pub fn maps(&self) -> &Maps {
        &self.state.maps
    }

    /// Pages of metadata in use, the root slots included.
    pub fn page_count(&self) -> u64 {
        self.state.pages.used_count()
    }

    /// Inner pages of trees in memory.
    pub fn cached_pages(&self) -> usize {
        self.state.pages.cached_count()
    }

    /// The present lookup version: an answer of the index can admit a hit only if it was requested
    /// at this version.
    pub fn lookup_version(&self) -> u64 {
        self.lookup_version.now()
    }

    /// Makes all earlier answers of the index unfit for a hit. Returns the lookup version before, and the number from which
    /// on claims are later: those of this version and earlier ones have lower numbers.
    pub fn outdate_lookups(&self) -> Result<(u64, u64)> {
        let mut uncommitted = self.state.uncommitted()?;
        let before = self.lookup_version.now();
        uncommitted.metadata.outdate_lookups();
        Ok((before, uncommitted.metadata.claims().numbers().end))
    }

    /// Stops writes from making claims, or lets them again: see
    /// [`onefold_metadata::Refusal::Held`].
    pub fn hold_hits(&self, held: bool) -> Result<()> {
        self.state.uncommitted()?.metadata.hold_hits(held);
        Ok(())
    }

    /// The data blocks.
    pub fn data(&self) -> &DataDisk {
        &self.state.data
    }

    /// The metadata as the records left it.
    ///
    /// # Errors
    ///
    /// If a thread panicked while it changed the metadata.
    pub fn metadata(&self) -> Result<Metadata<'_>> {
        self.state.metadata()
    }

    /// Stops all writes until the pool is opened again (P8).
    pub fn fail(&self, error: &StoreError) {
        self.state.failure.set(error);
    }

    /// A guard that stops all writes when it is dropped during a panic.
    pub fn stops_on_panic(&self, what: &'static str) -> StopsOnPanic<'_> {
        StopsOnPanic::new(&self.state.failure, what)
    }

    /// Notes that a volume is about to rewrite blocks in place. The caller writes them only after
    /// this returns.
    pub fn begin_rewrite(&self, mark: &RewriteMark, volume: VolumeId, run: PbaRun) {
        self.state.ledger.mark(mark, volume);
        if Guard::RewritesMarked.holds() {
            self.rewritten.mark(run);
        }
    }

    /// Notes that a volume has rewritten blocks in place. The caller answers the request only after
    /// this returns.
    pub fn end_rewrite(&self, mark: &RewriteMark, volume: VolumeId) {
        self.state.ledger.mark(mark, volume);
    }

    /// Whether records with new blocks need checksums of them.
    pub fn wants_sums(&self) -> bool {
        self.state.ledger.is_counting()
    }

    /// Fails with `ReadOnly` after a failure.
    pub fn check_writable(&self) -> Result<()> {
        self.state.check_writable()
    }

    /// Refuses data read from blocks whose content may be another volume's, after a failed sync.
    pub fn check_believed(&self, blocks: &Range<u64>) -> io::Result<()> {
        // While all is well, no lock is taken.
        if self.state.failure.is_set() {
            self.state.data.check_believed(blocks)
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
