//! Whether the disk has the data of the records that an earlier process left in the tail copy.
//!
//! If a sync failed, or was in progress when its process died, the disk may lack data of answered requests. Each new
//! block of a record that the log lacks is read from the medium and compared with its checksum in the tail copy. Blocks
//! that were rewritten in place since cannot be compared.
//!
//! | a sync | all compared blocks are | then |
//! | --- | --- | --- |
//! | is known to have failed | - | blocks that differ or cannot be compared are lost |
//! | was in progress | different, some of them | as above: it failed |
//! | was in progress | as written | nothing is lost; if it did fail, it lost blocks that were rewritten in place |
//!
//! A failed sync may also have lost rewrites in place. Lost rewrites cannot be distinguished from
//! durable ones, so every volume that had any since the last good sync is damaged.

use std::collections::{BTreeMap, BTreeSet};

use onefold_format::loss_page::LOST_RUNS_MAX;
use onefold_format::tail::{OTHER_VOLUMES, block_sum};
use onefold_format::{Entry, LayerId, Ledger, Pba, Record, VolumeId, VolumeRecord, record};
use onefold_metadata::{Guard, PbaRun, Result, StoreError};

use super::data_disk::DataDisk;
use super::new_blocks::new_blocks;
use super::rewritten::Marks;
use super::state::State;
use super::tail_copy::LeftBehind;

/// Bytes read at a time.
const READ_BYTES: u64 = 1 << 20;

/// The largest gap that is read through instead of starting a new read.
const GAP_BLOCKS: u64 = 16;

/// Whether, and why, the data of an earlier process may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// The data was made durable, or the host has lost it anyway.
    None,
    /// A sync of the data was in progress when the process died.
    Unsettled,
    /// A sync failed, or the host reports a write that it has lost.
    Known,
}

impl Doubt {
    /// Judges by the ledger that the process left, and by whether the host reports lost writes.
    /// `is_closed` if the process closed its session: then every sync succeeded.
    pub fn new(found: Option<&Ledger>, host_reports: bool, is_closed: bool) -> Self {
        match found {
            Some(found) if !is_closed && (found.has_failed || host_reports) => Self::Known,
            Some(found) if !is_closed && found.is_unsettled() => Self::Unsettled,
            _ => Self::None,
        }
    }
}

/// The result of comparing an earlier process's new blocks with the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossReport {
    /// Blocks that were compared.
    pub compared_blocks: u64,
    /// Blocks that could not be compared, because they were rewritten.
    pub uncompared_blocks: u64,
    /// Blocks that differed and were restored from the block of which they are a copy.
    pub restored_blocks: u64,
    /// Blocks that lost their content.
    pub lost_blocks: u64,
    /// Whether a sync failed; if not, it was in progress, and no compared block differs.
    pub has_failed: bool,
    /// Volumes that may have lost answered writes, by name.
    pub volumes: Vec<String>,
}

/// The lost blocks, the damaged volumes, and the report.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) report: LossReport,
    pub(super) blocks: Vec<PbaRun>,
    pub(super) volumes: BTreeSet<VolumeId>,
}

/// New blocks of one record.
struct NewRun<'a> {
    run: PbaRun,
    layer: LayerId,
    /// The previous entry of the first block.
    old: Entry,
    /// The checksum of each block, or nothing.
    sums: &'a [u32],
}

/// Blocks with the layer to which they belong.
type Blocks = Vec<(Pba, LayerId)>;

