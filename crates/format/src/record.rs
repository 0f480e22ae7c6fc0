//! The payload of a frame: changes of maps, catalogue, queue, open batch and leased space, in the
//! order in which they were applied.
//!
//! ```text
//! all      0 kind      u8      1 map, 2 unmap, 3 put, 4 gone,
//!                              16 publish, 17 outcome, 18 collect, 19 release,
//!                              20 freeze, 21 merge, 22 count, 23 counted, 24 exchange
//!          1 reserved  u8
//!          2 bytes     u16     whole record, a multiple of 8
//!          4 reserved  u32
//!          8 layer     u64     0 for the catalogue's, the collector's, the counting's and
//!                              an exchange's
//! map      1           the blocks of a run change from `old` to `new`; a shared `new` also makes
//!                      a claim on each of its blocks
//!         16 lba       u64     below 2^38
//!         24 count     u32     1 to 512, all in one segment
//!         28 reserved  u32
//!         32 old       u64     entry of the first block; the others follow it in a run
//!         40 new       u64     likewise
//! unmap    2           the blocks of a range, in any state, become `to`
//!         16 lba       u64     below 2^38
//!         24 count     u32     1 to 512, all in one segment
//!         28 to        u32     0 absent, 1 zero
//! put      3           the catalogue's slot holds this volume now
//!         16 slot      u64
//!         24 record    256 bytes, its map empty
//! gone     4           the catalogue's slot is free; the layer had nothing mapped
//!         16 slot      u64
//!         24 volume    u64
//! publish 16           private entries become shared and items of the finder's batch: its intent
//!         16 number    u64     of the batch
//!         24 segment   u64     below 2^29
//!         32 + 8 n     run n, 1 to 512 of them: bits  0..40  PBA
//!                                                    40..49  place of its first block
//!                                                    49..58  blocks - 1
//!                                                    58..64  zeros
//! outcome 17           the outcome of consecutive items of the finder's batch
//!         16 number    u64     of the batch
//!         24 position  u16     of the first item
//!         26 count     u16     1 to 16,384
//!         28 outcome   u32     1 inserted, 2 aliased, 3 dangling, 4 rejected, 5 declined
//!         32 PBA       u64     the index's block for the first item, the others follow it in a
//!                              run; 0 if inserted or declined
//! collect 18           the queue's first elements become the collector's batch: its intent
//!         16 number    u64     of the batch
//!         24 elements  u32     1 to 16,384
//!         28 reserved  u32
//! release 19           the outcome of consecutive items of the collector's batch
//!         16 number    u64     of the batch
//!         24 position  u16     of the first item
//!         26 count     u16     1 to 16,384
//!         28 release   u32     1 remaining, 2 freed, 3 quarantined, 4 held
//! freeze  20           a volume's live layer becomes a snapshot's, and the volume continues in an
//!                      empty one
//!         16 slot      u64     the snapshot's
//!         24 live      u64     the volume's new layer
//!         32 below     u64     the layer below that one
//!         40 record    256 bytes, the snapshot's, its map empty
//! merge   21           entries of a segment of a frozen layer move to the layer above where that
//!                      has none, and are released elsewhere
//!         16 above     u64     the layer above
//!         24 segment   u64     below 2^29
//! count   22           the first claims become the counting batch: its intent; as collect
//! counted 23           the outcome of consecutive items of the counting batch; as release,
//!                      with 1 counted, 2 quarantined
//! exchange 24          a group of a shared pool no longer has the given blocks, and has those of the
//!                      taken space extents, all of them free
//!         16 number    u64     of the exchange
//!         24 given     u16     runs, 0 to 512
//!         26 taken     u16     space extents; 1 to 512 of both together
//!         28 reserved  u32
//!         32 + 8 n     given run n: bits  0..40  PBA
//!                                   40..54  blocks - 1, all in one space extent
//!                                   54..64  zeros
//!                      then each taken space extent, a u64 below 2^26
//! ```
//!
//! Replay compares `old` with the map, and the announcements and outcomes of a batch with the open
//! one, so a record that does not fit is detected.

