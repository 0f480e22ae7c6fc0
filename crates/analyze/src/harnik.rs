//! Harnik's method: estimates redundancy, within a bound, in memory that does not depend on the
//! data [Meister13 §2.4].
//!
//! Two passes. The first draws bytes at random, each equally likely, and keeps the fingerprints of
//! their blocks. The second counts how often each of these occurs in all of the data. For a block
//! that occurs `c` times, one `c`-th has to be stored, so the mean of that over the sample is an
//! estimate of the part of the data that is distinct. It is the mean of independent numbers from 0
//! to 1 whose expectation is that part, so by Hoeffding's inequality it is off by more than `e`
//! with a probability of at most `2 exp(-2 m e^2)`, for any data. Blocks at the ends of files are
//! short: drawn as often as whole ones they would count for more than their size.
//!
//! Blocks of zeros are counted and not sampled: nothing is drawn from holes, and drawing continues
//! until enough nonzero blocks were drawn.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;
use onefold_image::Backing;
use rustc_hash::FxHashMap;

use crate::AnalyzeError;
use crate::analysis::Source;
use crate::chunking::Chunking;
use crate::record::pack_fingerprint;
use crate::scan::{Cutting, Progress, Sink, Totals, window_bytes};
use crate::trace::each_fingerprint;
use crate::walk::{Found, Met, Problem, Survey, walk};
use crate::worker::fingerprint_key;
use onefold_index::is_zero;

/// The most passes of drawing; each draws the number that the previous ones were short of.
const ROUNDS: u32 = 16;

/// The most bytes drawn in total, per byte needed: if nearly all are zeros, the sample stays
/// smaller, and the bound is wider.
const DRAWS_MAX: u64 = 64;

/// The most bytes drawn in a round, per byte needed: their places are in memory.
const ROUND_DRAWS_MAX: u64 = DRAWS_MAX / ROUNDS as u64;

/// Memory for each block of a sample: 112 bytes for its fingerprint and its counts, in tables that are half empty, and 40 for
/// the place and the fingerprint of each byte of a round.
const SAMPLE_BLOCK_BYTES: u64 = 112 + ROUND_DRAWS_MAX * 40;

/// Bytes drawn from a file that are worth a thread.
const PLACES_MIN: usize = 256;

/// The options of an estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EstimateOptions {
    /// Size of blocks, in bytes.
    pub block_bytes: usize,
    /// The largest error of the estimate, as a part of the data: above 0 and below 1.
    pub error: f64,
    /// The probability that the error is not larger: above 0 and below 1.
    pub confidence: f64,
    /// The seed, which determines the bytes drawn.
    pub seed: u64,
}

impl EstimateOptions {
    /// The memory that the sample may take, in bytes.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        wanted(self.error, self.confidence).saturating_mul(SAMPLE_BLOCK_BYTES)
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// [`AnalyzeError::Usage`], with the option.
    pub fn check(&self) -> Result<(), AnalyzeError> {
        let is_part = |value: f64| value > 0.0 && value < 1.0;
        if is_part(self.error) && is_part(self.confidence) {
            return Ok(());
        }
        Err(AnalyzeError::usage(format!(
            "an error of {} % with a confidence of {} % cannot be had: both are above 0 % and below 100 %",
            100.0 * self.error,
            100.0 * self.confidence
        )))
    }
}

/// The estimate.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Blocks and bytes, which are exact.
    pub totals: Totals,
    /// The part of the data without zeros that has to be stored: distinct bytes of all bytes.
    pub distinct_ratio: f64,
    /// The largest error, with the requested confidence. Larger than requested if not enough nonzero
    /// blocks were found.
    pub error: f64,
    /// The number of bytes that were drawn, each with its block.
    pub sample_blocks: u64,
    /// Totals of the inputs.
    pub survey: Survey,
    /// Files that begin like qcow2 images and were read as plain files.
    pub unopened_disks: u64,
    /// Files that could not be read, or that changed while they were read.
    pub problems: Vec<Problem>,
    /// Whether all inputs were read to their ends.
    pub is_complete: bool,
}

/// Fingerprints that were drawn, and how often they occur.
pub(crate) struct Sample {
    places: FxHashMap<u128, usize>,
    /// How often each fingerprint was drawn.
    drawn: Vec<u64>,
    counts: Vec<AtomicU64>,
}

impl Sample {
    fn new() -> Self {
        Self {
            places: FxHashMap::default(),
            drawn: Vec::new(),
            counts: Vec::new(),
        }
    }

    fn add(&mut self, fingerprint: u128) {
        let next = self.drawn.len();
        let place = *self.places.entry(fingerprint).or_insert(next);
        if place == next {
            self.drawn.push(0);
            self.counts.push(AtomicU64::new(0));
        }
        self.drawn[place] += 1;
    }

    fn blocks(&self) -> u64 {
        self.drawn.iter().sum()
    }

