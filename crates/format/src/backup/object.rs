//! The header of every object in a repository, and the object's name.
//!
//! ```text
//!  0 magic       u32   "1FBO"
//!  4 major       u8
//!  5 minor       u8
//!  6 kind        u8    of the object
//!  7 zero        u8
//!  8 repository  16 bytes
//! 24 source      u64   or 0
//! 32 number      u64   of the key, pack, backup or holder, or 0
//! 40 generation  u32   of a pack, or 0
//! 44 zeros       4 bytes
//! 48 salt        16 bytes   from which the key of the object's chunks is derived, or zeros
//! 64 zeros       12 bytes
//! 76 checksum    u32   CRC-32C of the header with this field zero
//! ```
//!
//! An object names itself: an object that was renamed, or copied from another repository, is
//! refused.

use std::fmt;

use super::{REPOSITORY_MAJOR_VERSION, REPOSITORY_MINOR_VERSION};
use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::error::FormatError;

/// Bytes in a header.
pub const OBJECT_HEADER_BYTES: usize = 80;

const SALT_AT: usize = 48;

const MAGIC: u32 = u32::from_le_bytes(*b"1FBO");
const CHECKSUM_AT: usize = 76;

/// The folders over which the packs of a source are spread.
const PACK_FOLDERS: u64 = 256;

/// Identifies a repository: random, drawn when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RepositoryId(pub [u8; 16]);

impl fmt::Display for RepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RepositoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepositoryId({self})")
    }
}

/// Identifies a source inside its repository: drawn at the birth of the source. The id of popular blocks is derived
/// from their domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Numbers the backups of a source from 1 on; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupNumber(pub u64);

impl fmt::Display for BackupNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind and the identity of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectName {
    /// The repository itself.
    Repository,
    /// A copy of the repository object, byte for byte.
    RepositoryCopy,
    /// The master key, wrapped by one passphrase or key file.
    Key(u64),
    /// A disk that is backed up.
    Source(SourceId),
    /// Blocks of a source.
    Pack {
        /// The source of the pack.
        source: SourceId,
        /// The number of its first block, in packs.
        number: u64,
        /// Incremented whenever the pack is rewritten with fewer blocks.
        generation: u32,
    },
    /// The recipe of a backup: which block is at which address.
    Recipe(SourceId, BackupNumber),
    /// The manifest of a backup, which makes it exist.
    Manifest(SourceId, BackupNumber),
    /// The lease to change a source: in the folder of this number.
    Lease(SourceId, u64),
    /// Protects a backup from being forgotten.
    Protection(SourceId, BackupNumber),
    /// The popular blocks that will be removed.
    Condemned(SourceId),
    /// The lease to read a backup: in the folder of this number.
    Reader(SourceId, BackupNumber, u64),
    /// Notes that a backup was forgotten, or never completed.
    Tombstone(SourceId, BackupNumber),
    /// Tombstones that were folded into one object; each addition makes the next generation.
    Closed(SourceId, u32),
    /// A copy of the source in one of its folders, which proves that the folder is the original one.
    Copy(SourceId, Place),
    /// The number of the backup that the holder of a lease is making, in the folder of this number.
    UnderWay(SourceId, u64),
    /// Notes that backups of a source may need popular blocks.
    User {
        /// The popular blocks.
        popular: SourceId,
        /// The source.
        source: SourceId,
    },
    /// The name and the origin of a source; with each change, the next generation.
    Label(SourceId, u32),
    /// Reserved room.
    Reserve,
    /// The copy of a pack's table.
    Table {
        /// The source of the pack.
        source: SourceId,
        /// The pack's number.
        number: u64,
        /// The pack's generation.
        generation: u32,
    },
    /// Stored blocks that were found damaged by the verification that drew this number.
    Damage(SourceId, u64),
}

/// A folder that a source has from its birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The folder of manifests.
    Manifests,
    /// The folder of recipes.
    Recipes,
    /// The folder of packs.
    Packs,
    /// The folder of tombstones.
    Tombstones,
    /// The folder of the sources that use popular blocks.
    Users,
}

impl Place {
    /// The folders of a disk, or of popular blocks.
    #[must_use]
    pub fn all(is_popular: bool) -> &'static [Self] {
        if is_popular {
            &[Self::Packs, Self::Users]
        } else {
            &[
                Self::Manifests,
                Self::Recipes,
                Self::Packs,
                Self::Tombstones,
            ]
        }
    }

    /// The path of the folder inside the repository.
    #[must_use]
    pub fn path(self, source: SourceId) -> String {
        match self {
            Self::Manifests => ObjectName::manifests(source),
            Self::Recipes => ObjectName::recipes(source),
            Self::Packs => ObjectName::packs(source),
            Self::Tombstones => ObjectName::tombstones(source),
            Self::Users => ObjectName::users(source),
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Manifests => 1,
            Self::Recipes => 2,
            Self::Packs => 3,
            Self::Tombstones => 4,
            Self::Users => 5,
        }
    }
}

