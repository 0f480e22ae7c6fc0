//! Blocks that the finder reads before it publishes them.
//!
//! Invariant: while a slot's bit is set, neither the slot's entry nor the content of its block has changed since the bit
//! was set. The finder sets bits under the blocks' lock, so no write to them is in progress, reads the blocks without
//! it, and publishes those whose bits are still set under the lock again. A writer clears the bits of its blocks under their lock, before it
//! writes; every change of a map clears those of its entries. A segment with candidates stays in memory, because the finder holds it.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use onefold_format::units::BLOCKS_PER_SEGMENT;

use crate::heat::SlotBits;
use crate::sync::AtomicU64;

const WORDS: usize = BLOCKS_PER_SEGMENT as usize / 64;

/// The candidates of one segment.
pub struct Candidates([AtomicU64; WORDS]);

impl Candidates {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Makes these slots candidates, besides others. The caller holds their blocks' lock.
    pub fn add(&self, slots: &SlotBits) {
        for (word, bits) in self.0.iter().zip(slots) {
            word.fetch_or(*bits, Relaxed);
        }
    }

    /// The present candidates.
    pub fn slots(&self) -> SlotBits {
        std::array::from_fn(|word| self.0[word].load(Relaxed))
    }

    /// Drops the candidates among these slots, whose blocks or entries are about to change.
    #[inline]
    pub fn drop_any(&self, slots: Range<usize>) {
        let mut at = slots.start;
        while at < slots.end {
            let (word, low) = (at / 64, at % 64);
            let count = (64 - low).min(slots.end - at);
            let mask = (u64::MAX >> (64 - count)) << low;
            // Mostly there are none, and then no cache line moves.
            if self.0[word].load(Relaxed) & mask != 0 {
                self.0[word].fetch_and(!mask, Relaxed);
            }
            at += count;
        }
    }

    /// Drops these candidates.
    pub fn drop_all(&self, slots: &SlotBits) {
        for (word, bits) in self.0.iter().zip(slots) {
            word.fetch_and(!bits, Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::heat::has;

    #[test]
    fn a_change_drops_its_own_candidates_only() {
        let candidates = Candidates::new();
        candidates.add(&[u64::MAX; WORDS]);
        candidates.drop_any(60..70);
        let left = candidates.slots();
        assert!((0..512).all(|slot| has(&left, slot) != (60..70).contains(&slot)));
        let mut some = SlotBits::default();
        some[0] = 1;
        candidates.drop_all(&some);
        assert!(!has(&candidates.slots(), 0) && has(&candidates.slots(), 1));
        candidates.add(&some);
        assert!(has(&candidates.slots(), 0));
        candidates.drop_any(0..512);
        assert_eq!(candidates.slots(), SlotBits::default());
    }
}
