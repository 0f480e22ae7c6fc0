//! A page of the part `scrub`: the scrub's progress, and the known bad blocks.
//!
//! ```text
//!  64 next block   u64    where the scrub continues
//!  72 left         u64    blocks left in the run in progress; 0: no run is in progress
//!  80 rate         u64    bytes a second that the run may read; 0: no limit
//!  88 ended        u64    Unix seconds at which the last run ended; 0: none has
//!  96 bad blocks   u32    in all pages of the slot together
//! 100 reserved     u32
//! 104 reserved     24 bytes
//! 128 + 32 n       bad block 124 k + n, if it exists, in the slot's page k
//! ```
//!
//! Everything is written each time, in pages that have one sequence, to the slot `sequence % 2` of
//! the part. A torn write leaves the other slot intact.

use crate::bytes::{array_at, is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::page::{self, PageBytes, PageHeader, PageKind};
use crate::units::{PBA_END, PageNumber, Pba, PoolId, is_run};

/// Bad blocks in a page.
pub const BAD_BLOCKS_PER_PAGE: usize = 124;

/// Pages of a slot; the other slot begins after them.
pub const SLOT_PAGES: u64 = 64;

/// Slots of the part.
pub const SLOTS: u64 = 2;

/// Most bad blocks that a pool keeps track of.
pub const BAD_BLOCKS_MAX: u32 = SLOT_PAGES as u32 * BAD_BLOCKS_PER_PAGE as u32;

/// Most attempts to repair a block.
pub const ATTEMPTS_MAX: u8 = 3;

/// Bytes that a bad block takes.
pub const BAD_BLOCK_BYTES: usize = 32;

const BAD_BLOCKS_AT: usize = 128;

const FAULT_UNREADABLE: u8 = 1;
const FAULT_CHANGED: u8 = 2;

/// The scrub's progress: the same in all pages of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// The next block of the scrub.
    pub next_block: u64,
    /// Blocks left in the run in progress, free ones included; 0 without a run.
    pub left_blocks: u64,
    /// Bytes a second that the run in progress may read; 0 for no bound.
    pub bytes_per_second: u64,
    /// When the last run ended, in seconds since the Unix epoch; 0 if none has.
    pub ended_unix_seconds: u64,
}

/// The fault of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device cannot read it.
    Unreadable,
    /// The block can be read, but its content differs from the stored content.
    Changed,
}

/// A block that is known to be bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadBlock {
    /// The block's address.
    pub pba: Pba,
    /// The block's fault.
    pub fault: Fault,
    /// The number of attempts to repair the block, up to [`ATTEMPTS_MAX`].
    pub attempts: u8,
    /// The block's fingerprint in the index; `None` for a block that is not in the index, or whose
    /// row is not known. A changed block always has one.
    pub fingerprint: Option<[u8; 16]>,
}

impl BadBlock {
    fn put(&self, page: &mut PageBytes, at: usize) {
        let fault = match self.fault {
            Fault::Unreadable => FAULT_UNREADABLE,
            Fault::Changed => FAULT_CHANGED,
        };
        put(page, at, &self.pba.0.to_le_bytes());
        put(page, at + 8, &self.fingerprint.unwrap_or_default());
        let is_known = u8::from(self.fingerprint.is_some());
        put(page, at + 24, &[fault, self.attempts, is_known]);
    }

    fn at(page: &PageBytes, at: usize) -> Result<Self, FormatError> {
        let field = |field, value| Err(FormatError::Field { field, value });
        let pba = Pba(u64_at(page, at));
        if !is_run(pba, 1) {
            return field("bad block", pba.0);
        }
        let fault = match page[at + 24] {
            FAULT_UNREADABLE => Fault::Unreadable,
            FAULT_CHANGED => Fault::Changed,
            other => return field("fault", other.into()),
        };
        let attempts = page[at + 25];
        if attempts > ATTEMPTS_MAX {
            return field("attempts", attempts.into());
        }
        let fingerprint = match page[at + 26] {
            1 => Some(array_at(page, at + 8)),
            0 if fault == Fault::Unreadable && is_zero(&page[at + 8..at + 24]) => None,
            other => return field("known", other.into()),
        };
        if !is_zero(&page[at + 27..at + BAD_BLOCK_BYTES]) {
            return Err(FormatError::Reserved {
                structure: "bad block",
            });
        }
        Ok(Self {
            pba,
            fault,
            attempts,
            fingerprint,
        })
    }
}

