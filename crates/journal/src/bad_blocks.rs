//! The part `scrub`: known bad blocks, and the scrub's progress.
//!
//! A block is bad if the device cannot read it, or if its content does not match its fingerprint.
//! The list is small and changes rarely, so all of it is in memory, and all of it is written when
//! it changes: see `docs/decisions/0018-scrub-and-bad-blocks.md`.
//!
//! Invariants:
//! - A block in the list is not handed out. It becomes available once the list without it is
//!   durable, so an address in the list always means the intended block, whatever a crash undoes.
//! - The list is a hint that is verified before use: a read of a shared block in it compares the
//!   content with the fingerprint. So a good block in the list does no harm.
//!
//! Lock order: the part, then the uncommitted state, then the list.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use onefold_engine::{Disk, Engine, Part};
use onefold_format::page::{self, PAGE_BYTES};
use onefold_format::scrub_page::{self, BAD_BLOCKS_MAX, SLOT_PAGES, SLOTS, ScrubPage};
use onefold_format::units::SECTOR_BYTES;
use onefold_format::{BadBlock, Fault, FormatError, PageNumber, Pba, PoolId, ScrubProgress};
use onefold_metadata::sync::{AtomicU64, AtomicUsize, Mutex, RwLock, lock, read, write};
use onefold_metadata::{Guard, Result, StoreError, StoreErrorKind};

use super::Journal;

/// The most blocks that are remembered after a failed read until they are checked.
const SUSPECTS_MAX: usize = 1024;

/// The pause between two log messages about failed requests, because guests retry again and again.
const TELL_PAUSE: Duration = Duration::from_secs(1);

/// The list of bad blocks, and the scrub's progress.
pub struct BadBlocks {
    /// The number of listed blocks: a read checks nothing else if there are none.
    count: AtomicUsize,
    /// How often blocks were taken off the list.
    clears: AtomicU64,
    state: RwLock<State>,
    /// Blocks that a request could not read.
    suspects: Mutex<BTreeSet<Pba>>,
    /// When a failed request was last logged.
    told: Mutex<Option<Instant>>,
    part: Mutex<SavedPart>,
}

#[derive(Default)]
struct State {
    listed: BTreeMap<Pba, BadBlock>,
    progress: ScrubProgress,
    /// Blocks that are no longer listed, but still in the part on disk.
    cleared: BTreeSet<Pba>,
    /// Why the previous list could not be read; kept until a scrub has covered the whole pool.
    problem: Option<String>,
}

struct SavedPart {
    disk: Option<Arc<dyn Disk>>,
    name: String,
    pool: PoolId,
    /// The sequence of the last write.
    sequence: u64,
}

