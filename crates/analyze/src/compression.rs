//! How well distinct chunks compress.
//!
//! Chunks are sampled by their fingerprints: the sample has the chunks whose fingerprint ends in
//! enough zero bits. So each distinct chunk has the same chance, however often and wherever it
//! occurs, and the sample of a data set is the same for any reader and order. When the sample grows
//! too large, one more bit has to be zero.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use lz4_flex::block::compress_into;
use onefold_format::trace::TraceUnit;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// The most chunks in a sample.
const SAMPLE_MAX: usize = 4096;

/// Bytes that are compressed together as a group.
pub(crate) const GROUP_BYTES: usize = 64 << 10;

/// In a sample, one chunk in two to the power of this begins a group that is compressed.
const GROUP_BITS: u32 = 3;

/// The result of compressing one kind of unit with LZ4. A unit that does not shrink is kept
/// uncompressed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Compressed {
    /// Units in the sample.
    pub sampled: u64,
    /// The units' size, in bytes.
    pub bytes: u64,
    /// The units' compressed size, in bytes.
    pub compressed_bytes: u64,
    /// The standard error of the mean ratio of a unit: the truth is within twice this in 95 of 100
    /// cases.
    pub standard_error: f64,
    /// Units by compressed size: up to a tenth of their size, up to two tenths, and so on.
    pub by_tenth: [u64; 10],
}

/// How well distinct chunks compress.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Compressibility {
    /// Chunks compressed one by one.
    pub chunks: Compressed,
    /// Groups of 64 KiB that begin with such a chunk; only for fixed blocks.
    pub groups: Compressed,
}

/// Takes the sample. Any number of threads may offer chunks.
#[derive(Default)]
pub(crate) struct Sampler {
    zero_bits: AtomicU32,
    found: Mutex<FxHashMap<u128, Sampled>>,
}

/// The compressed sizes of a chunk and its group, at the lowest position seen.
struct Sampled {
    position: u64,
    chunk: Sizes,
    group: Option<Sizes>,
}

#[derive(Clone, Copy)]
struct Sizes {
    bytes: u32,
    compressed: u32,
}

impl Sampler {
    /// Whether a chunk with this fingerprint belongs to the sample, as far as is known now.
    pub(crate) fn wants(&self, fingerprint: u128) -> bool {
        fingerprint.trailing_zeros() >= self.zero_bits.load(Ordering::Relaxed)
    }

    /// Adds a chunk to the sample. `following` are the bytes from the chunk's first on, as many as
    /// are available.
    pub(crate) fn take(
        &self,
        fingerprint: u128,
        position: u64,
        chunk: &[u8],
        following: Option<&[u8]>,
        scratch: &mut Vec<u8>,
    ) {
        let is_known = |found: &FxHashMap<u128, Sampled>| {
            let known = found.get(&fingerprint);
            known.is_some_and(|known| known.position <= position)
        };
        if is_known(&self.lock()) {
            return;
        }
        let zero_bits = self.zero_bits.load(Ordering::Relaxed);
        let has_group = fingerprint.trailing_zeros() >= zero_bits + GROUP_BITS;
        let group = following.and_then(|bytes| bytes.get(..GROUP_BYTES));
        let sampled = Sampled {
            position,
            chunk: compress(chunk, scratch),
            group: group
                .filter(|_| has_group)
                .map(|bytes| compress(bytes, scratch)),
        };
        let mut found = self.lock();
        if is_known(&found) || !self.wants(fingerprint) {
            return;
        }
        found.insert(fingerprint, sampled);
        self.prune(&mut found);
    }

    fn prune(&self, found: &mut FxHashMap<u128, Sampled>) {
        while found.len() > SAMPLE_MAX {
            let zero_bits = self.zero_bits.fetch_add(1, Ordering::Relaxed) + 1;
            found.retain(|fingerprint, _| fingerprint.trailing_zeros() >= zero_bits);
        }
    }

    /// The sample in a trace's form, and the number of bits that have to be zero.
    pub(crate) fn units(&self) -> (u32, Vec<TraceUnit>) {
        let found = self.lock();
        let mut units: Vec<TraceUnit> = found
            .iter()
            .map(|(fingerprint, sampled)| {
                let group = sampled.group.unwrap_or(Sizes {
                    bytes: 0,
                    compressed: 0,
                });
                TraceUnit {
                    fingerprint: *fingerprint,
                    position: sampled.position,
                    bytes: sampled.chunk.bytes,
                    compressed_bytes: sampled.chunk.compressed,
                    group_bytes: group.bytes,
                    compressed_group_bytes: group.compressed,
                }
            })
            .collect();
        units.sort_unstable_by_key(|unit| unit.fingerprint);
        (self.zero_bits.load(Ordering::Relaxed), units)
    }

