//! A quick look: how much is redundant, from a few blocks alone.
//!
//! Each block is drawn with the same small probability, and only what was drawn is read. How often the
//! drawn contents were drawn says how many copies there are: of a content with `c` copies the number that is
//! drawn is binomial. The distribution of copies under which what was seen is most likely is found by
//! expectation maximization; the part of the data that is distinct follows from it.
//!
//! What a sample has not seen it cannot know: there is no bound for what this says. How far it was off where
//! the truth is known was measured, see [`MEASURED`].

use std::path::PathBuf;

use fastrand::Rng;
use onefold_image::Backing;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::StudyError;
use crate::chunking::Chunking;
use crate::record::pack_fingerprint;
use crate::scan::{Progress, Totals};
use crate::walk::{Met, Problem, Survey, walk};
use crate::worker::{fingerprint_key, is_zero};

/// How far estimates were off where the truth is known: 100 seeds for each of five sets of half a million blocks,
/// among them some in which all blocks are there equally often, which is hardest to see.
pub const MEASURED: [Measured; 4] = [
    Measured::new(0.01, 0.216, 0.276),
    Measured::new(0.02, 0.166, 0.207),
    Measured::new(0.05, 0.091, 0.114),
    Measured::new(0.10, 0.019, 0.030),
];

/// Part of the data that is drawn, least and most.
const PART_MIN: f64 = 0.0001;
const PART_MAX: f64 = 0.5;

/// Contents that were drawn more often than this have about as many copies as that says.
const DRAWN_MAX: usize = 32;

/// Steps of the expectation maximization. More of them would follow the noise.
const STEPS: u32 = 2000;

/// How far estimates were off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Part of the blocks that was drawn.
    pub part: f64,
    /// 95 of 100 estimates were not further off than this part of the data.
    pub usual_error: f64,
    /// None was further off than this.
    pub largest_error: f64,
}

impl Measured {
    const fn new(part: f64, usual_error: f64, largest_error: f64) -> Self {
        Self {
            part,
            usual_error,
            largest_error,
        }
    }
}

/// How a look is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuickOptions {
    /// Size of blocks, in bytes.
    pub block_bytes: usize,
    /// Which part of the blocks is drawn: 0.0001 to 0.5.
    pub part: f64,
    /// What is drawn follows from it.
    pub seed: u64,
}

/// What a few blocks say.
#[derive(Debug, Clone, PartialEq)]
pub struct QuickLook {
    /// What was drawn.
    pub drawn: Totals,
    /// Part of the data without zeros that has to be stored, as far as the sample says.
    pub distinct_ratio: f64,
    /// How far estimates from such a part, or the next smaller one, were off elsewhere; nothing where that
    /// was not measured. No bound.
    pub measured: Option<Measured>,
    /// What was there.
    pub survey: Survey,
    /// What could not be read.
    pub problems: Vec<Problem>,
    /// All inputs were gone through to their ends.
    pub is_complete: bool,
}