mod decode;

use crate::bytes::put;
use crate::catalogue_page::{LayerCounts, VOLUME_RECORD_BYTES, VolumeRecord};
use crate::entry::Entry;
use crate::error::FormatError;
use crate::frame::FRAME_PAYLOAD_MAX;
use crate::node::TreeRoot;
use crate::units::{
    BLOCKS_PER_SEGMENT, BLOCKS_PER_SPACE_EXTENT, LayerId, Lba, PBA_END, Pba, SegmentIndex,
    SpaceExtent, VOLUME_BLOCKS_MAX, VolumeId, is_run,
};

pub use decode::decode_all;

/// Most items of a batch.
pub const BATCH_ITEMS_MAX: u32 = 16_384;

/// Most runs of a publish record: one for each block of a segment.
pub const PUBLISH_RUNS_MAX: usize = BLOCKS_PER_SEGMENT as usize;

/// Most given runs and taken space extents of an exchange, together.
pub const EXCHANGE_ITEMS_MAX: usize = 512;

const KIND_MAP: u8 = 1;
const KIND_UNMAP: u8 = 2;
const KIND_PUT: u8 = 3;
const KIND_GONE: u8 = 4;
const KIND_PUBLISH: u8 = 16;
const KIND_OUTCOME: u8 = 17;
const KIND_COLLECT: u8 = 18;
const KIND_RELEASE: u8 = 19;
const KIND_FREEZE: u8 = 20;
const KIND_MERGE: u8 = 21;
const KIND_COUNT: u8 = 22;
const KIND_COUNTED: u8 = 23;
const KIND_EXCHANGE: u8 = 24;

const HEADER_BYTES: usize = 16;
const MAP_BYTES: usize = 48;
const UNMAP_BYTES: usize = 32;
const PUT_BYTES: usize = 24 + VOLUME_RECORD_BYTES;
const GONE_BYTES: usize = 32;
const PUBLISH_HEADER_BYTES: usize = 32;
const RUN_BYTES: usize = 8;
const EXCHANGE_HEADER_BYTES: usize = 32;
const OUTCOME_BYTES: usize = 40;
const COLLECT_BYTES: usize = 32;
const RELEASE_BYTES: usize = 32;

/// Bytes in the record of a snapshot.
pub const FREEZE_BYTES: usize = 40 + VOLUME_RECORD_BYTES;

const MERGE_BYTES: usize = 32;

/// The longest record: a publish record with the most runs.
pub const RECORD_BYTES_MAX: usize = PUBLISH_HEADER_BYTES + PUBLISH_RUNS_MAX * RUN_BYTES;

const SLOT_SHIFT: u32 = 40;
const COUNT_SHIFT: u32 = 49;
const RUN_END: u32 = 58;
const GIVEN_END: u32 = 54;

const _: () = assert!(
    MAP_BYTES.is_multiple_of(8)
        && UNMAP_BYTES.is_multiple_of(8)
        && PUT_BYTES.is_multiple_of(8)
        && GONE_BYTES.is_multiple_of(8)
        && PUBLISH_HEADER_BYTES.is_multiple_of(8)
        && OUTCOME_BYTES.is_multiple_of(8)
        && COLLECT_BYTES.is_multiple_of(8)
        && RELEASE_BYTES.is_multiple_of(8)
        && FREEZE_BYTES.is_multiple_of(8)
        && MERGE_BYTES.is_multiple_of(8)
);
const _: () = assert!(FREEZE_BYTES <= RECORD_BYTES_MAX, "no record is longer");
const _: () =
    assert!(RECORD_BYTES_MAX <= u16::MAX as usize && RECORD_BYTES_MAX < FRAME_PAYLOAD_MAX);
const _: () = assert!(
    PBA_END == 1 << SLOT_SHIFT
        && BLOCKS_PER_SEGMENT == 1 << (COUNT_SHIFT - SLOT_SHIFT)
        && BLOCKS_PER_SEGMENT == 1 << (RUN_END - COUNT_SHIFT)
        && BLOCKS_PER_SPACE_EXTENT == 1 << (GIVEN_END - SLOT_SHIFT),
    "see the table above"
);
const _: () = assert!(
    EXCHANGE_HEADER_BYTES + EXCHANGE_ITEMS_MAX * RUN_BYTES <= RECORD_BYTES_MAX,
    "no record is longer"
);
const _: () = assert!(BATCH_ITEMS_MAX <= u16::MAX as u32, "positions have 16 bits");

