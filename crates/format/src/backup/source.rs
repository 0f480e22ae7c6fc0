//! A disk that is backed up, or the blocks that several disks have: the sealed chunk of its object.
//!
//! ```text
//!  0 block size  u32     bytes: 4096, 8192, 16384 or 65536
//!  4 kind        u8      0 a disk; 1 popular blocks
//!  5 zeros       3 bytes
//!  8 origin              see [`Origin`]; none for popular blocks
//!    name        text    empty for popular blocks
//!    domain      text    blocks are shared inside it
//! ```
//!
//! A source never changes. Its folders have copies of it. A [label](super::label) that is written later
//! replaces its name and origin.

use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible, put_text};
use crate::error::FormatError;
use crate::units::BLOCK_SIZES;

use super::label::{Label, Origin};

/// A disk that is backed up; or the popular blocks of a domain, which are packs without backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name by which users know the source; empty for popular blocks.
    pub name: String,
    /// The domain inside which sources share blocks.
    pub domain: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Where the disk comes from, if that is known.
    pub origin: Option<Origin>,
}

impl Source {
    /// Whether this is the source of a domain's popular blocks.
    #[must_use]
    pub fn is_popular(&self) -> bool {
        self.name.is_empty()
    }

    /// The source with the name and the origin of a label.
    #[must_use]
    pub fn labelled(self, label: Label) -> Self {
        Self {
            name: label.name,
            origin: label.origin,
            ..self
        }
    }

    /// The chunk's content.
    ///
    /// # Panics
    ///
    /// If a text has more than [`TEXT_BYTES_MAX`](crate::cursor::TEXT_BYTES_MAX) bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.block_size.to_le_bytes());
        out.extend([u8::from(self.is_popular()), 0, 0, 0]);
        Origin::put(&mut out, self.origin.as_ref());
        put_text(&mut out, self.name.as_bytes());
        put_text(&mut out, self.domain.as_bytes());
        out
    }

    /// Decodes the chunk's content.
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
        let origin = Origin::take(&mut rest)?;
        let name = rest.utf8("name of the source")?;
        let domain = rest.utf8("domain of the source")?;
        rest.finish()?;
        if kind != u8::from(name.is_empty()) || kind == 1 && origin.is_some() {
            return Err(impossible("kind of a source", kind.into()));
        }
        Ok(Self {
            name,
            domain,
            block_size,
            origin,
        })
    }
}