impl BadBlocks {
    /// Reads the part, or creates it if there is none and `may_create` is set.
    pub fn open(engine: &dyn Engine, pool: PoolId, may_create: bool) -> Result<Self> {
        let name = engine.describe(Part::Scrub);
        let disk = match engine.open(Part::Scrub) {
            Ok(disk) => Some(disk),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(name, error));
            }
            Err(_) if !may_create => None,
            Err(_) => {
                let created = engine.create(Part::Scrub, 0);
                Some(created.map_err(|error| StoreError::io(&name, error))?)
            }
        };
        if let Some(disk) = disk
            .as_deref()
            .filter(|_| Guard::RecoverySyncsFirst.holds())
        {
            // Data that survived only in the host's cache must be durable before blocks become
            // available because of it.
            let settled = disk.sync().and_then(|()| disk.forget_cached());
            settled.map_err(|error| StoreError::io(format_args!("syncing {name}"), error))?;
        }
        let newest = disk.as_deref().map_or(Ok(Newest::default()), |disk| {
            newest(disk, pool).map_err(|error| StoreError::io(&name, error))
        })?;
        let is_foreign = newest.is_foreign();
        let disk = disk.filter(|_| !is_foreign);
        let problem = newest.problem.filter(|_| newest.sequence == 0);
        let problem = problem.map(|problem| problem.to_string());
        let problem = problem.map(|problem| {
            if is_foreign {
                format!("{problem}; {name} is not this pool's and is never written: move it away")
            } else {
                problem
            }
        });
        if let Some(problem) = &problem {
            tracing::error!(
                "{name} cannot be read, so blocks that were found to be bad are not known: \
                 {problem}; then run `pool scrub`"
            );
        }
        let listed: BTreeMap<Pba, BadBlock> = newest
            .listed
            .into_iter()
            .map(|block| (block.pba, block))
            .collect();
        Ok(Self {
            count: AtomicUsize::new(listed.len()),
            clears: AtomicU64::new(0),
            state: RwLock::new(State {
                listed,
                progress: newest.progress,
                cleared: BTreeSet::new(),
                problem,
            }),
            suspects: Mutex::default(),
            told: Mutex::default(),
            part: Mutex::new(SavedPart {
                disk,
                name,
                pool,
                sequence: newest.sequence,
            }),
        })
    }

    /// Whether any block is listed.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// A count that changes whenever blocks are taken off the list: earlier lookups of them may be
    /// outdated.
    pub fn clears(&self) -> u64 {
        self.clears.load(SeqCst)
    }

    /// The block's entry in the list.
    pub fn get(&self, pba: Pba) -> Option<BadBlock> {
        if !self.is_any() {
            return None;
        }
        read(&self.state).listed.get(&pba).copied()
    }

    /// The listed blocks of a run.
    pub fn within(&self, blocks: Range<u64>) -> Vec<BadBlock> {
        if !self.is_any() {
            return Vec::new();
        }
        let state = read(&self.state);
        let found = state.listed.range(Pba(blocks.start)..Pba(blocks.end));
        found.map(|(_, block)| *block).collect()
    }

    /// All listed blocks.
    pub fn all(&self) -> Vec<BadBlock> {
        read(&self.state).listed.values().copied().collect()
    }

    /// The scrub's progress.
    pub fn progress(&self) -> ScrubProgress {
        read(&self.state).progress
    }

    /// Changes the progress and returns the result. Durable with the next save.
    pub fn change_progress(&self, change: impl FnOnce(&mut ScrubProgress)) -> ScrubProgress {
        let state = &mut *write(&self.state);
        change(&mut state.progress);
        state.progress
    }

    /// Why earlier knowledge of bad blocks was lost, if it was.
    pub fn problem(&self) -> Option<String> {
        read(&self.state).problem.clone()
    }

    /// Forgets the problem, after a scrub has covered the whole pool.
    pub fn forget_problem(&self) {
        write(&self.state).problem = None;
    }

    /// Notes that a request could not read one of these blocks.
    pub fn suspect(&self, blocks: Range<u64>) {
        let mut suspects = lock(&self.suspects);
        suspects.extend(blocks.map(Pba));
        while suspects.len() > SUSPECTS_MAX {
            suspects.pop_last();
        }
    }

    /// Whether another failed request may be logged now.
    pub fn may_tell(&self, now: Instant) -> bool {
        let mut told = lock(&self.told);
        let may = told.is_none_or(|at| now.duration_since(at) >= TELL_PAUSE);
        if may {
            *told = Some(now);
        }
        may
    }

    /// Removes and returns the blocks that requests could not read.
    pub fn take_suspects(&self) -> BTreeSet<Pba> {
        std::mem::take(&mut *lock(&self.suspects))
    }

    /// Takes blocks off the list. The next save makes this durable and lets them be handed out.
    fn clear(&self, blocks: impl IntoIterator<Item = Pba>) -> bool {
        let state = &mut *write(&self.state);
        let mut is_any = false;
        for pba in blocks {
            if state.listed.remove(&pba).is_some() {
                state.cleared.insert(pba);
                is_any = true;
            }
        }
        self.count.store(state.listed.len(), SeqCst);
        self.clears.fetch_add(1, SeqCst);
        is_any
    }

    /// Notes that blocks were rewritten: they could not be read, and the index does not have them.
    pub fn rewritten(&self, blocks: Range<u64>) {
        let written = self.within(blocks).into_iter();
        let unshared = written.filter(|block| block.fingerprint.is_none());
        self.clear(unshared.map(|block| block.pba));
    }

    /// Puts blocks on the list, or updates their entries. Durable when it returns. The caller holds
    /// the job lock, or the blocks' entries cannot change for another reason.
    pub fn list(&self, journal: &Journal, blocks: &[BadBlock]) -> Result<()> {
        let is_kept = |block: &&BadBlock| !journal.state.data.is_lost(block.pba);
        // Lost blocks are on a separate list.
        let blocks: Vec<BadBlock> = blocks.iter().filter(is_kept).copied().collect();
        if blocks.is_empty() {
            return Ok(());
        }
        {
            let mut uncommitted = journal.state.uncommitted()?;
            let mut state = write(&self.state);
            for block in &blocks {
                let is_new = !state.listed.contains_key(&block.pba);
                if is_new && state.listed.len() == BAD_BLOCKS_MAX as usize {
                    return Err(StoreError::new(
                        StoreErrorKind::Io,
                        format!(
                            "more than {BAD_BLOCKS_MAX} blocks of {} are bad: the device fails, \
                             or the file was written over",
                            journal.state.data.name()
                        ),
                    ));
                }
                uncommitted.metadata.space_mut().quarantine(block.pba)?;
                state.cleared.remove(&block.pba);
                state.listed.insert(block.pba, *block);
                self.count.store(state.listed.len(), SeqCst);
            }
        }
        self.save(journal)
    }

    /// Takes blocks off the list that are good, or to which no entry refers any more. Durable when
    /// it returns.
    pub fn unlist(&self, journal: &Journal, blocks: impl IntoIterator<Item = Pba>) -> Result<()> {
        if self.clear(blocks) {
            self.save(journal)
        } else {
            Ok(())
        }
    }

    /// Takes blocks off the list, whether still listed or already cleared, and lets them be handed
    /// out. Durable when it returns.
    pub fn forget(&self, journal: &Journal, blocks: Vec<Pba>) -> Result<()> {
        self.clear(blocks);
        self.save(journal)
    }

    /// Writes the list and the progress as they are now, and lets cleared blocks be handed out.
    pub fn save(&self, journal: &Journal) -> Result<()> {
        let mut part = lock(&self.part);
        let (listed, progress, cleared) = {
            let state = read(&self.state);
            let listed: Vec<BadBlock> = state.listed.values().copied().collect();
            (listed, state.progress, state.cleared.clone())
        };
        if Guard::ListedNotReused.holds() {
            part.write(&listed, &progress)?;
            self.let_go(journal, &cleared)
        } else {
            self.let_go(journal, &cleared)?;
            part.write(&listed, &progress)
        }
    }

    fn let_go(&self, journal: &Journal, cleared: &BTreeSet<Pba>) -> Result<()> {
        let mut uncommitted = journal.state.uncommitted()?;
        let mut state = write(&self.state);
        for pba in cleared {
            if state.cleared.remove(pba) {
                uncommitted.metadata.space_mut().end_quarantine(*pba)?;
            }
        }
        Ok(())
    }

    /// Housekeeping: makes cleared blocks available, and blocks that were freed and that the device
    /// could read; an unreadable one stays out of use.
    pub fn tidy(&self, journal: &Journal) -> Result<()> {
        if !self.is_any() && read(&self.state).cleared.is_empty() {
            return Ok(());
        }
        let kept_back = journal.state.uncommitted()?.metadata.space().kept_back();
        let readable = kept_back.into_iter().filter(|pba| {
            let listed = self.get(*pba);
            listed.is_some_and(|block| block.fault == Fault::Changed)
        });
        self.clear(readable.collect::<Vec<Pba>>());
        if read(&self.state).cleared.is_empty() {
            return Ok(());
        }
        self.save(journal)
    }

    /// Quarantines all listed blocks after opening.
    pub fn quarantine_listed(&self, journal: &Journal) -> Result<()> {
        let mut uncommitted = journal.state.uncommitted()?;
        let space = uncommitted.metadata.space_mut();
        let blocks = space.blocks();
        let listed = self.all().into_iter();
        let in_pool = listed.filter(|block| block.pba.0 < blocks);
        in_pool
            .into_iter()
            .try_for_each(|block| space.quarantine(block.pba))
    }
}

