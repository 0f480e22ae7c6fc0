//! What must hold in every state, and what a search must come across to mean anything.

use crate::bits::Bits;
use crate::image::{Block, Entry, Image, Intent, LayerId, Outcome, Record, Release, StreamNumber};
use crate::index::{Answer, Index};
use crate::state::{Config, Mode, State};
use crate::volume_steps::readable;

/// Something that went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Violation {
    /// P1: data was written to a block that is shared, frozen, or another's.
    ImmutableWritten,
    /// P2: the index names a block whose content may not survive, or is another.
    IndexUntrue,
    /// P2: the newest root names pages that are not there.
    RootDamaged,
    /// P3: a block is free that a crash can bring back, or that a read in flight will read.
    FreeInUse,
    /// P3: the index counts fewer references than entries that a crash can bring back.
    CountTooLow,
    /// P4: with no batch open, references and entries differ.
    CountWrong,
    /// P5: a crash loses flushed data, or brings up what was never written.
    FlushedLost,
    /// P5: a crash loses a snapshot that was answered, or changes it.
    SnapshotLost,
    /// P6: a block is in no state or in two, or the free-space bitmap says otherwise.
    Partition,
    /// P6: the log contradicts itself.
    Contradiction,
    /// A read returns what was neither answered last nor being written.
    WrongRead,
}

impl Violation {
    /// Every violation.
    pub const ALL: [Violation; 11] = [
        Violation::ImmutableWritten,
        Violation::IndexUntrue,
        Violation::RootDamaged,
        Violation::FreeInUse,
        Violation::CountTooLow,
        Violation::CountWrong,
        Violation::FlushedLost,
        Violation::SnapshotLost,
        Violation::Partition,
        Violation::Contradiction,
        Violation::WrongRead,
    ];

