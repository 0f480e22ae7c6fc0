//! A disk that is backed up, or the blocks that several disks have: the sealed chunk of its object.
//!
//! ```text
//!  0 block size  u32     bytes: 4096, 8192, 16384 or 65536
//!  4 kind        u8      0 a disk; 1 popular blocks
//!  5 zeros       3 bytes
//!  8 pool        16 bytes   of the volume, or zeros
//! 24 volume      u64     the number that the pool gave it, or 0
//! 32 name        text    empty for popular blocks
//!    domain      text    blocks are shared inside it
//! ```
//!
//! It never changes. The folders of the source have copies of it.

use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible, put_text};
use crate::error::FormatError;
use crate::units::{BLOCK_SIZES, PoolId, VolumeId};

/// A disk that is backed up; or the popular blocks of a domain, which are packs without backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name, by which users know it; none for popular blocks.
    pub name: String,
    /// Sources share blocks with those of the same domain.
    pub domain: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// The volume, if it is one.
    pub volume: Option<(PoolId, VolumeId)>,
}

impl Source {
    /// Whether it is the popular blocks of its domain.
    #[must_use]
    pub fn is_popular(&self) -> bool {
        self.name.is_empty()
    }

    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.block_size.to_le_bytes());
        out.extend([u8::from(self.is_popular()), 0, 0, 0]);
        let (pool, volume) = self
            .volume
            .map_or(([0; 16], 0), |(pool, volume)| (pool.0, volume.0));
        out.extend(pool);
        out.extend(volume.to_le_bytes());
        put_text(&mut out, self.name.as_bytes());
        put_text(&mut out, self.domain.as_bytes());
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
        let [kind, zeros @ ..]: [u8; 4] = rest.take()?;
        if !is_zero(&zeros) {
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
        let name = rest.utf8("name of the source")?;
        let domain = rest.utf8("domain of the source")?;
        rest.finish()?;
        if kind != u8::from(name.is_empty()) || kind == 1 && volume.is_some() {
            return Err(impossible("kind of a source", kind.into()));
        }
        Ok(Self {
            name,
            domain,
            block_size,
            volume,
        })
    }
}
