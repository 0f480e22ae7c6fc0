//! Reads a backup: all of it in the order of addresses, or any range, and compares it with another backup. Any number
//! of threads may read it at once.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{
    BackupNumber, Manifest, RecipeRun, SourceId, Target, Witness, witness_of,
};
use onefold_repository::{KnownSource, Reading, Recipe};

use crate::blocks::{BlockReader, Reach, StoredBlock, Unreadable};
use crate::error::{BackupError, Result};
use crate::lost::LostBlocks;

/// Receives data, with its address in bytes.
pub type Receive<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Recipe pages kept in memory: each covers 128 MiB of a disk with blocks of 4 KiB.
const PAGES_KEPT: usize = 8;

/// A backup that is opened for reading.
pub struct Restore {
    pub(crate) blocks: Arc<BlockReader>,
    pub(crate) source: SourceId,
    /// The store of the source's popular blocks.
    pub(crate) popular: SourceId,
    recipe: Recipe,
    _reading: Reading,
    /// Cached recipe pages; the last used one comes last.
    pages: Mutex<Vec<(u64, Arc<Vec<RecipeRun>>)>>,
}

/// Consecutive bytes of a backup that have something in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<T> {
    /// How many bytes.
    pub bytes: u64,
    /// The property that all of the bytes have.
    pub what: T,
}

/// How a range compares with another backup of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The range holds the same data in both backups.
    Same,
    /// The range holds other data.
    Data,
    /// The range holds zeros, and data in the other backup.
    Zeros,
}

/// Consecutive blocks of a backup that are consecutive in a store.
struct StoredRun {
    /// The first block of the disk.
    block: u64,
    store: SourceId,
    /// The number of the first block in the store.
    number: u64,
    blocks: u64,
}

