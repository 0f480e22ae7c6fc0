//! What a layer says of one block: 56 bits on disk, a `u64` whose top byte is zero in memory.
//!
//! ```text
//! bits  0..40  PBA                     zero unless private or shared
//!      40..43  state                   0 absent, 1 zero, 2 private, 3 shared
//!      43..44  kept private            a comparison of bytes found a false match
//!      44..48  codec                   0 as it is
//!      48..56  stored length           0 the whole block
//! ```
//!
//! Codec, stored length, the shared state and the kept-private bit are not written by this
//! version, which refuses them.

use crate::error::FormatError;
use crate::units::{PBA_END, Pba};

/// Bytes that an entry takes in a map page.
pub const ENTRY_BYTES: usize = 7;

const STATE_SHIFT: u32 = 40;

const _: () = assert!(
    PBA_END == 1 << STATE_SHIFT,
    "a PBA ends where the state begins"
);
const _: () = assert!(8 * ENTRY_BYTES == 56, "see the table above");

const STATE_ZERO: u64 = 1;
const STATE_PRIVATE: u64 = 2;

/// What a layer says of one block.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry(u64);

/// An [`Entry`], taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing: look in the layer below; zeros under the last.
    Absent,
    /// Zeros, whatever the layers below hold.
    Zero,
    /// This entry alone owns the block; it may be rewritten in place.
    Private(Pba),
}

impl Entry {
    /// Nothing is said here.
    pub const ABSENT: Self = Self(0);

    /// Zeros that hide what lies below.
    pub const ZERO: Self = Self(STATE_ZERO << STATE_SHIFT);

    /// A block that this entry alone owns.
    ///
    /// # Panics
    ///
    /// Where `pba` is not below [`PBA_END`]: the allocator never hands out such a block.
    #[must_use]
    pub fn private(pba: Pba) -> Self {
        assert!(
            pba.0 != 0 && pba.0 < PBA_END,
            "block {pba} cannot be mapped"
        );
        Self(pba.0 | STATE_PRIVATE << STATE_SHIFT)
    }

    /// The entry, taken apart.
    #[must_use]
    pub fn state(self) -> State {
        match self.0 >> STATE_SHIFT {
            STATE_PRIVATE => State::Private(Pba(self.0 & (PBA_END - 1))),
            STATE_ZERO => State::Zero,
            _ => State::Absent,
        }
    }

    /// The block that holds the data, if there is one.
    #[must_use]
    pub fn pba(self) -> Option<Pba> {
        match self.state() {
            State::Private(pba) => Some(pba),
            State::Absent | State::Zero => None,
        }
    }

    /// The entry that follows this one in a run: the next block for a mapped one, else the same.
    #[must_use]
    pub fn successor(self, count: u64) -> Self {
        if self.pba().is_some() {
            Self(self.0 + count)
        } else {
            self
        }
    }

    /// The entry as a record stores it.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Decodes what [`Entry::to_bits`] gave.
    ///
    /// # Errors
    ///
    /// [`FormatError::Field`] for every value that this version does not write.
    pub fn from_bits(bits: u64) -> Result<Self, FormatError> {
        let pba = bits & (PBA_END - 1);
        let possible = match bits >> STATE_SHIFT {
            0 | STATE_ZERO => pba == 0,
            STATE_PRIVATE => pba != 0,
            _ => false,
        };
        if possible {
            Ok(Self(bits))
        } else {
            Err(FormatError::Field {
                field: "map entry",
                value: bits,
            })
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let [a, b, c, d, e, f, g, _] = self.0.to_le_bytes();
        [a, b, c, d, e, f, g]
    }

    pub(crate) fn from_bytes(bytes: [u8; ENTRY_BYTES]) -> Result<Self, FormatError> {
        let [a, b, c, d, e, f, g] = bytes;
        Self::from_bits(u64::from_le_bytes([a, b, c, d, e, f, g, 0]))
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}
