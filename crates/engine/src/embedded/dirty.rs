//! Marks that many threads set and one takes.
//!
//! Invariant: a mark is taken by some [`Dirty::take`] that began after it was set, or by one that
//! was running.

use super::sync::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// A set of small numbers.
pub(super) struct Dirty {
    words: Box<[AtomicU64]>,
}

impl Dirty {
    /// Room for the numbers below `count`.
    pub(super) fn new(count: usize) -> Dirty {
        let words = (0..count.div_ceil(BITS)).map(|_| AtomicU64::new(0));
        Dirty {
            words: words.collect(),
        }
    }

    /// Adds a number below the count.
    pub(super) fn mark(&self, number: usize) {
        let word = &self.words[number / BITS];
        let bit = 1 << (number % BITS);
        // Most writes go where others went before: a look is cheaper than a change.
        if word.load(Ordering::Acquire) & bit == 0 {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Takes all numbers out, in order, and calls `each` with one after the other.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) {
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = match word.load(Ordering::Acquire) {
                0 => 0,
                _ => word.swap(0, Ordering::AcqRel),
            };
            while bits != 0 {
                each(index * BITS + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}
