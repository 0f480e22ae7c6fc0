//! A whole backup, in the order of packs: each group that is needed is read once, neighbours together, by several
//! threads. By addresses a backup of many nights would read most groups again and again [Zhang14 §6.3].

use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{SourceId, Target, Witness};
use onefold_repository::Pack;

use crate::blocks::check_moved;
use crate::error::{BackupError, Result};
use crate::restore::Restore;

/// What one thread does at a time: groups that have so many bytes before compression, and one at least.
const BATCH_BYTES: u64 = 4 << 20;

/// Groups between two that are needed, which are read with them: less than another read costs.
const GAP_GROUPS: usize = 1;

/// Gets data with its address in bytes, from several threads at once.
pub type ReceiveAnywhere<'a> = &'a (dyn Fn(u64, &[u8]) -> Result<()> + Sync);

/// Consecutive blocks with consecutive numbers of a store, which one batch can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StoredRun {
    store: SourceId,
    number: u64,
    block: u64,
    blocks: u64,
    /// That of the pack.
    witness: Witness,
}

impl StoredRun {
    fn is_of_same_pack(&self, other: &Self) -> bool {
        let pack = |run: &Self| (run.store, run.number / BLOCKS_PER_PACK, run.witness);
        pack(self) == pack(other)
    }
}

/// Who reads, and for whom.
struct Reading<'a> {
    threads: usize,
    receive: ReceiveAnywhere<'a>,
    /// The most runs in memory.
    runs_max: usize,
    counts: &'a mut ReadCounts,
}

fn damaged(error: BackupError, block: u64) -> BackupError {
    match error {
        BackupError::Repository(error) => BackupError::Damaged { block, error },
        error => error,
    }
}

/// How a backup was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads of packs, those of their tables included.
    pub pack_reads: u64,
    /// Bytes that were passed on.
    pub bytes: u64,
}

/// Neighbouring groups of a pack, and the runs that need them.
struct Batch<'a> {
    pack: &'a Pack,
    /// The number of the pack's first block.
    first: u64,
    groups: std::ops::Range<usize>,
    runs: &'a [StoredRun],
}

impl Restore {
    /// Passes all data on, in any order; what is left out is zeros.
    ///
    /// # Errors
    ///
    /// If the repository is damaged, with the first block concerned that was found; or the receiver's.
    pub fn read_anywhere(
        &self,
        threads: usize,
        memory_bytes: usize,
        receive: ReceiveAnywhere<'_>,
    ) -> Result<ReadCounts> {
        let mut counts = ReadCounts::default();
        let mut runs = Vec::new();
        let runs_max = (memory_bytes / 2 / size_of::<StoredRun>()).max(1);
        let pages = self.manifest().recipe_pages.len() as u64;
        for page in 0..pages {
            self.add_runs(page, &mut runs)?;
            // A page more than memory allows for is no harm.
            if runs.len() >= runs_max || page + 1 == pages {
                let mut reading = Reading {
                    threads,
                    receive,
                    runs_max,
                    counts: &mut counts,
                };
                self.read_runs(std::mem::take(&mut runs), &mut reading)?;
            }
        }
        Ok(counts)
    }

    fn add_runs(&self, page: u64, runs: &mut Vec<StoredRun>) -> Result<()> {
        let range = self.page_range(page);
        let batch_blocks = self.batch_blocks();
        self.each_run(&range, &mut |block, run| {
            let (store, number) = match run.target {
                Target::Zeros => return Ok(()),
                Target::Own(number) => (self.source, number),
                Target::Popular(number) => (self.popular, number),
            };
            let (mut number, mut block, mut left) = (number, block, run.blocks);
            while left > 0 {
                let blocks = left.min(batch_blocks - number % batch_blocks);
                let witness = self.witness(store, number);
                runs.push(StoredRun {
                    store,
                    number,
                    block,
                    blocks,
                    witness: witness.map_err(|error| damaged(error, block))?,
                });
                (number, block, left) = (number + blocks, block + blocks, left - blocks);
            }
            Ok(())
        })
    }

    /// How many groups are read together.
    fn batch_groups(&self) -> usize {
        let group_bytes = BLOCKS_PER_GROUP as u64 * u64::from(self.manifest().block_size);
        (BATCH_BYTES / group_bytes).max(1) as usize
    }

    /// What one batch can have, in blocks.
    fn batch_blocks(&self) -> u64 {
        self.batch_groups() as u64 * BLOCKS_PER_GROUP as u64
    }

