//! Stored blocks by their numbers, for any number of backups and threads at once. All of them share one cache of the
//! packs and groups used last.

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

/// How long a damaged pack is not tried again: a reader that continues past damage asks for the same pack for every
/// block, and each attempt lists all packs.
const RETRY: Duration = Duration::from_secs(10);

/// The most damaged packs that are remembered.
const DAMAGED_MAX: usize = 1024;

/// Reads stored blocks of a repository and caches their packs and groups.
pub struct BlockReader {
    repository: Arc<Repository>,
    /// Newest generations of a source's packs, by number.
    generations: Mutex<FxHashMap<SourceId, Arc<FxHashMap<u64, u32>>>>,
    packs: Mutex<Cache<(SourceId, u64), Pack>>,
    /// Packs that cannot be opened, each with the reason and when it was tried.
    damaged: Mutex<Cache<(SourceId, u64), (RepositoryError, Instant)>>,
    groups: Mutex<Cache<(SourceId, u64, usize), Vec<u8>>>,
}

/// Whether a read may leave memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Reads only from memory, for callers that must not wait.
    Memory,
    /// May also read from the repository.
    Repository,
}

/// Where a block is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredBlock {
    pub(crate) store: SourceId,
    pub(crate) number: u64,
    /// The witness of the pack that must hold the block; none if any pack with its number will do.
    pub(crate) witness: Option<Witness>,
    /// The store of the popular blocks to which the block may have been moved.
    pub(crate) popular: SourceId,
}

/// A block, with the blocks that follow it in its group.
pub(crate) struct Found {
    pack: Arc<Pack>,
    group: Arc<Vec<u8>>,
    /// Where the block is in the group.
    at: usize,
    /// The block's number less the first number of its pack.
    in_pack: usize,
    /// The most blocks, from this one on, that stayed consecutive through all moves.
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

/// A cache of the values used last.
struct Cache<K, V> {
    /// The last used entry comes first; each has its cost.
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
    /// Reads from `repository` and caches up to `memory_bytes` of groups.
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

    /// Finds a block of `block_size` bytes and follows its moves. Returns `None` if the block is not in memory and
    /// `reach` does not go further. Holds no lock while the block is read and decompressed.
    pub(crate) fn find(
        &self,
        mut block: StoredBlock,
        block_size: u32,
        reach: Reach,
    ) -> std::result::Result<Option<Found>, Unreadable> {
        let mut most = BLOCKS_PER_GROUP;
        // How many numbers may share the damage of this block's pack.
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

    /// Opens the newest generation of a pack, or returns it from the cache.
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

    /// Opens the newest generation of a pack. A concurrent prune writes the next generation before it removes the known
    /// one, so a generation that is not found makes this list the packs again.
    fn open(&self, source: SourceId, number: u64) -> Result<Pack> {
        let known = lock(&self.generations).get(&source).map(Arc::clone);
        let generation = known.and_then(|known| known.get(&number).copied());
        if let Some(generation) = generation {
            match self.repository.pack(source, number, generation) {
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        // A newer backup may also need a pack that was not there at the last listing.
        let listed: FxHashMap<_, _> = self.repository.packs(source)?.into_iter().collect();
        // A missing pack is reported by the name of its first generation.
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

/// Fails on a move to a higher number: popular blocks move only to lower ones, so that following moves ends.
pub(crate) fn check_moved(
    pack: &Pack,
    is_popular: bool,
    in_pack: usize,
    moved: MovedRun,
) -> Result<()> {
    let number = pack.reference().number * BLOCKS_PER_PACK + in_pack as u64;
    if is_popular && moved.number >= number {
        Err(pack.moved_in_circle(in_pack))
    } else {
        Ok(())
    }
}

impl Found {
    /// The bytes of this block and of the blocks that follow it in its group, at most `most` in all, and how many
    /// blocks these are.
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
