//! The header that every metadata page carries, and the seal over the page.
//!
//! ```text
//!  0 magic        u32      "1FLD"
//!  4 kind         u8       of the page
//!  5 major        u8
//!  6 minor        u8
//!  7 level        u8       height above the leaves of its tree
//!  8 pool         16 bytes
//! 24 page         u64      its own address
//! 32 owner        u64      the tree it belongs to: a layer's id, or one of the constants
//! 40 index        u64      the first leaf below it
//! 48 sequence     u64      the checkpoint that wrote it
//! 56 reserved     u32
//! 60 checksum     u32      CRC-32C of the page with this field zero
//! 64 body
//! ```
//!
//! A torn write fails the checksum. A lost write leaves an older page, whose checksum differs from
//! the one in the pointer to it. A misdirected write fails on page, owner or index.

use crate::bytes::{array_at, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::node::ROOT_SLOTS;
use crate::units::{ID_END, PageNumber, PoolId};
use crate::{MAJOR_VERSION, MINOR_OF_GROUPS, MINOR_VERSION};

/// Bytes in a metadata page.
pub const PAGE_BYTES: usize = 4096;

/// Where a page's body starts.
pub const BODY: usize = 64;

/// The magic number: "1FLD".
pub const MAGIC: u32 = u32::from_le_bytes(*b"1FLD");

/// Owner of the pages of the claims. No layer has this id.
pub const CLAIMS_OWNER: u64 = u64::MAX - 4;

/// Owner of the open batch's pages. No layer has this id.
pub const BATCH_OWNER: u64 = u64::MAX - 3;

/// Owner of the pages of the queue of dropped references. No layer has this id.
pub const QUEUE_OWNER: u64 = u64::MAX - 2;

/// Owner of the free-space tree's pages. No layer has this id.
pub const SPACE_OWNER: u64 = u64::MAX - 1;

/// Owner of the catalogue's pages. No layer has this id.
pub const CATALOGUE_OWNER: u64 = u64::MAX;

const CHECKSUM_AT: usize = 60;

const _: () = assert!(CHECKSUM_AT + 4 == BODY, "the checksum ends the header");
const _: () = assert!(CLAIMS_OWNER >= ID_END, "no layer has an owner's number");

/// A page's bytes.
pub type PageBytes = [u8; PAGE_BYTES];

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// [`crate::superblock`]
    Superblock = 1,
    /// [`crate::root`]
    Root = 2,
    /// [`crate::node`]
    Node = 3,
    /// [`crate::map_page`]
    Map = 4,
    /// [`crate::space_page`]
    Space = 5,
    /// [`crate::catalogue_page`]
    Catalogue = 6,
    /// The first block of the data part, which identifies a foreign device.
    DataLabel = 7,
    /// [`crate::queue_page`]
    Queue = 8,
    /// [`crate::batch_page`]
    Batch = 9,
    /// [`crate::secret`]
    Secret = 10,
    /// [`crate::export`]
    ExportMark = 11,
    /// [`crate::scrub_page`]
    Scrub = 12,
    /// [`crate::loss_page`]
    Losses = 13,
}

/// The kinds of pages in trees.
const OF_TREES: [PageKind; 6] = [
    PageKind::Node,
    PageKind::Map,
    PageKind::Space,
    PageKind::Catalogue,
    PageKind::Queue,
    PageKind::Batch,
];

/// First number that no pointer to a page can hold.
const PAGE_END: u64 = 1 << 48;

/// A page's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// The kind.
    pub kind: PageKind,
    /// Height above the leaves of its tree: 0 for a leaf.
    pub level: u8,
    /// The page's pool.
    pub pool: PoolId,
    /// The page's address.
    pub page: PageNumber,
    /// The tree to which the page belongs.
    pub owner: u64,
    /// The first leaf below the page; a leaf's own index.
    pub index: u64,
    /// The checkpoint that wrote the page.
    pub sequence: u64,
}

/// An empty page.
#[must_use]
pub fn blank() -> Box<PageBytes> {
    Box::new([0; PAGE_BYTES])
}

/// Writes the header over `page`, whose body is complete, and returns the page's checksum.
pub fn seal(page: &mut PageBytes, header: &PageHeader) -> u32 {
    seal_as(page, header, MINOR_VERSION)
}