/// The new state of unmapped blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmapTo {
    /// Absent: the layer below decides.
    Absent,
    /// Zeros, hiding the layers below.
    Zero,
}

/// Consecutive entries that refer to consecutive blocks, all of them to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishRun {
    /// First LBA of the run.
    pub lba: Lba,
    /// The block that the first entry refers to.
    pub pba: Pba,
    /// Blocks in the run, 1 to 512, all in one segment.
    pub count: u32,
}

/// The outcome of an item of the finder's batch. The block belongs to the first item; the following
/// items have the following blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The index has a new row for the item's own block.
    Inserted,
    /// The entry now refers to this equal block of the index, and its own block is free.
    Aliased(Pba),
    /// The entry was rewritten concurrently; the reference that was counted to this block is
    /// dropped.
    Dangling(Pba),
    /// This block of the index has the fingerprint but other bytes: the reference that was counted
    /// to it is dropped, and the entry is unshareable.
    Rejected(Pba),
    /// The index is full: the entry is private again, or its block is free if the entry had been
    /// rewritten.
    Declined,
}

/// The outcome of an item of the collector's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Release {
    /// The block has other references.
    Remaining = 1,
    /// That was the last reference: the block is free.
    Freed = 2,
    /// The index does not know the block, or has another row: the block is not reused before a
    /// check.
    Quarantined = 3,
    /// Another group of the pool may be about to refer to the block: nothing was released, and the reference is dropped
    /// once more, after all others.
    Held = 4,
}

/// Consecutive blocks of one space extent, of which a group has custody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GivenRun {
    /// First block of the run.
    pub pba: Pba,
    /// Blocks in the run, 1 to [`BLOCKS_PER_SPACE_EXTENT`].
    pub count: u32,
}

/// The outcome of an item of the counting batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ClaimOutcome {
    /// The index counts the reference now.
    Counted = 1,
    /// The index does not know the block, or has another row: the block is not reused before a
    /// check.
    Quarantined = 2,
}

