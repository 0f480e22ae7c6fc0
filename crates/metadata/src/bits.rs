//! Runs of bits in a bitmap of `u64` words.

use std::ops::Range;

/// The first bit at or after `from` that equals `wanted`; the bitmap's length if there is none.
pub fn find(words: &[u64], from: usize, wanted: bool) -> usize {
    let end = words.len() * 64;
    let mut mask = u64::MAX << (from % 64);
    let mut at = from / 64;
    while at < words.len() {
        let word = if wanted { words[at] } else { !words[at] } & mask;
        if word != 0 {
            return at * 64 + word.trailing_zeros() as usize;
        }
        mask = u64::MAX;
        at += 1;
    }
    end
}

/// Runs of clear bits at or after `from`.
pub fn clear_runs(words: &[u64], from: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    runs(words, from, false)
}

/// Runs of set bits at or after `from`.
pub fn set_runs(words: &[u64], from: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    runs(words, from, true)
}

fn runs(words: &[u64], from: usize, wanted: bool) -> impl Iterator<Item = Range<usize>> + '_ {
    let end = words.len() * 64;
    let mut at = from;
    std::iter::from_fn(move || {
        let start = find(words, at, wanted);
        if start >= end {
            return None;
        }
        at = find(words, start, !wanted);
        Some(start..at)
    })
}

/// The set bits of `range`.
pub fn ones(words: &[u64], range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
    let words = &words[..range.end.div_ceil(64)];
    let mut at = range.start;
    std::iter::from_fn(move || {
        let found = find(words, at, true);
        at = found + 1;
        (found < range.end).then_some(found)
    })
}

/// Sets or clears every bit of `range`.
pub fn fill(words: &mut [u64], range: Range<usize>, value: bool) {
    let mut at = range.start;
    while at < range.end {
        let (word, low) = (at / 64, at % 64);
        let count = (64 - low).min(range.end - at);
        let mask = (u64::MAX >> (64 - count)) << low;
        if value {
            words[word] |= mask;
        } else {
            words[word] &= !mask;
        }
        at += count;
    }
}

/// Whether every bit of `range` equals `value`.
pub fn all(words: &[u64], range: Range<usize>, value: bool) -> bool {
    let words = &words[..range.end.div_ceil(64)];
    find(words, range.start, !value) >= range.end
}
