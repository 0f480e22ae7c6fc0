//! The preferred place of new blocks: consecutive blocks of a volume should be consecutive in the
//! pool, whatever the order in which they were written.
//!
//! The pool is handed out in *places*: aligned runs of as many blocks as a segment has. The first
//! block written to a segment gets a new place and, in it, the position that the block has in the
//! segment; later blocks go next to it. A place is a preference and not a reservation: when no
//! whole place is left, any free block is taken.

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{LayerId, Lba, Pba};
use smallvec::SmallVec;

use super::run::{BlockRange, PbaRun, PbaRuns};

/// Blocks of a place.
pub(crate) const PLACE_BLOCKS: u64 = BLOCKS_PER_SEGMENT;

/// Segments on either side of a new one that are searched for a place to continue from.
const NEIGHBOURS: u64 = 4;

/// Segments whose places are remembered.
const RECENT_PLACES: usize = 256;

/// New blocks requested by one request.
#[derive(Debug)]
pub struct Placement {
    /// The layer whose segments' places are remembered.
    pub layer: LayerId,
    /// Where the blocks belong in the volume, in ascending order.
    pub runs: SmallVec<[BlockRange; 4]>,
    /// A mapped block of the first run's segment.
    pub beside: Option<PlacementOffset>,
}

/// PBA less LBA, modulo 2^64: the same for all blocks that are adjacent in volume and pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementOffset(u64);

/// Recent places of segments. Concurrent requests for one segment find its place here before the
/// map contains any of its blocks. All of them are hints, which never have to be right.
pub(crate) struct RecentPlaces(Box<[Option<(LayerId, u64, PlacementOffset)>; RECENT_PLACES]>);

impl Placement {
    /// The number of blocks requested.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// From the first block requested to the last, gaps included.
    pub fn span(&self) -> BlockRange {
        let first = self.runs.first().map_or(Lba(0), |run| run.first);
        let end = self.runs.last().map_or(first.0, |run| run.blocks().end);
        BlockRange::new(first, end - first.0)
    }

    /// The blocks of the pool at this offset.
    pub fn at(&self, shift: PlacementOffset) -> PbaRuns {
        let runs = self.runs.iter().map(|run| PbaRun {
            start: shift.apply(run.first),
            count: run.count,
        });
        runs.collect()
    }
}

impl PlacementOffset {
    /// The offset between a block of a volume and its block of the pool.
    pub fn between(lba: Lba, pba: Pba) -> Self {
        Self(pba.0.wrapping_sub(lba.0))
    }

    fn apply(self, lba: Lba) -> Pba {
        Pba(lba.0.wrapping_add(self.0))
    }
}

impl RecentPlaces {
    pub(crate) fn new() -> Self {
        Self(Box::new([None; RECENT_PLACES]))
    }

    pub(crate) fn remember(&mut self, layer: LayerId, first: Lba, shift: PlacementOffset) {
        let segment = first.segment().0;
        self.0[slot(layer, segment)] = Some((layer, segment, shift));
    }

    /// The offset of this segment's place.
    pub(crate) fn of(&self, layer: LayerId, segment: u64) -> Option<PlacementOffset> {
        let (owner, of, shift) = self.0[slot(layer, segment)]?;
        ((owner, of) == (layer, segment)).then_some(shift)
    }

    /// The offset of the place of a nearby segment, nearest first.
    pub(crate) fn around(
        &self,
        layer: LayerId,
        first: Lba,
    ) -> impl Iterator<Item = PlacementOffset> {
        let segment = first.segment().0;
        (1..=NEIGHBOURS)
            .flat_map(move |distance| {
                [segment.checked_sub(distance), segment.checked_add(distance)]
            })
            .flatten()
            .filter_map(move |neighbour| self.of(layer, neighbour))
    }
}

fn slot(layer: LayerId, segment: u64) -> usize {
    (layer.0.wrapping_mul(31).wrapping_add(segment) % RECENT_PLACES as u64) as usize
}
