//! The users of a bad block: every volume and snapshot in which it can be read, and where.
//!
//! One pass over the maps of a checkpoint on disk, which is kept until the end; requests and jobs
//! continue. An entry is visible through its own layer, and through each one above until one hides
//! it.

use onefold_format::{BadBlock, Entry, Fault, LayerId, Lba, Pba, VolumeRecord, VolumeState};
use onefold_journal::CheckpointReader;
use onefold_metadata::{Result, split_name};

use super::scrub::Scrub;

/// A block of the pool that is known to be bad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBlockStat {
    /// The block's number in the pool.
    pub pba: u64,
    /// The device cannot read the block; if false, its content differs from the stored content.
    pub is_unreadable: bool,
    /// The block is published, so the finder repairs it when it meets its content again.
    pub is_shared: bool,
}

/// A use of a bad block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockUse {
    /// The block's number in the pool.
    pub pba: u64,
    /// Where the block is mapped.
    pub place: AffectedPlace,
}

/// A place where a bad block is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedPlace {
    /// The volume.
    pub volume: String,
    /// The snapshot; absent for the live volume.
    pub snapshot: Option<String>,
    /// The block's address in the volume or snapshot.
    pub lba: u64,
}

impl Scrub {
    /// Checks the known bad blocks once more, and passes every user of one that is still bad to
    /// `visit`. Returns the blocks that are still bad, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// I/O errors; `Damaged` if a map cannot be read.
    pub fn bad_blocks(&self, visit: &mut dyn FnMut(BlockUse)) -> Result<Vec<BadBlockStat>> {
        let pool = self.pool();
        if !pool.bad().is_any() {
            return Ok(Vec::new());
        }
        let snapshot = {
            let _job = pool.batches().job()?;
            self.look_at_bad_again()?;
            CheckpointReader::take(pool.journal())?
        };
        let bad = pool.bad().all();
        snapshot.each_map_page(&|_| true, &mut |record, page| {
            for (entry, lba) in page.entries?.iter().zip(page.segment.first().0..) {
                if let Some(pba) = entry.pba().filter(|pba| is_listed(&bad, *pba)) {
                    each_view(&snapshot, record, Lba(lba), &mut |record| {
                        visit(name_use(&snapshot, record, pba, lba));
                    })?;
                }
            }
            Ok(())
        })?;
        Ok(bad.iter().map(describe).collect())
    }
}

fn is_listed(bad: &[BadBlock], pba: Pba) -> bool {
    bad.binary_search_by_key(&pba, |block| block.pba).is_ok()
}

fn describe(bad: &BadBlock) -> BadBlockStat {
    BadBlockStat {
        pba: bad.pba.0,
        is_unreadable: bad.fault == Fault::Unreadable,
        is_shared: bad.fingerprint.is_some(),
    }
}

fn name_use(
    snapshot: &CheckpointReader<'_>,
    record: &VolumeRecord,
    pba: Pba,
    lba: u64,
) -> BlockUse {
    let of = record.snapshot_of.and_then(|id| {
        let mut volumes = snapshot.volumes.iter();
        volumes.find(|volume| volume.id == id)
    });
    let (volume, name) = match of {
        Some(volume) => {
            let (_, own) = split_name(&record.name);
            (&volume.name, own.map(str::to_owned))
        }
        None => (&record.name, None),
    };
    let place = AffectedPlace {
        volume: volume.clone(),
        snapshot: name,
        lba,
    };
    BlockUse { pba: pba.0, place }
}

/// Visits every named volume and snapshot that reads `record`'s entry for a block.
fn each_view(
    snapshot: &CheckpointReader<'_>,
    record: &VolumeRecord,
    lba: Lba,
    visit: &mut dyn FnMut(&VolumeRecord),
) -> Result<()> {
    let mut reached: Vec<(LayerId, &VolumeRecord)> = vec![(record.layer, record)];
    while let Some((layer, record)) = reached.pop() {
        if record.state != VolumeState::Deleting {
            visit(record);
        }
        for above in snapshot
            .volumes
            .iter()
            .filter(|volume| volume.below == Some(layer))
        {
            if entry(snapshot, above, lba)? == Entry::ABSENT {
                reached.push((above.layer, above));
            }
        }
    }
    Ok(())
}

/// The entry of a layer for a block.
fn entry(snapshot: &CheckpointReader<'_>, record: &VolumeRecord, lba: Lba) -> Result<Entry> {
    let segment = lba.segment();
    let Some(pointer) = snapshot.map_page(record, segment)? else {
        return Ok(Entry::ABSENT);
    };
    Ok(snapshot.entries(record, segment, pointer)?[lba.slot()])
}
