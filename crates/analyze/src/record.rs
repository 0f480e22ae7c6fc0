//! The record of a chunk during an analysis.

use onefold_index::Fingerprint;

/// Bits of the fields of a record's second half, from the highest.
const LENGTH_BITS: u32 = 48;
const INPUT_BITS: u32 = 16;
const CATEGORY_BITS: u32 = 16;

/// Positions that can be distinguished: bytes of all files one after another.
pub(crate) const POSITION_END: u64 = 1 << 48;

/// Inputs that can be distinguished.
pub(crate) const INPUTS_MAX: usize = 1 << INPUT_BITS;

/// A chunk and its place. Orders by fingerprint, then by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) fingerprint: u128,
    /// The position of the first byte, in all files one after another with a gap after each.
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) input: u16,
    pub(crate) category: u16,
}

impl Chunk {
    /// The form in which chunks are sorted.
    pub(crate) fn pack(&self) -> (u128, u128) {
        let rest = u128::from(self.position) << (LENGTH_BITS + INPUT_BITS + CATEGORY_BITS)
            | u128::from(self.bytes) << (INPUT_BITS + CATEGORY_BITS)
            | u128::from(self.input) << CATEGORY_BITS
            | u128::from(self.category);
        (self.fingerprint, rest)
    }

    pub(crate) fn unpack(fingerprint: u128, rest: u128) -> Self {
        Self {
            fingerprint,
            position: (rest >> (LENGTH_BITS + INPUT_BITS + CATEGORY_BITS)) as u64,
            bytes: (rest >> (INPUT_BITS + CATEGORY_BITS)) as u64 & ((1 << LENGTH_BITS) - 1),
            input: (rest >> CATEGORY_BITS) as u16,
            category: rest as u16,
        }
    }
}

/// Packs a fingerprint into a number with the same order.
pub(crate) fn pack_fingerprint(Fingerprint(mut bytes): Fingerprint) -> u128 {
    bytes.reverse();
    u128::from_le_bytes(bytes)
}

/// The place of a chunk, and whether there are others like it. Orders by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) is_redundant: bool,
}

impl Place {
    pub(crate) fn pack(&self) -> u128 {
        u128::from(self.position) << 64
            | u128::from(self.bytes) << 1
            | u128::from(self.is_redundant)
    }

    pub(crate) fn unpack(packed: u128) -> Self {
        Self {
            position: (packed >> 64) as u64,
            bytes: packed as u64 >> 1,
            is_redundant: packed & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_keeps_everything_and_the_order(
            a: u128, b: u128,
            places in (0..POSITION_END, 0..POSITION_END),
            bytes in 0..1_u64 << 48,
            input: u16,
            category: u16,
        ) {
            let chunk = |fingerprint, position| Chunk {
                fingerprint, position, bytes, input, category,
            };
            let (one, other) = (chunk(a, places.0), chunk(b, places.1));
            let (fingerprint, rest) = one.pack();
            prop_assert_eq!(Chunk::unpack(fingerprint, rest), one);
            let order = (one.fingerprint, one.position).cmp(&(other.fingerprint, other.position));
            prop_assert_eq!(one.pack().cmp(&other.pack()), order);
            let place = Place { position: places.0, bytes, is_redundant: input % 2 == 0 };
            prop_assert_eq!(Place::unpack(place.pack()), place);
        }
    }
}
