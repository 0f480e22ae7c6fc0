//! Leaf of a queue: dropped references to published blocks, or claims on them, in the order in which
//! they were dropped or made.
//!
//! ```text
//! 64 + 8 n   element n, 504 of them: bits  0..40  PBA of the first block; 0: an empty place
//!                                         40..48  blocks - 1
//!                                         48..64  domain
//! ```
//!
//! Elements are numbered since the pool was created; number e is at place e % 504 of leaf e / 504.
//! They are added at one end and taken off at the other, so the elements of a page have no gap
//! between them.

use crate::bytes::{put, u64_at};
use crate::error::FormatError;
use crate::page::{BODY, PAGE_BYTES, PageBytes};
use crate::units::{DomainId, PBA_END, Pba, is_run};

/// Places for elements in a page.
pub const ELEMENTS_PER_PAGE: usize = 504;

/// Most blocks of an element.
pub const ELEMENT_BLOCKS_MAX: u16 = 256;

/// First number that no element has: a tree of the greatest height has 2^32 leaves.
pub const ELEMENTS_END: u64 = (ELEMENTS_PER_PAGE as u64) << 32;

const COUNT_SHIFT: u32 = 40;
const DOMAIN_SHIFT: u32 = 48;

const _: () = assert!(
    BODY + ELEMENTS_PER_PAGE * 8 == PAGE_BYTES,
    "no byte is left"
);
const _: () = assert!(
    PBA_END == 1 << COUNT_SHIFT,
    "a PBA ends where the count begins"
);
const _: () = assert!(ELEMENT_BLOCKS_MAX as u64 == 1 << (DOMAIN_SHIFT - COUNT_SHIFT));

/// References to the blocks of a run, one each, dropped or claimed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueElement {
    /// First block of the run.
    pub pba: Pba,
    /// Blocks in the run, 1 to [`ELEMENT_BLOCKS_MAX`].
    pub count: u16,
    /// The domain whose key the blocks' fingerprints need.
    pub domain: DomainId,
}

/// The places of one page.
pub type Elements = [Option<QueueElement>; ELEMENTS_PER_PAGE];

/// A page in which no place is taken.
pub const NO_ELEMENTS: Elements = [None; ELEMENTS_PER_PAGE];

impl QueueElement {
    /// The element's blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = Pba> + use<> {
        let start = self.pba;
        (0..u64::from(self.count)).map(move |n| start + n)
    }

    fn is_valid(&self) -> bool {
        self.count <= ELEMENT_BLOCKS_MAX && is_run(self.pba, u64::from(self.count))
    }

    fn to_bits(self) -> u64 {
        assert!(self.is_valid(), "{self:?} cannot be queued");
        self.pba.0
            | u64::from(self.count - 1) << COUNT_SHIFT
            | u64::from(self.domain.0) << DOMAIN_SHIFT
    }

    fn from_bits(bits: u64) -> Result<Self, FormatError> {
        let element = Self {
            pba: Pba(bits & (PBA_END - 1)),
            count: u16::from((bits >> COUNT_SHIFT) as u8) + 1,
            domain: DomainId((bits >> DOMAIN_SHIFT) as u16),
        };
        if element.is_valid() {
            Ok(element)
        } else {
            Err(FormatError::Field {
                field: "queue element",
                value: bits,
            })
        }
    }
}

/// Writes the body of `page`.
///
/// # Panics
///
/// Where an element has no blocks, too many, or blocks that no pool has: such a reference was
/// never counted.
pub fn encode(elements: &Elements, page: &mut PageBytes) {
    for (place, element) in elements.iter().enumerate() {
        let bits = element.map_or(0, QueueElement::to_bits);
        put(page, BODY + place * 8, &bits.to_le_bytes());
    }
}

/// Reads the body of a page that has been checked.
///
/// # Errors
///
/// [`FormatError::Field`] for elements, and for gaps between them, that no release writes.
pub fn decode(page: &PageBytes) -> Result<Box<Elements>, FormatError> {
    let mut elements = Box::new(NO_ELEMENTS);
    let mut last_taken = None;
    for (place, element) in elements.iter_mut().enumerate() {
        let bits = u64_at(page, BODY + place * 8);
        if bits == 0 {
            continue;
        }
        if last_taken.is_some_and(|last| last + 1 != place) {
            return Err(FormatError::Field {
                field: "place after a gap in the queue",
                value: place as u64,
            });
        }
        *element = Some(QueueElement::from_bits(bits)?);
        last_taken = Some(place);
    }
    Ok(elements)
}
