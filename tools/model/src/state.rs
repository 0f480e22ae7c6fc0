//! The whole world in one value: disk, memory, and the promises to guests.
//!
//! The disk has a durable part and a part that a power loss may take. Memory is lost in every crash. The ghost holds
//! the knowledge of the outside, which no crash changes.

use std::sync::Arc;

use crate::bits::Bits;
use crate::guards::{Guard, Guards};
use crate::image::{
    BLOCKS, BatchKind, BatchNumber, Block, Content, Entry, Fingerprint, Image, LAYERS, LBAS,
    LayerId, Lba, Record, Release, VOLUMES, Volume,
};
use crate::index::{Answer, Index};
use crate::properties::Violation;

/// How often each event may happen on one path. A search is exhaustive within its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Guest writes of data.
    pub writes: u8,
    /// Guest writes of zeros, and trims.
    pub zeros: u8,
    /// Guest flushes.
    pub flushes: u8,
    /// Guest reads that stay in flight.
    pub reads: u8,
    /// Finder batches.
    pub finds: u8,
    /// Blocks that the finder reads before it publishes them.
    pub candidates: u8,
    /// Collector batches.
    pub collects: u8,
    /// Snapshots.
    pub snapshots: u8,
    /// Clones.
    pub clones: u8,
    /// Deleted layers.
    pub deletes: u8,
    /// Checkpoints.
    pub checkpoints: u8,
    /// Commits without waiters.
    pub idle_commits: u8,
    /// Killed processes; the page cache survives.
    pub kills: u8,
    /// Power losses.
    pub power_losses: u8,
    /// Rows that the index loses by damage.
    pub lost_rows: u8,
    /// Rebuilds of an index that was not lost.
    pub rebuilds: u8,
    /// Lookups of in-line writes.
    pub lookups: u8,
    /// Batches of counting.
    pub counts: u8,
    /// Blocks that go bad.
    pub bad_blocks: u8,
    /// Buffers that their owner changes while they are written.
    pub buffer_changes: u8,
}

/// A configuration of the model: sizes, budget, and which guards are on.
#[derive(Clone, Debug)]
pub struct Config {
    /// The configuration's name on the command line.
    pub name: &'static str,
    /// Volumes at the start; a clone makes volume 1.
    pub volumes: u8,
    /// LBAs of every volume.
    pub lbas: u8,
    /// Blocks of the pool.
    pub blocks: u8,
    /// Highest content that guests write.
    pub contents: u8,
    /// Writes and reads that may be in flight at once.
    pub slots: u8,
    /// Items in a batch.
    pub batch: u8,
    /// Rows that the index has room for.
    pub index_rows: u8,
    /// Whether the index is in memory only, so that every crash takes it.
    pub index_in_memory: bool,
    /// Whether all contents have one fingerprint, and the finder verifies.
    pub colliding: bool,
    /// Whether lookups are cached per volume.
    pub cached: bool,
    /// Whether every finished commit is folded into the root, so that states do not differ by history.
    pub folds_log: bool,
    /// How often each event may happen.
    pub budget: Budget,
    /// Which guards are on.
    pub guards: Guards,
    /// The milestones that the search must reach to show anything.
    pub milestones: &'static [crate::milestone::Milestone],
}

impl Config {
    /// Whether `guard` is on.
    pub fn on(&self, guard: Guard) -> bool {
        self.guards.on(guard)
    }

    /// The fingerprint of `content`.
    pub fn fingerprint(&self, content: Content) -> Fingerprint {
        if self.colliding {
            content.min(1)
        } else {
            content
        }
    }
}

/// A checkpoint's root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// The image that the root holds.
    pub image: Arc<Image>,
    /// The number of records at the start of the log that the root already contains.
    pub skip: u8,
}

/// A root that is being written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NextRoot {
    /// The root.
    pub root: Root,
    /// Whether its pages are durable.
    pub pages_synced: bool,
    /// Whether the root was overwritten; if so, a power loss leaves the old or the new one.
    pub switched: bool,
}

/// The disk, and the page cache in front of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    /// The content that a read of each block returns.
    pub now: [Content; BLOCKS],
    /// The contents that each block may have after a power loss.
    pub lasting: [Bits; BLOCKS],
    /// The durable log.
    pub log: Vec<Record>,
    /// The frame that is written and unsynced.
    pub frame: Option<Vec<Record>>,
    /// The durable root.
    pub root: Root,
    /// The root that follows it.
    pub next_root: Option<NextRoot>,
    /// Whether pages of the durable root were overwritten.
    pub root_damaged: bool,
    /// The index as its readers see it.
    pub index: Index,
    /// The index as a power loss may leave it.
    pub index_durable: Arc<Index>,
    /// Records that a killed process had not made durable, in memory that outlives the process but not the host.
    pub left: Vec<Record>,
    /// Blocks that cannot be read and are known to be bad. The list of bad blocks keeps their fingerprints, so the
    /// model keeps their contents.
    pub bad: Bits,
}

