//! What all volumes of an open pool share, and the rules about room, reuse and failure.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use onefold_engine::Disk;
use onefold_format::record::RECORD_BYTES_MAX;
use onefold_format::{Record, Root, Secret, Superblock, WhenFull};

use crate::apply::{self, Failed, MetadataState};
use crate::background::BackgroundWork;
use crate::bad_blocks::BadBlocks;
use crate::blocking::Blocking;
use crate::doubted::Doubted;
use crate::epoch::{Epoch, Epochs};
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::failure::Failure;
use crate::freed::Freed;
use crate::group_commit::GroupCommit;
use crate::guard::Guard;
use crate::hash_cache::Room;
use crate::index::IndexSlot;
use crate::latency::Latencies;
use crate::limits::Limits;
use crate::log::{Log, RECORDS_BYTES_MAX, Tail};
use crate::map::Maps;
use crate::pages::Pages;
use crate::placement::Placement;
use crate::run::{PbaRun, PbaRuns};
use crate::space_limits::SpaceLimits;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard, lock};
use crate::tail_copy::TailCopy;
use crate::watermarks::{PAGES_FOR_GUESTS, PAGES_FOR_RECLAIMING, Purpose, SpaceReport};

/// Log bytes kept free beyond what is asked for: frame headers and padding of one more commit.
const LOG_MARGIN_BYTES: u64 = 8 << 10;

pub(crate) struct Pool {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) data: Arc<dyn Disk>,
    pub(crate) data_name: String,
    /// Writes go past the host's cache, so that each of them waits for the disk.
    pub(crate) writes_wait: bool,
    pub(crate) pages: Arc<Pages>,
    pub(crate) maps: Maps,
    /// Which blocks have the same content.
    pub(crate) index: IndexSlot,
    /// What the keys of the domains' fingerprints are made from.
    pub(crate) secret: Secret,
    /// Held from a batch's first record to its last.
    pub(crate) jobs: Mutex<()>,
    /// Held by whoever uses the memory of [`Limits::check_bytes`].
    pub(crate) scan_memory: Mutex<()>,
    /// Held by whoever moves blocks from beyond the pool's new end.
    pub(crate) shrinking: Mutex<()>,
    pub(crate) background: BackgroundWork,
    pub(crate) bad: BadBlocks,
    pub(crate) latencies: Latencies,
    pub(crate) hash_cache_room: Arc<Room>,
    /// Records in memory and what they change. Whoever holds it sees maps and metadata exactly as the
    /// records left them.
    uncommitted: Mutex<Uncommitted>,
    pub(crate) commits: GroupCommit<Log>,
    pub(crate) checkpoints: GroupCommit<Root>,
    pub(crate) log_span: LogSpan,
    pub(crate) epochs: Epochs,
    /// Blocks that durable records gave up, until their readers have drained.
    deferred_frees: Mutex<VecDeque<(Epoch, PbaRuns)>>,
    /// Held while what has drained is on its way from there to free space.
    reclaiming: Mutex<()>,
    pub(crate) freed: Mutex<Freed>,
    /// Where the walk over free space that follows opening goes on.
    pub(crate) free_walk: Mutex<Option<u64>>,
    /// Data was written since the last sync of the pool started.
    pub(crate) unsynced: AtomicBool,
    pub(crate) failure: Failure,
    pub(crate) doubted: Doubted,
    /// What becomes of writes for which there is no room: the next checkpoint makes it durable.
    when_full: AtomicU8,
    pub(crate) space_report: SpaceReport,
    due: (Mutex<bool>, Condvar),
}

/// The records in memory, and what records change besides the maps.
pub(crate) struct Uncommitted {
    pub(crate) tail: Tail,
    pub(crate) copy: TailCopy,
    pub(crate) metadata: MetadataState,
}

