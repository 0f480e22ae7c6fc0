//! A distribution in as many blocks as are wanted: which contents there are, in runs of which lengths,
//! and how often each run is dealt.

use std::cmp::Reverse;

use crate::distribution::{CopyCount, Distribution};
use crate::runs::{RunClass, RunCount};

/// Runs that are as long as each other, and whose contents occur as often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// How often each of these runs is dealt.
    pub copies: u64,
    /// Blocks of each, all of different content.
    pub length: u64,
    /// How many different runs.
    pub runs: u64,
}

/// A distribution that was made larger or smaller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaled {
    /// Blocks of all runs, each as often as it is dealt.
    pub blocks: u64,
    /// Runs of contents that occur once.
    pub unique: Vec<Cell>,
    /// Runs of contents that occur more often.
    pub redundant: Vec<Cell>,
}

/// Runs of one length that are still wanted, in blocks.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    length: u64,
    blocks: u64,
}

impl Scaled {
    /// The distribution in exactly this many blocks, at most 2^48 of them.
    ///
    /// Copies come first: of each number of copies there are as many contents as the scale makes, rounded
    /// so that what is lost with one number comes back with a higher one; where so few blocks are wanted
    /// that the last contents cannot have all of their copies, one has what is left. Then the contents
    /// of each number of copies are cut into runs in proportion to what is wanted of each length. Those
    /// of which there are few do not make long runs; what they leave is for those of which there are many.
    #[must_use]
    pub fn new(distribution: &Distribution, blocks: u64) -> Self {
        let copies = scale_copies(distribution.copies(), distribution.blocks(), blocks);
        let cells = |class, copies: &[CopyCount]| {
            let in_class = copies.iter().map(|it| it.copies * it.contents).sum();
            cut(wanted(distribution.runs(class), in_class), copies)
        };
        let split = copies.partition_point(|it| it.copies == 1);
        Self {
            blocks,
            unique: cells(RunClass::Unique, &copies[..split]),
            redundant: cells(RunClass::Redundant, &copies[split..]),
        }
    }

    /// Different contents.
    #[must_use]
    pub fn contents(&self) -> u64 {
        let cells = self.unique.iter().chain(&self.redundant);
        cells.map(|cell| cell.length * cell.runs).sum()
    }

    /// How often each content occurs, by copies, ascending.
    #[must_use]
    pub fn copies(&self) -> Vec<CopyCount> {
        let mut counts = std::collections::BTreeMap::new();
        for cell in self.unique.iter().chain(&self.redundant) {
            *counts.entry(cell.copies).or_insert(0) += cell.length * cell.runs;
        }
        let counts = counts.into_iter();
        counts
            .map(|(copies, contents)| CopyCount { copies, contents })
            .collect()
    }
}

/// What `from` blocks have, in `to` blocks.
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
        match scaled.binary_search_by_key(&copies, |it| it.copies) {
            Ok(place) => scaled[place].contents += 1,
            Err(place) => scaled.insert(place, one),
        }
    }
    scaled
}

/// How many blocks of `blocks` runs of each length should have. Runs of one power of two become such
/// of two lengths, next to their mean.
fn wanted(runs: &[RunCount], blocks: u64) -> Vec<Wanted> {
    let mut lengths: Vec<(u64, u64)> = Vec::new();
    for count in runs.iter().filter(|count| count.runs > 0) {
        let (shorter, longer_runs) = (count.chunks / count.runs, count.chunks % count.runs);
        let with_runs = [
            (shorter, count.runs - longer_runs),
            (shorter + 1, longer_runs),
        ];
        lengths.extend(with_runs.iter().filter(|(_, runs)| *runs > 0));
    }
    let all: u64 = lengths.iter().map(|(length, runs)| length * runs).sum();
    let all = u128::from(all.max(1));
    let mut scaled: Vec<Wanted> = Vec::new();
    let mut lost = 0_u128;
    for (length, runs) in lengths {
        lost += u128::from(length * runs) * u128::from(blocks);
        let each = u128::from(length) * all;
        let runs = (lost / each) as u64;
        lost -= u128::from(runs) * each;
        if runs > 0 {
            let blocks = runs * length;
            scaled.push(Wanted { length, blocks });
        }
    }
    // What is left is less than the longest run.
    let length = (lost / all) as u64;
    if length > 0 {
        scaled.push(Wanted {
            length,
            blocks: length,
        });
    }
    scaled.sort_by_key(|wanted| Reverse(wanted.length));
    scaled
}

/// Cuts the contents of each number of copies into runs. The rarest numbers come first, which have
/// the least choice.
fn cut(mut wanted: Vec<Wanted>, copies: &[CopyCount]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for CopyCount { copies, contents } in copies.iter().rev() {
        let (copies, mut left) = (*copies, *contents);
        let all: u64 = {
            let possible = wanted.iter().filter(|it| it.length <= left);
            possible.map(|it| it.blocks).sum()
        };
        let mut push = |wanted: &mut Wanted, runs: u64, left: &mut u64| {
            if runs > 0 {
                let length = wanted.length;
                let taken = copies * length * runs;
                wanted.blocks = wanted.blocks.saturating_sub(taken);
                *left -= length * runs;
                cells.push(Cell {
                    copies,
                    length,
                    runs,
                });
            }
        };
        for it in wanted.iter_mut().filter(|it| it.length <= *contents) {
            let share = u128::from(*contents) * u128::from(it.blocks) / u128::from(all.max(1));
            let runs = (share as u64).min(left) / it.length;
            push(it, runs, &mut left);
        }
        // Rounding leaves less than a run of each length: the length of which most is wanted comes first.
        while left > 0 {
            let possible = wanted.iter_mut().filter(|it| it.length <= left);
            let Some(most) = possible
                .max_by_key(|it| it.blocks)
                .filter(|it| it.blocks > 0)
            else {
                // Nothing of this is wanted any more: one run of what is left.
                let mut rest = Wanted {
                    length: left,
                    blocks: 0,
                };
                push(&mut rest, 1, &mut left);
                continue;
            };
            let runs = (most.blocks / (copies * most.length)).clamp(1, left / most.length);
            push(most, runs, &mut left);
        }
    }
    cells
}