    /// The property that is violated, by name.
    pub fn name(self) -> &'static str {
        match self {
            Violation::ImmutableWritten => "P1 immutable block written",
            Violation::IndexUntrue => "P2 index names what is not there",
            Violation::RootDamaged => "P2 root names what is not there",
            Violation::FreeInUse => "P3 free block in use",
            Violation::CountTooLow => "P3 counted too low",
            Violation::CountWrong => "P4 references differ from entries",
            Violation::FlushedLost => "P5 flushed data lost",
            Violation::SnapshotLost => "P5 snapshot lost",
            Violation::Partition => "P6 partition of blocks",
            Violation::Contradiction => "P6 log contradicts itself",
            Violation::WrongRead => "P5 wrong read",
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

/// Whatever a crash here brings back keeps its promises: flushed data is there, snapshots are,
/// counts are high enough.
fn check_crash(state: &State, config: &Config) -> Result<(), Violation> {
    for image in crate::recovery::recoverable(&state.disk)? {
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
        if !state.ghost.damaged {
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

/// What an entry's block may hold after a power loss.
fn may_hold(state: &State, entry: Entry) -> Bits {
    entry
        .block()
        .map_or(Bits::of(0), |block| state.disk.lasting[usize::from(block)])
}

/// For each live row, references counted are at least the entries that a crash can bring back,
/// those aside that a repeated finder call has yet to count.
fn check_counts(state: &State, image: &Image) -> Result<(), Violation> {
    for block in named_shared(image).iter() {
        let entries = settled_entries(image, block);
        for index in [&state.disk.index, &*state.disk.index_durable] {
            let row = index.live_rows().find(|(_, row)| row.block == block);
            if row.map_or(0, |(_, row)| row.count) < entries {
                return Err(Violation::CountTooLow);
            }
        }
    }
    Ok(())
}

fn named_shared(image: &Image) -> Bits {
    let mut named = Bits::NONE;
    for (_, layer) in image.each_layer() {
        for entry in layer.map {
            if let Entry::Shared(block) = entry {
                named.insert(block);
            }
        }
    }
    named
}

fn settled_entries(image: &Image, block: Block) -> u8 {
    let mut entries = 0;
    for (_, layer) in image.each_layer() {
        for (lba, entry) in (0..).zip(layer.map) {
            let is_open = layer.intents.iter().any(|intent| match intent {
                Intent::Find { items, .. } => items.contains(&(lba, block)),
                Intent::Collect { .. } => false,
            });
            entries += u8::from(entry == Entry::Shared(block) && !is_open);
        }
    }
    entries
}

/// A read that takes no time returns what it may, from volumes and from snapshots.
fn check_reads(state: &State, config: &Config) -> Result<(), Violation> {
    let image = &state.memory.image;
    for (volume, live) in (0..).zip(image.live) {
        let Some(live) = live else { continue };
        for lba in 0..config.lbas {
            let content = state.content(image.resolve(live, lba).1);
            if !readable(state, volume, lba).has(content) {
                return Err(Violation::WrongRead);
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

/// P6: every block is free, leased, private to one entry, or shared and explained by entries,
/// queues and intents; and the bitmap is the union of all but the first two.
fn check_partition(state: &State, config: &Config) -> Result<(), Violation> {
    let memory = &state.memory;
    let (mut private, mut shared) = (Bits::NONE, memory.image.quarantined);
    for (id, layer) in memory.image.each_layer() {
        for entry in layer.map {
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
        layer
            .given_up
            .iter()
            .for_each(|block| shared.insert(*block));
        for intent in &layer.intents {
            match intent {
                // A marked block is explained by its entry, or by the queue if the LBA moved on;
                // a block that the index has counted for the batch, by the index's answer alone.
                Intent::Find { number, .. } => {
                    shared = shared.or(answered_blocks(&state.disk.index, id, *number));
                }
                // A reference that the index has released, others remaining, explains nothing:
                // the layer that releases the last one may have freed the block already.
                Intent::Collect { freed: true, .. } => {}
                Intent::Collect { number, block, .. } => {
                    if !is_released(&state.disk.index, id, *number) {
                        shared.insert(*block);
                    }
                }
            }
        }
    }
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

/// Blocks that the index has counted for an open finder batch and that no map names for it yet.
fn answered_blocks(index: &Index, layer: LayerId, number: StreamNumber) -> Bits {
    let stream = &index.streams[usize::from(layer)];
    let answers = stream.answers.iter().filter(|_| stream.last == number);
    answers.fold(Bits::NONE, |set, answer| match answer {
        Answer::Shared(block) => set.or(Bits::of(*block)),
        _ => set,
    })
}

fn is_released(index: &Index, layer: LayerId, number: StreamNumber) -> bool {
    let stream = &index.streams[usize::from(layer)];
    stream.last == number && stream.answers == [Answer::Remaining]
}

/// A free block is in nobody's hands.
fn check_free(state: &State, config: &Config) -> Result<(), Violation> {
    let open = state.memory.free_blocks(config).or(state.memory.leased);
    let read = state.memory.readers.iter().flatten();
    let mut held = read.fold(Bits::NONE, |set, reader| set.or(Bits::of(reader.block)));
    for image in crate::recovery::recoverable(&state.disk)? {
        held = held.or(image.allocated);
    }
    if held.and(open).is_empty() {
        Ok(())
    } else {
        Err(Violation::FreeInUse)
    }
}

/// Live rows tell the truth about content, and with no batch open about references.
fn check_index(state: &State, config: &Config) -> Result<(), Violation> {
    if state.ghost.damaged {
        return Ok(());
    }
    for (fingerprint, row) in state.disk.index.live_rows() {
        let may_hold = state.disk.lasting[usize::from(row.block)];
        if !may_hold
            .iter()
            .all(|content| config.fingerprint(content) == fingerprint)
        {
            return Err(Violation::IndexUntrue);
        }
    }
    if !state.memory.jobs.is_empty() {
        return Ok(());
    }
    if state
        .disk
        .index
        .rows
        .iter()
        .flatten()
        .any(|row| row.tombstone.is_some())
    {
        return Err(Violation::CountWrong);
    }
    let image = &state.memory.image;
    let mut references = [0_u8; crate::image::BLOCKS];
    for (_, layer) in image.each_layer() {
        let shared = layer
            .map
            .iter()
            .filter(|entry| matches!(entry, Entry::Shared(_)));
        let entries = shared.filter_map(|entry| entry.block());
        for block in entries.chain(layer.given_up.iter().copied()) {
            references[usize::from(block)] += 1;
        }
    }
    for (_, row) in state.disk.index.live_rows() {
        references[usize::from(row.block)] =
            references[usize::from(row.block)].wrapping_sub(row.count);
    }
    if references.iter().all(|left| *left == 0) {
        Ok(())
    } else {
        Err(Violation::CountWrong)
    }
}

/// Something that a configuration exists to reach; a search that does not come across it shows
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "variants and fields are the words of docs/model.md"
)]
pub enum Milestone {
    Aliased,
    Dangling,
    Rejected,
    ReleasedOne,
    Freed,
    Quarantined,
    Merged,
    LayerGone,
    ReadOfReplaced,
    FinderResumed,
    CollectorResumed,
    BothResumed,
    CrashInRecovery,
    Replayed,
    FlushedAll,
}

impl Milestone {
    /// Its name in the search's result.
    pub fn name(self) -> &'static str {
        match self {
            Milestone::Aliased => "reaches an alias",
            Milestone::Dangling => "reaches a dangling outcome",
            Milestone::Rejected => "reaches a rejected outcome",
            Milestone::ReleasedOne => "reaches the release of one reference of several",
            Milestone::Freed => "reaches the release of the last reference",
            Milestone::Quarantined => "reaches a quarantined block",
            Milestone::Merged => "reaches a merge step",
            Milestone::LayerGone => "reaches the end of a layer",
            Milestone::ReadOfReplaced => "reaches a read of a block already given up",
            Milestone::FinderResumed => "reaches a finder batch in recovery",
            Milestone::CollectorResumed => "reaches a collector batch in recovery",
            Milestone::BothResumed => "reaches both in one recovery",
            Milestone::CrashInRecovery => "reaches a crash in recovery",
            Milestone::Replayed => "reaches a replay on top of a new root",
            Milestone::FlushedAll => "reaches the end of its flushes",
        }
    }

    /// Whether `state` is one.
    pub fn reached(self, config: &Config, state: &State) -> bool {
        let memory = &state.memory;
        let outcome = |wanted: fn(&Outcome) -> bool| match memory.tail.last() {
            Some(Record::FindOutcome { outcome, .. }) => wanted(outcome),
            _ => false,
        };
        let released = |wanted| match memory.tail.last() {
            Some(Record::CollectOutcome { release, .. }) => *release == wanted,
            _ => false,
        };
        let resumed = |wanted: fn(&Intent) -> bool| {
            let mut intents = memory
                .image
                .each_layer()
                .flat_map(|(_, layer)| &layer.intents);
            memory.mode == Mode::Recovered && intents.any(wanted)
        };
        let is_find = |intent: &Intent| matches!(intent, Intent::Find { .. });
        let is_collect = |intent: &Intent| matches!(intent, Intent::Collect { .. });
        match self {
            Milestone::Aliased => outcome(|o| matches!(o, Outcome::Aliased(_))),
            Milestone::Dangling => outcome(|o| matches!(o, Outcome::Dangling(_))),
            Milestone::Rejected => outcome(|o| matches!(o, Outcome::Rejected(_))),
            Milestone::ReleasedOne => released(Release::Remaining),
            Milestone::Freed => released(Release::Freed) || released(Release::FreedAndDone),
            Milestone::Quarantined => released(Release::Quarantined),
            Milestone::Merged => matches!(memory.tail.last(), Some(Record::MergeStep { .. })),
            Milestone::LayerGone => {
                matches!(memory.tail.last(), Some(Record::LayerDropped { .. }))
            }
            Milestone::ReadOfReplaced => memory
                .readers
                .iter()
                .flatten()
                .any(|r| !memory.image.allocated.has(r.block)),
            Milestone::FinderResumed => resumed(is_find),
            Milestone::CollectorResumed => resumed(is_collect),
            Milestone::BothResumed => resumed(is_find) && resumed(is_collect),
            Milestone::CrashInRecovery => {
                resumed(|_| true) && crashes_left(state) + 2 <= crashes(config)
            }
            Milestone::Replayed => {
                memory.mode != Mode::Down
                    && state.budget.checkpoints < config.budget.checkpoints
                    && crashes_left(state) < crashes(config)
                    && state.disk.log.len() > usize::from(state.disk.root.skip)
            }
            Milestone::FlushedAll => state.budget.flushes == 0 && memory.flush.is_none(),
        }
    }
}

fn crashes(config: &Config) -> u8 {
    config.budget.kills + config.budget.power_losses
}

fn crashes_left(state: &State) -> u8 {
    state.budget.kills + state.budget.power_losses
}
