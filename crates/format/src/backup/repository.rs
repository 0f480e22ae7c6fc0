//! The repository's identity: one object, written once when the repository is created, and a copy with the same bytes.
//!
//! ```text
//!  0 object header  80 bytes
//! 80 sealing        u8     0 authenticated only, 1 AES-256-GCM
//! 81 writers        u8     0 any number of hosts, 1 one host
//! 82 zeros          6 bytes
//! 88 created        u64    seconds since the Unix epoch
//! 96 zeros          28 bytes
//! 124 checksum      u32    CRC-32C of all before
//! ```

use super::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectName, RepositoryId};
use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::cursor::impossible;
use crate::error::FormatError;

/// Bytes in the object.
pub const REPOSITORY_BYTES: usize = 128;

const BODY: usize = OBJECT_HEADER_BYTES;
const WRITERS_AT: usize = BODY + 1;
const CREATED_AT: usize = BODY + 8;
const ZEROS_AT: usize = BODY + 16;
const CHECKSUM_AT: usize = REPOSITORY_BYTES - 4;

/// How chunks are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealing {
    /// A keyed hash proves that a chunk is unchanged. Anyone can read it.
    Authenticated,
    /// AES-256-GCM.
    Encrypted,
}

/// How many hosts may write to the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Any number: when several processes create a name, the file system lets exactly one succeed.
    Many,
    /// A single host: the file system may give a name twice, and nothing keeps a second host out.
    One,
}

/// The repository's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepositoryObject {
    /// The repository's id.
    pub id: RepositoryId,
    /// How chunks are protected.
    pub sealing: Sealing,
    /// How many hosts may write.
    pub writers: Writers,
    /// When it was created.
    pub created_unix_seconds: u64,
}

impl RepositoryObject {
    /// The object's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPOSITORY_BYTES] {
        let header = ObjectHeader {
            repository: self.id,
            name: ObjectName::Repository,
            salt: [0; 16],
        };
        let mut bytes = [0; REPOSITORY_BYTES];
        put(&mut bytes, 0, &header.encode());
        bytes[BODY] = match self.sealing {
            Sealing::Authenticated => 0,
            Sealing::Encrypted => 1,
        };
        bytes[WRITERS_AT] = match self.writers {
            Writers::Many => 0,
            Writers::One => 1,
        };
        let created = self.created_unix_seconds;
        put(&mut bytes, CREATED_AT, &created.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes the object.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let Ok(bytes) = <&[u8; REPOSITORY_BYTES]>::try_from(bytes) else {
            return Err(FormatError::Short {
                needed: REPOSITORY_BYTES,
                got: bytes.len(),
            });
        };
        let (header, _) = bytes.split_first_chunk().unwrap_or((&[0; BODY], &[]));
        let header = ObjectHeader::decode(header, ObjectName::Repository, None)?;
        let expected = u32_at(bytes, CHECKSUM_AT);
        let found = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        let is_blank =
            is_zero(&bytes[WRITERS_AT + 1..CREATED_AT]) && is_zero(&bytes[ZEROS_AT..CHECKSUM_AT]);
        if !is_blank || !is_zero(&header.salt) {
            return Err(FormatError::Reserved {
                structure: "repository",
            });
        }
        Ok(Self {
            id: header.repository,
            sealing: match bytes[BODY] {
                0 => Sealing::Authenticated,
                1 => Sealing::Encrypted,
                other => return Err(impossible("sealing", other.into())),
            },
            writers: match bytes[WRITERS_AT] {
                0 => Writers::Many,
                1 => Writers::One,
                other => return Err(impossible("writers", other.into())),
            },
            created_unix_seconds: u64_at(bytes, CREATED_AT),
        })
    }
}
