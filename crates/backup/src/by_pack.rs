//! Reads a whole backup in the order of its packs: several threads read each needed group once, and neighbouring
//! groups together. In the order of addresses, a backup of many nights would read most groups repeatedly
//! [Zhang14 §6.3].

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{SourceId, Target, Witness};
use onefold_repository::{Pack, RepositoryError};

use crate::blocks::check_moved;
use crate::error::{BackupError, Result};
use crate::lost::LostBlocks;
use crate::restore::{Restore, note};

/// Uncompressed bytes of the groups that one thread reads at a time; at least one group.
const BATCH_BYTES: u64 = 4 << 20;

/// Memory for runs when packs are only opened.
const CHECK_BYTES: usize = 4 << 20;

/// Unneeded groups between two needed ones that are read with them: reading one costs less than another read.
const GAP_GROUPS: usize = 1;

/// Receives data with its address in bytes, from several threads at once.
pub type ReceiveAnywhere<'a> = &'a (dyn Fn(u64, &[u8]) -> Result<()> + Sync);

/// Consecutive blocks with consecutive numbers of a store, few enough for one batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StoredRun {
    store: SourceId,
    number: u64,
    block: u64,
    blocks: u64,
    /// The witness of the pack that must hold the blocks.
    witness: Witness,
}

impl StoredRun {
    fn is_of_same_pack(&self, other: &Self) -> bool {
        let pack = |run: &Self| (run.store, run.number / BLOCKS_PER_PACK, run.witness);
        pack(self) == pack(other)
    }
}

/// How a backup is read, and where its data goes.
struct Reading<'a> {
    threads: usize,
    /// Receives the data; `None` if packs are only opened.
    receive: Option<ReceiveAnywhere<'a>>,
    lost: Option<&'a LostBlocks>,
    /// The most runs in memory.
    runs_max: usize,
    counts: ReadCounts,
}

/// Statistics of reading a backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads of packs, including reads of their tables.
    pub pack_reads: u64,
    /// Bytes passed to the receiver.
    pub bytes: u64,
}

/// Neighbouring groups of a pack, and the runs that need them.
struct Batch<'a> {
    pack: &'a Pack,
    /// The number of the pack's first block.
    first: u64,
    groups: Range<usize>,
    runs: &'a [StoredRun],
}

/// A group that was read together with its neighbours.
struct ReadGroup {
    sealed: std::result::Result<Vec<u8>, RepositoryError>,
    opened: Option<std::result::Result<Vec<u8>, RepositoryError>>,
}

impl StoredRun {
    fn damaged(&self, error: RepositoryError) -> BackupError {
        BackupError::Damaged {
            block: self.block,
            blocks: self.blocks,
            error,
        }
    }
}

impl Batch<'_> {
    /// Reads the groups together. If that fails, reads each by itself: some may be intact, and others are not needed.
    fn read(&self) -> Vec<ReadGroup> {
        let sealed: Vec<_> = match self.pack.read_groups(self.groups.clone()) {
            Ok(groups) => groups.into_iter().map(Ok).collect(),
            Err(_) => {
                let alone = |group| {
                    let read = self.pack.read_groups(group..group + 1);
                    read.map(|groups| groups.concat())
                };
                self.groups.clone().map(alone).collect()
            }
        };
        let groups = sealed.into_iter();
        groups
            .map(|sealed| ReadGroup {
                sealed,
                opened: None,
            })
            .collect()
    }
}

impl ReadGroup {
    fn content(
        &mut self,
        pack: &Pack,
        group: usize,
    ) -> std::result::Result<&[u8], RepositoryError> {
        let opened = self.opened.get_or_insert_with(|| {
            let sealed = self.sealed.as_ref().map_err(Clone::clone)?;
            pack.open_read_group(group, sealed)
        });
        opened.as_deref().map_err(Clone::clone)
    }
}