impl Restore {
    /// Opens a backup to do what `doing` says. The backup cannot be forgotten until this is dropped.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn open(
        blocks: &Arc<BlockReader>,
        source: &KnownSource,
        backup: BackupNumber,
        doing: &str,
    ) -> Result<Self> {
        let repository = blocks.repository();
        let reading = repository.reading(source.id, backup, doing)?;
        Ok(Self {
            _reading: reading,
            recipe: repository.recipe(source.id, backup)?,
            popular: repository.popular_id(&source.source),
            source: source.id,
            blocks: Arc::clone(blocks),
            pages: Mutex::default(),
        })
    }

    /// The manifest of the backup.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        self.recipe.manifest()
    }

    /// The witness of the pack in `store` that the backup needs for a number.
    pub(crate) fn witness(
        &self,
        store: SourceId,
        number: u64,
    ) -> std::result::Result<Witness, Unreadable> {
        let manifest = self.manifest();
        let packs = if store == self.source {
            &manifest.own_packs
        } else {
            &manifest.popular_packs
        };
        let witness = witness_of(packs, number / BLOCKS_PER_PACK);
        witness.ok_or_else(|| Unreadable {
            error: self.recipe.names_unneeded(number),
            blocks: BLOCKS_PER_PACK - number % BLOCKS_PER_PACK,
        })
    }

    fn block_size(&self) -> u64 {
        self.manifest().block_size.into()
    }

    fn page(&self, page: u64) -> Result<Arc<Vec<RecipeRun>>> {
        if let Some(runs) = self.known_page(page) {
            return Ok(runs);
        }
        let runs = self.recipe.page(page);
        let runs = Arc::new(runs.map_err(|error| BackupError::Damaged {
            block: page * BLOCKS_PER_RECIPE_PAGE,
            blocks: self.manifest().blocks_of_page(page),
            error,
        })?);
        let mut known = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= PAGES_KEPT {
            known.remove(0);
        }
        known.push((page, Arc::clone(&runs)));
        Ok(runs)
    }

    fn known_page(&self, page: u64) -> Option<Arc<Vec<RecipeRun>>> {
        let mut known = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|(number, _)| *number == page)?;
        let found = known.remove(at);
        let runs = Arc::clone(&found.1);
        known.push(found);
        Some(runs)
    }

    /// Passes all data to `receive`, in ascending order. Omitted ranges are zeros, or are recorded in `lost`.
    ///
    /// # Errors
    ///
    /// Without `lost`, if the repository is damaged, with the first affected block; or the receiver's.
    pub fn read_all(&self, lost: Option<&LostBlocks>, receive: Receive<'_>) -> Result<()> {
        let all = 0..self.manifest().size_bytes;
        self.past_damage(all, lost, &mut |rest| {
            self.read_range(rest, Reach::Repository, receive).map(drop)
        })
    }

    /// Reads a range in ascending order. With `lost`, records damaged blocks there and continues after them.
    pub(crate) fn past_damage(
        &self,
        mut range: Range<u64>,
        lost: Option<&LostBlocks>,
        read: &mut dyn FnMut(&Range<u64>) -> Result<()>,
    ) -> Result<()> {
        range.end = range.end.min(self.manifest().size_bytes);
        while !range.is_empty() {
            let Err(error) = read(&range) else {
                return Ok(());
            };
            let damaged = note(error, lost)?;
            range.start = range.start.max(damaged.end * self.block_size());
        }
        Ok(())
    }

    /// Fills `bytes` with the backup's data from byte `at`, and with zeros past its end.
    ///
    /// # Errors
    ///
    /// If the repository is damaged, with the first affected block.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_within(at, bytes, Reach::Repository).map(drop)
    }

    /// As [`Restore::read`], but records unreadable blocks in `lost`; their bytes in `bytes` are undefined.
    ///
    /// # Errors
    ///
    /// Any failure other than damage of an object.
    pub fn read_past_damage(&self, at: u64, bytes: &mut [u8], lost: &LostBlocks) -> Result<()> {
        let all = at..at.saturating_add(bytes.len() as u64);
        self.past_damage(all, Some(lost), &mut |rest| {
            let bytes = bytes.get_mut((rest.start - at) as usize..);
            self.read(rest.start, bytes.unwrap_or_default())
        })
    }

    /// As [`Restore::read`], but only if all needed objects are in memory. Returns whether they were.
    ///
    /// # Errors
    ///
    /// As [`Restore::read`].
    pub fn read_from_memory(&self, at: u64, bytes: &mut [u8]) -> Result<bool> {
        self.read_within(at, bytes, Reach::Memory)
    }

    fn read_within(&self, at: u64, bytes: &mut [u8], reach: Reach) -> Result<bool> {
        bytes.fill(0);
        let range = at..at.saturating_add(bytes.len() as u64);
        self.read_range(&range, reach, &mut |from, data| {
            let start = (from - at) as usize;
            bytes[start..start + data.len()].copy_from_slice(data);
            Ok(())
        })
    }

    /// Returns false if `reach` did not suffice.
    fn read_range(&self, range: &Range<u64>, reach: Reach, receive: Receive<'_>) -> Result<bool> {
        if reach == Reach::Memory
            && !self
                .pages_of(range)
                .all(|page| self.known_page(page).is_some())
        {
            return Ok(false);
        }
        let mut is_within = true;
        self.each_run(range, &mut |block, run| {
            let (store, number) = match run.target {
                Target::Zeros => return Ok(()),
                Target::Own(first) => (self.source, first),
                Target::Popular(first) => (self.popular, first),
            };
            if is_within {
                let run = StoredRun {
                    block,
                    store,
                    number,
                    blocks: run.blocks,
                };
                is_within = self.read_run(run, range, reach, receive)?;
            }
            Ok(())
        })?;
        Ok(is_within)
    }

    /// Calls `each` with the runs that a range touches and their first blocks; runs are cut at the range's first and
    /// last block.
    pub(crate) fn each_run(
        &self,
        range: &Range<u64>,
        each: &mut dyn FnMut(u64, RecipeRun) -> Result<()>,
    ) -> Result<()> {
        let block_size = self.block_size();
        let end = range.end.min(self.manifest().size_bytes);
        let wanted = range.start / block_size..end.div_ceil(block_size);
        let mut page = wanted.start / BLOCKS_PER_RECIPE_PAGE;
        let mut block = page * BLOCKS_PER_RECIPE_PAGE;
        while block < wanted.end {
            for run in self.page(page)?.iter() {
                let from = block.max(wanted.start);
                let to = (block + run.blocks).min(wanted.end);
                if from < to {
                    let target = run.target.plus(from - block);
                    let blocks = to - from;
                    each(from, RecipeRun { blocks, target })?;
                }
                block += run.blocks;
            }
            page += 1;
        }
        Ok(())
    }

    /// How many blocks a run has from this block on.
    fn run_from(&self, block: u64) -> Option<u64> {
        let page = self.page_range(block / BLOCKS_PER_RECIPE_PAGE);
        let mut blocks = None;
        let read = self.each_run(&(block * self.block_size()..page.end), &mut |_, run| {
            blocks.get_or_insert(run.blocks);
            Ok(())
        });
        read.ok().and(blocks)
    }

    /// Reads the part of a run that is in a range. Returns false if `reach` did not suffice.
    fn read_run(
        &self,
        run: StoredRun,
        range: &Range<u64>,
        reach: Reach,
        receive: Receive<'_>,
    ) -> Result<bool> {
        let StoredRun {
            mut block,
            store,
            mut number,
            blocks: mut left,
        } = run;
        let (blocks, block_bytes) = (&self.blocks, self.manifest().block_size);
        let block_size = u64::from(block_bytes);
        let end = range.end.min(self.manifest().size_bytes);
        while left > 0 {
            let found = self.witness(store, number).and_then(|witness| {
                let stored = StoredBlock {
                    store,
                    number,
                    witness: Some(witness),
                    popular: self.popular,
                };
                blocks.find(stored, block_bytes, reach)
            });
            let found = found.map_err(|unreadable| BackupError::Damaged {
                block,
                blocks: unreadable.blocks.min(self.run_from(block).unwrap_or(left)),
                error: unreadable.error,
            })?;
            let Some(found) = found else {
                return Ok(false);
            };
            let (count, bytes) = found.bytes(left);
            let count = count.max(1);
            let start = block * block_size;
            let (from, to) = (range.start.max(start), end.min(start + count * block_size));
            let cut = (from - start) as usize..(to.max(from) - start) as usize;
            receive(from, bytes.get(cut).unwrap_or_default())?;
            (block, number, left) = (block + count, number + count, left - count);
        }
        Ok(true)
    }

    /// Whether each part of a range holds data: at most `most` runs from its start, so perhaps not the whole range. A
    /// range whose recipe is damaged counts as data, and reading it fails.
    ///
    /// # Errors
    ///
    /// Any failure other than damage.
    pub fn extents(&self, range: &Range<u64>, most: usize) -> Result<Vec<Run<bool>>> {
        let mut runs = Runs::new(range, most);
        let block_size = self.block_size();
        let pages = self.pages_of(range);
        for page in pages {
            let page = self.range_of(page, range);
            let read = self.each_run(&page, &mut |block, run| {
                let end = (block + run.blocks) * block_size;
                runs.add(end, run.target != Target::Zeros);
                Ok(())
            });
            match read {
                Err(BackupError::Damaged { .. }) => runs.add(page.end, true),
                read => read?,
            }
            if runs.is_full() {
                break;
            }
        }
        Ok(runs.finish())
    }

    /// How a range differs from `since`, another backup of the source; limited as in [`Restore::extents`].
    ///
    /// # Errors
    ///
    /// If a recipe is damaged.
    pub fn differences(
        &self,
        since: &Self,
        range: &Range<u64>,
        most: usize,
    ) -> Result<Vec<Run<Difference>>> {
        let mut runs = Runs::new(range, most);
        let block_size = self.block_size();
        let mut last = (None, true);
        for page in self.pages_of(range) {
            let [now, before] = [self.targets(page)?, since.targets(page)?];
            let first = page * BLOCKS_PER_RECIPE_PAGE;
            for (n, block) in (0..now.len()).zip(first..) {
                let pack = self.pack_of(now[n]);
                if last.0 != pack {
                    last = (pack, self.needs_same_pack(since, pack)?);
                }
                let difference = match (now[n], before.get(n).copied().unwrap_or(Target::Zeros)) {
                    (now, before) if now == before && last.1 => Difference::Same,
                    (Target::Zeros, _) => Difference::Zeros,
                    _ => Difference::Data,
                };
                runs.add((block + 1) * block_size, difference);
            }
            if runs.is_full() {
                break;
            }
        }
        Ok(runs.finish())
    }

    /// The store and number of the pack that has the block of a target.
    fn pack_of(&self, target: Target) -> Option<(SourceId, u64)> {
        match target {
            Target::Zeros => None,
            Target::Own(number) => Some((self.source, number / BLOCKS_PER_PACK)),
            Target::Popular(number) => Some((self.popular, number / BLOCKS_PER_PACK)),
        }
    }

    /// Whether equal numbers in this pack mean equal content in both backups of the source.
    fn needs_same_pack(&self, other: &Self, pack: Option<(SourceId, u64)>) -> Result<bool> {
        let Some((store, number)) = pack else {
            return Ok(true);
        };
        let first = number * BLOCKS_PER_PACK;
        match other.witness(store, first) {
            Ok(witness) => Ok(self.witness(store, first)? == witness),
            // The other backup has no number of this pack.
            Err(_) => Ok(true),
        }
    }

    fn pages_of(&self, range: &Range<u64>) -> Range<u64> {
        let page_bytes = BLOCKS_PER_RECIPE_PAGE * self.block_size();
        let end = range.end.min(self.manifest().size_bytes);
        range.start / page_bytes..end.div_ceil(page_bytes)
    }

    /// The part of a range that is in a page.
    fn range_of(&self, page: u64, range: &Range<u64>) -> Range<u64> {
        let page = self.page_range(page);
        range.start.max(page.start)..range.end.min(page.end)
    }

    /// The range of bytes that a recipe page covers.
    pub(crate) fn page_range(&self, page: u64) -> Range<u64> {
        let page_bytes = BLOCKS_PER_RECIPE_PAGE * self.block_size();
        page * page_bytes..(page + 1) * page_bytes
    }

    /// The targets of a page's blocks; empty beyond the end.
    fn targets(&self, page: u64) -> Result<Vec<Target>> {
        if page >= self.manifest().recipe_pages.len() as u64 {
            return Ok(Vec::new());
        }
        Ok(expanded(&self.page(page)?))
    }
}

