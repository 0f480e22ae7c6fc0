//! Leaf of the free-space tree: one bit for each of 16,384 blocks, set while a map refers to it; in a group of a shared
//! pool, set unless the block is the group's to hand out.
//!
//! ```text
//! 64   bits, lowest block first: bit n % 64 of the u64 at 64 + 8 (n / 64)
//! 2112 zeros
//! ```
//!
//! Blocks in flight are not recorded here: after a crash, one that was allocated is free again, and
//! one that was released has no reader.

use crate::bytes::{is_zero, put, u64_at};
use crate::error::FormatError;
use crate::page::{BODY, PAGE_BYTES, PageBytes};

/// Blocks that one page covers.
pub const BLOCKS_PER_SPACE_PAGE: u64 = 16_384;

const WORDS: usize = BLOCKS_PER_SPACE_PAGE as usize / 64;

const _: () = assert!(BODY + WORDS * 8 <= PAGE_BYTES);
const _: () = assert!(
    BLOCKS_PER_SPACE_PAGE <= u16::MAX as u64,
    "a pointer counts them all"
);

/// A bit for each block of a page.
pub type Bitmap = [u64; WORDS];

/// No map refers to any block.
pub const EMPTY_BITMAP: Bitmap = [0; WORDS];

/// Writes the body of `page`.
pub fn encode(bitmap: &Bitmap, page: &mut PageBytes) {
    for (word, bits) in bitmap.iter().enumerate() {
        put(page, BODY + word * 8, &bits.to_le_bytes());
    }
}

/// Reads the body of a page that has been checked.
///
/// # Errors
///
/// [`FormatError::Reserved`] where bytes that must be zero are not.
pub fn decode(page: &PageBytes) -> Result<Box<Bitmap>, FormatError> {
    let mut bitmap = Box::new(EMPTY_BITMAP);
    for (word, bits) in bitmap.iter_mut().enumerate() {
        *bits = u64_at(page, BODY + word * 8);
    }
    if is_zero(&page[BODY + WORDS * 8..]) {
        Ok(bitmap)
    } else {
        Err(FormatError::Reserved {
            structure: "space page",
        })
    }
}

/// Blocks that maps refer to: the count in the pointer to the page.
#[must_use]
pub fn allocated(bitmap: &Bitmap) -> u16 {
    bitmap.iter().map(|bits| bits.count_ones()).sum::<u32>() as u16
}
