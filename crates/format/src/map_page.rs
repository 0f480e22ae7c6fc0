//! Leaf of a layer's map: the entries of one segment.
//!
//! ```text
//! 64 + 7 n   entry n, 512 of them, then zeros
//! ```

use crate::bytes::{array_at, is_zero, put};
use crate::entry::{ENTRY_BYTES, Entry, State};
use crate::error::FormatError;
use crate::page::{BODY, PAGE_BYTES, PageBytes};
use crate::units::BLOCKS_PER_SEGMENT;

const _: () = assert!(BODY + BLOCKS_PER_SEGMENT as usize * ENTRY_BYTES <= PAGE_BYTES);

/// The entries of one segment.
pub type Segment = [Entry; BLOCKS_PER_SEGMENT as usize];

/// A segment whose entries are all absent.
pub const EMPTY_SEGMENT: Segment = [Entry::ABSENT; BLOCKS_PER_SEGMENT as usize];

/// Writes the body of `page`.
pub fn encode(segment: &Segment, page: &mut PageBytes) {
    for (slot, entry) in segment.iter().enumerate() {
        put(page, BODY + slot * ENTRY_BYTES, &entry.to_bytes());
    }
}

/// Reads the body of a page that has been checked.
///
/// # Errors
///
/// [`FormatError`] for entries and reserved bytes that no release writes.
pub fn decode(page: &PageBytes) -> Result<Box<Segment>, FormatError> {
    let mut segment = Box::new(EMPTY_SEGMENT);
    for (slot, entry) in segment.iter_mut().enumerate() {
        *entry = Entry::from_bytes(array_at(page, BODY + slot * ENTRY_BYTES))?;
    }
    if is_zero(&page[BODY + segment.len() * ENTRY_BYTES..]) {
        Ok(segment)
    } else {
        Err(FormatError::Reserved {
            structure: "map page",
        })
    }
}

/// Entries that are not absent. A segment without any has no page.
#[must_use]
pub fn mapped(segment: &Segment) -> u16 {
    count(segment, |entry| entry != Entry::ABSENT)
}

/// Entries that the finder may still publish, the private ones. The pointer to the page has this
/// count, so the finder skips a segment with none without reading its page.
#[must_use]
pub fn publishable(segment: &Segment) -> u16 {
    count(segment, |entry| matches!(entry.state(), State::Private(_)))
}

fn count(segment: &Segment, is_counted: impl Fn(Entry) -> bool) -> u16 {
    segment.iter().filter(|entry| is_counted(**entry)).count() as u16
}