/// Compares the new blocks of these records with the disk.
pub(super) fn find_lost(
    state: &State,
    left: &[LeftBehind],
    marks: &Marks,
    unsynced: &[VolumeId],
    doubt: &Doubt,
) -> Result<Lost> {
    let mut lost = Lost::default();
    if *doubt == Doubt::None {
        return Ok(lost);
    }
    let mut runs = new_runs(left)?;
    runs.sort_unstable_by_key(|new| new.run.start);
    let Compared {
        mut different,
        unknown,
        restored,
    } = compare(&state.data, state.block_size, &runs, marks)?;
    if restored > 0 {
        state.sync_data()?;
    }
    let total: u64 = runs.iter().map(|new| new.run.count).sum();
    lost.report = LossReport {
        compared_blocks: total - unknown.len() as u64,
        uncompared_blocks: unknown.len() as u64,
        restored_blocks: restored,
        has_failed: *doubt == Doubt::Known || !different.is_empty() || restored > 0,
        ..LossReport::default()
    };
    if !lost.report.has_failed {
        return Ok(lost);
    }
    different.extend(unknown);
    different.sort_unstable();
    lost.blocks = joined(&different);
    if lost.blocks.len() > LOST_RUNS_MAX as usize {
        // The good blocks between them are given up together with the requests that wrote them.
        let is_hit = |new: &&NewRun<'_>| {
            let at = different.partition_point(|(pba, _)| *pba < new.run.start);
            different
                .get(at)
                .is_some_and(|(pba, _)| *pba < new.run.start + new.run.count)
        };
        let all = runs.iter().filter(is_hit);
        let all = all.flat_map(|new| new.run.iter().map(|pba| (pba, new.layer)));
        lost.blocks = joined(&all.collect::<Blocks>());
    }
    lost.report.lost_blocks = lost.blocks.iter().map(|run| run.count).sum();
    let layers = different.iter().map(|(_, layer)| *layer).collect();
    lost.volumes = damaged_volumes(state, left, &layers, unsynced)?;
    lost.report.volumes = names(state, &lost.volumes)?;
    Ok(lost)
}

/// The volumes that see one of these layers, and the volumes with rewrites in place.
fn damaged_volumes(
    state: &State,
    left: &[LeftBehind],
    layers: &BTreeSet<LayerId>,
    unsynced: &[VolumeId],
) -> Result<BTreeSet<VolumeId>> {
    let uncommitted = state.uncommitted()?;
    let known = uncommitted.metadata.catalogue().volumes();
    let mut records: Vec<VolumeRecord> = known.map(|(_, record)| record.clone()).collect();
    drop(uncommitted);
    // The live layer of a volume of which a snapshot was being made.
    let mut live = Vec::new();
    for record in left
        .iter()
        .flat_map(|entry| record::decode_all(&entry.records))
    {
        match record.map_err(|error| StoreError::format("a record", error))? {
            Record::VolumePut { volume, .. } => records.push(volume),
            Record::Freeze {
                snapshot,
                live: layer,
                ..
            } => {
                live.extend(snapshot.snapshot_of.map(|volume| (layer, volume)));
                records.push(snapshot);
            }
            _ => {}
        }
    }
    let below: BTreeMap<LayerId, Option<LayerId>> = records
        .iter()
        .map(|record| (record.layer, record.below))
        .collect();
    let sees_any = |layer: LayerId| {
        let chain = std::iter::successors(Some(layer), |at| below.get(at).copied().flatten());
        // A damaged catalogue could contain a cycle.
        chain
            .take(below.len() + 1)
            .any(|layer| layers.contains(&layer))
    };
    let volumes = || records.iter().filter(|record| record.snapshot_of.is_none());
    let mut damaged: BTreeSet<VolumeId> = volumes()
        .filter(|record| sees_any(record.layer))
        .map(|record| record.id)
        .collect();
    damaged.extend(
        live.iter()
            .filter(|(layer, _)| layers.contains(layer))
            .map(|(_, id)| *id),
    );
    let is_unsynced = |id: VolumeId| {
        unsynced
            .iter()
            .any(|listed| [id, OTHER_VOLUMES].contains(listed))
    };
    damaged.extend(
        volumes()
            .map(|record| record.id)
            .filter(|id| is_unsynced(*id)),
    );
    Ok(damaged)
}

fn names(state: &State, volumes: &BTreeSet<VolumeId>) -> Result<Vec<String>> {
    let uncommitted = state.uncommitted()?;
    let catalogue = uncommitted.metadata.catalogue();
    let names = volumes.iter().map(|id| match catalogue.by_id(*id) {
        Some((_, record)) => record.name.clone(),
        None => format!("number {}", id.0),
    });
    Ok(names.collect())
}

/// The new blocks of records, with their checksums.
fn new_runs(left: &[LeftBehind]) -> Result<Vec<NewRun<'_>>> {
    let mut runs = Vec::new();
    for entry in left {
        let mut rest = &entry.sums[..];
        for record in record::decode_all(&entry.records) {
            let record = record.map_err(|error| StoreError::format("a record", error))?;
            let (Some((layer, run)), Record::Map { old, .. }) = (new_blocks(&record), &record)
            else {
                continue;
            };
            let count = (run.count as usize).min(rest.len());
            let (sums, after) = rest.split_at(count);
            rest = after;
            runs.push(NewRun {
                run,
                layer,
                old: *old,
                sums,
            });
        }
    }
    Ok(runs)
}