/// Like [`seal`], for a page whose minor version says which releases may write to the pool.
pub(crate) fn seal_as(page: &mut PageBytes, header: &PageHeader, minor: u8) -> u32 {
    put(page, 0, &MAGIC.to_le_bytes());
    put(
        page,
        4,
        &[header.kind as u8, MAJOR_VERSION, minor, header.level],
    );
    put(page, 8, &header.pool.0);
    put(page, 24, &header.page.0.to_le_bytes());
    put(page, 32, &header.owner.to_le_bytes());
    put(page, 40, &header.index.to_le_bytes());
    put(page, 48, &header.sequence.to_le_bytes());
    put(page, 56, &[0; 8]);
    let checksum = crc32c::crc32c(page);
    put(page, CHECKSUM_AT, &checksum.to_le_bytes());
    checksum
}

/// Checks a page and returns its sequence and its checksum. `expected.sequence` is not compared:
/// the checksum in the pointer to the page distinguishes an old page from the right one.
///
/// # Errors
///
/// The most telling difference from `expected`.
pub fn open(page: &PageBytes, expected: &PageHeader) -> Result<(u64, u32), FormatError> {
    let magic = u32_at(page, 0);
    if magic != MAGIC {
        return Err(FormatError::Magic {
            expected: MAGIC,
            found: magic,
        });
    }
    let stored = u32_at(page, CHECKSUM_AT);
    let computed = checksum(page);
    if stored != computed {
        return Err(FormatError::Checksum {
            expected: stored,
            found: computed,
        });
    }
    if page[5] > MAJOR_VERSION {
        return Err(FormatError::Newer {
            major: page[5],
            minor: page[6],
        });
    }
    if page[5] == 0 {
        return Err(FormatError::Field {
            field: "major version",
            value: 0,
        });
    }
    if PoolId(array_at(page, 8)) != expected.pool {
        return Err(FormatError::Pool);
    }
    let fields = [
        (
            "page kind",
            u64::from(expected.kind as u8),
            u64::from(page[4]),
        ),
        ("tree level", u64::from(expected.level), u64::from(page[7])),
        ("page number", expected.page.0, u64_at(page, 24)),
        ("owner", expected.owner, u64_at(page, 32)),
        ("index", expected.index, u64_at(page, 40)),
    ];
    for (field, expected, found) in fields {
        if expected != found {
            return Err(FormatError::Address {
                field,
                expected,
                found,
            });
        }
    }
    if u32_at(page, 56) != 0 {
        return Err(FormatError::Reserved {
            structure: "page header",
        });
    }
    Ok((u64_at(page, 48), stored))
}

/// Checks a page of any tree without a pointer to it: that it is whole, of `pool`, and of a version
/// that this build reads. Its place is returned, not compared.
///
/// # Errors
///
/// Errors of [`open`]; [`FormatError::Field`] for a page that does not belong to a tree.
pub fn open_of_tree(page: &PageBytes, pool: PoolId) -> Result<PageHeader, FormatError> {
    let kind = OF_TREES.into_iter().find(|kind| *kind as u8 == page[4]);
    let header = PageHeader {
        kind: kind.unwrap_or(PageKind::Node),
        level: page[7],
        pool,
        page: PageNumber(u64_at(page, 24)),
        owner: u64_at(page, 32),
        index: u64_at(page, 40),
        sequence: u64_at(page, 48),
    };
    open(page, &header)?;
    if !(ROOT_SLOTS..PAGE_END).contains(&header.page.0) {
        return Err(FormatError::Field {
            field: "page number",
            value: header.page.0,
        });
    }
    Ok(header)
}

/// The pool in a page's header, before any other field of it is trusted.
#[must_use]
pub fn claimed_pool(page: &PageBytes) -> PoolId {
    PoolId(array_at(page, 8))
}

/// The height above the leaves that a page claims.
pub(crate) fn level(page: &PageBytes) -> u8 {
    page[7]
}

/// The minor version of a page that has been checked.
pub(crate) fn minor(page: &PageBytes) -> u8 {
    page[6]
}

/// Whether a page that has been checked was written by a later minor version, whose pool this build
/// reads but must not change.
#[must_use]
pub fn is_of_later_minor(page: &PageBytes) -> bool {
    page[5] == MAJOR_VERSION && page[6] > MINOR_OF_GROUPS
}

fn checksum(page: &PageBytes) -> u32 {
    let head = crc32c::crc32c(&page[..CHECKSUM_AT]);
    let gap = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(gap, &page[CHECKSUM_AT + 4..])
}
