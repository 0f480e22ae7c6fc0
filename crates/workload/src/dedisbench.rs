//! Distributions in DEDISbench's format: each line has a number of duplicates and the number of
//! contents with as many duplicates, in any order. The format has neither zeros nor runs.

use std::collections::BTreeMap;

use crate::distribution::{BLOCKS_MAX, CopyCount, Distribution, number};
use onefold_analyze::RunCount;

/// DEDISgen's default block size.
const BLOCK_BYTES: u64 = 4096;

/// Whether the text is in this format: its first significant line begins with a number.
pub(crate) fn is_meant(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| line.starts_with(|first: char| first.is_ascii_digit()))
}

/// The state after the lines read so far.
#[derive(Default)]
pub(crate) struct Parsing {
    /// The number of contents by their copies.
    contents: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Parsing {
    pub(crate) fn line(&mut self, text: &str) -> Result<(), String> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        match fields[..] {
            [] => Ok(()),
            [first, ..] if first.starts_with('#') => Ok(()),
            [duplicates, contents] => self.add(number(duplicates)?, number(contents)?),
            _ => Err(format!(
                "{} fields: a line of DEDISbench's is 'DUPLICATES CONTENTS'",
                fields.len()
            )),
        }
    }

    fn add(&mut self, duplicates: u64, contents: u64) -> Result<(), String> {
        let copies = duplicates.saturating_add(1);
        let blocks = copies.checked_mul(contents);
        let blocks = blocks.and_then(|blocks| self.blocks.checked_add(blocks));
        self.blocks = blocks
            .filter(|blocks| *blocks <= BLOCKS_MAX)
            .ok_or_else(|| {
                format!("{contents} contents with {duplicates} duplicates: 2^48 blocks at most")
            })?;
        if contents > 0 {
            *self.contents.entry(copies).or_default() += contents;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Distribution, String> {
        if self.blocks == 0 {
            return Err("no line has contents".to_owned());
        }
        let unique = self.contents.get(&1).copied().unwrap_or(0);
        let copies = self.contents.into_iter();
        Ok(Distribution {
            block_bytes: BLOCK_BYTES,
            copies: copies
                .map(|(copies, contents)| CopyCount { copies, contents })
                .collect(),
            runs: shuffled(unique, self.blocks - unique),
        })
    }
}

/// The runs that blocks of both classes form in a random order, which is how DEDISbench deals them:
/// equally many of each class, with geometric lengths.
fn shuffled(unique: u64, redundant: u64) -> [Vec<RunCount>; 2] {
    let boundaries = u128::from(unique) * u128::from(redundant);
    let runs = boundaries / u128::from((unique + redundant).max(1));
    let runs = (runs as u64).max(1);
    [unique, redundant].map(|blocks| match blocks {
        0 => Vec::new(),
        blocks => geometric(runs, blocks),
    })
}

/// `runs` runs of `blocks` blocks in total, with geometric lengths. There is at least one run, and
/// at least one block for each.
fn geometric(runs: u64, blocks: u64) -> Vec<RunCount> {
    let mean = blocks as f64 / runs as f64;
    // `part`: the share of runs that have at least `length` blocks. `weight`: their blocks, divided by
    // the number of all runs.
    let part = |length: f64| (1.0 - 1.0 / mean).powf(length - 1.0);
    let weight = |length: f64| part(length) * (length + mean - 1.0);
    let mut counts = Vec::new();
    let mut left = runs;
    while left > 0 {
        let from = 1_u64 << counts.len();
        let (least, next) = (from as f64, 2.0 * from as f64);
        let beyond = if from > blocks / 2 {
            0
        } else {
            (runs as f64 * part(next)).round() as u64
        };
        let count = left.saturating_sub(beyond);
        let length = (weight(least) - weight(next)) / (part(least) - part(next));
        counts.push(RunCount {
            runs: count,
            chunks: ((count as f64 * length).round() as u64)
                .clamp(count * from, count * (from * 2 - 1)),
        });
        left -= count;
    }
    if make_up(&mut counts, blocks) {
        counts
    } else {
        even(runs, blocks)
    }
}

/// Adjusts the runs to this number of blocks in total; false if runs of some lengths cannot be.
fn make_up(counts: &mut [RunCount], blocks: u64) -> bool {
    let have: u64 = counts.iter().map(|count| count.chunks).sum();
    let (mut missing, mut surplus) = (blocks.saturating_sub(have), have.saturating_sub(blocks));
    for (power, count) in counts.iter_mut().enumerate() {
        let least = count.runs << power;
        let most = 2 * least - count.runs;
        let (more, less) = (
            missing.min(most - count.chunks),
            surplus.min(count.chunks - least),
        );
        count.chunks = count.chunks + more - less;
        (missing, surplus) = (missing - more, surplus - less);
    }
    missing == 0 && surplus == 0
}

/// Runs of two lengths that differ by one block.
fn even(runs: u64, blocks: u64) -> Vec<RunCount> {
    let (length, longer) = (blocks / runs, blocks % runs);
    let mut counts = vec![RunCount::default(); (length + 1).ilog2() as usize + 1];
    for (length, runs) in [(length, runs - longer), (length + 1, longer)] {
        let count = &mut counts[length.ilog2() as usize];
        count.runs += runs;
        count.chunks += runs * length;
    }
    counts
}
