//! The page at both ends of an export of a pool's metadata, around the other pages.
//!
//! ```text
//! 64 created    u64   when it was made, in seconds since the Unix epoch
//! 72 checksum   u32   CRC-32C of all pages before this one; 0 in the first page
//! 76 zeros
//! ```
//!
//! The header's page number is the page's place in the file, so the last page has the number of
//! pages before it. An export that was torn, cut or combined from two fails the checksum.

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::page::{self, PageBytes, PageHeader, PageKind};
use crate::units::{PageNumber, PoolId};

/// The first or the last page of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportMark {
    /// The pool whose metadata was exported.
    pub pool: PoolId,
    /// Pages before this one: 0 makes it the first page.
    pub place: u64,
    /// When the export was made, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// The checksum of all pages before this one, in order; see [`add_to_checksum`].
    pub checksum: u32,
}

/// Extends `checksum` by the bytes of `page`. The checksum of no bytes is 0.
#[must_use]
pub fn add_to_checksum(checksum: u32, page: &PageBytes) -> u32 {
    crc32c::crc32c_append(checksum, page)
}

impl ExportMark {
    /// The page that holds the mark.
    #[must_use]
    pub fn encode(&self) -> Box<PageBytes> {
        let mut page = page::blank();
        put(&mut *page, 64, &self.created_unix_seconds.to_le_bytes());
        put(&mut *page, 72, &self.checksum.to_le_bytes());
        page::seal(&mut page, &header(self.pool, self.place));
        page
    }

    /// Decodes a mark from its place in the file.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]; [`FormatError::Newer`] has the version that can read it.
    pub fn decode(page: &PageBytes, place: u64) -> Result<Self, FormatError> {
        let pool = page::claimed_pool(page);
        page::open(page, &header(pool, place))?;
        let checksum = u32_at(page, 72);
        if place == 0 && checksum != 0 {
            return Err(FormatError::Field {
                field: "checksum of no pages",
                value: checksum.into(),
            });
        }
        if !is_zero(&page[76..]) {
            return Err(FormatError::Reserved {
                structure: "export mark",
            });
        }
        Ok(Self {
            pool,
            place,
            created_unix_seconds: u64_at(page, 64),
            checksum,
        })
    }
}

fn header(pool: PoolId, place: u64) -> PageHeader {
    PageHeader {
        kind: PageKind::ExportMark,
        level: 0,
        pool,
        page: PageNumber(place),
        owner: 0,
        index: 0,
        sequence: 0,
    }
}