impl Restore {
    /// Passes all data to `receive`, in any order. Omitted ranges are zeros, or are recorded in `lost`.
    ///
    /// # Errors
    ///
    /// Without `lost`, if the repository is damaged, with the first affected block that was found; or the receiver's.
    pub fn read_anywhere(
        &self,
        threads: usize,
        memory_bytes: usize,
        lost: Option<&LostBlocks>,
        receive: ReceiveAnywhere<'_>,
    ) -> Result<ReadCounts> {
        let mut reading = Reading {
            threads,
            receive: Some(receive),
            lost,
            runs_max: (memory_bytes / 2 / size_of::<StoredRun>()).max(1),
            counts: ReadCounts::default(),
        };
        self.read_pages(&mut reading)?;
        Ok(reading.counts)
    }

    /// Fails unless all objects that the backup needs are present and authentic: it reads the recipe and opens the
    /// packs, including popular packs to which blocks were moved, and their tables must have the blocks. It does not
    /// detect damage within groups.
    ///
    /// # Errors
    ///
    /// The first damage.
    pub fn check_objects(&self) -> Result<()> {
        self.read_pages(&mut Reading {
            threads: 1,
            receive: None,
            lost: None,
            runs_max: CHECK_BYTES / size_of::<StoredRun>(),
            counts: ReadCounts::default(),
        })
    }

    fn read_pages(&self, reading: &mut Reading<'_>) -> Result<()> {
        let mut runs = Vec::new();
        let pages = self.manifest().recipe_pages.len() as u64;
        for page in 0..pages {
            let range = self.page_range(page);
            self.past_damage(range, reading.lost, &mut |rest| {
                self.add_runs(rest, &mut runs)
            })?;
            // The limit may be exceeded by the runs of one page.
            if runs.len() >= reading.runs_max || page + 1 == pages {
                self.read_runs(std::mem::take(&mut runs), reading)?;
            }
        }
        Ok(())
    }

    fn add_runs(&self, range: &Range<u64>, runs: &mut Vec<StoredRun>) -> Result<()> {
        let batch_blocks = self.batch_blocks();
        self.each_run(range, &mut |block, run| {
            let (store, number) = match run.target {
                Target::Zeros => return Ok(()),
                Target::Own(number) => (self.source, number),
                Target::Popular(number) => (self.popular, number),
            };
            let (mut number, mut block, mut left) = (number, block, run.blocks);
            while left > 0 {
                let blocks = left.min(batch_blocks - number % batch_blocks);
                let witness = self.witness(store, number);
                let witness = witness.map_err(|unreadable| BackupError::Damaged {
                    block,
                    blocks: unreadable.blocks.min(left),
                    error: unreadable.error,
                })?;
                runs.push(StoredRun {
                    store,
                    number,
                    block,
                    blocks,
                    witness,
                });
                (number, block, left) = (number + blocks, block + blocks, left - blocks);
            }
            Ok(())
        })
    }

    /// How many groups one batch may have.
    fn batch_groups(&self) -> usize {
        let group_bytes = BLOCKS_PER_GROUP as u64 * u64::from(self.manifest().block_size);
        (BATCH_BYTES / group_bytes).max(1) as usize
    }

    /// How many blocks one batch may have.
    fn batch_blocks(&self) -> u64 {
        self.batch_groups() as u64 * BLOCKS_PER_GROUP as u64
    }

    /// Reads the source's own blocks, then the popular ones, including those to which own blocks were moved.
    fn read_runs(&self, runs: Vec<StoredRun>, reading: &mut Reading<'_>) -> Result<()> {
        let (mut own, mut popular): (Vec<_>, Vec<_>) =
            runs.into_iter().partition(|run| run.store == self.source);
        own.sort_unstable();
        for of_pack in own.chunk_by(StoredRun::is_of_same_pack) {
            self.read_pack(of_pack, &mut popular, reading)?;
            if popular.len() >= 2 * reading.runs_max {
                self.read_popular(std::mem::take(&mut popular), reading)?;
            }
        }
        self.read_popular(popular, reading)
    }

    fn read_popular(&self, mut runs: Vec<StoredRun>, reading: &mut Reading<'_>) -> Result<()> {
        while !runs.is_empty() {
            runs.sort_unstable();
            let mut moved = Vec::new();
            for of_pack in runs.chunk_by(StoredRun::is_of_same_pack) {
                self.read_pack(of_pack, &mut moved, reading)?;
            }
            runs = moved;
        }
        Ok(())
    }

