//! A whole backup, in the order of packs: each group that is needed is read once, neighbours together, by several
//! threads. By addresses a backup of many nights would read most groups again and again [Zhang14 §6.3].

use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{SourceId, Target};
use onefold_repository::Pack;

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
                runs.sort_unstable();
                self.read_runs(&runs, threads, receive, &mut counts)?;
                runs.clear();
            }
        }
        Ok(counts)
    }

    fn add_runs(&self, page: u64, runs: &mut Vec<StoredRun>) -> Result<()> {
        let range = self.page_range(page);
        let batch_blocks = self.batch_groups() as u64 * BLOCKS_PER_GROUP as u64;
        self.each_run(&range, &mut |block, run| {
            let (store, number) = match run.target {
                Target::Zeros => return Ok(()),
                Target::Own(number) => (self.source, number),
                Target::Popular(number) => (self.popular, number),
            };
            let (mut number, mut block, mut left) = (number, block, run.blocks);
            while left > 0 {
                let blocks = left.min(batch_blocks - number % batch_blocks);
                runs.push(StoredRun {
                    store,
                    number,
                    block,
                    blocks,
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

    /// Reads sorted runs.
    fn read_runs(
        &self,
        runs: &[StoredRun],
        threads: usize,
        receive: ReceiveAnywhere<'_>,
        counts: &mut ReadCounts,
    ) -> Result<()> {
        let pack_of = |run: &StoredRun| (run.store, run.number / BLOCKS_PER_PACK);
        for of_pack in runs.chunk_by(|one, next| pack_of(one) == pack_of(next)) {
            let (store, number) = pack_of(&of_pack[0]);
            self.read_pack(store, number, of_pack, threads, receive, counts)?;
        }
        Ok(())
    }

    fn read_pack(
        &self,
        store: SourceId,
        number: u64,
        runs: &[StoredRun],
        threads: usize,
        receive: ReceiveAnywhere<'_>,
        counts: &mut ReadCounts,
    ) -> Result<()> {
        let damaged = |error| match (error, runs.first()) {
            (BackupError::Repository(error), Some(run)) => BackupError::Damaged {
                block: run.block,
                error,
            },
            (error, _) => error,
        };
        let pack = self.blocks.pack(store, number).map_err(damaged)?;
        pack.check_block_size(self.manifest().block_size)?;
        let first = number * BLOCKS_PER_PACK;
        let witness = self.witness(store, first).map_err(damaged)?;
        pack.check_witness(witness)
            .map_err(|error| damaged(error.into()))?;
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
