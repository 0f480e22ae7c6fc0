//! The copy of a pack's table: the sealed chunk of a separate object. It is used to read the pack if its table, header
//! or trailer is damaged, and to know its blocks if the pack is gone.
//!
//! ```text
//!  0 header  80 bytes   the object header of the pack, which has the salt of its chunks
//! 80 table              as in the pack
//! ```

use super::object::OBJECT_HEADER_BYTES;
use super::pack::PackTable;
use crate::cursor::Cursor;
use crate::error::FormatError;

/// The parts of a pack that are needed to open it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCopy {
    /// The bytes of the pack's header.
    pub header: [u8; OBJECT_HEADER_BYTES],
    /// The pack's table.
    pub table: PackTable,
}

impl TableCopy {
    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.header[..], &self.table.encode()].concat()
    }

    /// Decodes the chunk's content. The header is not checked here: it is decoded when the pack is
    /// opened with it.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        Ok(Self {
            header: rest.take()?,
            table: PackTable::decode(rest.0)?,
        })
    }
}