impl SavedPart {
    fn write(&mut self, listed: &[BadBlock], progress: &ScrubProgress) -> Result<()> {
        let Some(disk) = &self.disk else {
            return Err(StoreError::new(
                StoreErrorKind::MissingPart,
                format!("{} is missing", self.name),
            ));
        };
        let sequence = self.sequence + 1;
        let pages = scrub_page::encode(sequence, progress, listed, self.pool);
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.iter().copied()).collect();
        let at = sequence % SLOTS * SLOT_PAGES * PAGE_BYTES as u64;
        let written = disk.write_at(&bytes, at).and_then(|()| disk.sync());
        // Remains of a failed write are ignored: the next write has another sequence and goes to
        // the same slot, so that the other slot stays whole.
        self.sequence = sequence + u64::from(written.is_err());
        written.map_err(|error| StoreError::io(format_args!("writing {}", self.name), error))
    }
}

/// The content of the part.
#[derive(Default)]
struct Newest {
    /// The sequence; 0 if nothing was ever written, or if nothing can be read.
    sequence: u64,
    progress: ScrubProgress,
    listed: Vec<BadBlock>,
    problem: Option<FormatError>,
    /// A slot begins with bytes that this pool cannot have written.
    has_foreign: bool,
    /// A slot begins with a page of this pool, whatever its other faults.
    has_own: bool,
}