/// Looks at a few blocks of what is under `paths`. With `disks`, qcow2 images are the disks inside them.
///
/// # Errors
///
/// For options that make no sense. What is wrong with a file is in what is returned.
pub fn quick_look(
    paths: &[PathBuf],
    disks: Option<Backing>,
    options: &QuickOptions,
    progress: &Progress,
) -> Result<QuickLook, StudyError> {
    Chunking::fixed(options.block_bytes).map_err(StudyError::usage)?;
    if !(PART_MIN..=PART_MAX).contains(&options.part) {
        return Err(StudyError::usage(
            "0.01 to 50 percent of the blocks can be drawn",
        ));
    }
    let key = fingerprint_key();
    let mut random = Rng::with_seed(options.seed);
    let mut look = QuickLook {
        drawn: Totals::default(),
        distinct_ratio: 1.0,
        measured: MEASURED.into_iter().rfind(|it| it.part <= options.part),
        survey: Survey::default(),
        problems: Vec::new(),
        is_complete: true,
    };
    let mut counts: FxHashMap<u128, u32> = FxHashMap::default();
    // Blocks up to the next one that is drawn.
    let mut gap = blocks_to_next(&mut random, options.part);
    for met in paths.iter().flat_map(|path| walk(path, disks)) {
        look.survey.count(&met);
        let found = match met {
            Met::File(found) => found,
            Met::Skipped => continue,
            Met::Problem(problem) => {
                look.problems.push(problem);
                continue;
            }
        };
        let block_bytes = options.block_bytes as u64;
        let blocks = found.bytes.div_ceil(block_bytes);
        if progress.is_stopping() {
            look.is_complete = false;
            break;
        }
        if gap >= blocks {
            gap -= blocks;
            progress.add(found.bytes);
            continue;
        }
        let mut draw = || -> Result<(), onefold_image::ImageError> {
            let mut image = found.open()?;
            let mut block = vec![0; options.block_bytes];
            let mut at = 0;
            while gap < blocks - at && !progress.is_stopping() {
                at += gap;
                let bytes = (found.bytes - at * block_bytes).min(block_bytes) as usize;
                let block = &mut block[..bytes];
                image.read(at * block_bytes, block)?;
                let is_zero = is_zero(block);
                look.drawn.add_chunks(1, bytes as u64, is_zero);
                if !is_zero {
                    let fingerprint = pack_fingerprint(key.fingerprint(block));
                    *counts.entry(fingerprint).or_default() += 1;
                }
                progress.add((gap + 1) * block_bytes);
                at += 1;
                gap = blocks_to_next(&mut random, options.part);
            }
            gap = gap.saturating_sub(blocks - at);
            Ok(())
        };
        if let Err(error) = draw() {
            look.problems.push(Problem {
                path: found.path.clone(),
                what: error.to_string(),
            });
        }
    }
    look.is_complete &= !progress.is_stopping();
    look.distinct_ratio = distinct_ratio(counts.into_values(), options.part);
    Ok(look)
}

/// How many blocks are passed over before one is drawn.
fn blocks_to_next(random: &mut Rng, part: f64) -> u64 {
    let uniform = 1.0 - random.f64();
    (uniform.ln() / (1.0 - part).ln()) as u64
}

/// The part of the data that is distinct, from how often each content was drawn. 1 of nothing.
fn distinct_ratio(counts: impl Iterator<Item = u32>, part: f64) -> f64 {
    // How many contents were drawn so often, and what those stand for that were drawn more often.
    let mut seen = [0_u64; DRAWN_MAX + 1];
    let (mut contents, mut blocks) = (0.0, 0.0);
    for count in counts {
        match seen.get_mut(count as usize) {
            Some(number) => *number += 1,
            None => {
                contents += 1.0;
                blocks += f64::from(count) / part;
            }
        }
    }
    let all: u64 = seen.iter().sum();
    if all > 0 {
        let copies = numbers_of_copies(part);
        let likelihood = likelihoods(&copies, part);
        let shares = most_likely(&seen, &likelihood);
        for (share, copies) in shares.iter().zip(&copies) {
            // Of contents with so many copies, this part was drawn at least once.
            let drawn = 1.0 - (1.0 - part).powf(*copies);
            let number = share * all as f64 / drawn;
            contents += number;
            blocks += number * copies;
        }
    }
    if blocks > 0.0 { contents / blocks } else { 1.0 }
}

/// Numbers of copies between which it is told apart: all small ones, ever fewer of the large ones.
fn numbers_of_copies(part: f64) -> Vec<f64> {
    let last = 2.0 * DRAWN_MAX as f64 / part;
    let mut copies = vec![1.0];
    while let Some(largest) = copies.last().copied().filter(|largest| *largest < last) {
        copies.push((largest * 1.2).floor().max(largest + 1.0));
    }
    copies
}

/// For each number of copies, how likely it is that a content which is drawn at all is drawn once, twice,
/// and so on; the first place stands for never.
fn likelihoods(copies: &[f64], part: f64) -> Vec<[f64; DRAWN_MAX + 1]> {
    let odds = (part / (1.0 - part)).ln();
    let of = |copies: &f64| {
        let never = copies * (1.0 - part).ln();
        let mut likelihood = [0.0; DRAWN_MAX + 1];
        let mut logarithm = never;
        for (before, likelihood) in (0_u32..).zip(likelihood.iter_mut().skip(1)) {
            let before = f64::from(before);
            if before >= *copies {
                break;
            }
            logarithm += ((copies - before) / (before + 1.0)).ln() + odds;
            *likelihood = (logarithm - (-never.exp()).ln_1p()).exp();
        }
        likelihood
    };
    copies.iter().map(of).collect()
}