    /// Reads the source's own blocks, and then the popular ones, those among them to which own ones were moved.
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

    /// Reads runs of a pack; those of moved blocks are added to `moved`.
    fn read_pack(
        &self,
        runs: &[StoredRun],
        moved: &mut Vec<StoredRun>,
        reading: &mut Reading<'_>,
    ) -> Result<()> {
        let Some(run) = runs.first() else {
            return Ok(());
        };
        let (store, number) = (run.store, run.number / BLOCKS_PER_PACK);
        let of_first = |error| damaged(error, run.block);
        let pack = self.blocks.pack(store, number).map_err(of_first)?;
        pack.check_block_size(self.manifest().block_size)?;
        let first = number * BLOCKS_PER_PACK;
        pack.check_witness(run.witness)
            .map_err(|error| of_first(error.into()))?;
        let runs = &self.without_moved(&pack, runs, moved)?;
        if runs.is_empty() {
            return Ok(());
        }
        let Reading {
            threads,
            receive,
            counts,
            ..
        } = reading;
        let (threads, receive) = (*threads, *receive);
        let batches = batches(&pack, first, runs, self.batch_groups());
        // Trailer and table.
        counts.pack_reads += 2 + batches.len() as u64;
        let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
        counts.bytes += blocks * u64::from(self.manifest().block_size);
        let next = Mutex::new(batches.iter());
        let read_some = || loop {
            let batch = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            match batch {
                None => return Ok(()),
                Some(batch) => self.read_batch(batch, receive)?,
            }
        };
        let threads = threads.clamp(1, batches.len().max(1));
        thread::scope(|scope| {
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
        })
    }

    /// Returns the runs of what the pack has itself.
    fn without_moved(
        &self,
        pack: &Pack,
        runs: &[StoredRun],
        moved: &mut Vec<StoredRun>,
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
                        // Beyond the pack's last block there is damage, which is found when it is read.
                        let blocks = if here == 0 { rest.blocks } else { here as u64 };
                        stored.push(StoredRun { blocks, ..rest });
                        blocks
                    }
                    Some(to) => {
                        check_moved(pack, run.store == self.popular, in_pack, to)
                            .map_err(|error| damaged(error, rest.block))?;
                        let left = batch_blocks - to.number % batch_blocks;
                        let blocks = left.min(to.blocks as u64);
                        moved.push(StoredRun {
                            store: self.popular,
                            number: to.number,
                            block: rest.block,
                            blocks,
                            witness: to.witness,
                        });
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

    fn read_batch(&self, batch: &Batch<'_>, receive: ReceiveAnywhere<'_>) -> Result<()> {
        let groups = batch.pack.read_groups(batch.groups.clone());
        let groups = groups.map_err(|error| BackupError::Damaged {
            block: batch.runs.first().map_or(0, |run| run.block),
            error,
        })?;
        let mut opened: Vec<Option<Vec<u8>>> = groups.iter().map(|_| None).collect();
        let block_size = u64::from(self.manifest().block_size);
        let size = self.manifest().size_bytes;
        for run in batch.runs {
            let (mut number, mut block, mut left) = (run.number, run.block, run.blocks);
            while left > 0 {
                let damaged = |error| BackupError::Damaged { block, error };
                let (group, at) = batch
                    .pack
                    .find((number - batch.first) as usize)
                    .map_err(damaged)?;
                let in_batch = group - batch.groups.start;
                let content = match &mut opened[in_batch] {
                    Some(content) => content,
                    none => {
                        let content = batch.pack.open_read_group(group, &groups[in_batch]);
                        none.insert(content.map_err(damaged)?)
                    }
                };
                let in_group = (number - batch.first) as usize % BLOCKS_PER_GROUP;
                let most = (left as usize).min(BLOCKS_PER_GROUP - in_group);
                let there = batch
                    .pack
                    .stored_from((number - batch.first) as usize, most);
                let blocks = there as u64;
                let bytes = content.get(at..at + (blocks * block_size) as usize);
                let start = block * block_size;
                // The last block of the disk may be cut.
                let len = (blocks * block_size).min(size.saturating_sub(start));
                receive(
                    start,
                    bytes
                        .and_then(|it| it.get(..len as usize))
                        .unwrap_or_default(),
                )?;
                (number, block, left) = (number + blocks, block + blocks, left - blocks);
            }
        }
        Ok(())
    }
}

/// Cuts the sorted runs of a pack where the groups that they need are far apart, or many.
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