    /// Reads runs of a pack, and adds runs of blocks that were moved to `moved`.
    fn read_pack(
        &self,
        runs: &[StoredRun],
        moved: &mut Vec<StoredRun>,
        reading: &mut Reading<'_>,
    ) -> Result<()> {
        let Some(run) = runs.first() else {
            return Ok(());
        };
        let lost = reading.lost;
        let pack = match self.needed_pack(run) {
            Ok(pack) => pack,
            Err(error) => {
                let mut errors = runs.iter().map(|run| run.damaged(error.clone()));
                return errors.try_for_each(|error| note(error, lost).map(drop));
            }
        };
        let first = run.number / BLOCKS_PER_PACK * BLOCKS_PER_PACK;
        let runs = &self.without_moved(&pack, runs, moved, lost)?;
        let Some(receive) = reading.receive else {
            return runs.iter().try_for_each(|run| check_stored(&pack, run));
        };
        if runs.is_empty() {
            return Ok(());
        }
        let batches = batches(&pack, first, runs, self.batch_groups());
        // One read each for the trailer and the table.
        reading.counts.pack_reads += 2 + batches.len() as u64;
        let bytes = AtomicU64::new(0);
        let receive: ReceiveAnywhere<'_> = &|at, content| {
            receive(at, content)?;
            bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
            Ok(())
        };
        let next = Mutex::new(batches.iter());
        let read_some = || loop {
            let batch = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            match batch {
                None => return Ok(()),
                Some(batch) => self.read_batch(batch, lost, receive)?,
            }
        };
        let threads = reading.threads.clamp(1, batches.len().max(1));
        let read = thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(read_some)).collect();
            let mut ended = read_some();
            for other in others {
                let other = other.join().unwrap_or_else(|_| {
                    let message = "a thread of the restore ended early";
                    Err(BackupError::Temporary(std::io::Error::other(message)))
                });
                ended = ended.and(other);
            }
            ended
        });
        reading.counts.bytes += bytes.load(Ordering::Relaxed);
        read
    }

    fn needed_pack(&self, run: &StoredRun) -> std::result::Result<Arc<Pack>, RepositoryError> {
        let number = run.number / BLOCKS_PER_PACK;
        let pack = self.blocks.pack(run.store, number)?;
        pack.check_block_size(self.manifest().block_size)?;
        pack.check_witness(run.witness)?;
        Ok(pack)
    }

    /// Returns the runs of blocks that the pack stores itself; runs of blocks that were moved go to `moved`.
    fn without_moved(
        &self,
        pack: &Pack,
        runs: &[StoredRun],
        moved: &mut Vec<StoredRun>,
        lost: Option<&LostBlocks>,
    ) -> Result<Vec<StoredRun>> {
        let mut stored = Vec::with_capacity(runs.len());
        let batch_blocks = self.batch_blocks();
        for run in runs {
            let mut rest = *run;
            while rest.blocks > 0 {
                let in_pack = (rest.number % BLOCKS_PER_PACK) as usize;
                let blocks = match pack.moved_from(in_pack, rest.blocks as usize) {
                    None => {
                        let slots = pack.slots().iter().skip(in_pack).take(rest.blocks as usize);
                        let here = slots.take_while(|slot| slot.moved().is_none()).count();
                        // A run beyond the pack's last block is damage, which reading it finds.
                        let blocks = if here == 0 { rest.blocks } else { here as u64 };
                        stored.push(StoredRun { blocks, ..rest });
                        blocks
                    }
                    Some(to) => {
                        let left = batch_blocks - to.number % batch_blocks;
                        let blocks = left.min(to.blocks as u64);
                        let is_popular = run.store == self.popular;
                        match check_moved(pack, is_popular, in_pack, to) {
                            Ok(()) => moved.push(StoredRun {
                                store: self.popular,
                                number: to.number,
                                block: rest.block,
                                blocks,
                                witness: to.witness,
                            }),
                            Err(error) => {
                                note(StoredRun { blocks, ..rest }.damaged(error), lost)?;
                            }
                        }
                        blocks
                    }
                };
                rest.number += blocks;
                rest.block += blocks;
                rest.blocks -= blocks;
            }
        }
        Ok(stored)
    }

    fn read_batch(
        &self,
        batch: &Batch<'_>,
        lost: Option<&LostBlocks>,
        receive: ReceiveAnywhere<'_>,
    ) -> Result<()> {
        let mut groups = batch.read();
        for run in batch.runs {
            let mut rest = *run;
            while rest.blocks > 0 {
                let read = self.read_piece(batch, &mut groups, rest, receive);
                let blocks = match read {
                    Ok(blocks) => blocks,
                    Err(error) => {
                        let damaged = note(error, lost)?;
                        damaged.end - damaged.start
                    }
                };
                rest.number += blocks;
                rest.block += blocks;
                rest.blocks -= blocks;
            }
        }
        Ok(())
    }

    /// Passes the first blocks of a run, which are in one group, to the receiver. Returns how many.
    fn read_piece(
        &self,
        batch: &Batch<'_>,
        groups: &mut [ReadGroup],
        run: StoredRun,
        receive: ReceiveAnywhere<'_>,
    ) -> Result<u64> {
        let (pack, in_pack) = (batch.pack, (run.number - batch.first) as usize);
        let in_group = BLOCKS_PER_GROUP - in_pack % BLOCKS_PER_GROUP;
        let most = in_group.min(run.blocks as usize);
        let damaged = |error| {
            let blocks = pack.alike_from(in_pack, most) as u64;
            StoredRun { blocks, ..run }.damaged(error)
        };
        let (group, at) = pack.find(in_pack).map_err(damaged)?;
        let content = groups[group - batch.groups.start].content(pack, group);
        let content = content.map_err(damaged)?;
        let blocks = pack.stored_from(in_pack, most) as u64;
        let block_size = u64::from(self.manifest().block_size);
        let start = run.block * block_size;
        let bytes = content.get(at..at + (blocks * block_size) as usize);
        // The last block of the disk may be partial.
        let size = self.manifest().size_bytes;
        let len = (blocks * block_size).min(size.saturating_sub(start));
        let bytes = bytes.and_then(|bytes| bytes.get(..len as usize));
        receive(start, bytes.unwrap_or_default())?;
        Ok(blocks)
    }
}