impl Newest {
    /// Whether the part was not written by this pool.
    fn is_foreign(&self) -> bool {
        self.has_foreign && !self.has_own
    }
}

/// The whole slot with the higher sequence.
fn newest(disk: &dyn Disk, pool: PoolId) -> std::io::Result<Newest> {
    let mut newest = Newest::default();
    for slot in 0..SLOTS {
        let owner = owner_of_slot(disk, slot * SLOT_PAGES)?;
        newest.has_own |= owner == Owner::Pool(pool);
        newest.has_foreign |= !matches!(owner, Owner::Nothing) && owner != Owner::Pool(pool);
        match read_slot(disk, pool, slot * SLOT_PAGES)? {
            Ok(Some(found)) if found.sequence > newest.sequence => {
                newest = Newest {
                    problem: newest.problem,
                    has_own: newest.has_own,
                    has_foreign: newest.has_foreign,
                    ..found
                };
            }
            Ok(_) => {}
            Err(error) => newest.problem = Some(error),
        }
    }
    Ok(newest)
}

/// The pool that wrote the beginning of a slot, by magic and pool id alone.
#[derive(PartialEq, Eq)]
enum Owner {
    /// Zeros: never written, or a crash kept the first sector from the medium.
    Nothing,
    Pool(PoolId),
    /// The slot does not begin with a page.
    Unknown,
}

fn owner_of_slot(disk: &dyn Disk, first: u64) -> std::io::Result<Owner> {
    let mut head = page::blank();
    disk.read_at(
        &mut head[..SECTOR_BYTES as usize],
        first * PAGE_BYTES as u64,
    )?;
    Ok(if head.iter().all(|byte| *byte == 0) {
        Owner::Nothing
    } else if head.starts_with(&page::MAGIC.to_le_bytes()) {
        Owner::Pool(page::claimed_pool(&head))
    } else {
        Owner::Unknown
    })
}

/// The slot whose first page this is, if anything was ever written to it.
fn read_slot(
    disk: &dyn Disk,
    pool: PoolId,
    first: u64,
) -> std::io::Result<std::result::Result<Option<Newest>, FormatError>> {
    let mut found = Newest::default();
    let mut number = first;
    loop {
        let mut bytes = page::blank();
        disk.read_at(&mut bytes[..], number * PAGE_BYTES as u64)?;
        if number == first && bytes.iter().all(|byte| *byte == 0) {
            return Ok(Ok(None));
        }
        let page = match ScrubPage::decode(&bytes, pool, PageNumber(number)) {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        if number > first && page.sequence != found.sequence {
            return Ok(Err(FormatError::Address {
                field: "scrub sequence",
                expected: found.sequence,
                found: page.sequence,
            }));
        }
        let end = first + page.pages();
        found.sequence = page.sequence;
        found.progress = page.progress;
        found.listed.extend(page.listed);
        number += 1;
        if number == end {
            return Ok(Ok(Some(found)));
        }
    }
}