/// A change of a pool's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A run of blocks in one segment changes from `old` to `new`. If `new` is shared, each of its
    /// blocks gets a claim.
    Map {
        /// The layer whose map changes.
        layer: LayerId,
        /// First block of the run.
        lba: Lba,
        /// Blocks in the run, 1 to 512.
        count: u32,
        /// The old entry of the first block; the others were its successors.
        old: Entry,
        /// The new entry of the first block; the others are its successors.
        new: Entry,
    },
    /// All blocks of a range in one segment are released.
    Unmap {
        /// The layer whose map changes.
        layer: LayerId,
        /// First block of the range.
        lba: Lba,
        /// Blocks in the range, 1 to 512.
        count: u32,
        /// The new state of the blocks.
        to: UnmapTo,
    },
    /// A slot of the catalogue holds this volume now.
    VolumePut {
        /// The slot.
        slot: u64,
        /// The volume; its map is empty, because layers have the maps.
        volume: VolumeRecord,
    },
    /// A slot of the catalogue is free.
    VolumeGone {
        /// The slot.
        slot: u64,
        /// The volume that was in the slot.
        volume: VolumeId,
        /// The volume's live layer, in which nothing was mapped any more.
        layer: LayerId,
    },
    /// Private entries of one segment become shared and items of the finder's batch.
    Publish {
        /// The layer of the entries.
        layer: LayerId,
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// The published runs, 1 to [`PUBLISH_RUNS_MAX`]: all in one segment, ascending, not
        /// overlapping.
        runs: Vec<PublishRun>,
    },
    /// Consecutive items of the finder's batch are settled.
    Outcome {
        /// The layer of the entries.
        layer: LayerId,
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// Position of the first item in the batch.
        position: u32,
        /// Items, at least one; the last one's position is below [`BATCH_ITEMS_MAX`].
        count: u32,
        /// The items' outcome.
        outcome: Outcome,
    },
    /// The queue's first elements become the items of the collector's batch.
    Collect {
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// Elements, 1 to [`BATCH_ITEMS_MAX`].
        elements: u32,
    },
    /// Consecutive items of the collector's batch are settled.
    Release {
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// Position of the first item in the batch.
        position: u32,
        /// Items, at least one; the last one's position is below [`BATCH_ITEMS_MAX`].
        count: u32,
        /// The items' outcome.
        release: Release,
    },
    /// A volume's live layer becomes a snapshot's, and the volume continues in an empty one: above
    /// the frozen layer or, in a rollback to an older snapshot, above that snapshot's.
    Freeze {
        /// The snapshot's slot of the catalogue.
        slot: u64,
        /// The snapshot; its layer is the one that is frozen here, and its map is empty in the
        /// record.
        snapshot: VolumeRecord,
        /// The volume's new layer.
        live: LayerId,
        /// The existing layer below the new one; it may be the one that is frozen here.
        below: LayerId,
    },
    /// The entries of a frozen layer's segment move to the layer above where it has none, and are
    /// released elsewhere.
    Merge {
        /// The frozen layer.
        layer: LayerId,
        /// The only layer above it.
        above: LayerId,
        /// The segment in both layers.
        segment: SegmentIndex,
    },
    /// The first claims become the items of the counting batch.
    Count {
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// Elements, 1 to [`BATCH_ITEMS_MAX`].
        elements: u32,
    },
    /// Consecutive items of the counting batch are settled.
    Counted {
        /// The batch, 1 to 2^63 - 1.
        number: u64,
        /// Position of the first item in the batch.
        position: u32,
        /// Items, at least one; the last one's position is below [`BATCH_ITEMS_MAX`].
        count: u32,
        /// The items' outcome.
        outcome: ClaimOutcome,
    },
    /// A group of a shared pool gave blocks back, and leased space extents.
    Exchange {
        /// The group's exchange, 1 to 2^63 - 1.
        number: u64,
        /// Blocks that the group no longer has.
        given: Vec<GivenRun>,
        /// Space extents whose blocks are the group's from now on, and free.
        taken: Vec<SpaceExtent>,
    },
}

