//! A file of a host's cache of pack tables. The repository does not contain it; without it, the host reads the tables
//! of all packs.
//!
//! ```text
//! header   64 bytes
//! packs    64 bytes each, in any order
//! tables   for each pack, its table without fingerprints and with empty groups, compressed with zstd
//! rows     12 bytes each, in ascending order, up to the end of the file
//! ```
//!
//! The header:
//!
//! ```text
//!  0 magic       u32        "1FTC"
//!  4 version     u32        1
//!  8 repository  16 bytes   its id
//! 24 store       u64        the id of the source, or of the store of popular blocks
//! 32 rows        u64        how many rows there are
//! 40 packs       u32        how many packs there are
//! 44 zeros       16 bytes
//! 60 checksum    u32        CRC-32C of header and packs with this field zero
//! ```
//!
//! A pack:
//!
//! ```text
//!  0 number        u64
//!  8 generation    u32
//! 12 table         u32        compressed bytes
//! 16 witness       16 bytes
//! 32 stored bytes  u64        of the pack's object
//! 40 table at      u64        bytes from the start of the file
//! 48 checksum      u32        CRC-32C of the compressed table
//! 52 zeros         12 bytes
//! ```
//!
//! A row says that a pack has a content, stored or moved: the first 8 bytes of the content's fingerprint, a `u64`, and
//! the pack's place in the file's list of packs, a `u32`.

use super::manifest::PackReference;
use super::object::{RepositoryId, SourceId};
use super::pack::Witness;
use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::cursor::impossible;
use crate::error::FormatError;

/// Bytes in the header.
pub const CACHE_HEADER_BYTES: usize = 64;

/// Bytes in a pack.
pub const CACHED_PACK_BYTES: usize = 64;

/// Bytes in a row.
pub const CACHED_ROW_BYTES: usize = 12;

const MAGIC: u32 = u32::from_le_bytes(*b"1FTC");
const VERSION: u32 = 1;
const CHECKSUM_AT: usize = 60;

/// The start of a file of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheHeader {
    /// The repository.
    pub repository: RepositoryId,
    /// The source that has the packs, or the store of popular blocks.
    pub store: SourceId,
    /// How many rows there are.
    pub rows: u64,
    /// How many packs there are.
    pub packs: u32,
}

/// A pack whose table was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPack {
    /// The pack's number and witness.
    pub pack: PackReference,
    /// The pack's generation.
    pub generation: u32,
    /// Bytes of the pack's object.
    pub stored_bytes: u64,
    /// Where the pack's compressed table is, in bytes from the start of the file.
    pub table_at: u64,
    /// Bytes of the compressed table.
    pub table_bytes: u32,
    /// CRC-32C of the compressed table.
    pub table_checksum: u32,
}

/// A content that a pack has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedRow {
    /// The first 8 bytes of the content's fingerprint.
    pub word: u64,
    /// The pack's place in the file's list of packs.
    pub pack: u32,
}

impl CacheHeader {
    /// Encodes the header; its checksum covers `packs`, the bytes of the packs.
    #[must_use]
    pub fn encode(&self, packs: &[u8]) -> [u8; CACHE_HEADER_BYTES] {
        let mut bytes = [0; CACHE_HEADER_BYTES];
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        put(&mut bytes, 8, &self.repository.0);
        put(&mut bytes, 24, &self.store.0.to_le_bytes());
        put(&mut bytes, 32, &self.rows.to_le_bytes());
        put(&mut bytes, 40, &self.packs.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes), packs);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes a header. [`CacheHeader::check`] verifies the checksum.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8; CACHE_HEADER_BYTES]) -> Result<Self, FormatError> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(FormatError::Magic {
                expected: MAGIC,
                found: magic,
            });
        }
        let version = u32_at(bytes, 4);
        if version != VERSION {
            return Err(impossible("version", version.into()));
        }
        if !is_zero(&bytes[44..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "cache of tables",
            });
        }
        Ok(Self {
            repository: RepositoryId(array_at(bytes, 8)),
            store: SourceId(u64_at(bytes, 24)),
            rows: u64_at(bytes, 32),
            packs: u32_at(bytes, 40),
        })
    }

    /// Checks the header with the bytes of the packs that follow it.
    ///
    /// # Errors
    ///
    /// [`FormatError::Checksum`].
    pub fn check(header: &[u8; CACHE_HEADER_BYTES], packs: &[u8]) -> Result<(), FormatError> {
        let mut blank = *header;
        put(&mut blank, CHECKSUM_AT, &[0; 4]);
        let expected = u32_at(header, CHECKSUM_AT);
        match crc32c::crc32c_append(crc32c::crc32c(&blank), packs) {
            found if found == expected => Ok(()),
            found => Err(FormatError::Checksum { expected, found }),
        }
    }
}

impl CachedPack {
    /// The bytes of the pack.
    #[must_use]
    pub fn encode(&self) -> [u8; CACHED_PACK_BYTES] {
        let mut bytes = [0; CACHED_PACK_BYTES];
        put(&mut bytes, 0, &self.pack.number.to_le_bytes());
        put(&mut bytes, 8, &self.generation.to_le_bytes());
        put(&mut bytes, 12, &self.table_bytes.to_le_bytes());
        put(&mut bytes, 16, &self.pack.witness.0);
        put(&mut bytes, 32, &self.stored_bytes.to_le_bytes());
        put(&mut bytes, 40, &self.table_at.to_le_bytes());
        put(&mut bytes, 48, &self.table_checksum.to_le_bytes());
        bytes
    }

    /// Decodes a cached pack.
    ///
    /// # Errors
    ///
    /// [`FormatError::Reserved`].
    pub fn decode(bytes: &[u8; CACHED_PACK_BYTES]) -> Result<Self, FormatError> {
        if !is_zero(&bytes[52..]) {
            return Err(FormatError::Reserved {
                structure: "cached pack",
            });
        }
        Ok(Self {
            pack: PackReference {
                number: u64_at(bytes, 0),
                witness: Witness(array_at(bytes, 16)),
            },
            generation: u32_at(bytes, 8),
            table_bytes: u32_at(bytes, 12),
            stored_bytes: u64_at(bytes, 32),
            table_at: u64_at(bytes, 40),
            table_checksum: u32_at(bytes, 48),
        })
    }

    /// The checksum of a compressed table.
    #[must_use]
    pub fn checksum_of(table: &[u8]) -> u32 {
        crc32c::crc32c(table)
    }

    /// Checks the compressed table of the pack.
    ///
    /// # Errors
    ///
    /// [`FormatError::Checksum`].
    pub fn check_table(&self, bytes: &[u8]) -> Result<(), FormatError> {
        let (expected, found) = (self.table_checksum, Self::checksum_of(bytes));
        if expected == found {
            Ok(())
        } else {
            Err(FormatError::Checksum { expected, found })
        }
    }
}

impl CachedRow {
    /// The bytes of the row.
    #[must_use]
    pub fn encode(&self) -> [u8; CACHED_ROW_BYTES] {
        let mut bytes = [0; CACHED_ROW_BYTES];
        put(&mut bytes, 0, &self.word.to_le_bytes());
        put(&mut bytes, 8, &self.pack.to_le_bytes());
        bytes
    }

    /// Decodes a row.
    #[must_use]
    pub fn decode(bytes: &[u8; CACHED_ROW_BYTES]) -> Self {
        Self {
            word: u64_at(bytes, 0),
            pack: u32_at(bytes, 8),
        }
    }
}