impl Disk {
    /// Writes `content` to `block`, unsynced.
    pub fn write(&mut self, block: Block, content: Content) {
        self.bad.remove(block);
        self.now[usize::from(block)] = content;
        self.lasting[usize::from(block)].insert(content);
    }

    /// Makes every completed data write durable.
    pub fn sync_pool(&mut self) {
        self.lasting = self.now.map(Bits::of);
    }

    /// Whether a power loss would change nothing.
    pub fn is_durable(&self) -> bool {
        self.lasting == self.now.map(Bits::of)
            && self.frame.is_none()
            && self.next_root.is_none()
            && *self.index_durable == self.index
            && self.left.is_empty()
    }

    /// Makes the index durable.
    pub fn sync_index(&mut self) {
        if *self.index_durable != self.index {
            self.index_durable = Arc::new(self.index.clone());
        }
    }
}

/// The progress of a record, or of state that depends on it, towards the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// In the log's tail in memory.
    Tail,
    /// In the current commit.
    Sealed,
    /// Durable.
    Durable,
}

/// A write between its lock and its reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The volume that is written.
    pub volume: Volume,
    /// The volume's live layer when it started.
    pub layer: LayerId,
    /// The LBA that is written.
    pub lba: Lba,
    /// The content that is written.
    pub content: Content,
    /// The content that was fingerprinted. It differs from `content` only with a guard off.
    pub fingerprinted: Content,
    /// The block that receives the data.
    pub block: Block,
    /// Whether the block is rewritten in place, so that the map does not change.
    pub in_place: bool,
    /// Step 5 is done.
    pub stored: bool,
    /// Steps 6 and 7 are done.
    pub logged: bool,
}

/// The result of an in-line write's lookup, until its record is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The content that is written.
    pub content: Content,
    /// The block that the index named.
    pub block: Block,
    /// Whether a block was freed since the lookup, as the freeing counter shows.
    pub freed: bool,
    /// Whether a rebuild began since the lookup.
    pub rebuilt: bool,
}

/// The volume or snapshot that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A volume.
    Live(Volume),
    /// A snapshot.
    Frozen(LayerId),
}

/// A read between its pin and its unpin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// The volume or snapshot that is read.
    pub target: Target,
    /// The LBA that is read.
    pub lba: Lba,
    /// The block that the lookup found.
    pub block: Block,
    /// The contents that the read may return.
    pub legal: Bits,
}

/// A flush that waits for a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flush {
    /// The volume that is flushed.
    pub volume: Volume,
    /// Whether a commit that the flush waits for was sealed.
    pub joined: bool,
    /// The contents that each LBA may have once the flush is answered.
    pub allowed: [Bits; LBAS],
}

/// A private block that the finder reads before it publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The layer of the block's entry.
    pub layer: LayerId,
    /// The LBA of the block's entry.
    pub lba: Lba,
    /// The block.
    pub block: Block,
    /// The content that was read.
    pub read: Option<Content>,
}

/// The phase of a job; the image has the announced items.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The announcement is not durable yet; the call of the index follows.
    Intent(Stage),
    /// The index has answered; these answers are not logged yet.
    Answered(Vec<Answer>),
    /// Outcomes are logged, and the count is not made yet, which happens only with a guard off.
    Uncounted(Vec<(Fingerprint, Block)>),
}

/// A batch of finder, collector or counting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The batch's number.
    pub number: BatchNumber,
    /// The batch's phase.
    pub phase: Phase,
}

/// The current commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The records that the commit writes.
    pub records: Vec<Record>,
    /// Whether the commit's frame is written.
    pub written: bool,
}

/// The phase of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Checkpoint {
    /// Content and position are captured, and the commit that makes them durable is running.
    Captured(Root),
    /// The checkpoint may be written.
    Ready(Root),
    /// The checkpoint is on disk as `Disk::next_root`.
    Written,
    /// The new root is durable, and the log still has the records that the root contains.
    Rooted,
}

/// Whether the pool is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Crashed, not yet recovered.
    Down,
    /// Just replayed; the open batch is a job again.
    Recovered,
    /// Open for guests and jobs.
    Running,
}

