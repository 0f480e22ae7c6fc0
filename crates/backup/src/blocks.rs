//! Stored blocks by their numbers, for any number of backups and threads at once: the packs and groups that were
//! used last are kept, whoever used them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{SourceId, Witness};
use onefold_repository::{
    MovedRun, Pack, Repository, RepositoryError, RepositoryErrorKind, Result,
};
use rustc_hash::FxHashMap;

use crate::error::BackupError;

/// Packs whose tables are kept: 17 MiB at most.
const PACKS_OPEN: usize = 32;

/// A damaged pack is not tried again before: whoever reads past damage asks for it again and again, and each time all
/// packs would be listed.
const RETRY: Duration = Duration::from_secs(10);

/// The most damaged packs that are known.
const DAMAGED_MAX: usize = 1024;

/// The blocks of a repository.
pub struct BlockReader {
    repository: Arc<Repository>,
    /// Newest generations of a source's packs, by number.
    generations: Mutex<FxHashMap<SourceId, Arc<FxHashMap<u64, u32>>>>,
    packs: Mutex<Cache<(SourceId, u64), Pack>>,
    /// Packs that cannot be opened, each with the reason and when it was tried.
    damaged: Mutex<Cache<(SourceId, u64), (RepositoryError, Instant)>>,
    groups: Mutex<Cache<(SourceId, u64, usize), Vec<u8>>>,
}

/// How far a read may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only to what is in memory, for whoever must not wait.
    Memory,
    /// To the repository.
    Repository,
}

/// Where a block is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredBlock {
    pub(crate) store: SourceId,
    pub(crate) number: u64,
    /// The witness of the pack that must hold the block; none if any pack with its number will do.
    pub(crate) witness: Option<Witness>,
    /// Where the block is if it was moved: among the popular ones of the store.
    pub(crate) popular: SourceId,
}

/// A block, with those that follow it in its group.
pub(crate) struct Found {
    pack: Arc<Pack>,
    group: Arc<Vec<u8>>,
    /// Where the block is in the group.
    at: usize,
    /// Its number less the pack's first.
    in_pack: usize,
    /// How many that follow it have followed it always.
    most: usize,
}

/// Why a block cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) error: RepositoryError,
    /// How many numbers, from the block's on, cannot be read for the same reason; at least one.
    pub(crate) blocks: u64,
}

impl From<Unreadable> for BackupError {
    fn from(unreadable: Unreadable) -> Self {
        unreadable.error.into()
    }
}

/// The values that were used last.
struct Cache<K, V> {
    /// The last one first, each with its cost.
    entries: VecDeque<(K, Arc<V>, usize)>,
    cost: usize,
    cost_max: usize,
}

