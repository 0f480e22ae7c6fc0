//! A pseudo-random order of the numbers below a bound, without a list of them.

/// Passes of mixing. With two of them chi-square still distinguishes the order from a random one.
const ROUNDS: usize = 4;

/// A bijection of the numbers below a bound, which follows from a seed.
///
/// Each round is a bijection of the numbers of this many bits: a key is added, an odd number
/// multiplied, and the upper half folded into the lower one. A result beyond the bound goes through
/// once more, which happens less than once on average, because the bound is more than half of the
/// range.
#[derive(Debug, Clone)]
pub struct Permutation {
    bound: u64,
    mask: u64,
    shift: u32,
    keys: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// A permutation of the numbers below `bound`, which is at most 2^63.
    #[must_use]
    pub fn new(bound: u64, seed: u64) -> Self {
        let bits = (u64::BITS - bound.saturating_sub(1).leading_zeros()).max(2);
        let key = |round: usize| {
            let key = |n: usize| mix(seed.wrapping_add(mix((2 * round + n) as u64)));
            (key(0), key(1) | 1)
        };
        Self {
            bound,
            mask: u64::MAX >> (u64::BITS - bits),
            shift: bits.div_ceil(2),
            keys: std::array::from_fn(key),
        }
    }

    /// The number in this place, which is below the bound.
    #[must_use]
    pub fn at(&self, place: u64) -> u64 {
        let mut number = place;
        loop {
            for (add, multiply) in &self.keys {
                number = number.wrapping_add(*add).wrapping_mul(*multiply) & self.mask;
                number ^= number >> self.shift;
            }
            if number < self.bound || self.bound == 0 {
                return number;
            }
        }
    }
}

/// Mixes all bits of a number: the output function of SplitMix64.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