impl ObjectName {
    /// The file name of [`ObjectName::UnderWay`].
    pub const UNDER_WAY: &str = "backup";

    /// Kind, source, number and generation.
    fn fields(self) -> (u8, u64, u64, u32) {
        match self {
            Self::Repository | Self::RepositoryCopy => (1, 0, 0, 0),
            Self::Key(number) => (2, 0, number, 0),
            Self::Source(source) => (3, source.0, 0, 0),
            Self::Pack {
                source,
                number,
                generation,
            } => (4, source.0, number, generation),
            Self::Recipe(source, backup) => (5, source.0, backup.0, 0),
            Self::Manifest(source, backup) => (6, source.0, backup.0, 0),
            Self::Lease(source, holder) => (7, source.0, holder, 0),
            Self::Protection(source, backup) => (8, source.0, backup.0, 0),
            Self::Condemned(source) => (9, source.0, 0, 0),
            Self::Reader(source, _, holder) => (10, source.0, holder, 0),
            Self::Tombstone(source, backup) => (11, source.0, backup.0, 0),
            Self::Closed(source, generation) => (12, source.0, 0, generation),
            Self::Copy(source, place) => (13, source.0, place.number(), 0),
            Self::UnderWay(source, holder) => (14, source.0, holder, 0),
            Self::User { popular, source } => (15, popular.0, source.0, 0),
            Self::Label(source, generation) => (16, source.0, 0, generation),
            Self::Reserve => (17, 0, 0, 0),
            Self::Table {
                source,
                number,
                generation,
            } => (18, source.0, number, generation),
            Self::Damage(source, finder) => (19, source.0, finder, 0),
        }
    }

    /// The path of the object inside the repository.
    #[must_use]
    pub fn path(self) -> String {
        match self {
            Self::Repository => "repository".to_owned(),
            Self::Reserve => "reserve".to_owned(),
            Self::RepositoryCopy => "keys/repository".to_owned(),
            Self::Key(number) => format!("keys/{number:016x}"),
            Self::Source(source) => format!("sources/{source}/source"),
            Self::Pack {
                source,
                number,
                generation,
            } => of_pack(&Self::packs(source), number, generation),
            Self::Recipe(source, backup) => format!("{}/{backup}", Self::recipes(source)),
            Self::Manifest(source, backup) => format!("{}/{backup}", Self::manifests(source)),
            Self::Lease(source, holder) => format!("{}/{holder:016x}/lease", Self::writer(source)),
            Self::Protection(source, backup) => format!("{}/{backup}", Self::protections(source)),
            Self::Condemned(source) => format!("sources/{source}/condemned"),
            Self::Reader(source, backup, holder) => {
                format!("{}/{backup}/{holder:016x}/lease", Self::readers(source))
            }
            Self::Tombstone(source, backup) => format!("{}/{backup}", Self::tombstones(source)),
            Self::Closed(source, generation) => format!("{}/{generation}", Self::closed(source)),
            Self::Copy(source, place) => format!("{}/source", place.path(source)),
            Self::UnderWay(source, holder) => {
                format!("{}/{holder:016x}/{}", Self::writer(source), Self::UNDER_WAY)
            }
            Self::User { popular, source } => format!("{}/{source}", Self::users(popular)),
            Self::Label(source, generation) => format!("{}/{generation}", Self::labels(source)),
            Self::Table {
                source,
                number,
                generation,
            } => of_pack(&Self::tables(source), number, generation),
            Self::Damage(source, finder) => format!("{}/{finder:016x}", Self::damage(source)),
        }
    }

    /// The folder with the folders of a source's packs.
    #[must_use]
    pub fn packs(source: SourceId) -> String {
        format!("sources/{source}/packs")
    }

    /// The folder with the folders of the copies of a source's pack tables.
    #[must_use]
    pub fn tables(source: SourceId) -> String {
        format!("sources/{source}/tables")
    }

    /// The folder of notes on damaged blocks of a source.
    #[must_use]
    pub fn damage(source: SourceId) -> String {
        format!("sources/{source}/damage")
    }

    /// The folder of all recipes of a source.
    #[must_use]
    pub fn recipes(source: SourceId) -> String {
        format!("sources/{source}/recipes")
    }