impl Uncommitted {
    /// Takes the records in memory; later ones belong to the next commit. The caller holds the log,
    /// and the records that were sealed before are durable.
    pub(crate) fn seal(&mut self) -> Tail {
        let next = Tail::new(self.tail.end());
        if !self.tail.is_empty() {
            self.copy.begin(self.tail.end());
        }
        std::mem::replace(&mut self.tail, next)
    }
}

/// How much of the log's ring is in use.
pub(crate) struct LogSpan {
    ring_bytes: u64,
    start: AtomicU64,
    end: AtomicU64,
    /// Sealed and being written.
    sealed: AtomicU64,
}

impl LogSpan {
    pub(crate) fn new(ring_bytes: u64, start: u64, end: u64) -> Self {
        let (start, end) = (AtomicU64::new(start), AtomicU64::new(end));
        Self {
            ring_bytes,
            start,
            end,
            sealed: AtomicU64::new(0),
        }
    }

    /// Bytes that replay would read now, those of a commit under way included.
    fn used(&self) -> u64 {
        self.end.load(SeqCst) + self.sealed.load(SeqCst) - self.start.load(SeqCst)
    }

    pub(crate) fn seal(&self, bytes: u64) {
        self.sealed.store(bytes, SeqCst);
    }

    pub(crate) fn set_end(&self, end: u64) {
        self.end.store(end, SeqCst);
        self.sealed.store(0, SeqCst);
    }

    pub(crate) fn set_start(&self, start: u64) {
        self.start.store(start, SeqCst);
    }
}

/// Why a record cannot be appended now.
enum Pressure {
    /// A commit helps.
    Tail,
    /// A checkpoint helps.
    Changes,
    /// More pages for metadata help, or a checkpoint while there are enough for it.
    Pages,
}