/// The result of a comparison.
#[derive(Default)]
struct Compared {
    /// Blocks that differ from the written data.
    different: Blocks,
    /// Blocks that cannot be compared.
    unknown: Blocks,
    /// The number of blocks that differed and were restored.
    restored: u64,
}

/// Compares new blocks with the medium.
///
/// A block may be a copy: data is also moved, and content flushed long ago must not be lost with its new place. The
/// block before it still has the content, because it is not reused until the record is durable.
fn compare(
    data: &DataDisk,
    block_size: u64,
    runs: &[NewRun<'_>],
    marks: &Marks,
) -> Result<Compared> {
    let mut compared = Compared::default();
    if !Guard::NewBlocksCompared.holds() {
        return Ok(compared);
    }
    let blocks_max = (READ_BYTES / block_size).max(1);
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let start = first.run.start;
        let mut end = start + first.run.count;
        let near = rest[1..].iter().take_while(|new| {
            let next_end = new.run.start + new.run.count;
            let is_near = new.run.start.0 <= end.0 + GAP_BLOCKS;
            let fits = is_near && next_end.0 - start.0 <= blocks_max;
            if fits {
                end = end.max(next_end);
            }
            fits
        });
        let (now, later) = rest.split_at(1 + near.count());
        rest = later;
        let bytes = read_blocks(data, block_size, start, end);
        for new in now {
            for (pba, n) in new.run.iter().zip(0..) {
                let Some(sum) = new.sums.get(n).filter(|_| !marks.has(pba)) else {
                    compared.unknown.push((pba, new.layer));
                    continue;
                };
                let at = ((pba.0 - start.0) * block_size) as usize;
                let read = bytes.get(at..at + block_size as usize);
                let is_equal = match read {
                    Some(block) => block_sum(block) == *sum,
                    None => {
                        let block = read_blocks(data, block_size, pba, pba + 1);
                        !block.is_empty() && block_sum(&block) == *sum
                    }
                };
                if is_equal {
                    continue;
                }
                if restore(data, block_size, new.old.successor(n as u64), *sum, pba)? {
                    compared.restored += 1;
                } else {
                    compared.different.push((pba, new.layer));
                }
            }
        }
    }
    Ok(compared)
}

/// Writes a block again if its previous entry's block has the same content. Returns whether it did.
fn restore(data: &DataDisk, block_size: u64, old: Entry, sum: u32, pba: Pba) -> Result<bool> {
    let Some(copied) = old.pba() else {
        return Ok(false);
    };
    let block = read_blocks(data, block_size, copied, copied + 1);
    if block.is_empty() || block_sum(&block) != sum {
        return Ok(false);
    }
    let written = data.write_at(&block, pba.0 * block_size);
    let what = format_args!("writing block {pba} of the pool again, which a failed sync lost");
    written.map_err(|error| StoreError::io(what, error))?;
    Ok(true)
}

/// The bytes of these blocks; empty if the device cannot read them.
fn read_blocks(data: &DataDisk, block_size: u64, start: Pba, end: Pba) -> Vec<u8> {
    let mut bytes = vec![0; ((end.0 - start.0) * block_size) as usize];
    match data.read_medium(&mut bytes, start.0 * block_size) {
        Ok(()) => bytes,
        Err(error) => {
            tracing::warn!("comparing what an earlier process wrote: {error}");
            Vec::new()
        }
    }
}

/// Consecutive blocks, joined into runs; the input is sorted.
fn joined(blocks: &[(Pba, LayerId)]) -> Vec<PbaRun> {
    let mut runs: Vec<PbaRun> = Vec::new();
    for (pba, _) in blocks {
        match runs.last_mut() {
            Some(run) if run.start + run.count == *pba => run.count += 1,
            Some(run) if *pba < run.start + run.count => {}
            _ => runs.push(PbaRun {
                start: *pba,
                count: 1,
            }),
        }
    }
    runs
}