impl Record {
    /// Appends the record to `bytes`.
    ///
    /// # Panics
    ///
    /// If the runs, the space extents, or the position and count, are outside the bounds of
    /// [`Record`]: truncated, they would refer to other blocks or items.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        let (kind, size, layer) = match self {
            Self::Map { layer, .. } => (KIND_MAP, MAP_BYTES, layer.0),
            Self::Unmap { layer, .. } => (KIND_UNMAP, UNMAP_BYTES, layer.0),
            Self::VolumePut { .. } => (KIND_PUT, PUT_BYTES, 0),
            Self::VolumeGone { layer, .. } => (KIND_GONE, GONE_BYTES, layer.0),
            Self::Publish { layer, runs, .. } => {
                let size = PUBLISH_HEADER_BYTES + runs.len() * RUN_BYTES;
                (KIND_PUBLISH, size, layer.0)
            }
            Self::Outcome { layer, .. } => (KIND_OUTCOME, OUTCOME_BYTES, layer.0),
            Self::Collect { .. } => (KIND_COLLECT, COLLECT_BYTES, 0),
            Self::Release { .. } => (KIND_RELEASE, RELEASE_BYTES, 0),
            Self::Freeze { snapshot, .. } => (KIND_FREEZE, FREEZE_BYTES, snapshot.layer.0),
            Self::Merge { layer, .. } => (KIND_MERGE, MERGE_BYTES, layer.0),
            Self::Count { .. } => (KIND_COUNT, COLLECT_BYTES, 0),
            Self::Counted { .. } => (KIND_COUNTED, RELEASE_BYTES, 0),
            Self::Exchange { given, taken, .. } => {
                let size = EXCHANGE_HEADER_BYTES + (given.len() + taken.len()) * RUN_BYTES;
                (KIND_EXCHANGE, size, 0)
            }
        };
        bytes.resize(start + size, 0);
        let record = &mut bytes[start..];
        record[0] = kind;
        put(record, 2, &(size as u16).to_le_bytes());
        put(record, 8, &layer.to_le_bytes());
        self.put_body(record);
    }

    /// Writes the fields after the header.
    fn put_body(&self, record: &mut [u8]) {
        match self {
            Self::Map {
                lba,
                count,
                old,
                new,
                ..
            } => {
                put(record, 16, &lba.0.to_le_bytes());
                put(record, 24, &count.to_le_bytes());
                put(record, 32, &old.to_bits().to_le_bytes());
                put(record, 40, &new.to_bits().to_le_bytes());
            }
            Self::Unmap { lba, count, to, .. } => {
                put(record, 16, &lba.0.to_le_bytes());
                put(record, 24, &count.to_le_bytes());
                put(record, 28, &u32::from(*to == UnmapTo::Zero).to_le_bytes());
            }
            Self::VolumePut { slot, volume } => {
                put(record, 16, &slot.to_le_bytes());
                put_volume(record, 24, volume);
            }
            Self::VolumeGone { slot, volume, .. } => {
                put(record, 16, &slot.to_le_bytes());
                put(record, 24, &volume.0.to_le_bytes());
            }
            Self::Publish { number, runs, .. } => put_publish(record, *number, runs),
            Self::Outcome {
                number,
                position,
                count,
                outcome,
                ..
            } => {
                let (code, pba) = outcome.to_parts();
                put_items(record, *number, *position, *count);
                put(record, 28, &code.to_le_bytes());
                put(record, 32, &pba.to_le_bytes());
            }
            Self::Collect { number, elements } | Self::Count { number, elements } => {
                put(record, 16, &number.to_le_bytes());
                put(record, 24, &elements.to_le_bytes());
            }
            Self::Release {
                number,
                position,
                count,
                release,
            } => {
                put_items(record, *number, *position, *count);
                put(record, 28, &(*release as u32).to_le_bytes());
            }
            Self::Counted {
                number,
                position,
                count,
                outcome,
            } => {
                put_items(record, *number, *position, *count);
                put(record, 28, &(*outcome as u32).to_le_bytes());
            }
            Self::Freeze {
                slot,
                snapshot,
                live,
                below,
            } => {
                put(record, 16, &slot.to_le_bytes());
                put(record, 24, &live.0.to_le_bytes());
                put(record, 32, &below.0.to_le_bytes());
                put_volume(record, 40, snapshot);
            }
            Self::Merge { above, segment, .. } => {
                put(record, 16, &above.0.to_le_bytes());
                put(record, 24, &segment.0.to_le_bytes());
            }
            Self::Exchange {
                number,
                given,
                taken,
            } => put_exchange(record, *number, given, taken),
        }
    }
}

/// Writes a record of the catalogue without its map, which is part of the layers.
fn put_volume(record: &mut [u8], at: usize, volume: &VolumeRecord) {
    VolumeRecord {
        map: TreeRoot::default(),
        counts: LayerCounts::default(),
        ..volume.clone()
    }
    .put(record, at);
}

/// Writes the number of a batch, its segment and its runs.
fn put_publish(record: &mut [u8], number: u64, runs: &[PublishRun]) {
    assert!(runs_fit(runs), "{} runs to publish: {runs:?}", runs.len());
    let segment = runs
        .first()
        .map_or(SegmentIndex(0), |run| run.lba.segment());
    put(record, 16, &number.to_le_bytes());
    put(record, 24, &segment.0.to_le_bytes());
    for (n, run) in runs.iter().enumerate() {
        let bits = run.pba.0
            | (run.lba.slot() as u64) << SLOT_SHIFT
            | u64::from(run.count - 1) << COUNT_SHIFT;
        let at = PUBLISH_HEADER_BYTES + n * RUN_BYTES;
        put(record, at, &bits.to_le_bytes());
    }
}

