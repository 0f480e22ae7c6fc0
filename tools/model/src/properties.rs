//! The properties that must hold in every state.

use crate::bits::Bits;
use crate::guards::Guards;
use crate::image::{BLOCKS, BatchKind, Entry, Image, OpenBatch};
use crate::rebuild;
use crate::state::{Config, Mode, Phase, State};
use crate::volume_steps::readable;

/// A violated promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Violation {
    /// P1: data was written to a block that is shared, frozen, or owned by another entry.
    ImmutableWritten,
    /// P2: the index names a block whose content may be lost or differs from the fingerprint.
    IndexUntrue,
    /// P2: the newest root names pages that do not exist.
    RootDamaged,
    /// P3: a block is free although a crash can bring it back or a read in flight will read it.
    FreeInUse,
    /// P3: the index counts fewer references than entries that a crash can bring back.
    CountTooLow,
    /// P4: references differ from the maps although every call of the index is settled.
    CountWrong,
    /// P4: the index refuses a batch that is not settled yet.
    Refused,
    /// P5: a crash loses flushed data, or produces data that was never written.
    FlushedLost,
    /// P12: a killed process loses answered requests.
    AnsweredLost,
    /// P5: a crash loses or changes a snapshot that was answered.
    SnapshotLost,
    /// P6: a block is in no state or in two, or the free-space bitmap says otherwise.
    Partition,
    /// P6: the log contradicts itself.
    Contradiction,
    /// A read returns content that was neither answered last nor being written.
    WrongRead,
    /// P8: a write was answered with a reference to a block known to be bad.
    Unreadable,
}

impl Violation {
    /// Every violation.
    pub const ALL: [Violation; 14] = [
        Violation::ImmutableWritten,
        Violation::IndexUntrue,
        Violation::RootDamaged,
        Violation::FreeInUse,
        Violation::CountTooLow,
        Violation::CountWrong,
        Violation::Refused,
        Violation::FlushedLost,
        Violation::AnsweredLost,
        Violation::SnapshotLost,
        Violation::Partition,
        Violation::Contradiction,
        Violation::WrongRead,
        Violation::Unreadable,
    ];

    /// The name of the violated property.
    pub fn name(self) -> &'static str {
        match self {
            Violation::ImmutableWritten => "P1 immutable block written",
            Violation::IndexUntrue => "P2 index refers to missing content",
            Violation::RootDamaged => "P2 root refers to missing pages",
            Violation::FreeInUse => "P3 free block in use",
            Violation::CountTooLow => "P3 counted too low",
            Violation::CountWrong => "P4 references differ from entries",
            Violation::Refused => "P4 open batch refused",
            Violation::FlushedLost => "P5 flushed data lost",
            Violation::AnsweredLost => "P12 answered write lost",
            Violation::SnapshotLost => "P5 snapshot lost",
            Violation::Partition => "P6 partition of blocks",
            Violation::Contradiction => "P6 log contradicts itself",
            Violation::WrongRead => "P5 wrong read",
            Violation::Unreadable => "P8 answered write unreadable",
        }
    }
}

/// Looks for a violation in `state`.
pub(crate) fn check(state: &State, config: &Config) -> Result<(), Violation> {
    check_crash(state, config)?;
    if state.memory.mode == Mode::Down {
        return Ok(());
    }
    check_reads(state, config)?;
    check_partition(state, config)?;
    check_free(state, config)?;
    check_index(state, config)
}

/// Checks that every image that a crash can leave keeps its promises: flushed data and snapshots exist, and counts are
/// high enough.
fn check_crash(state: &State, config: &Config) -> Result<(), Violation> {
    for image in crate::recovery::recoverable(&state.disk, config.guards)? {
        for (volume, live) in image.live.iter().enumerate() {
            let Some(live) = *live else { continue };
            for lba in 0..config.lbas {
                let entry = image.resolve(live, lba).1;
                let allowed = state.ghost.allowed[volume][usize::from(lba)];
                if !may_hold(state, entry).within(allowed) {
                    return Err(Violation::FlushedLost);
                }
            }
        }
        check_snapshots(state, config, &image)?;
        if !state.ghost.damaged && !state.disk.index.needs_rebuild {
            check_counts(state, &image)?;
        }
    }
    Ok(())
}

fn check_snapshots(state: &State, config: &Config, image: &Image) -> Result<(), Violation> {
    for id in state.ghost.promised.iter() {
        let Some(layer) = image.layer(id).filter(|layer| layer.frozen) else {
            return Err(Violation::SnapshotLost);
        };
        for lba in (0..config.lbas).filter(|_| !layer.deleting) {
            let allowed = state.ghost.frozen[usize::from(id)][usize::from(lba)];
            if !may_hold(state, image.resolve(id, lba).1).within(allowed) {
                return Err(Violation::SnapshotLost);
            }
        }
    }
    Ok(())
}

/// The contents that an entry's block may have after a power loss.
fn may_hold(state: &State, entry: Entry) -> Bits {
    entry
        .block()
        .map_or(Bits::of(0), |block| state.disk.lasting[usize::from(block)])
}

