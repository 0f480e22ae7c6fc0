//! The name and the origin of a source, if they have changed since its birth: the sealed chunk of an object in the
//! source's folder `labels`. The label with the highest number counts.
//!
//! ```text
//!  0 origin         see below
//!    name    text
//! ```
//!
//! An origin:
//!
//! ```text
//!  0 kind    u8     0 none; 1 a volume; 2 a file or a device
//! ```
//!
//! then, of a volume, the id of its pool, 16 bytes, and its number in the pool, a u64; of a file or a device, the id
//! of its machine, 16 bytes, and its path, a text.

use std::fmt;

use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible, put_text};
use crate::error::FormatError;
use crate::units::{PoolId, VolumeId};

/// Identifies a machine: a hash of the id that its operating system was given when it was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineId(pub [u8; 16]);

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where a disk comes from. Distinguishes the disk from every other one, whatever their names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A volume.
    Volume {
        /// The pool. A copy of a pool has the same id.
        pool: PoolId,
        /// The number that the pool gave the volume.
        volume: VolumeId,
    },
    /// A disk image or a device.
    File {
        /// The machine.
        machine: MachineId,
        /// The absolute path there.
        path: String,
    },
}

/// The text for messages.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume { pool, volume } => write!(f, "volume {} of pool {pool}", volume.0),
            Self::File { machine, path } => {
                let machine: String = machine.to_string().chars().take(8).collect();
                write!(f, "{path} on machine {machine}")
            }
        }
    }
}

impl Origin {
    pub(super) fn put(out: &mut Vec<u8>, origin: Option<&Self>) {
        match origin {
            None => out.push(0),
            Some(Self::Volume { pool, volume }) => {
                out.push(1);
                out.extend(pool.0);
                out.extend(volume.0.to_le_bytes());
            }
            Some(Self::File { machine, path }) => {
                out.push(2);
                out.extend(machine.0);
                put_text(out, path.as_bytes());
            }
        }
    }

    pub(super) fn take(rest: &mut Cursor<'_>) -> Result<Option<Self>, FormatError> {
        let [kind] = rest.take()?;
        match kind {
            0 => Ok(None),
            1 => {
                let (pool, volume) = (rest.take()?, rest.u64()?);
                if is_zero(&pool) || volume == 0 {
                    return Err(impossible("volume", volume));
                }
                let (pool, volume) = (PoolId(pool), VolumeId(volume));
                Ok(Some(Self::Volume { pool, volume }))
            }
            2 => {
                let machine = MachineId(rest.take()?);
                let path = rest.utf8("path of a disk")?;
                if path.is_empty() {
                    Err(impossible("bytes of a path", 0))
                } else {
                    Ok(Some(Self::File { machine, path }))
                }
            }
            other => Err(impossible("kind of an origin", other.into())),
        }
    }
}

/// The present name and origin of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The name by which users know the source.
    pub name: String,
    /// Where the disk comes from, if that is known.
    pub origin: Option<Origin>,
}

impl Label {
    /// The chunk's content.
    ///
    /// # Panics
    ///
    /// If a text has more than [`TEXT_BYTES_MAX`](crate::cursor::TEXT_BYTES_MAX) bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Origin::put(&mut out, self.origin.as_ref());
        put_text(&mut out, self.name.as_bytes());
        out
    }

    /// Decodes the chunk's content.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let origin = Origin::take(&mut rest)?;
        let name = rest.utf8("name of the source")?;
        rest.finish()?;
        if name.is_empty() {
            Err(impossible("bytes of a name", 0))
        } else {
            Ok(Self { name, origin })
        }
    }
}
