//! A distribution scaled to a number of blocks: its contents, the lengths of its runs, and how often
//! each run is dealt.

use std::collections::BTreeMap;

use crate::distribution::{CopyCount, Distribution};
use onefold_analyze::{RunClass, RunCount};

/// Pieces of equal length whose contents occur equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// How often each of these pieces is dealt.
    pub copies: u64,
    /// Blocks of each piece, all of different content.
    pub length: u64,
    /// How many different pieces there are.
    pub pieces: u64,
}

/// Runs of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// Blocks of each run.
    pub length: u64,
    /// How many runs of this length there are.
    pub runs: u64,
}

/// A distribution that was scaled up or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaled {
    /// Blocks of all pieces, each counted as often as it is dealt.
    pub blocks: u64,
    /// Runs of contents that occur once, by length, descending.
    pub unique: Vec<Runs>,
    /// Runs of contents that occur more often, by length, descending.
    pub redundant: Vec<Runs>,
    /// The pieces of redundant runs: contents that occur more often, cut into pieces that occur as
    /// a whole.
    pub pieces: Vec<Cell>,
}

impl Scaled {
    /// The distribution in exactly this many blocks, at most 2^48 of them.
    ///
    /// Copies come first: the number of contents with each number of copies is scaled, and a loss
    /// by rounding is made up for at the next higher number of copies. If the blocks do not suffice
    /// for all copies of the last contents, one content has the rest. The number of runs of each
    /// length is scaled and rounded in the same way. Then the contents of each number of copies are
    /// cut into pieces as long as runs wherever there are enough of them: if pieces and runs of a
    /// length are equally many, each run occurs as a whole as often as its contents do.
    #[must_use]
    pub fn new(distribution: &Distribution, blocks: u64) -> Self {
        let copies = scale_copies(distribution.copies(), distribution.blocks(), blocks);
        let (unique, redundant) =
            copies.split_at(copies.partition_point(|count| count.copies == 1));
        let runs = |class, copies: &[CopyCount]| {
            let in_class = copies
                .iter()
                .map(|count| count.copies * count.contents)
                .sum();
            scale_runs(distribution.runs(class), in_class)
        };
        let redundant_runs = runs(RunClass::Redundant, redundant);
        Self {
            blocks,
            unique: runs(RunClass::Unique, unique),
            pieces: cut(&redundant_runs, redundant),
            redundant: redundant_runs,
        }
    }

    /// Different contents.
    #[must_use]
    pub fn contents(&self) -> u64 {
        self.copies().iter().map(|count| count.contents).sum()
    }

    /// How often each content occurs, by copies, ascending.
    #[must_use]
    pub fn copies(&self) -> Vec<CopyCount> {
        let mut counts = BTreeMap::new();
        for runs in &self.unique {
            *counts.entry(1).or_insert(0) += runs.length * runs.runs;
        }
        for cell in &self.pieces {
            *counts.entry(cell.copies).or_insert(0) += cell.length * cell.pieces;
        }
        let counts = counts.into_iter();
        counts
            .map(|(copies, contents)| CopyCount { copies, contents })
            .collect()
    }
}

/// The share of `from` blocks, scaled to `to` blocks.
fn scale_copies(copies: &[CopyCount], from: u64, to: u64) -> Vec<CopyCount> {
    let from = u128::from(from.max(1));
    let mut scaled: Vec<CopyCount> = Vec::new();
    // Blocks that were lost by rounding, times `from`.
    let mut lost = 0_u128;
    for it in copies {
        lost += u128::from(it.copies * it.contents) * u128::from(to);
        let each = u128::from(it.copies) * from;
        let contents = (lost / each) as u64;
        lost -= u128::from(contents) * each;
        if contents > 0 {
            let copies = it.copies;
            scaled.push(CopyCount { copies, contents });
        }
    }
    let copies = (lost / from) as u64;
    if copies > 0 {
        let one = CopyCount {
            copies,
            contents: 1,
        };
        match scaled.binary_search_by_key(&copies, |count| count.copies) {
            Ok(place) => scaled[place].contents += 1,
            Err(place) => scaled.insert(place, one),
        }
    }
    scaled
}