    /// The folder of all manifests of a source.
    #[must_use]
    pub fn manifests(source: SourceId) -> String {
        format!("sources/{source}/backups")
    }

    /// The folder of the protected backups of a source.
    #[must_use]
    pub fn protections(source: SourceId) -> String {
        format!("sources/{source}/protected")
    }

    /// The folder with the folders of readers of backups.
    #[must_use]
    pub fn readers(source: SourceId) -> String {
        format!("sources/{source}/readers")
    }

    /// The folder of the tombstones of a source.
    #[must_use]
    pub fn tombstones(source: SourceId) -> String {
        format!("sources/{source}/forgotten")
    }

    /// The folder of the folded tombstones of a source.
    #[must_use]
    pub fn closed(source: SourceId) -> String {
        format!("sources/{source}/closed")
    }

    /// The folder of the sources that use popular blocks.
    #[must_use]
    pub fn users(popular: SourceId) -> String {
        format!("sources/{popular}/users")
    }

    /// The folder of the labels of a source.
    #[must_use]
    pub fn labels(source: SourceId) -> String {
        format!("sources/{source}/labels")
    }

    /// The folder that has the folder of the lease's holder, if there is one.
    #[must_use]
    pub fn writer(source: SourceId) -> String {
        format!("sources/{source}/writer")
    }
}

/// The path of a pack's object, inside the folder with the folders of all packs.
fn of_pack(folder: &str, number: u64, generation: u32) -> String {
    let part = number % PACK_FOLDERS;
    format!("{folder}/{part:02x}/{number}.{generation}")
}

/// The salt in a header.
#[must_use]
pub fn salt_of(header: &[u8; OBJECT_HEADER_BYTES]) -> [u8; 16] {
    array_at(header, SALT_AT)
}

/// The header of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHeader {
    /// The object's repository.
    pub repository: RepositoryId,
    /// The object's name.
    pub name: ObjectName,
    /// The salt of the key of the object's chunks; zeros if there is none.
    pub salt: [u8; 16],
}

impl ObjectHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OBJECT_HEADER_BYTES] {
        let mut bytes = [0; OBJECT_HEADER_BYTES];
        let (kind, source, number, generation) = self.name.fields();
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        let version = [REPOSITORY_MAJOR_VERSION, REPOSITORY_MINOR_VERSION, kind];
        put(&mut bytes, 4, &version);
        put(&mut bytes, 8, &self.repository.0);
        put(&mut bytes, 24, &source.to_le_bytes());
        put(&mut bytes, 32, &number.to_le_bytes());
        put(&mut bytes, 40, &generation.to_le_bytes());
        put(&mut bytes, SALT_AT, &self.salt);
        let checksum = crc32c::crc32c(&bytes);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes the header of the object found under `name`, in `repository` if that is known.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`] means that it is not this object.
    pub fn decode(
        bytes: &[u8; OBJECT_HEADER_BYTES],
        name: ObjectName,
        repository: Option<RepositoryId>,
    ) -> Result<Self, FormatError> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(FormatError::Magic {
                expected: MAGIC,
                found: magic,
            });
        }
        let mut blank = *bytes;
        put(&mut blank, CHECKSUM_AT, &[0; 4]);
        let (expected, found) = (u32_at(bytes, CHECKSUM_AT), crc32c::crc32c(&blank));
        if found != expected {
            return Err(FormatError::Checksum { expected, found });
        }
        let [major, minor] = array_at(bytes, 4);
        if major > REPOSITORY_MAJOR_VERSION {
            return Err(FormatError::Newer { major, minor });
        }
        if major == 0 {
            return Err(FormatError::Field {
                field: "major version",
                value: 0,
            });
        }
        if major < REPOSITORY_MAJOR_VERSION {
            return Err(FormatError::Older { major, minor });
        }
        if bytes[7] != 0 || !is_zero(&bytes[44..48]) || !is_zero(&bytes[64..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "object header",
            });
        }
        let found = RepositoryId(array_at(bytes, 8));
        if repository.is_some_and(|repository| repository != found) {
            return Err(FormatError::Repository);
        }
        let (kind, source, number, generation) = name.fields();
        for (field, expected, found) in [
            ("kind", kind.into(), bytes[6].into()),
            ("source", source, u64_at(bytes, 24)),
            ("number", number, u64_at(bytes, 32)),
            ("generation", generation.into(), u32_at(bytes, 40).into()),
        ] {
            if expected != found {
                return Err(FormatError::Address {
                    field,
                    expected,
                    found,
                });
            }
        }
        Ok(Self {
            repository: found,
            name,
            salt: array_at(bytes, SALT_AT),
        })
    }
}
