//! Inner pages of the copy-on-write trees: 256 pointers to the level below.
//!
//! ```text
//! page      64 + 12 n   pointer n, 256 of them, then zeros
//! pointer    0 page      48 bits   0: nothing there
//!            6 info      u16       above a leaf: the leaf's count; else 0
//!            8 checksum  u32       of the page pointed to
//! root       0 pointer   12 bytes  to the top page, which is never a leaf
//!           12 levels    u8        1 to 4; 0 for an empty tree
//!           13 zeros     3 bytes
//! ```
//!
//! The checksum in the pointer makes the trees self-verifying from the root down: after a lost
//! write an older page is in the place, and the checksum shows that.

use crate::bytes::{array_at, is_zero, put, u32_at};
use crate::error::FormatError;
use crate::page::{self, BODY, PAGE_BYTES, PageBytes};
use crate::units::PageNumber;

/// Pointers in a node.
pub const NODE_FANOUT: u64 = 256;

/// Bytes in a pointer.
pub const POINTER_BYTES: usize = 12;

/// Most levels above the leaves: 256^4 leaves.
pub const LEVELS_MAX: u8 = 4;

/// First pages of the metadata part, which hold the two roots and are never pointed to.
pub const ROOT_SLOTS: u64 = 2;

const _: () = assert!(BODY + NODE_FANOUT as usize * POINTER_BYTES <= PAGE_BYTES);

/// A page number and the checksum of that page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Where the page is.
    pub page: PageNumber,
    /// Above a leaf: the leaf's count, such as publishable entries or allocated blocks. Otherwise
    /// 0.
    pub info: u16,
    /// The checksum that the page must have.
    pub checksum: u32,
}

/// Encodes a pointer, or the absence of one, at `at`.
pub(crate) fn put_pointer(bytes: &mut [u8], at: usize, pointer: Option<Pointer>) {
    let Some(pointer) = pointer else {
        return put(bytes, at, &[0; POINTER_BYTES]);
    };
    put(bytes, at, &pointer.page.0.to_le_bytes()[..6]);
    put(bytes, at + 6, &pointer.info.to_le_bytes());
    put(bytes, at + 8, &pointer.checksum.to_le_bytes());
}

/// Decodes the pointer at `at`.
pub(crate) fn pointer_at(bytes: &[u8], at: usize) -> Result<Option<Pointer>, FormatError> {
    let [a, b, c, d, e, f] = array_at(bytes, at);
    let page = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    if page == 0 && is_zero(&bytes[at..at + POINTER_BYTES]) {
        return Ok(None);
    }
    if page < ROOT_SLOTS {
        return Err(FormatError::Field {
            field: "page pointer",
            value: page,
        });
    }
    let info = u16::from_le_bytes(array_at(bytes, at + 6));
    Ok(Some(Pointer {
        page: PageNumber(page),
        info,
        checksum: u32_at(bytes, at + 8),
    }))
}

/// The pointers of an inner page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The pointer to each child; a child that is absent has nothing below it.
    pub children: Box<[Option<Pointer>; NODE_FANOUT as usize]>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            children: Box::new([None; NODE_FANOUT as usize]),
        }
    }
}

impl Node {
    /// Writes the body of `page`.
    pub fn encode(&self, page: &mut PageBytes) {
        for (slot, child) in self.children.iter().enumerate() {
            put_pointer(page, BODY + slot * POINTER_BYTES, *child);
        }
    }

    /// Reads the body of a page that has been checked.
    ///
    /// # Errors
    ///
    /// [`FormatError`] for pointers and reserved bytes that no release writes.
    pub fn decode(page: &PageBytes) -> Result<Self, FormatError> {
        let mut node = Self::default();
        let is_above_leaves = page::level(page) <= 1;
        for (slot, child) in node.children.iter_mut().enumerate() {
            *child = pointer_at(page, BODY + slot * POINTER_BYTES)?;
            let info = child.map_or(0, |child| child.info);
            if info != 0 && !is_above_leaves {
                return Err(FormatError::Field {
                    field: "count of an inner page",
                    value: u64::from(info),
                });
            }
        }
        if is_zero(&page[BODY + NODE_FANOUT as usize * POINTER_BYTES..PAGE_BYTES]) {
            Ok(node)
        } else {
            Err(FormatError::Reserved {
                structure: "node page",
            })
        }
    }

    /// Whether all children are absent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.children.iter().all(Option::is_none)
    }
}

/// Where a tree starts: a pointer to its top page, and the number of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeRoot {
    /// The top page; `None` for an empty tree.
    pub top: Option<Pointer>,
    /// Levels of nodes above the leaves, 1 to [`LEVELS_MAX`]; 0 for an empty tree.
    pub levels: u8,
}

impl TreeRoot {
    /// Encodes the pointer, the level and three zeros: 16 bytes.
    pub(crate) fn put(&self, bytes: &mut [u8], at: usize) {
        put_pointer(bytes, at, self.top);
        put(bytes, at + POINTER_BYTES, &[self.levels, 0, 0, 0]);
    }

    pub(crate) fn at(bytes: &[u8], at: usize) -> Result<Self, FormatError> {
        let top = pointer_at(bytes, at)?;
        let [levels, rest @ ..]: [u8; 4] = array_at(bytes, at + POINTER_BYTES);
        let possible = if top.is_some() {
            (1..=LEVELS_MAX).contains(&levels)
        } else {
            levels == 0
        };
        if !possible {
            return Err(FormatError::Field {
                field: "tree levels",
                value: u64::from(levels),
            });
        }
        if rest != [0; 3] || top.is_some_and(|top| top.info != 0) {
            return Err(FormatError::Reserved {
                structure: "tree root",
            });
        }
        Ok(Self { top, levels })
    }
}
