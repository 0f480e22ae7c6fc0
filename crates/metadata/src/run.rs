//! Consecutive blocks, of the pool and of a volume.

use std::ops::Range;

use onefold_format::units::BLOCKS_PER_SEGMENT;
use onefold_format::{Lba, Pba, SegmentIndex};
use smallvec::SmallVec;

/// Consecutive blocks of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PbaRun {
    /// The first block.
    pub start: Pba,
    /// The number of blocks.
    pub count: u64,
}

impl PbaRun {
    /// Each block.
    pub fn iter(&self) -> impl Iterator<Item = Pba> + use<> {
        let start = self.start;
        (0..self.count).map(move |n| start + n)
    }
}

/// Several runs; few in most cases.
pub type PbaRuns = SmallVec<[PbaRun; 4]>;

/// Consecutive blocks of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub first: Lba,
    /// The number of blocks.
    pub count: u64,
}

impl BlockRange {
    /// `count` blocks from `first` on.
    pub fn new(first: Lba, count: u64) -> Self {
        Self { first, count }
    }

    /// The segment of the first block.
    pub fn segment(self) -> SegmentIndex {
        self.first.segment()
    }

    /// The slots of these blocks, which are in one segment.
    pub fn slots(self) -> Range<usize> {
        self.first.slot()..self.first.slot() + self.count as usize
    }

    /// The blocks' numbers.
    pub fn blocks(self) -> Range<u64> {
        self.first.0..self.first.0 + self.count
    }

    /// The range, cut at the ends of segments.
    pub fn by_segment(self) -> impl Iterator<Item = Self> {
        let mut at = self.first;
        let end = self.first + self.count;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let first = at;
                let segment_end = (first.0 / BLOCKS_PER_SEGMENT + 1) * BLOCKS_PER_SEGMENT;
                at = Lba(segment_end.min(end.0));
                Self::new(first, at.0 - first.0)
            })
        })
    }
}
