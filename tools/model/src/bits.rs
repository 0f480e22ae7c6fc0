//! A set of small numbers (blocks, contents, readers) in one byte.

/// A set of numbers from 0 to 7.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bits(u8);

impl Bits {
    /// The empty set.
    pub const NONE: Bits = Bits(0);

    /// The set of the numbers below `n`.
    pub fn below(n: u8) -> Bits {
        Bits((0..n).fold(0, |bits, i| bits | 1 << i))
    }

    /// The set of `i` alone.
    pub fn of(i: u8) -> Bits {
        Bits(1 << i)
    }

    /// Whether `i` is in the set.
    pub fn has(self, i: u8) -> bool {
        self.0 & (1 << i) != 0
    }

    /// Adds `i`.
    pub fn insert(&mut self, i: u8) {
        self.0 |= 1 << i;
    }

    /// Removes `i`.
    pub fn remove(&mut self, i: u8) {
        self.0 &= !(1 << i);
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members of either set.
    pub fn or(self, other: Bits) -> Bits {
        Bits(self.0 | other.0)
    }

    /// The members of both sets.
    pub fn and(self, other: Bits) -> Bits {
        Bits(self.0 & other.0)
    }

    /// The members of this set that the other one lacks.
    pub fn minus(self, other: Bits) -> Bits {
        Bits(self.0 & !other.0)
    }

    /// Whether the other set has all members of this one.
    pub fn within(self, other: Bits) -> bool {
        self.minus(other).is_empty()
    }

    /// The members in rising order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |i| self.has(*i))
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