/// For each block, the index counts at least the entries that a crash can bring back, except those that a repeated
/// finder call still has to count, and less their claims.
fn check_counts(state: &State, image: &Image) -> Result<(), Violation> {
    let mut settled = [0_i8; BLOCKS];
    for (layer, lba, entry) in image.entries() {
        let Entry::Shared(block) = entry else {
            continue;
        };
        let mut open = image.open.iter();
        if !open.any(|batch| batch.has_unsettled(layer, lba, block)) {
            settled[usize::from(block)] += 1;
        }
    }
    for block in rebuild::uncounted(image) {
        settled[usize::from(block)] -= 1;
    }
    for (block, entries) in (0..).zip(settled) {
        for index in [&state.disk.index, &*state.disk.index_durable] {
            if (index.count_of(block) as i8) < entries {
                return Err(Violation::CountTooLow);
            }
        }
    }
    Ok(())
}

/// An instantaneous read returns a permitted content, from volumes and from snapshots.
fn check_reads(state: &State, config: &Config) -> Result<(), Violation> {
    let image = &state.memory.image;
    for (volume, live) in (0..).zip(image.live) {
        let Some(live) = live else { continue };
        for lba in 0..config.lbas {
            let entry = image.resolve(live, lba).1;
            if !readable(state, volume, lba).has(state.content(entry)) {
                return Err(Violation::WrongRead);
            }
            let is_bad = entry.block().is_some_and(|block| state.disk.bad.has(block));
            if is_bad && !state.ghost.affected[usize::from(volume)].has(lba) {
                return Err(Violation::Unreadable);
            }
        }
    }
    for (id, _) in image
        .each_layer()
        .filter(|(_, layer)| layer.frozen && !layer.deleting)
    {
        for lba in 0..config.lbas {
            let content = state.content(image.resolve(id, lba).1);
            if !state.ghost.frozen[usize::from(id)][usize::from(lba)].has(content) {
                return Err(Violation::WrongRead);
            }
        }
    }
    Ok(())
}

/// P6: every block is free, leased, private to one entry, or shared and explained by entries, the queue or the open
/// batch of finder or collector, never by a claim alone; and the bitmap is the union of all but the first two.
/// Therefore it can be rebuilt at any time.
fn check_partition(state: &State, config: &Config) -> Result<(), Violation> {
    let memory = &state.memory;
    let (mut private, mut shared) = (Bits::NONE, memory.image.quarantined);
    for (_, _, entry) in memory.image.entries() {
        match entry {
            Entry::Private(block) | Entry::Kept(block) => {
                if private.has(block) {
                    return Err(Violation::Partition);
                }
                private.insert(block);
            }
            Entry::Shared(block) => shared.insert(block),
            Entry::Absent | Entry::Zero => {}
        }
    }
    let open = memory.image.open.iter();
    let open = open.filter(|batch| batch.kind != BatchKind::Counting);
    let open = open.flat_map(OpenBatch::unsettled).map(|item| item.block);
    memory
        .image
        .queue
        .iter()
        .copied()
        .chain(open)
        .for_each(|block| shared.insert(block));
    let named = private.or(shared);
    let free = memory.free_blocks(config);
    let apart = private.and(shared).is_empty()
        && named.and(free).is_empty()
        && named.and(memory.leased).is_empty()
        && named == memory.image.allocated;
    if apart {
        Ok(())
    } else {
        Err(Violation::Partition)
    }
}

/// A free block has no owner.
fn check_free(state: &State, config: &Config) -> Result<(), Violation> {
    let open = state.memory.free_blocks(config).or(state.memory.leased);
    let read = state.memory.readers.iter().flatten();
    let mut held = read.fold(Bits::NONE, |set, reader| set.or(Bits::of(reader.block)));
    for image in crate::recovery::recoverable(&state.disk, config.guards)? {
        held = held.or(image.allocated);
    }
    if held.and(open).is_empty() {
        Ok(())
    } else {
        Err(Violation::FreeInUse)
    }
}

/// Rows agree with the blocks' contents, and also with the references unless a call is unsettled: they equal the result
/// of a rebuild.
fn check_index(state: &State, config: &Config) -> Result<(), Violation> {
    let index = &state.disk.index;
    if state.ghost.damaged || index.needs_rebuild {
        return Ok(());
    }
    for (fingerprint, row) in index.each_row() {
        let may_hold = state.disk.lasting[usize::from(row.block)];
        if !may_hold
            .iter()
            .all(|content| config.fingerprint(content) == fingerprint)
        {
            return Err(Violation::IndexUntrue);
        }
    }
    let image = &state.memory.image;
    let is_called = image.open.iter().any(|open| open.number <= index.last);
    let mut jobs = state.memory.jobs.iter();
    if is_called || jobs.any(|job| matches!(job.phase, Phase::Answered(_) | Phase::Uncounted(_))) {
        return Ok(());
    }
    let mut references = rebuild::references(image, Guards::ON);
    for block in &state.memory.late_claims {
        references[usize::from(*block)] -= 1;
    }
    let mut counted = (0..).zip(references);
    if counted.all(|(block, count)| index.count_of(block) as i8 == count) {
        Ok(())
    } else {
        Err(Violation::CountWrong)
    }
}