/// The state that a crash takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Whether the pool is open.
    pub mode: Mode,
    /// Maps, queue, open batch: all records applied.
    pub image: Image,
    /// Records that no commit has sealed.
    pub tail: Vec<Record>,
    /// The current commit.
    pub commit: Option<Commit>,
    /// Blocks placed and not yet recorded.
    pub leased: Bits,
    /// Blocks freed by a record in the tail.
    pub freed_tail: Bits,
    /// Blocks freed by a record in the current commit.
    pub freed_sealed: Bits,
    /// For each freed block, the readers that pinned before it was freed.
    pub waits: [Bits; BLOCKS],
    /// Writes in flight, by slot.
    pub writers: [Option<Writer>; 2],
    /// Reads in flight, by slot.
    pub readers: [Option<Reader>; 2],
    /// The in-line write that has looked up and has no record yet.
    pub lookup: Option<Lookup>,
    /// Claims that have no record yet, which exist only with a guard off.
    pub late_claims: Vec<Block>,
    /// The finder's candidate.
    pub candidate: Option<Candidate>,
    /// Contents whose fingerprints the hash cache has, or the finder made before it published the block, where they differ
    /// from the blocks' contents. They exist only with a guard off.
    pub misprinted: [Option<Content>; BLOCKS],
    /// The open job. There is more than one only with a guard off.
    pub jobs: Vec<Job>,
    /// A running rebuild: the progress of the counted image towards the disk, and the references to each block. The
    /// blocks are read once the image is durable.
    pub rebuild: Option<(Stage, [i8; BLOCKS])>,
    /// The flush that waits for a commit.
    pub flush: Option<Flush>,
    /// The snapshot whose answer waits for a commit.
    pub snapshot: Option<(LayerId, Stage)>,
    /// The layer whose merge waits for the commit of its start.
    pub delete: Option<(LayerId, Stage)>,
    /// The current checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Cached lookups that went through to lower layers.
    pub cache: [[Option<Block>; LBAS]; VOLUMES],
}

impl Memory {
    /// The memory of a pool whose log gives `image`.
    pub fn new(mode: Mode, image: Image) -> Memory {
        Memory {
            mode,
            image,
            tail: Vec::new(),
            commit: None,
            leased: Bits::NONE,
            freed_tail: Bits::NONE,
            freed_sealed: Bits::NONE,
            waits: [Bits::NONE; BLOCKS],
            writers: [None, None],
            readers: [None, None],
            lookup: None,
            late_claims: Vec::new(),
            candidate: None,
            misprinted: [None; BLOCKS],
            jobs: Vec::new(),
            rebuild: None,
            flush: None,
            snapshot: None,
            delete: None,
            checkpoint: None,
            cache: [[None; LBAS]; VOLUMES],
        }
    }

    /// Blocks that a write may take.
    pub fn free_blocks(&self, config: &Config) -> Bits {
        let waiting = (0..config.blocks)
            .filter(|b| !self.waits[usize::from(*b)].is_empty())
            .fold(Bits::NONE, |set, b| set.or(Bits::of(b)));
        Bits::below(config.blocks)
            .minus(self.image.allocated)
            .minus(self.leased)
            .minus(self.freed_tail)
            .minus(self.freed_sealed)
            .minus(waiting)
    }

    /// Whether a write in flight holds the lock on `lba` of live layer `layer`.
    pub fn is_locked(&self, config: &Config, layer: LayerId, lba: Lba) -> bool {
        config.on(Guard::BlockLock)
            && self
                .writers
                .iter()
                .flatten()
                .any(|w| w.layer == layer && w.lba == lba)
    }

    /// Drops the candidate if the entry is about to be written. The block is locked.
    pub fn drop_candidate(&mut self, config: &Config, layer: LayerId, lba: Lba) {
        if config.on(Guard::CandidateDropped) {
            self.candidate
                .take_if(|candidate| (candidate.layer, candidate.lba) == (layer, lba));
        }
    }

    /// The job of batch `number`.
    pub fn job(&self, number: BatchNumber) -> Option<&Job> {
        self.jobs.iter().find(|job| job.number == number)
    }

    /// Sets the phase of a job, or ends it.
    pub fn set_phase(&mut self, number: BatchNumber, phase: Option<Phase>) {
        self.jobs.retain(|job| job.number != number);
        if let Some(phase) = phase {
            self.jobs.push(Job { number, phase });
            self.jobs.sort_by_key(|job| job.number);
        }
    }
}