/// Fails unless a pack has all blocks of a run.
fn check_stored(pack: &Pack, run: &StoredRun) -> Result<()> {
    let (first, blocks) = (run.number % BLOCKS_PER_PACK, run.blocks);
    let there = pack.stored_from(first as usize, blocks as usize) as u64;
    if there == blocks {
        return Ok(());
    }
    let error = pack.find((first + there) as usize).err();
    error.map_or(Ok(()), |error| {
        Err(BackupError::Damaged {
            block: run.block + there,
            blocks: blocks - there,
            error,
        })
    })
}

/// Splits the sorted runs of a pack into batches, where the needed groups are far apart or too many.
fn batches<'a>(
    pack: &'a Pack,
    first: u64,
    runs: &'a [StoredRun],
    groups_max: usize,
) -> Vec<Batch<'a>> {
    let group_of = |number: u64| (number - first) as usize / BLOCKS_PER_GROUP;
    let mut batches: Vec<Batch<'a>> = Vec::new();
    let mut start = 0;
    for (n, run) in runs.iter().enumerate() {
        let groups = group_of(run.number)..group_of(run.number + run.blocks - 1) + 1;
        if let Some(last) = batches.last_mut()
            && groups.start <= last.groups.end + GAP_GROUPS
            && (groups.end <= last.groups.end || groups.end - last.groups.start <= groups_max)
        {
            last.groups.end = last.groups.end.max(groups.end);
            last.runs = &runs[start..=n];
        } else {
            start = n;
            batches.push(Batch {
                pack,
                first,
                groups,
                runs: &runs[n..=n],
            });
        }
    }
    batches
}
