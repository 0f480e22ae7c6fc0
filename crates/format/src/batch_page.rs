//! Leaf of the open batch: its items, in the order in which they are passed to the index.
//!
//! ```text
//! page   64 + 16 n   item n, 252 of them; one with PBA 0 ends them, and zeros follow
//! item    0 lba      u64       below 2^38; 0 in a collector batch
//!         8 block    u64       bits  0..40  PBA
//!                                   40..56  domain
//!                                   56..63  zeros
//!                                   63..64  moved: the entry no longer names the block
//! ```
//!
//! After a crash the batch is repeated with the same number, and the answers come by position; so
//! the items stay until the last of them has its outcome.

use crate::bytes::{is_zero, put, u64_at};
use crate::error::FormatError;
use crate::page::{BODY, PAGE_BYTES, PageBytes};
use crate::units::{DomainId, Lba, PBA_END, Pba, VOLUME_BLOCKS_MAX, is_run};

/// Most items of a page.
pub const ITEMS_PER_PAGE: usize = 252;

/// Bytes in an item.
pub const ITEM_BYTES: usize = 16;

const DOMAIN_SHIFT: u32 = 40;
const RESERVED_BITS: u64 = 0x7f << 56;
const MOVED: u64 = 1 << 63;

const _: () = assert!(
    BODY + ITEMS_PER_PAGE * ITEM_BYTES == PAGE_BYTES,
    "no byte is left"
);
const _: () = assert!(
    PBA_END == 1 << DOMAIN_SHIFT,
    "a PBA ends where the domain begins"
);

/// A reference that the open batch has the index count or release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchItem {
    /// The LBA of the entry that refers to the block, below [`VOLUME_BLOCKS_MAX`]; 0 in a collector
    /// batch.
    pub lba: Lba,
    /// The block.
    pub pba: Pba,
    /// The domain whose key its fingerprint needs.
    pub domain: DomainId,
    /// Whether the entry was rewritten since: then the outcome drops the reference. Never in a
    /// collector batch.
    pub moved: bool,
}

impl BatchItem {
    fn put(&self, bytes: &mut [u8], at: usize) {
        assert!(
            self.lba.0 < VOLUME_BLOCKS_MAX && is_run(self.pba, 1),
            "{self:?} cannot be in a batch"
        );
        let moved = if self.moved { MOVED } else { 0 };
        let block = self.pba.0 | u64::from(self.domain.0) << DOMAIN_SHIFT | moved;
        put(bytes, at, &self.lba.0.to_le_bytes());
        put(bytes, at + 8, &block.to_le_bytes());
    }

    /// Reads the item in `bytes`, which are [`ITEM_BYTES`] long and whose PBA is not 0.
    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (lba, block) = (u64_at(bytes, 0), u64_at(bytes, 8));
        if lba >= VOLUME_BLOCKS_MAX {
            return Err(FormatError::Field {
                field: "block number",
                value: lba,
            });
        }
        if block & RESERVED_BITS != 0 {
            return Err(FormatError::Reserved {
                structure: "batch item",
            });
        }
        Ok(Self {
            lba: Lba(lba),
            pba: Pba(block & (PBA_END - 1)),
            domain: DomainId((block >> DOMAIN_SHIFT) as u16),
            moved: block & MOVED != 0,
        })
    }
}

/// Writes the body of `page`, which holds zeros.
///
/// # Panics
///
/// Without an item, with more than [`ITEMS_PER_PAGE`], or with an item whose block no volume or
/// pool can have: such a batch is never logged.
pub fn encode(items: &[BatchItem], page: &mut PageBytes) {
    assert!(
        (1..=ITEMS_PER_PAGE).contains(&items.len()),
        "{} items in a page",
        items.len()
    );
    for (place, item) in items.iter().enumerate() {
        item.put(page, BODY + place * ITEM_BYTES);
    }
}

/// Reads the body of a page that has been checked: 1 to [`ITEMS_PER_PAGE`] items.
///
/// # Errors
///
/// [`FormatError`] for items and reserved bytes that no release writes, and for a page without
/// items.
pub fn decode(page: &PageBytes) -> Result<Vec<BatchItem>, FormatError> {
    let body = &page[BODY..];
    let has_block = |item: &&[u8]| u64_at(item, 8) & (PBA_END - 1) != 0;
    let items: Vec<BatchItem> = body
        .chunks_exact(ITEM_BYTES)
        .take_while(has_block)
        .map(BatchItem::decode)
        .collect::<Result<_, _>>()?;
    if !is_zero(&body[items.len() * ITEM_BYTES..]) {
        return Err(FormatError::Reserved {
            structure: "batch page",
        });
    }
    if items.is_empty() {
        return Err(FormatError::Field {
            field: "number of batch items",
            value: 0,
        });
    }
    Ok(items)
}