impl Pool {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, by recovery, with all the parts"
    )]
    pub(crate) fn new(
        superblock: Superblock,
        limits: Limits,
        (data, data_name): (Arc<dyn Disk>, String),
        pages: Arc<Pages>,
        maps: Maps,
        (index, secret): (IndexSlot, Secret),
        bad: BadBlocks,
        (metadata, copy): (MetadataState, TailCopy),
        log: Log,
        root: Root,
    ) -> Self {
        let end = log.end.position;
        Self {
            superblock,
            limits,
            writes_wait: data.alignment() > 1,
            data,
            data_name,
            pages,
            maps,
            index,
            secret,
            jobs: Mutex::default(),
            scan_memory: Mutex::new(()),
            shrinking: Mutex::default(),
            background: BackgroundWork::default(),
            bad,
            latencies: Latencies::new(),
            hash_cache_room: Room::new(limits.hash_cache_bytes),
            uncommitted: Mutex::new(Uncommitted {
                tail: Tail::new(end),
                copy,
                metadata,
            }),
            log_span: LogSpan::new(superblock.log_bytes, root.log_position, end),
            commits: GroupCommit::new(log),
            checkpoints: GroupCommit::new(root),
            epochs: Epochs::new(),
            deferred_frees: Mutex::default(),
            reclaiming: Mutex::default(),
            freed: Mutex::default(),
            free_walk: Mutex::new(Some(0)),
            unsynced: AtomicBool::new(false),
            failure: Failure::default(),
            doubted: Doubted::default(),
            when_full: AtomicU8::new(root.when_full as u8),
            space_report: SpaceReport::default(),
            due: (Mutex::new(false), Condvar::new()),
        }
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.superblock.block_size)
    }

    /// The uncommitted state, unless a thread panicked in the middle of changing it: then nobody knows what
    /// it says, and the pool takes no writes until recovery has read it from disk again.
    pub(crate) fn uncommitted(&self) -> Result<MutexGuard<'_, Uncommitted>> {
        self.uncommitted.lock().map_err(|_| {
            let error = StoreError::damaged("a request panicked while it changed the maps");
            self.fail(&error);
            self.failure.read_only_error()
        })
    }

    /// The job lock, unless a job ended by a panic: what it had begun, with the index too, only the
    /// next opening settles. Guests go on until then.
    pub(crate) fn job(&self) -> Result<MutexGuard<'_, ()>> {
        self.jobs.lock().map_err(|_| {
            StoreError::damaged(
                "no job and no deletion runs until the pool is opened again: a job ended by a panic; \
                 this is a defect of onefold",
            )
        })
    }

    /// Stops all writes until the pool is opened again (P8).
    pub(crate) fn fail(&self, error: &StoreError) {
        self.failure.set(error);
    }

    /// The same after a failed sync. What the copy of the tail describes may be gone from the disk, so
    /// the next opening must not believe it.
    pub(crate) fn fail_sync(&self, error: &StoreError) {
        self.fail(error);
        if Guard::TailVoidAfterFailedSync.holds() {
            lock(&self.uncommitted).copy.make_void();
        }
    }

    /// The blocks that no durable record names may not hold what was written to them.
    pub(crate) fn doubt_tail(&self) {
        self.doubted.add(&lock(&self.uncommitted).tail);
    }

    /// Refuses what was read of blocks whose content may be another's: see [`Doubted`].
    pub(crate) fn check_believed(&self, blocks: &Range<u64>) -> io::Result<()> {
        // No lock is taken while all is well.
        match self.failure.is_set() {
            true => self.doubted.check(blocks),
            false => Ok(()),
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        self.failure.check()
    }

    /// Appends records and applies them, once there is room ([step 6 log], [step 7 apply]).
    /// `old_blocks` are those that the records will give up.
    ///
    /// With [`Blocking::No`] nothing has changed if that would have to wait. A first record that does not
    /// fit changes nothing either. Any other error leaves the pool without writes: see [`Pool::fail`].
    pub(crate) fn record(
        &self,
        records: &[Record],
        old_blocks: &[PbaRun],
        blocking: Blocking,
    ) -> Result<()> {
        self.record_if(records, old_blocks, blocking, &|_| Ok(()))
    }

    /// The same if `admit` says so, with which nothing can happen in between: nothing has changed if
    /// it does not.
    pub(crate) fn record_if(
        &self,
        records: &[Record],
        old_blocks: &[PbaRun],
        blocking: Blocking,
        admit: &dyn Fn(&Uncommitted) -> Result<()>,
    ) -> Result<()> {
        loop {
            let mut uncommitted = self.uncommitted()?;
            let Some(pressure) = self.pressure(&uncommitted) else {
                if blocking == Blocking::No {
                    let is_copied = uncommitted.copy.is_there();
                    let space = &mut uncommitted.metadata.space;
                    if !is_copied || !old_blocks.iter().all(|run| space.is_resident(*run)) {
                        return Err(StoreError::would_block());
                    }
                }
                admit(&uncommitted)?;
                uncommitted.metadata.space.prepare(old_blocks)?;
                self.check_writable()?;
                let is_copied = self.append_and_apply(&mut uncommitted, records)?;
                if !Guard::ReuseAfterCommit.holds() {
                    self.give_up(std::mem::take(&mut uncommitted.tail.released));
                    drop(uncommitted);
                    return self.reclaim();
                }
                drop(uncommitted);
                // What outlives the process neither in memory nor in the log is not answered (P12).
                return if is_copied { Ok(()) } else { self.commit() };
            };
            drop(uncommitted);
            if blocking == Blocking::No {
                return Err(StoreError::would_block());
            }
            self.relieve(&pressure)?;
        }
    }

    /// Makes room for records, so that whoever appends some soon need not wait for it.
    pub(crate) fn make_room(&self) -> Result<()> {
        let pressure = self.pressure(&*self.uncommitted()?);
        pressure.map_or(Ok(()), |pressure| self.relieve(&pressure))
    }

    fn relieve(&self, pressure: &Pressure) -> Result<()> {
        match pressure {
            Pressure::Tail => self.commit(),
            Pressure::Changes => self.checkpoint(),
            Pressure::Pages => self.make_room_for_pages(),
        }
    }

    /// Returns whether the records are in memory that outlives the process.
    fn append_and_apply(&self, uncommitted: &mut Uncommitted, records: &[Record]) -> Result<bool> {
        if let [Record::Freeze { .. }, ..] = records
            && Guard::FrozenTogether.holds()
        {
            // Several volumes are frozen at one moment, or none of them; a volume is cloned or rolled
            // back whole, or not.
            uncommitted
                .tail
                .keep_together(records.len() * RECORD_BYTES_MAX);
        }
        let before = uncommitted.tail.mark();
        for (n, record) in records.iter().enumerate() {
            let released = &mut uncommitted.tail.released;
            match apply::apply(record, &self.maps, &mut uncommitted.metadata, released) {
                Ok(()) => uncommitted.tail.append(record),
                Err(Failed::Before(error)) if n == 0 => {
                    tracing::error!("a request failed: {error}; this is a defect of onefold");
                    return Err(error);
                }
                Err(failed) => {
                    let error = StoreError::from(failed);
                    self.fail(&error);
                    return Err(error);
                }
            }
        }
        let is_copied = uncommitted.copy.append(&uncommitted.tail, before);
        if self.is_due(uncommitted) || self.is_commit_due(uncommitted) {
            let (due, wake) = &self.due;
            if !std::mem::replace(&mut *lock(due), true) {
                wake.notify_all();
            }
        }
        Ok(is_copied)
    }

    fn pressure(&self, uncommitted: &Uncommitted) -> Option<Pressure> {
        let tail = &uncommitted.tail;
        let log_bytes = self.log_span.used() + tail.log_bytes();
        if log_bytes + RECORDS_BYTES_MAX + LOG_MARGIN_BYTES > self.log_span.ring_bytes
            || self.maps.dirty_count() >= self.limits.dirty_leaves_max
            || uncommitted.metadata.dirty_pages() >= self.limits.dirty_space_pages_max
        {
            Some(Pressure::Changes)
        } else if tail.bytes() >= self.limits.tail_bytes_max || !uncommitted.copy.has_room() {
            Some(Pressure::Tail)
        } else if self.has_changes(uncommitted)
            && !self.has_pages(uncommitted, PAGES_FOR_RECLAIMING)
        {
            Some(Pressure::Pages)
        } else {
            None
        }
    }

    /// Whether housekeeping should write a checkpoint, well before writers would have to.
    fn is_due(&self, uncommitted: &Uncommitted) -> bool {
        let log_bytes = self.log_span.used() + uncommitted.tail.log_bytes();
        log_bytes > self.log_span.ring_bytes / 2
            || self.maps.dirty_count() > self.limits.dirty_leaves_max / 2
            || uncommitted.metadata.dirty_pages() > self.limits.dirty_space_pages_max / 2
    }

    /// Whether housekeeping should commit, well before writers would have to.
    fn is_commit_due(&self, uncommitted: &Uncommitted) -> bool {
        uncommitted.tail.bytes() > self.limits.tail_bytes_max / 2
            || uncommitted.copy.is_nearly_full()
    }

    /// Whether what was replayed fills its share of memory.
    pub(crate) fn needs_checkpoint(&self) -> Result<bool> {
        let dirty_pages = self.uncommitted()?.metadata.dirty_pages();
        Ok(self.maps.dirty_count() >= self.limits.dirty_leaves_max
            || dirty_pages >= self.limits.dirty_space_pages_max)
    }

    /// Sleeps until a checkpoint is due, `timeout` at most.
    pub(crate) fn wait_until_due(&self, timeout: Duration) {
        let (due, wake) = &self.due;
        let slept = wake.wait_timeout_while(lock(due), timeout, |due| !*due);
        let mut due = match slept {
            Ok((due, _)) => due,
            Err(poisoned) => poisoned.into_inner().0,
        };
        *due = false;
    }

    /// Housekeeping: writes a checkpoint if one is due, else commits the records in memory if they
    /// are many or `commit` says so, and frees what durable records gave up. Data that was
    /// rewritten in place is not synced for its own sake: nobody asked for that, and the host
    /// writes it out in its own time.
    pub(crate) fn tidy(&self, commit: bool) -> Result<()> {
        let uncommitted = self.uncommitted()?;
        let is_due = self.is_due(&uncommitted);
        let commits = self.is_commit_due(&uncommitted) || (commit && !uncommitted.tail.is_empty());
        drop(uncommitted);
        if is_due {
            self.write_data_out()?;
            self.checkpoint()?;
        } else if commits {
            self.commit_in_background()?;
        }
        self.reclaim()?;
        self.tidy_bad_blocks()?;
        self.report_level()
    }

    pub(crate) fn when_full(&self) -> WhenFull {
        match self.when_full.load(SeqCst) {
            0 => WhenFull::Pause,
            _ => WhenFull::Fail,
        }
    }

    /// Durable when it returns.
    pub(crate) fn set_when_full(&self, when_full: WhenFull) -> Result<()> {
        let before = self.when_full.swap(when_full as u8, SeqCst);
        self.checkpoint()
            .inspect_err(|_| self.when_full.store(before, SeqCst))
    }

    /// Hands out new blocks ([step 4 place]). Where only blocks are left that nobody has released
    /// yet, a commit may release them.
    pub(crate) fn allocate(
        &self,
        placement: &Placement,
        space_limits: &SpaceLimits,
        purpose: Purpose,
        blocking: Blocking,
    ) -> Result<PbaRuns> {
        let allocate = |uncommitted: &mut Uncommitted| {
            let kept = self.kept_from(space_limits, uncommitted, placement.blocks(), purpose);
            uncommitted.metadata.space.allocate(placement, kept)
        };
        let mut uncommitted = self.uncommitted()?;
        if !self.has_pages(&uncommitted, PAGES_FOR_GUESTS) {
            drop(uncommitted);
            self.secure_pages(PAGES_FOR_GUESTS, blocking)?;
            uncommitted = self.uncommitted()?;
        }
        match allocate(&mut uncommitted) {
            Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                let may_be_released = uncommitted.metadata.space.held_blocks() > 0;
                drop(uncommitted);
                if blocking == Blocking::No {
                    return Err(StoreError::would_block());
                }
                if !may_be_released {
                    return Err(error);
                }
                self.commit()?;
                self.reclaim()?;
                allocate(&mut *self.uncommitted()?)
            }
            allocated => allocated,
        }
    }

    /// Takes back blocks that were handed out and that no record names.
    pub(crate) fn take_back(&self, runs: &[PbaRun]) -> Result<()> {
        let space = &mut self.uncommitted()?.metadata.space;
        runs.iter().try_for_each(|run| space.release(*run))
    }

    /// These blocks' records are durable; they wait for their readers now.
    pub(crate) fn give_up(&self, runs: PbaRuns) {
        if !runs.is_empty() {
            lock(&self.deferred_frees).push_back((self.epochs.current(), runs));
        }
    }

    /// Frees the blocks whose readers have drained.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _turn = lock(&self.reclaiming);
        let mut deferred_frees = lock(&self.deferred_frees);
        self.epochs.advance();
        let mut drained = Vec::new();
        while let Some((epoch, _)) = deferred_frees.front() {
            if Guard::ReuseAfterReaders.holds() && !self.epochs.is_drained(*epoch) {
                break;
            }
            drained.extend(
                deferred_frees
                    .pop_front()
                    .into_iter()
                    .flat_map(|(_, runs)| runs),
            );
        }
        drop(deferred_frees);
        self.free(&drained)
    }

    /// Whether nothing waits for its readers that was given up by then.
    pub(crate) fn is_reclaimed(&self, then: Epoch) -> bool {
        let _turn = lock(&self.reclaiming);
        let deferred_frees = lock(&self.deferred_frees);
        deferred_frees
            .front()
            .is_none_or(|(epoch, _)| *epoch > then)
    }
}