    /// Adds the sample of a trace whose positions begin at `first_position`.
    pub(crate) fn take_units(&self, zero_bits: u32, units: &[TraceUnit], first_position: u64) {
        let mut found = self.lock();
        if zero_bits > self.zero_bits.fetch_max(zero_bits, Ordering::Relaxed) {
            found.retain(|fingerprint, _| fingerprint.trailing_zeros() >= zero_bits);
        }
        for unit in units.iter().filter(|unit| self.wants(unit.fingerprint)) {
            let position = first_position + unit.position;
            let chunk = Sizes {
                bytes: unit.bytes,
                compressed: unit.compressed_bytes,
            };
            let group = Sizes {
                bytes: unit.group_bytes,
                compressed: unit.compressed_group_bytes,
            };
            // Traces are read in the order of their positions: the known one is at a lower
            // position.
            found.entry(unit.fingerprint).or_insert(Sampled {
                position,
                chunk,
                group: (group.bytes > 0).then_some(group),
            });
        }
        self.prune(&mut found);
    }

    pub(crate) fn finish(self) -> Compressibility {
        let zero_bits = self.zero_bits.into_inner();
        let found = self.found.into_inner();
        let found = found.unwrap_or_else(PoisonError::into_inner);
        // Sorted, whichever thread found them, so that sums are the same to the last digit.
        let mut found: Vec<(u128, Sampled)> = found.into_iter().collect();
        found.sort_unstable_by_key(|(fingerprint, _)| *fingerprint);
        let chunks = found.iter().map(|(_, sampled)| sampled.chunk);
        let group_bits = zero_bits + GROUP_BITS;
        let groups = found
            .iter()
            .filter(|(fingerprint, _)| fingerprint.trailing_zeros() >= group_bits);
        Compressibility {
            chunks: Compressed::of(chunks),
            groups: Compressed::of(groups.filter_map(|(_, sampled)| sampled.group)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<u128, Sampled>> {
        // A thread that panicked has ended the whole analysis.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compress(bytes: &[u8], scratch: &mut Vec<u8>) -> Sizes {
    scratch.resize(lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
    let compressed = compress_into(bytes, scratch).unwrap_or(bytes.len());
    // Chunks have 16 MiB at most.
    Sizes {
        bytes: bytes.len() as u32,
        compressed: compressed.min(bytes.len()) as u32,
    }
}

impl Compressed {
    fn of(units: impl Iterator<Item = Sizes> + Clone) -> Self {
        let mut sum = Self::default();
        let left = |unit: Sizes| f64::from(unit.compressed) / f64::from(unit.bytes.max(1));
        let mut parts = 0.0;
        for unit in units.clone() {
            sum.sampled += 1;
            sum.bytes += u64::from(unit.bytes);
            sum.compressed_bytes += u64::from(unit.compressed);
            parts += left(unit);
            // A unit of exactly a tenth counts for the first tenth.
            let tenth = (unit.compressed * 10).div_ceil(unit.bytes.max(1)).max(1) - 1;
            if let Some(count) = sum.by_tenth.get_mut(tenth as usize) {
                *count += 1;
            }
        }
        if sum.sampled > 1 {
            let count = sum.sampled as f64;
            let mean = parts / count;
            let squares: f64 = units.map(|unit| (left(unit) - mean).powi(2)).sum();
            sum.standard_error = (squares / (count - 1.0) / count).sqrt();
        }
        sum
    }

    /// The compressed size as a part of the size; 1 if there are no units.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.bytes {
            0 => 1.0,
            bytes => self.compressed_bytes as f64 / bytes as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the chunks are random, and half are one repeated byte; each of these occurs a hundred
    /// times.
    #[test]
    fn the_sample_is_of_distinct_chunks_and_the_same_in_any_order() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut blocks: Vec<(u128, u64, Vec<u8>)> = Vec::new();
        for n in 0..20_000_u64 {
            let mut block = vec![n as u8; 512];
            let copies = match n % 2 {
                0 => {
                    random.fill(&mut block);
                    1
                }
                _ => 100,
            };
            let fingerprint = random.u128(..);
            blocks.extend((0..copies).map(|copy| (fingerprint, copy * 20_000 + n, block.clone())));
        }
        let sample = |blocks: &[(u128, u64, Vec<u8>)]| {
            let sampler = Sampler::default();
            let mut scratch = Vec::new();
            for (fingerprint, position, block) in blocks {
                if sampler.wants(*fingerprint) {
                    let following = block.repeat(GROUP_BYTES / 512);
                    sampler.take(
                        *fingerprint,
                        *position,
                        block,
                        Some(&following),
                        &mut scratch,
                    );
                }
            }
            sampler.finish()
        };
        let found = sample(&blocks);
        assert!((SAMPLE_MAX as u64 / 4..=SAMPLE_MAX as u64).contains(&found.chunks.sampled));
        let left = found.chunks.ratio();
        assert!(
            (left - 0.5).abs() < 5.0 * found.chunks.standard_error + 0.05,
            "{left}"
        );
        assert_eq!(found.chunks.by_tenth[1..9], [0; 8]);
        assert!(found.groups.sampled > 0 && found.groups.ratio() < 0.1);
        random.shuffle(&mut blocks);
        assert_eq!(sample(&blocks), found);
    }
}
