//! The master key of a repository, wrapped by a key that is derived from a passphrase or a key file.
//! Each of them has an object, and any one opens the repository.
//!
//! ```text
//!   0 object header  80 bytes
//!  80 derivation     u8     1 passphrase, by Argon2id; 2 key file
//!  81 recovery       u8     1 for a recovery key, which is a key file that was made at random; or 0
//!  82 zeros          2 bytes
//!  84 memory         u32    KiB that the derivation takes, or 0
//!  88 passes         u32    over that memory, or 0
//!  92 lanes          u32    of it, or 0
//!  96 salt           16 bytes   of the derivation
//! 112 created        u64    seconds since the Unix epoch
//! 120 wrapped        48 bytes   the master key, AES-256-GCM with nonce 0
//! 168 zeros          4 bytes
//! 172 checksum       u32    CRC-32C of all before
//! ```

use std::fmt;

use super::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectName, RepositoryId};
use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::cursor::impossible;
use crate::error::FormatError;

/// Bytes in the object.
pub const KEY_BYTES: usize = 176;

/// Bytes in the wrapped master key: itself and its tag.
pub const WRAPPED_BYTES: usize = 48;

const BODY: usize = OBJECT_HEADER_BYTES;
const RECOVERY_AT: usize = BODY + 1;
const MEMORY_AT: usize = BODY + 4;
const SALT_AT: usize = BODY + 16;
const CREATED_AT: usize = BODY + 32;
const WRAPPED_AT: usize = BODY + 40;
const ZEROS_AT: usize = WRAPPED_AT + WRAPPED_BYTES;
const CHECKSUM_AT: usize = KEY_BYTES - 4;

/// The most memory that a derivation may request, in KiB: a forged object must not take all of it.
pub const MEMORY_KIB_MAX: u32 = 4 << 20;

/// The most passes that a derivation may request.
pub const PASSES_MAX: u32 = 1000;

/// How the wrapping key is derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derivation {
    /// From a passphrase, by Argon2id.
    Passphrase {
        /// Memory in KiB.
        memory_kib: u32,
        /// Passes over that memory.
        passes: u32,
        /// Lanes of that memory.
        lanes: u32,
    },
    /// From the content of a key file.
    KeyFile,
}

/// The master key, wrapped.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The key's number: random.
    pub number: u64,
    /// How the wrapping key is derived.
    pub derivation: Derivation,
    /// The derivation's salt.
    pub salt: [u8; 16],
    /// Whether the secret is a recovery key, a key file that was made at random. For users only.
    pub is_recovery: bool,
    /// When the wrapped key was made.
    pub created_unix_seconds: u64,
    /// The master key, sealed.
    pub wrapped: [u8; WRAPPED_BYTES],
}

/// Leaves out the wrapped key, because others read messages and logs.
impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedKey")
            .field("number", &self.number)
            .field("derivation", &self.derivation)
            .field("is_recovery", &self.is_recovery)
            .field("created_unix_seconds", &self.created_unix_seconds)
            .finish_non_exhaustive()
    }
}

impl WrappedKey {
    /// The object's bytes.
    #[must_use]
    pub fn encode(&self, repository: RepositoryId) -> [u8; KEY_BYTES] {
        let header = ObjectHeader {
            repository,
            name: ObjectName::Key(self.number),
            salt: [0; 16],
        };
        let (kind, numbers) = match self.derivation {
            Derivation::Passphrase {
                memory_kib,
                passes,
                lanes,
            } => (1, [memory_kib, passes, lanes]),
            Derivation::KeyFile => (2, [0; 3]),
        };
        let mut bytes = [0; KEY_BYTES];
        put(&mut bytes, 0, &header.encode());
        bytes[BODY] = kind;
        bytes[RECOVERY_AT] = self.is_recovery.into();
        for (n, number) in numbers.into_iter().enumerate() {
            put(&mut bytes, MEMORY_AT + 4 * n, &number.to_le_bytes());
        }
        put(&mut bytes, SALT_AT, &self.salt);
        let created = self.created_unix_seconds;
        put(&mut bytes, CREATED_AT, &created.to_le_bytes());
        put(&mut bytes, WRAPPED_AT, &self.wrapped);
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes key `number` of a repository.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(
        bytes: &[u8],
        number: u64,
        repository: RepositoryId,
    ) -> Result<Self, FormatError> {
        let Ok(bytes) = <&[u8; KEY_BYTES]>::try_from(bytes) else {
            return Err(FormatError::Short {
                needed: KEY_BYTES,
                got: bytes.len(),
            });
        };
        let header = ObjectHeader::decode(
            &array_at(bytes, 0),
            ObjectName::Key(number),
            Some(repository),
        )?;
        let expected = u32_at(bytes, CHECKSUM_AT);
        let found = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        let is_blank =
            is_zero(&bytes[RECOVERY_AT + 1..MEMORY_AT]) && is_zero(&bytes[ZEROS_AT..CHECKSUM_AT]);
        if !is_blank || !is_zero(&header.salt) {
            return Err(FormatError::Reserved { structure: "key" });
        }
        let is_recovery = match (bytes[BODY], bytes[RECOVERY_AT]) {
            (_, 0) => false,
            (2, 1) => true,
            (_, other) => return Err(impossible("kind of a key", other.into())),
        };
        let [memory_kib, passes, lanes] = [0, 1, 2].map(|n| u32_at(bytes, MEMORY_AT + 4 * n));
        Ok(Self {
            number,
            derivation: match bytes[BODY] {
                1 => {
                    for (field, value, max) in [
                        ("memory of the derivation", memory_kib, MEMORY_KIB_MAX),
                        ("passes of the derivation", passes, PASSES_MAX),
                        ("lanes of the derivation", lanes, memory_kib / 8),
                    ] {
                        if value == 0 || value > max {
                            return Err(impossible(field, value.into()));
                        }
                    }
                    Derivation::Passphrase {
                        memory_kib,
                        passes,
                        lanes,
                    }
                }
                2 if [memory_kib, passes, lanes] == [0; 3] => Derivation::KeyFile,
                2 => return Err(FormatError::Reserved { structure: "key" }),
                other => return Err(impossible("derivation", other.into())),
            },
            salt: array_at(bytes, SALT_AT),
            is_recovery,
            created_unix_seconds: u64_at(bytes, CREATED_AT),
            wrapped: array_at(bytes, WRAPPED_AT),
        })
    }
}