/// The pages of a slot, one after the other: `bad_blocks` in the order of their addresses.
///
/// # Panics
///
/// Where there are more than [`BAD_BLOCKS_MAX`].
#[must_use]
pub fn encode(
    sequence: u64,
    progress: &ScrubProgress,
    bad_blocks: &[BadBlock],
    pool: PoolId,
) -> Vec<Box<PageBytes>> {
    assert!(bad_blocks.len() <= BAD_BLOCKS_MAX as usize);
    let pages = bad_blocks.len().div_ceil(BAD_BLOCKS_PER_PAGE).max(1);
    let bad = |n: usize| bad_blocks.chunks(BAD_BLOCKS_PER_PAGE).nth(n);
    (0..pages)
        .map(|n| {
            let mut page = page::blank();
            put(&mut *page, 64, &progress.next_block.to_le_bytes());
            put(&mut *page, 72, &progress.left_blocks.to_le_bytes());
            put(&mut *page, 80, &progress.bytes_per_second.to_le_bytes());
            put(&mut *page, 88, &progress.ended_unix_seconds.to_le_bytes());
            put(&mut *page, 96, &(bad_blocks.len() as u32).to_le_bytes());
            let places = (BAD_BLOCKS_AT..).step_by(BAD_BLOCK_BYTES);
            for (block, at) in bad(n).into_iter().flatten().zip(places) {
                block.put(&mut page, at);
            }
            let first = sequence % SLOTS * SLOT_PAGES;
            let number = PageNumber(first + n as u64);
            page::seal(&mut page, &header(pool, number, sequence));
            page
        })
        .collect()
}

/// The content of a page of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubPage {
    /// The sequence of the write to which the page belongs; each write has a higher one.
    pub sequence: u64,
    /// The scrub's progress.
    pub progress: ScrubProgress,
    /// Bad blocks in all pages of the slot, of which this page has its part.
    pub bad_blocks: u32,
    /// The bad blocks of this page.
    pub listed: Vec<BadBlock>,
}

impl ScrubPage {
    /// The number of pages in use in the slot.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.bad_blocks as usize)
            .div_ceil(BAD_BLOCKS_PER_PAGE)
            .max(1) as u64
    }

    /// Reads the page at this place of the part.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(page: &PageBytes, pool: PoolId, number: PageNumber) -> Result<Self, FormatError> {
        let field = |field, value| Err(FormatError::Field { field, value });
        let (sequence, _) = page::open(page, &header(pool, number, 0))?;
        if sequence == 0 || sequence % SLOTS != number.0 / SLOT_PAGES {
            return field("scrub sequence", sequence);
        }
        let progress = ScrubProgress {
            next_block: u64_at(page, 64),
            left_blocks: u64_at(page, 72),
            bytes_per_second: u64_at(page, 80),
            ended_unix_seconds: u64_at(page, 88),
        };
        if progress.next_block >= PBA_END {
            return field("next block", progress.next_block);
        }
        if progress.left_blocks > PBA_END {
            return field("left", progress.left_blocks);
        }
        let bad_blocks = u32_at(page, 96);
        let before = number.0 % SLOT_PAGES * BAD_BLOCKS_PER_PAGE as u64;
        let is_last = before > 0 && before >= u64::from(bad_blocks);
        if bad_blocks > BAD_BLOCKS_MAX || is_last {
            return field("bad blocks", bad_blocks.into());
        }
        let count = (u64::from(bad_blocks) - before).min(BAD_BLOCKS_PER_PAGE as u64) as usize;
        let end = BAD_BLOCKS_AT + count * BAD_BLOCK_BYTES;
        if !is_zero(&page[100..BAD_BLOCKS_AT]) || !is_zero(&page[end..]) {
            return Err(FormatError::Reserved {
                structure: "scrub page",
            });
        }
        let places = (BAD_BLOCKS_AT..end).step_by(BAD_BLOCK_BYTES);
        let listed: Vec<BadBlock> = places
            .map(|at| BadBlock::at(page, at))
            .collect::<Result<_, _>>()?;
        if let Some(pair) = listed.windows(2).find(|pair| pair[0].pba >= pair[1].pba) {
            return field("bad block out of order", pair[1].pba.0);
        }
        Ok(Self {
            sequence,
            progress,
            bad_blocks,
            listed,
        })
    }
}

fn header(pool: PoolId, number: PageNumber, sequence: u64) -> PageHeader {
    PageHeader {
        kind: PageKind::Scrub,
        level: 0,
        pool,
        page: number,
        owner: 0,
        index: number.0 % SLOT_PAGES,
        sequence,
    }
}
