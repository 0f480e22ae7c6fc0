//! The copy of the log's tail: records that no commit has made durable yet, in memory that outlives
//! the process but not the host.
//!
//! ```text
//!  0 magic              u32     "1FTL"
//!  4 major              u8
//!  5 minor              u8
//!  6 reserved           u16
//!  8 pool               16 bytes
//! 24 boot               16 bytes   the kernel's id of the boot in which it was written
//! 40 position           u64     where the first of its records will stand in the log
//! 48 reserved           u64
//! 56 reserved           u32
//! 60 checksum           u32     CRC-32C of the 60 bytes before
//! 64 entries
//! ```
//!
//! An entry has the records that one request appended to one frame of the log:
//!
//! ```text
//!  0 checksum           u32     CRC-32C of the header's checksum, bytes 4 to 15, and the records
//!  4 length             u32     bytes of records; 0: no entry, and none follows
//!  8 position           u64     where the frame will stand that has these records
//! 16 records
//! ```
//!
//! A process that dies leaves whole entries and perhaps the beginning of one more. The checksum
//! detects that one, and distinguishes an entry of this tail from remains of an earlier one.

use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::units::{PoolId, SECTOR_BYTES};
use crate::{MAJOR_VERSION, MINOR_VERSION};

/// Bytes in a header.
pub const TAIL_HEADER_BYTES: usize = 64;

/// Bytes of an entry before its records.
pub const TAIL_ENTRY_BYTES: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"1FTL");
const CHECKSUM_AT: usize = 60;

/// A tail's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailHeader {
    /// The pool.
    pub pool: PoolId,
    /// The boot of the kernel. A tail of another boot describes data that the host has lost.
    pub boot: [u8; 16],
    /// Position of its first frame: bytes since the log began.
    pub position: u64,
}

impl TailHeader {
    /// The header, and the checksum that the checksums of its entries continue.
    #[must_use]
    pub fn encode(&self) -> ([u8; TAIL_HEADER_BYTES], u32) {
        let mut bytes = [0; TAIL_HEADER_BYTES];
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 4, &[MAJOR_VERSION, MINOR_VERSION]);
        put(&mut bytes, 8, &self.pool.0);
        put(&mut bytes, 24, &self.boot);
        put(&mut bytes, 40, &self.position.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Reads it back, with the checksum that the checksums of its entries continue.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]: there is no tail here, or it was being begun when the process died.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), FormatError> {
        let Some(bytes) = bytes.get(..TAIL_HEADER_BYTES) else {
            return Err(FormatError::Short {
                needed: TAIL_HEADER_BYTES,
                got: bytes.len(),
            });
        };
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(FormatError::Magic {
                expected: MAGIC,
                found: magic,
            });
        }
        let (expected, found) = (
            u32_at(bytes, CHECKSUM_AT),
            crc32c::crc32c(&bytes[..CHECKSUM_AT]),
        );
        if found != expected {
            return Err(FormatError::Checksum { expected, found });
        }
        let (major, minor) = (bytes[4], bytes[5]);
        if major > MAJOR_VERSION {
            return Err(FormatError::Newer { major, minor });
        }
        if major == 0 {
            return Err(FormatError::Field {
                field: "major version",
                value: 0,
            });
        }
        if !is_zero(&bytes[6..8]) || !is_zero(&bytes[48..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "tail header",
            });
        }
        let position = u64_at(bytes, 40);
        if !position.is_multiple_of(SECTOR_BYTES) {
            return Err(FormatError::Field {
                field: "log position",
                value: position,
            });
        }
        let header = Self {
            pool: PoolId(array_at(bytes, 8)),
            boot: array_at(bytes, 24),
            position,
        };
        Ok((header, expected))
    }
}

/// The bytes before the records of an entry. `seed` is the header's checksum.
#[must_use]
pub fn encode_entry(seed: u32, position: u64, records: &[u8]) -> [u8; TAIL_ENTRY_BYTES] {
    let mut bytes = [0; TAIL_ENTRY_BYTES];
    put(&mut bytes, 4, &(records.len() as u32).to_le_bytes());
    put(&mut bytes, 8, &position.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[4..]), records);
    put(&mut bytes, 0, &checksum.to_le_bytes());
    bytes
}

/// Consecutive entries behind a header, up to the first that is not whole.
#[derive(Debug, Clone)]
pub struct TailEntries<'a> {
    seed: u32,
    rest: &'a [u8],
}

impl<'a> TailEntries<'a> {
    /// Those in `bytes`, which begin behind the header whose checksum is `seed`.
    #[must_use]
    pub fn new(seed: u32, bytes: &'a [u8]) -> Self {
        Self { seed, rest: bytes }
    }
}

/// Records of one request for one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailEntry<'a> {
    /// The position of the frame that will have them.
    pub position: u64,
    /// Encoded records, as a frame's payload has them.
    pub records: &'a [u8],
}

impl<'a> Iterator for TailEntries<'a> {
    type Item = TailEntry<'a>;

    fn next(&mut self) -> Option<TailEntry<'a>> {
        let (head, behind) = self.rest.split_at_checked(TAIL_ENTRY_BYTES)?;
        let len = u32_at(head, 4) as usize;
        let (records, rest) = behind.split_at_checked(len)?;
        let position = u64_at(head, 8);
        if len == 0 || head != encode_entry(self.seed, position, records) {
            self.rest = &[];
            return None;
        }
        self.rest = rest;
        Some(TailEntry { position, records })
    }
}
