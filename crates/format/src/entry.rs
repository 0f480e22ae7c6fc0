//! The state of one block in one layer: 56 bits on disk, a `u64` whose top byte is zero in memory.
//!
//! ```text
//! bits  0..40  PBA                     zero unless private or shared
//!      40..43  state                   0 absent, 1 zero, 2 private, 3 shared
//!      43..44  unshareable             private for good: never offered to the finder again
//!      44..48  codec                   0 as it is
//!      48..56  stored length           0 the whole block
//! ```
//!
//! This version does not write codec and stored length, and refuses them, as it refuses the
//! unshareable bit with any state but private.

use crate::error::FormatError;
use crate::units::{PBA_END, Pba, is_run};

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
const STATE_SHARED: u64 = 3;
/// The private state together with the bit above the state.
const STATE_UNSHAREABLE: u64 = STATE_PRIVATE | 1 << 3;

/// The state of one block in one layer.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry(u64);

/// An [`Entry`], taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing: look in the layer below; zeros under the last.
    Absent,
    /// Zeros, which hide the layers below.
    Zero,
    /// This entry alone owns the block; it may be rewritten in place and it may be published.
    Private(Pba),
    /// Like private, but never published: its bytes differ from a block with the same fingerprint,
    /// its run is too short, or it was copied to be the entry's own.
    Unshareable(Pba),
    /// The block is published, or being published, and is not written any more.
    Shared(Pba),
}

impl Entry {
    /// No entry in this layer: look in the layer below.
    pub const ABSENT: Self = Self(0);

    /// Zeros that hide the layers below.
    pub const ZERO: Self = Self(STATE_ZERO << STATE_SHIFT);

    /// A block that this entry alone owns and that the finder may publish.
    ///
    /// # Panics
    ///
    /// If `pba` is 0 or not below [`PBA_END`]: the allocator never hands out such a block.
    #[must_use]
    pub fn private(pba: Pba) -> Self {
        Self::of_block(STATE_PRIVATE, pba)
    }

    /// A block that this entry alone owns and that is never published.
    ///
    /// # Panics
    ///
    /// As [`Entry::private`].
    #[must_use]
    pub fn unshareable(pba: Pba) -> Self {
        Self::of_block(STATE_UNSHAREABLE, pba)
    }

    /// A block that other entries may refer to as well.
    ///
    /// # Panics
    ///
    /// As [`Entry::private`].
    #[must_use]
    pub fn shared(pba: Pba) -> Self {
        Self::of_block(STATE_SHARED, pba)
    }

    fn of_block(state: u64, pba: Pba) -> Self {
        assert!(is_run(pba, 1), "block {pba} cannot be mapped");
        Self(pba.0 | state << STATE_SHIFT)
    }

    /// The entry, taken apart.
    #[must_use]
    pub fn state(self) -> State {
        let pba = Pba(self.0 & (PBA_END - 1));
        match self.0 >> STATE_SHIFT {
            STATE_PRIVATE => State::Private(pba),
            STATE_UNSHAREABLE => State::Unshareable(pba),
            STATE_SHARED => State::Shared(pba),
            STATE_ZERO => State::Zero,
            _ => State::Absent,
        }
    }

    /// The block that holds the data, if there is one.
    #[must_use]
    pub fn pba(self) -> Option<Pba> {
        match self.state() {
            State::Private(pba) | State::Unshareable(pba) | State::Shared(pba) => Some(pba),
            State::Absent | State::Zero => None,
        }
    }

    /// The block that this entry alone owns, if it does: the one that may be rewritten in place.
    #[must_use]
    pub fn own_pba(self) -> Option<Pba> {
        match self.state() {
            State::Private(pba) | State::Unshareable(pba) => Some(pba),
            State::Shared(_) | State::Absent | State::Zero => None,
        }
    }

    /// The entry that follows this one in a run, `count` places on: for an entry with a block, the
    /// next block; otherwise the same. The run must end below [`PBA_END`].
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

    /// Decodes the output of [`Entry::to_bits`].
    ///
    /// # Errors
    ///
    /// [`FormatError::Field`] for every value that this version does not write.
    pub fn from_bits(bits: u64) -> Result<Self, FormatError> {
        let pba = bits & (PBA_END - 1);
        let possible = match bits >> STATE_SHIFT {
            0 | STATE_ZERO => pba == 0,
            STATE_PRIVATE | STATE_UNSHAREABLE | STATE_SHARED => pba != 0,
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