/// The knowledge of the outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The content of the last write answered.
    pub answered: [[Content; LBAS]; VOLUMES],
    /// The contents that a crash may leave: flushed last, or written later.
    pub allowed: [[Bits; LBAS]; VOLUMES],
    /// The contents that each snapshot may have.
    pub frozen: [[Bits; LBAS]; LAYERS],
    /// The contents that may exist after the process was killed and the host survived.
    pub survived: Option<[[Bits; LBAS]; VOLUMES]>,
    /// Snapshots that no crash may take.
    pub promised: Bits,
    /// Whether the index was damaged from outside: then leaks are allowed, and wrong data is not.
    pub damaged: bool,
    /// LBAs whose block became bad after they were last written. Only these may be unreadable.
    pub affected: [Bits; VOLUMES],
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The disk.
    pub disk: Disk,
    /// Memory.
    pub memory: Memory,
    /// Promises to guests.
    pub ghost: Ghost,
    /// The events that may still happen.
    pub budget: Budget,
    /// The violation that was found, after which there are no further states.
    pub violation: Option<Violation>,
}

impl State {
    /// A new pool with empty volumes.
    pub fn new(config: &Config) -> State {
        let image = Image::new(config.volumes);
        State {
            disk: Disk {
                now: [0; BLOCKS],
                lasting: [Bits::of(0); BLOCKS],
                log: Vec::new(),
                frame: None,
                root: Root {
                    image: Arc::new(image.clone()),
                    skip: 0,
                },
                next_root: None,
                root_damaged: false,
                index: Index::default(),
                index_durable: Arc::default(),
                left: Vec::new(),
                bad: Bits::NONE,
            },
            memory: Memory::new(Mode::Running, image),
            ghost: Ghost {
                answered: [[0; LBAS]; VOLUMES],
                allowed: [[Bits::of(0); LBAS]; VOLUMES],
                frozen: [[Bits::NONE; LBAS]; LAYERS],
                survived: None,
                promised: Bits::NONE,
                damaged: false,
                affected: [Bits::NONE; VOLUMES],
            },
            budget: config.budget,
            violation: None,
        }
    }

    /// Notes the first violation.
    pub fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Steps 6 and 7 of every change: appends a record to the tail and applies it.
    pub fn append(&mut self, config: &Config, record: Record) {
        let volume = self.volume_of_record(&record);
        let is_freeing = matches!(
            record,
            Record::Release {
                release: Release::Freed,
                ..
            }
        );
        if let (Some(lookup), true) = (&mut self.memory.lookup, is_freeing) {
            lookup.freed = true;
        }
        let freed = match self.memory.image.apply(config.guards, &record) {
            Ok(freed) => freed,
            Err(_) => return self.violate(Violation::Contradiction),
        };
        let pinned = self.pinned_before(config, volume);
        for block in freed.iter() {
            let drains = config.on(Guard::ReuseAfterDrain);
            self.memory.waits[usize::from(block)] = if drains { pinned } else { Bits::NONE };
        }
        if config.on(Guard::ReuseAfterDurable) {
            self.memory.freed_tail = self.memory.freed_tail.or(freed);
        }
        self.memory.tail.push(record);
    }

    /// The content that a read of `entry` returns now; zeros if it names no block.
    pub fn content(&self, entry: Entry) -> Content {
        entry
            .block()
            .map_or(0, |block| self.disk.now[usize::from(block)])
    }

    fn volume_of_record(&self, record: &Record) -> Option<Volume> {
        let layer = match record {
            Record::Write { layer, .. } | Record::MergeStep { layer, .. } => *layer,
            Record::Outcome { number, .. } => match self.memory.image.batch(*number)?.kind {
                BatchKind::Finder(layer) => layer,
                BatchKind::Collector | BatchKind::Counting => return None,
            },
            _ => return None,
        };
        let live = self.memory.image.live;
        (0..)
            .zip(live)
            .find(|(_, live)| *live == Some(layer))
            .map(|(volume, _)| volume)
    }

    /// Readers that a block released by `volume` waits for.
    fn pinned_before(&self, config: &Config, volume: Option<Volume>) -> Bits {
        let all = config.on(Guard::DrainAcrossVolumes);
        let mut pinned = Bits::NONE;
        for (slot, reader) in (0..).zip(&self.memory.readers) {
            let Some(reader) = reader else { continue };
            if all || volume.is_some_and(|v| reader.target == Target::Live(v)) {
                pinned.insert(slot);
            }
        }
        pinned
    }
}