    /// Counts chunks of the second pass.
    pub(crate) fn count(&self, chunks: &mut Vec<(u128, u128)>) {
        for (fingerprint, _) in chunks.drain(..) {
            if let Some(place) = self.places.get(&fingerprint) {
                self.counts[*place].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The mean of the parts that have to be stored.
    fn distinct_ratio(&self) -> f64 {
        let both = self.drawn.iter().zip(&self.counts);
        let stored: f64 = both
            .map(|(drawn, count)| *drawn as f64 / count.load(Ordering::Relaxed).max(1) as f64)
            .sum();
        stored / self.blocks().max(1) as f64
    }
}

/// The number of blocks needed in the sample [Hoeffding].
fn wanted(error: f64, confidence: f64) -> u64 {
    ((2.0 / (1.0 - confidence)).ln() / (2.0 * error * error)).ceil() as u64
}

/// The bound that a sample of this size guarantees.
fn bound(blocks: u64, confidence: f64) -> f64 {
    match blocks {
        0 => 1.0,
        blocks => ((2.0 / (1.0 - confidence)).ln() / (2.0 * blocks as f64))
            .sqrt()
            .min(1.0),
    }
}

/// Estimates the distinct part of the inputs.
///
/// # Errors
///
/// For invalid options, and for traces that are not whole. Problems of single files are in the
/// estimate.
pub fn estimate(
    source: Source<'_>,
    options: &EstimateOptions,
    progress: &Progress,
) -> Result<Estimate, AnalyzeError> {
    let chunking = Chunking::fixed(options.block_bytes).map_err(AnalyzeError::usage)?;
    options.check()?;
    let sample = match source {
        Source::Paths { paths, disks } => draw(paths, disks, options, progress),
        Source::Traces(traces) => draw_from_traces(traces, chunking, options, progress)?,
    };
    let window = window_bytes(&[chunking])
        .ok_or_else(|| AnalyzeError::usage("blocks of this size do not fit a window"))?;
    let cutting = Cutting {
        chunkings: &[chunking],
        sinks: &[Sink::Count(&sample)],
        window,
        trace: None,
    };
    let scanned = source.scan(&cutting, progress)?;
    let mut totals = Totals::default();
    scanned
        .totals
        .iter()
        .flatten()
        .for_each(|part| totals.add(part));
    Ok(Estimate {
        totals,
        distinct_ratio: sample.distinct_ratio(),
        error: bound(sample.blocks(), options.confidence),
        sample_blocks: sample.blocks(),
        survey: scanned.survey,
        unopened_disks: scanned.unopened_disks,
        problems: scanned.problems,
        is_complete: scanned.is_complete,
    })
}

/// Runs the first pass. Unreadable files are skipped; the second pass reports them.
fn draw(
    paths: &[PathBuf],
    disks: Option<Backing>,
    options: &EstimateOptions,
    progress: &Progress,
) -> Sample {
    let files = || paths.iter().flat_map(|path| walk(path, disks));
    let block_bytes = options.block_bytes as u64;
    let bytes: u64 = files()
        .map(|met| bytes_in(&data_of(&met, block_bytes)))
        .sum();
    let wanted = wanted(options.error, options.confidence);
    let mut random = Rng::with_seed(options.seed);
    let (mut sample, mut drawn) = (Sample::new(), 0);
    for _ in 0..ROUNDS {
        let missing = wanted.saturating_sub(sample.blocks());
        let most = wanted.saturating_mul(DRAWS_MAX).saturating_sub(drawn);
        let most = most.min(wanted.saturating_mul(ROUND_DRAWS_MAX));
        // One in `each` drawn bytes was in a nonzero block.
        let each = drawn as f64 / sample.blocks().max(1) as f64;
        let count = ((missing as f64 * each.max(1.0)).ceil() as u64).min(most);
        if bytes == 0 || count == 0 || progress.is_stopping() {
            break;
        }
        let mut places: Vec<u64> = (0..count).map(|_| random.u64(..bytes)).collect();
        places.sort_unstable();
        read_places(files(), &places, options.block_bytes, &mut sample);
        drawn += count;
    }
    sample
}

/// Runs the first pass over traces, and one before it that counts. They have no zeros to draw, so
/// one round is enough.
fn draw_from_traces(
    traces: &[PathBuf],
    chunking: Chunking,
    options: &EstimateOptions,
    progress: &Progress,
) -> Result<Sample, AnalyzeError> {
    let mut bytes = 0;
    each_fingerprint(traces, chunking, progress, |_, chunk_bytes| {
        bytes += chunk_bytes
    })?;
    let mut random = Rng::with_seed(options.seed);
    let mut sample = Sample::new();
    if bytes == 0 {
        return Ok(sample);
    }
    let count = wanted(options.error, options.confidence);
    let mut places: Vec<u64> = (0..count).map(|_| random.u64(..bytes)).collect();
    places.sort_unstable();
    let (mut end, mut places) = (0, places.into_iter().peekable());
    each_fingerprint(traces, chunking, progress, |fingerprint, chunk_bytes| {
        end += chunk_bytes;
        while places.next_if(|place| *place < end).is_some() {
            sample.add(fingerprint);
        }
    })?;
    Ok(sample)
}

/// The ranges of a file that hold data, in whole blocks, ascending; empty if it cannot be read.
fn data_of(met: &Met, block_bytes: u64) -> Vec<Range<u64>> {
    let mut data: Vec<Range<u64>> = Vec::new();
    let Met::File(found) = met else {
        return data;
    };
    let Ok(mut image) = found.open() else {
        return data;
    };
    let mut at = 0;
    while at < found.bytes
        && let Ok(Some(next)) = image.next_data(at)
    {
        let start = next.start / block_bytes * block_bytes;
        let end = next.end.div_ceil(block_bytes).saturating_mul(block_bytes);
        let range = start.max(at)..end.min(found.bytes);
        if range.is_empty() {
            break;
        }
        at = range.end;
        match data.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => data.push(range),
        }
    }
    data
}

fn bytes_in(data: &[Range<u64>]) -> u64 {
    data.iter().map(|range| range.end - range.start).sum()
}

/// The places in a file of these bytes of its data, ascending.
fn places_in(data: &[Range<u64>], bytes: &[u64]) -> Vec<u64> {
    let (mut places, mut before) = (Vec::with_capacity(bytes.len()), 0);
    let mut bytes = bytes.iter().copied().peekable();
    for range in data {
        let len = range.end - range.start;
        while let Some(byte) = bytes.next_if(|byte| *byte < before + len) {
            places.push(range.start + (byte - before));
        }
        before += len;
    }
    places
}

/// Reads the blocks that contain these bytes, which are ascending positions in all files one after
/// another. The blocks of one file are read on all processors.
fn read_places(
    files: impl Iterator<Item = Met>,
    places: &[u64],
    block_bytes: usize,
    sample: &mut Sample,
) {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (mut first, mut rest) = (0, places);
    for met in files {
        let data = data_of(&met, block_bytes as u64);
        let end = first + bytes_in(&data);
        let (inside, after) = rest.split_at(rest.partition_point(|place| *place < end));
        if let Met::File(found) = met
            && !inside.is_empty()
        {
            let inside: Vec<u64> = inside.iter().map(|place| place - first).collect();
            let inside = places_in(&data, &inside);
            let read = |places: &[u64]| fingerprints(&found, places, block_bytes);
            let part = inside.len().div_ceil(workers).max(PLACES_MIN);
            let parts: Vec<Vec<u128>> = thread::scope(|scope| {
                let (own, others) = inside.split_at(part.min(inside.len()));
                let others = others.chunks(part);
                let threads: Vec<_> = others.map(|part| scope.spawn(|| read(part))).collect();
                let own = read(own);
                let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
                    Ok(done) => done,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                let others = threads.into_iter().map(join);
                std::iter::once(own).chain(others).collect()
            });
            let found = parts.into_iter().flatten();
            found.for_each(|fingerprint| sample.add(fingerprint));
        }
        (first, rest) = (end, after);
    }
}

/// The fingerprints of the blocks that contain these bytes of a file, if they can be read and are
/// not zeros.
fn fingerprints(found: &Found, places: &[u64], block_bytes: usize) -> Vec<u128> {
    let Ok(mut image) = found.open() else {
        return Vec::new();
    };
    let key = fingerprint_key();
    let mut block = vec![0; block_bytes];
    let mut fingerprints = Vec::with_capacity(places.len());
    let (mut last_at, mut last) = (None, None);
    for place in places {
        let at = place / block_bytes as u64 * block_bytes as u64;
        if last_at == Some(at) {
            fingerprints.extend(last);
            continue;
        }
        let bytes = found.bytes.saturating_sub(at).min(block_bytes as u64) as usize;
        let block = &mut block[..bytes];
        let has_data = image.read(at, block).is_ok() && !is_zero(block);
        last_at = Some(at);
        last = has_data.then(|| pack_fingerprint(key.fingerprint(block)));
        fingerprints.extend(last);
    }
    fingerprints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_large_as_their_bounds_need() {
        // One percent with a probability of 99.9 %: the bound of FS-C [Meister13 §2.4].
        let blocks = wanted(0.01, 0.999);
        assert_eq!(blocks, 38_005);
        assert!(bound(blocks, 0.999) <= 0.01 && bound(blocks - 1, 0.999) > 0.01);
        assert_eq!(bound(0, 0.5), 1.0);
        let options = |error| EstimateOptions {
            block_bytes: 4096,
            error,
            confidence: 0.999,
            seed: 0,
        };
        assert!(
            options(0.01).sample_bytes() < 16 << 20,
            "as documents promise"
        );
        assert_eq!(options(1e-12).sample_bytes(), u64::MAX);
    }
}