/// Scales runs to this number of blocks, longest first. The runs of a power of two become runs of two
/// lengths, next to their mean.
fn scale_runs(runs: &[RunCount], blocks: u64) -> Vec<Runs> {
    let mut lengths: Vec<Runs> = Vec::new();
    for count in runs.iter().filter(|count| count.runs > 0) {
        let (length, longer) = (count.chunks / count.runs, count.chunks % count.runs);
        for (length, runs) in [(length, count.runs - longer), (length + 1, longer)] {
            lengths.push(Runs { length, runs });
        }
    }
    let all: u64 = lengths
        .iter()
        .map(|Runs { length, runs }| length * runs)
        .sum();
    let all = u128::from(all.max(1));
    let mut scaled = BTreeMap::new();
    let mut left = blocks;
    // Blocks that were lost by rounding, times `all`.
    let mut lost = 0_u128;
    for Runs { length, runs } in lengths {
        lost += u128::from(length * runs) * u128::from(blocks);
        let each = u128::from(length) * all;
        let runs = (lost / each) as u64;
        lost -= u128::from(runs) * each;
        left -= length * runs;
        *scaled.entry(length).or_insert(0) += runs;
    }
    // Less than the longest run, unless there are none to scale.
    *scaled.entry(left).or_insert(0) += 1;
    let scaled = scaled.into_iter().rev();
    scaled
        .map(|(length, runs)| Runs { length, runs })
        .filter(|Runs { length, runs }| *length > 0 && *runs > 0)
        .collect()
}

/// Cuts the contents of each number of copies into pieces as long as runs. The contents with the most
/// copies are the rarest and come first, because they have the least choice.
fn cut(runs: &[Runs], copies: &[CopyCount]) -> Vec<Cell> {
    /// Blocks still needed in pieces of one length.
    struct Wanted {
        length: u64,
        blocks: u64,
    }
    let wanted = runs.iter().map(|&Runs { length, runs }| Wanted {
        length,
        blocks: length * runs,
    });
    let mut wanted: Vec<Wanted> = wanted.collect();
    let mut cells = Vec::new();
    for CopyCount { copies, contents } in copies.iter().rev() {
        let (copies, mut left) = (*copies, *contents);
        let all: u64 = {
            let possible = wanted.iter().filter(|wanted| wanted.length <= left);
            possible.map(|wanted| wanted.blocks).sum()
        };
        let mut push = |wanted: &mut Wanted, pieces: u64, left: &mut u64| {
            if pieces > 0 {
                let length = wanted.length;
                let taken = copies * length * pieces;
                wanted.blocks = wanted.blocks.saturating_sub(taken);
                *left -= length * pieces;
                cells.push(Cell {
                    copies,
                    length,
                    pieces,
                });
            }
        };
        for it in wanted
            .iter_mut()
            .filter(|wanted| wanted.length <= *contents)
        {
            let share = u128::from(*contents) * u128::from(it.blocks) / u128::from(all.max(1));
            let pieces = (share as u64).min(left) / it.length;
            push(it, pieces, &mut left);
        }
        // Rounding leaves less than a piece of each length. The length with the most blocks still needed
        // comes first.
        while left > 0 {
            let possible = wanted.iter_mut().filter(|wanted| wanted.length <= left);
            let Some(most) = possible
                .max_by_key(|wanted| wanted.blocks)
                .filter(|wanted| wanted.blocks > 0)
            else {
                // No length needs more: one piece takes the rest.
                let mut rest = Wanted {
                    length: left,
                    blocks: 0,
                };
                push(&mut rest, 1, &mut left);
                continue;
            };
            let pieces = (most.blocks / (copies * most.length)).clamp(1, left / most.length);
            push(most, pieces, &mut left);
        }
    }
    cells
}