/// Records the blocks that a failure affects in `lost`, and returns them. A failure other than damage, or any failure
/// without `lost`, ends the restore.
pub(crate) fn note(error: BackupError, lost: Option<&LostBlocks>) -> Result<Range<u64>> {
    match (error, lost) {
        (
            BackupError::Damaged {
                block,
                blocks,
                error,
            },
            Some(lost),
        ) if error.is_of_object() => {
            let blocks = block..block + blocks.max(1);
            lost.add(blocks.clone(), &error);
            Ok(blocks)
        }
        (error, _) => Err(error),
    }
}

/// Expands runs to one target per block.
pub(crate) fn expanded(runs: &[RecipeRun]) -> Vec<Target> {
    let each = runs.iter();
    let targets = each.flat_map(|run| (0..run.blocks).map(|n| run.target.plus(n)));
    targets.collect()
}

/// Runs of a range, collected from its start.
struct Runs<T> {
    found: Vec<Run<T>>,
    most: usize,
    at: u64,
    end: u64,
}

impl<T: PartialEq> Runs<T> {
    fn new(range: &Range<u64>, most: usize) -> Self {
        Self {
            found: Vec::new(),
            most: most.max(1),
            at: range.start,
            end: range.end,
        }
    }

    /// Whether no more runs fit. One run more than requested is begun, because that ends the run before it.
    fn is_full(&self) -> bool {
        self.found.len() > self.most || self.at >= self.end
    }

    /// Extends the runs up to `end`, which share `what`.
    fn add(&mut self, end: u64, what: T) {
        let end = end.min(self.end);
        if end <= self.at || self.is_full() {
            return;
        }
        let bytes = end - self.at;
        match self.found.last_mut() {
            Some(last) if last.what == what => last.bytes += bytes,
            _ => self.found.push(Run { bytes, what }),
        }
        self.at = end;
    }

    fn finish(mut self) -> Vec<Run<T>> {
        self.found.truncate(self.most);
        self.found
    }
}