/// Writes the number of an exchange, what was given and what was taken.
fn put_exchange(record: &mut [u8], number: u64, given: &[GivenRun], taken: &[SpaceExtent]) {
    assert!(
        exchange_fits(given, taken),
        "an exchange of {given:?} for {taken:?}"
    );
    put(record, 16, &number.to_le_bytes());
    put(record, 24, &(given.len() as u16).to_le_bytes());
    put(record, 26, &(taken.len() as u16).to_le_bytes());
    let given = given
        .iter()
        .map(|run| run.pba.0 | u64::from(run.count - 1) << SLOT_SHIFT);
    let taken = taken.iter().map(|extent| extent.0);
    for (n, item) in given.chain(taken).enumerate() {
        let at = EXCHANGE_HEADER_BYTES + n * RUN_BYTES;
        put(record, at, &item.to_le_bytes());
    }
}

/// Whether one exchange can have these.
fn exchange_fits(given: &[GivenRun], taken: &[SpaceExtent]) -> bool {
    let is_in_an_extent = |run: &GivenRun| {
        let count = u64::from(run.count);
        is_run(run.pba, count) && run.pba.space_extent() == (run.pba + (count - 1)).space_extent()
    };
    (1..=EXCHANGE_ITEMS_MAX).contains(&(given.len() + taken.len()))
        && given.iter().all(is_in_an_extent)
        && taken
            .iter()
            .all(|extent| extent.0 < PBA_END / BLOCKS_PER_SPACE_EXTENT)
}

/// Whether these are 1 to 512 runs of one segment, ascending and not overlapping.
fn runs_fit(runs: &[PublishRun]) -> bool {
    let is_in_a_segment = |run: &PublishRun| {
        let end = run.lba.slot() as u64 + u64::from(run.count);
        run.lba.0 < VOLUME_BLOCKS_MAX
            && end <= BLOCKS_PER_SEGMENT
            && is_run(run.pba, u64::from(run.count))
    };
    let follow = |pair: &[PublishRun]| match pair {
        [run, next] => {
            run.lba.segment() == next.lba.segment() && run.lba + u64::from(run.count) <= next.lba
        }
        _ => true,
    };
    !runs.is_empty() && runs.iter().all(is_in_a_segment) && runs.windows(2).all(follow)
}

/// Writes the number of a batch and which of its items are settled.
fn put_items(record: &mut [u8], number: u64, position: u32, count: u32) {
    assert!(
        items_fit(position, count),
        "{count} items from {position} on"
    );
    put(record, 16, &number.to_le_bytes());
    put(record, 24, &(position as u16).to_le_bytes());
    put(record, 26, &(count as u16).to_le_bytes());
}

/// Whether a batch can have these items.
fn items_fit(position: u32, count: u32) -> bool {
    count != 0 && position <= BATCH_ITEMS_MAX && count <= BATCH_ITEMS_MAX - position
}

impl Outcome {
    /// The outcome's code, and its block or 0.
    fn to_parts(self) -> (u32, u64) {
        match self {
            Self::Inserted => (1, 0),
            Self::Aliased(pba) => (2, pba.0),
            Self::Dangling(pba) => (3, pba.0),
            Self::Rejected(pba) => (4, pba.0),
            Self::Declined => (5, 0),
        }
    }

    fn from_parts(code: u32, pba: u64, count: u32) -> Result<Self, FormatError> {
        let outcome = match code {
            1 => Self::Inserted,
            2 => Self::Aliased(Pba(pba)),
            3 => Self::Dangling(Pba(pba)),
            4 => Self::Rejected(Pba(pba)),
            5 => Self::Declined,
            other => {
                return Err(FormatError::Field {
                    field: "outcome",
                    value: u64::from(other),
                });
            }
        };
        let names_blocks = outcome.to_parts().1 == pba
            && (matches!(outcome, Self::Inserted | Self::Declined)
                || is_run(Pba(pba), u64::from(count)));
        if names_blocks {
            Ok(outcome)
        } else {
            Err(FormatError::Field {
                field: "block of an outcome",
                value: pba,
            })
        }
    }
}
