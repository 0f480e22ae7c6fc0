//! Harnik's estimates against the truth.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use fastrand::Rng;
use onefold_analyze::{EstimateOptions, Progress, Source, TraceOptions, analyze, estimate};
use tempfile::TempDir;

use crate::trees;

const BLOCK: usize = 4096;

/// Files with blocks that occur once and blocks that occur up to a thousand times; a third is zeros.
fn inputs(seed: u64) -> (TempDir, Vec<PathBuf>) {
    let scratch = TempDir::new().unwrap();
    let mut random = Rng::with_seed(seed);
    let paths = ["a", "b", "c"].map(|name| scratch.path().join(name));
    for path in &paths {
        let mut content = Vec::new();
        for _ in 0..2500 {
            let mut block = vec![0; BLOCK];
            match random.u32(..6) {
                0 | 1 => {}
                // Few of them occur often, many rarely.
                2 | 3 => {
                    let which = random.u64(1..40) * random.u64(1..40);
                    Rng::with_seed(which).fill(&mut block);
                }
                _ => random.fill(&mut block),
            }
            content.extend(block);
        }
        content.extend([1; 100]);
        fs::write(path, content).unwrap();
    }
    (scratch, paths.to_vec())
}

fn from(paths: &[PathBuf]) -> Source<'_> {
    Source::Paths { paths, disks: None }
}

fn options(seed: u64) -> EstimateOptions {
    EstimateOptions {
        block_bytes: BLOCK,
        error: 0.02,
        confidence: 0.99,
        seed,
    }
}

/// Half of all blocks are the short ends of files, most of which occur often; nearly all bytes are in whole
/// blocks, few of which do.
fn inputs_of_short_blocks(seed: u64) -> (TempDir, Vec<PathBuf>) {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let mut random = Rng::with_seed(seed);
    for number in 0..3000 {
        let mut content = vec![0; BLOCK];
        random.fill(&mut content);
        content.extend([(number % 20 + 1) as u8; 60]);
        fs::write(folder.join(number.to_string()), content).unwrap();
    }
    (scratch, vec![folder])
}

#[test]
fn ninety_nine_of_a_hundred_estimates_are_within_their_bounds() {
    let (_scratch, paths) = inputs(1);
    let ratio = compare_with_the_truth(&paths);
    assert!((0.2..0.8).contains(&ratio), "{ratio}");
}

#[test]
fn a_block_counts_for_as_much_as_it_holds() {
    let (_scratch, paths) = inputs_of_short_blocks(1);
    let ratio = compare_with_the_truth(&paths);
    assert!((0.97..0.99).contains(&ratio), "{ratio}");
}

/// Compares an estimate with the truth, and returns the distinct part of the data.
fn compare_with_the_truth(paths: &[PathBuf]) -> f64 {
    let traces = [paths[0].with_extension("trace")];
    let mut exact = trees::options(vec!["fixed:4K".parse().unwrap()], 16 << 20);
    exact.trace = Some(TraceOptions {
        path: traces[0].clone(),
        hides_names: false,
    });
    let exact = analyze(from(paths), &exact, &Progress::default()).unwrap();
    let truth = &exact.chunkings[0];
    let ratio = truth.redundancy.distinct_bytes as f64 / truth.redundancy.bytes as f64;
    for (source, seeds) in [(from(paths), 100), (Source::Traces(&traces), 100)] {
        let (mut within, mut differ) = (0, 0);
        for seed in 0..seeds {
            let found = estimate(source, &options(seed), &Progress::default()).unwrap();
            assert_eq!(found.totals, truth.total);
            assert!(
                found.error <= 0.02 && found.sample_blocks >= 6623,
                "{found:?}"
            );
            let off = (found.distinct_ratio - ratio).abs();
            within += u64::from(off <= found.error);
            differ += u64::from(off > 0.0001);
        }
        assert!(within * 100 >= seeds * 99, "{within} of {seeds}");
        assert!(
            differ * 10 >= seeds * 9,
            "an estimate is no count: {differ}"
        );
    }
    ratio
}

#[test]
fn zeros_are_not_sampled_and_holes_not_even_drawn() {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("disk");
    let mut content = vec![7; 2 * BLOCK];
    content[BLOCK..].fill(8);
    let coarse = EstimateOptions {
        error: 0.2,
        ..options(3)
    };
    let disk = |zeros: &[u8]| {
        let file = fs::File::create(&path).unwrap();
        file.set_len(1 << 34).unwrap();
        file.write_all_at(zeros, 0).unwrap();
        file.write_all_at(&content, 1 << 30).unwrap();
        let found = estimate(
            from(std::slice::from_ref(&path)),
            &coarse,
            &Progress::default(),
        )
        .unwrap();
        assert_eq!(found.totals.chunks - found.totals.zero_chunks, 2);
        found
    };
    let sparse = disk(&[]);
    assert!(sparse.error <= 0.2, "{sparse:?}");
    assert_eq!(sparse.distinct_ratio, 1.0);
    // A disk that is nearly all zeros, stored as such, has a wider bound.
    let stored = disk(&vec![0; 32 << 20]);
    assert!(stored.error > 0.2, "{stored:?}");
    let nothing = estimate(from(&[]), &options(1), &Progress::default()).unwrap();
    assert_eq!((nothing.sample_blocks, nothing.error), (0, 1.0));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (block_bytes, error, confidence) in [
        (1000, 0.01, 0.99),
        (BLOCK, 0.0, 0.99),
        (BLOCK, 1.0, 0.99),
        (BLOCK, f64::NAN, 0.99),
        (BLOCK, 0.01, 1.0),
        (BLOCK, 0.01, -1.0),
    ] {
        let options = EstimateOptions {
            block_bytes,
            error,
            confidence,
            seed: 0,
        };
        assert!(estimate(from(&[]), &options, &Progress::default()).is_err());
    }
}
