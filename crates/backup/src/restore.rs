//! Gives a backup back, in the order of addresses.

use std::collections::VecDeque;
use std::rc::Rc;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{BackupNumber, Manifest, SourceId, Target};
use onefold_repository::{Pack, Recipe, Repository};
use rustc_hash::FxHashMap;

use crate::error::{BackupError, Result};

/// Packs whose tables are kept.
const PACKS_OPEN: usize = 32;

/// Gets data, with its address in bytes.
pub type Receive<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// A backup that is read.
pub struct Restore<'a> {
    repository: &'a Repository,
    source: SourceId,
    recipe: Recipe,
    /// Newest generations, by number.
    generations: FxHashMap<u64, u32>,
    packs: Cache<u64, Pack>,
    groups: Cache<(u64, usize), Vec<u8>>,
}

/// The entries that were used last.
struct Cache<K, V> {
    entries: VecDeque<(K, Rc<V>)>,
    most: usize,
}

impl<K: PartialEq + Copy, V> Cache<K, V> {
    fn new(most: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            most: most.max(1),
        }
    }

    fn get(&mut self, key: K, make: impl FnOnce() -> Result<V>) -> Result<Rc<V>> {
        let at = self.entries.iter().position(|(known, _)| *known == key);
        let entry = match at.and_then(|at| self.entries.remove(at)) {
            Some(entry) => entry,
            None => {
                if self.entries.len() == self.most {
                    self.entries.pop_back();
                }
                (key, Rc::new(make()?))
            }
        };
        let value = Rc::clone(&entry.1);
        self.entries.push_front(entry);
        Ok(value)
    }
}

impl<'a> Restore<'a> {
    /// Opens a backup; groups of blocks that are used again take up to so much memory.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn open(
        repository: &'a Repository,
        source: SourceId,
        backup: BackupNumber,
        memory_bytes: usize,
    ) -> Result<Self> {
        let recipe = repository.recipe(source, backup)?;
        let group_bytes = 64 * recipe.manifest().block_size as usize;
        Ok(Self {
            repository,
            source,
            generations: repository.packs(source)?.into_iter().collect(),
            packs: Cache::new(PACKS_OPEN),
            groups: Cache::new(memory_bytes / 2 / group_bytes),
            recipe,
        })
    }

    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        self.recipe.manifest()
    }

    /// Passes all data on, in ascending order; what is left out is zeros.
    ///
    /// # Errors
    ///
    /// If the repository is damaged, with the first block concerned; or the receiver's.
    pub fn read_all(&mut self, receive: Receive<'_>) -> Result<()> {
        let pages = self.manifest().recipe_pages.len() as u64;
        for page in 0..pages {
            let mut block = page * BLOCKS_PER_RECIPE_PAGE;
            for run in self.recipe.page(page)? {
                if let Target::Stored(first) = run.target {
                    self.read_run(block, first, run.blocks, receive)?;
                }
                block += run.blocks;
            }
        }
        Ok(())
    }

    fn read_run(
        &mut self,
        mut block: u64,
        mut number: u64,
        mut left: u64,
        receive: Receive<'_>,
    ) -> Result<()> {
        let block_size = u64::from(self.manifest().block_size);
        let size_bytes = self.manifest().size_bytes;
        while left > 0 {
            let failed = |error: BackupError| match error {
                BackupError::Repository(error) => BackupError::Damaged { block, error },
                other => other,
            };
            let (group, at) = self.group_of(number).map_err(failed)?;
            let bytes = group.get(at..).unwrap_or_default();
            // Those of the run that follow in the group; a group with gaps gives one at a time.
            let most = (bytes.len() as u64 / block_size).min(left);
            let blocks = self.consecutive(number, most).max(1);
            let start = block * block_size;
            let len = (blocks * block_size).min(size_bytes.saturating_sub(start));
            receive(start, bytes.get(..len as usize).unwrap_or_default())?;
            (block, number, left) = (block + blocks, number + blocks, left - blocks);
        }
        Ok(())
    }

    /// How many of these numbers are in one group without gaps.
    fn consecutive(&mut self, number: u64, most: u64) -> u64 {
        let Some((_, pack)) = self.packs.entries.front() else {
            return 1;
        };
        let first = (number % BLOCKS_PER_PACK) as usize;
        let in_group = 64 - first as u64 % 64;
        let blocks = pack.fingerprints().iter().skip(first);
        let blocks = blocks.take(in_group.min(most) as usize);
        blocks.take_while(|it| it.is_some()).count() as u64
    }

    /// The group of a block, and its place in it.
    fn group_of(&mut self, number: u64) -> Result<(Rc<Vec<u8>>, usize)> {
        let (pack_number, block) = (
            number / BLOCKS_PER_PACK,
            (number % BLOCKS_PER_PACK) as usize,
        );
        let generation = self.generations.get(&pack_number).copied();
        let (repository, source) = (self.repository, self.source);
        let pack = self.packs.get(pack_number, || {
            let generation = generation.unwrap_or(0);
            Ok(repository.pack(source, pack_number, generation)?)
        })?;
        let (group, at) = pack.find(block)?;
        let bytes = self
            .groups
            .get((pack_number, group), || Ok(pack.read_group(group)?))?;
        Ok((bytes, at))
    }
}
