//! Faults in stored bytes.

/// Why a structure could not be decoded. The caller adds the place of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Fewer bytes than the structure has.
    #[error("only {got} of {needed} bytes")]
    Short {
        /// Bytes that the structure needs.
        needed: usize,
        /// Bytes that were there.
        got: usize,
    },
    /// Something else, or nothing, was written here.
    #[error("magic number {found:#010x} instead of {expected:#010x}")]
    Magic {
        /// The expected first bytes.
        expected: u32,
        /// The actual first bytes.
        found: u32,
    },
    /// Written by a later release in a way that this one cannot read.
    #[error("format version {major}.{minor}: onefold {major}.x or later can read it")]
    Newer {
        /// Major version found.
        major: u8,
        /// Minor version found.
        minor: u8,
    },
    /// Written by an earlier release in a way that this one does not read.
    #[error("format version {major}.{minor}: only a release before this one can read it")]
    Older {
        /// Major version found.
        major: u8,
        /// Minor version found.
        minor: u8,
    },
    /// The bytes are not as they were written.
    #[error("checksum {found:#010x} instead of {expected:#010x}")]
    Checksum {
        /// The checksum in the bytes, or in the pointer to them.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// Whole, but of another pool.
    #[error("it belongs to another pool")]
    Pool,
    /// Whole, but of another repository.
    #[error("it belongs to another repository")]
    Repository,
    /// Whole, but a field shows that it belongs elsewhere: a misdirected or lost write.
    #[error("{field} is {found}, expected {expected}")]
    Address {
        /// The field that disagrees.
        field: &'static str,
        /// The expected value.
        expected: u64,
        /// The actual value.
        found: u64,
    },
    /// A field has a value that no release has ever written.
    #[error("{field} has the impossible value {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// The field's value.
        value: u64,
    },
    /// Bytes that must be zero are not.
    #[error("reserved bytes of the {structure} are not zero")]
    Reserved {
        /// The structure that holds them.
        structure: &'static str,
    },
}
