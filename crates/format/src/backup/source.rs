//! A disk that is backed up: the sealed chunk of its object.
//!
//! ```text
//!  0 block size  u32     bytes: 4096, 8192, 16384 or 65536
//!  4 zeros       4 bytes
//!  8 pool        16 bytes   of the volume, or zeros
//! 24 volume      u64     the number that the pool gave it, or 0
//! 32 next backup u64     backups before it were made, or may have been
//! 40 next pack   u64     packs before it were written, or may have been
//! 48 name        text
//! ```

use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible, put_text};
use crate::error::FormatError;
use crate::units::{BLOCK_SIZES, PoolId, VolumeId};

/// A disk that is backed up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name, by which users know it.
    pub name: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// The volume, if it is one.
    pub volume: Option<(PoolId, VolumeId)>,
    /// Backups with lower numbers may have existed, even if they do not any more.
    pub next_backup: u64,
    /// Packs with lower numbers may have existed, even if they do not any more.
    pub next_pack: u64,
}

impl Source {
    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.block_size.to_le_bytes());
        out.extend([0; 4]);
        let (pool, volume) = self
            .volume
            .map_or(([0; 16], 0), |(pool, volume)| (pool.0, volume.0));
        out.extend(pool);
        out.extend(volume.to_le_bytes());
        out.extend(self.next_backup.to_le_bytes());
        out.extend(self.next_pack.to_le_bytes());
        put_text(&mut out, self.name.as_bytes());
        out
    }

    /// Reads it back.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let block_size = rest.u32()?;
        if !BLOCK_SIZES.contains(&block_size) {
            return Err(impossible("block size", block_size.into()));
        }
        if rest.u32()? != 0 {
            return Err(FormatError::Reserved {
                structure: "source",
            });
        }
        let (pool, volume): ([u8; 16], u64) = (rest.take()?, rest.u64()?);
        let volume = match (is_zero(&pool), volume) {
            (true, 0) => None,
            (true, _) | (false, 0) => return Err(impossible("volume", volume)),
            (false, _) => Some((PoolId(pool), VolumeId(volume))),
        };
        let (next_backup, next_pack) = (rest.u64()?, rest.u64()?);
        let name = rest.utf8("name of the source")?;
        rest.finish()?;
        Ok(Self {
            name,
            block_size,
            volume,
            next_backup,
            next_pack,
        })
    }
}