/// Of the contents that were seen, which part has which number of copies.
fn most_likely(seen: &[u64; DRAWN_MAX + 1], likelihood: &[[f64; DRAWN_MAX + 1]]) -> Vec<f64> {
    let all: u64 = seen.iter().sum();
    let mut shares = vec![1.0 / likelihood.len() as f64; likelihood.len()];
    for _ in 0..STEPS {
        let mut next = vec![0.0; shares.len()];
        for (drawn, number) in seen.iter().enumerate().filter(|(_, number)| **number > 0) {
            let parts = shares
                .iter()
                .zip(likelihood)
                .map(|(share, of)| share * of[drawn]);
            let sum: f64 = parts.clone().sum();
            if sum <= 0.0 {
                continue;
            }
            let weight = *number as f64 / all as f64 / sum;
            next.iter_mut()
                .zip(parts)
                .for_each(|(next, part)| *next += weight * part);
        }
        shares = next;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents by number of copies, and with them the truth.
    fn look(copies: &[(u64, u64)], part: f64, seed: u64) -> (f64, f64) {
        let mut random = Rng::with_seed(seed);
        let mut counts = Vec::new();
        let (mut contents, mut blocks) = (0, 0);
        for (copies, distinct) in copies {
            contents += distinct;
            blocks += copies * distinct;
            for _ in 0..*distinct {
                let drawn = (0..*copies).filter(|_| random.f64() < part).count();
                counts.extend((drawn > 0).then_some(drawn as u32));
            }
        }
        let truth = contents as f64 / blocks as f64;
        (distinct_ratio(counts.into_iter(), part), truth)
    }

    #[test]
    fn what_is_all_distinct_or_all_the_same_is_known() {
        let (found, truth) = look(&[(1, 100_000)], 0.05, 1);
        assert!((found - truth).abs() < 0.03, "{found}");
        let (found, truth) = look(&[(100_000, 1)], 0.05, 2);
        assert!((found - truth).abs() < 0.001, "{found}");
        assert_eq!(distinct_ratio(std::iter::empty(), 0.05), 1.0);
    }

    /// Half a million blocks each, alike in different ways.
    const DATA: [&[(u64, u64)]; 5] = [
        &[(1, 500_000)],
        &[(1, 400_000), (2, 30_000), (3, 5000), (10, 1000), (1000, 15)],
        &[(1, 250_000), (2, 100_000), (4, 12_500)],
        &[(2, 250_000)],
        &[(4, 100_000), (5000, 20)],
    ];

    fn errors(part: f64, seeds: u64) -> Vec<f64> {
        let all = DATA
            .iter()
            .flat_map(|copies| (0..seeds).map(move |seed| (copies, seed)));
        let mut errors: Vec<f64> = all
            .map(|(copies, seed)| {
                let (found, truth) = look(copies, part, seed);
                (found - truth).abs()
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        errors
    }

    /// Where the numbers in [`MEASURED`] are from.
    #[test]
    #[ignore = "takes a minute; prints the table"]
    fn measure() {
        for measured in MEASURED {
            let errors = errors(measured.part, 100);
            let (usual, largest) = (errors[errors.len() * 95 / 100], errors[errors.len() - 1]);
            println!(
                "Measured::new({}, {usual:.3}, {largest:.3}),",
                measured.part
            );
        }
    }

    #[test]
    fn errors_are_as_measured() {
        for measured in &MEASURED[2..] {
            let errors = errors(measured.part, 5);
            let largest = errors[errors.len() - 1];
            assert!(largest <= measured.largest_error, "{largest}");
            // Nor is the table far too wide.
            assert!(largest >= measured.usual_error / 2.0, "{largest}");
        }
    }
}