impl<K: PartialEq, V> Cache<K, V> {
    fn new(cost_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            cost: 0,
            cost_max,
        }
    }

    fn get(&mut self, key: &K) -> Option<Arc<V>> {
        let at = self.entries.iter().position(|(known, ..)| known == key)?;
        let entry = self.entries.remove(at)?;
        let value = Arc::clone(&entry.1);
        self.entries.push_front(entry);
        Some(value)
    }

    fn put(&mut self, key: K, value: &Arc<V>, cost: usize) {
        self.cost += cost;
        self.entries.push_front((key, Arc::clone(value), cost));
        while self.cost > self.cost_max && self.entries.len() > 1 {
            if let Some((.., cost)) = self.entries.pop_back() {
                self.cost -= cost;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockReader {
    /// Groups of blocks are kept in so much memory.
    #[must_use]
    pub fn new(repository: Arc<Repository>, memory_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            repository,
            generations: Mutex::default(),
            packs: Mutex::new(Cache::new(PACKS_OPEN)),
            damaged: Mutex::new(Cache::new(DAMAGED_MAX)),
            groups: Mutex::new(Cache::new(memory_bytes)),
        })
    }

    /// The repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Finds a block of `block_size` bytes, wherever it was moved; nothing if it is not in memory and `reach` ends
    /// there. No lock is held while the block is read and decompressed.
    pub(crate) fn find(
        &self,
        mut block: StoredBlock,
        block_size: u32,
        reach: Reach,
    ) -> std::result::Result<Option<Found>, Unreadable> {
        let mut most = BLOCKS_PER_GROUP;
        // How many numbers may share the damage of this one's pack.
        let mut in_pack_max = BLOCKS_PER_PACK as usize;
        loop {
            let number = block.number / BLOCKS_PER_PACK;
            let in_pack = (block.number % BLOCKS_PER_PACK) as usize;
            let left = in_pack_max.min(BLOCKS_PER_PACK as usize - in_pack);
            let of_pack = |error| Unreadable {
                error,
                blocks: left as u64,
            };
            let known = lock(&self.packs).get(&(block.store, number));
            let pack = match (known, reach) {
                (Some(pack), _) => pack,
                (None, Reach::Memory) => return Ok(None),
                (None, Reach::Repository) => self.pack(block.store, number).map_err(of_pack)?,
            };
            pack.check_block_size(block_size).map_err(of_pack)?;
            if let Some(witness) = block.witness {
                pack.check_witness(witness).map_err(of_pack)?;
            }
            let Some(moved) = pack.moved_from(in_pack, most) else {
                let found = self.find_in(&pack, block, most, reach);
                return found.map_err(|error| Unreadable {
                    error,
                    blocks: pack.alike_from(in_pack, left) as u64,
                });
            };
            let checked = check_moved(&pack, block.store == block.popular, in_pack, moved);
            checked.map_err(|error| Unreadable {
                error,
                blocks: moved.blocks as u64,
            })?;
            (most, in_pack_max) = (moved.blocks, moved.blocks);
            block = StoredBlock {
                store: block.popular,
                number: moved.number,
                witness: Some(moved.witness),
                ..block
            };
        }
    }

    fn find_in(
        &self,
        pack: &Arc<Pack>,
        block: StoredBlock,
        most: usize,
        reach: Reach,
    ) -> Result<Option<Found>> {
        let in_pack = (block.number % BLOCKS_PER_PACK) as usize;
        let (group, at) = pack.find(in_pack)?;
        let key = (block.store, block.number / BLOCKS_PER_PACK, group);
        let known = lock(&self.groups).get(&key);
        let group = match known {
            Some(group) => group,
            None if reach == Reach::Memory => return Ok(None),
            None => {
                let group = Arc::new(pack.read_group(group)?);
                lock(&self.groups).put(key, &group, group.len());
                group
            }
        };
        Ok(Some(Found {
            pack: Arc::clone(pack),
            group,
            at,
            in_pack,
            most,
        }))
    }

    /// The newest generation of a pack.
    pub(crate) fn pack(&self, source: SourceId, number: u64) -> Result<Arc<Pack>> {
        let known = lock(&self.packs).get(&(source, number));
        if let Some(pack) = known {
            return Ok(pack);
        }
        let known = lock(&self.damaged).get(&(source, number));
        if let Some((error, tried)) = known.as_deref()
            && tried.elapsed() < RETRY
        {
            return Err(error.clone());
        }
        let opened = self.open(source, number).inspect_err(|error| {
            if error.kind() == RepositoryErrorKind::Damaged {
                let known = Arc::new((error.clone(), Instant::now()));
                lock(&self.damaged).put((source, number), &known, 1);
            }
        });
        let pack = Arc::new(opened?);
        lock(&self.packs).put((source, number), &pack, 1);
        Ok(pack)
    }

    /// Opens the newest generation of a pack. Somebody may prune meanwhile: then a newer one is there before the
    /// known one goes.
    fn open(&self, source: SourceId, number: u64) -> Result<Pack> {
        let known = lock(&self.generations).get(&source).map(Arc::clone);
        let generation = known.and_then(|known| known.get(&number).copied());
        if let Some(generation) = generation {
            match self.repository.pack(source, number, generation) {
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        // A backup that is new since then may need a pack that is not known, too.
        let listed: FxHashMap<_, _> = self.repository.packs(source)?.into_iter().collect();
        // One that is missing is so by its first name.
        let generation = listed.get(&number).copied().unwrap_or(0);
        lock(&self.generations).insert(source, Arc::new(listed));
        match self.repository.pack(source, number, generation) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                Err(self.repository.missing_pack(source, number))
            }
            opened => opened,
        }
    }
}

/// Popular blocks move to lower numbers only, so whoever follows them arrives.
pub(crate) fn check_moved(
    pack: &Pack,
    is_popular: bool,
    in_pack: usize,
    moved: MovedRun,
) -> Result<()> {
    let number = pack.reference().number * BLOCKS_PER_PACK + in_pack as u64;
    match is_popular && moved.number >= number {
        true => Err(pack.moved_in_circle(in_pack)),
        false => Ok(()),
    }
}

impl Found {
    /// The block, and those with the numbers that follow in its group, `most` at most: they have `blocks`.
    pub(crate) fn bytes(&self, most: u64) -> (u64, &[u8]) {
        let bytes = self.group.get(self.at..).unwrap_or_default();
        let left_in_group = BLOCKS_PER_GROUP - self.in_pack % BLOCKS_PER_GROUP;
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(self.most);
        let most = left_in_group.min(most);
        let blocks = self.pack.stored_from(self.in_pack, most);
        let len = blocks * self.pack.block_size() as usize;
        (blocks as u64, bytes.get(..len).unwrap_or(bytes))
    }
}
