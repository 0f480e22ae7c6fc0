//! The source of all chance in a simulation.
//!
//! Our own, because a failing seed must replay for ever, with any version of any crate.
//! (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators".)

/// A seeded sequence of numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero. Its bias, below 2^-32 for the bounds that occur
    /// here, does not matter.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // Not drawing for 0 keeps a run's other choices the same when a fault is switched off.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// True every other time.
    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}
