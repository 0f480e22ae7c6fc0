//! The root: one page in one of two slots, which makes a checkpoint the current one.
//!
//! ```text
//!  64 session          u64    counts openings; part of every frame
//!  72 log position     u64    replay starts exactly here
//!  80 commit           u64    number of the last commit before that position
//!  88 frame checksum   u32    of the last frame before that position
//!  92 reserved         u32
//!  96 next volume id   u64
//! 104 next layer id    u64
//! 112 catalogue        tree root
//! 128 free space       tree root
//! 144 pool blocks      u64    blocks of the pool, label included
//! 152 zeros
//! ```
//!
//! The header's sequence is the checkpoint's number; it goes to slot `sequence % 2`. A torn write
//! leaves the other slot, whose pages and log are still whole, since neither is given up before
//! this root is durable.

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::node::{ROOT_SLOTS, TreeRoot};
use crate::page::{self, PageBytes, PageHeader, PageKind};
use crate::units::{ID_END, PBA_END, PageNumber, PoolId, SECTOR_BYTES};

/// Fewest blocks of a pool: the label's and one for data.
pub const POOL_BLOCKS_MIN: u64 = 2;

/// A checkpoint: where everything starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Number of the root; each one written is higher than all before.
    pub sequence: u64,
    /// Counts openings of the pool.
    pub session: u64,
    /// Logical position in the log at which replay starts.
    pub log_position: u64,
    /// Number of the last commit before [`Root::log_position`].
    pub commit: u64,
    /// Checksum of the last frame before [`Root::log_position`].
    pub frame_checksum: u32,
    /// First volume id never used.
    pub next_volume_id: u64,
    /// First layer id never used.
    pub next_layer_id: u64,
    /// The volumes.
    pub catalogue: TreeRoot,
    /// One bit per block: named by a map, or free.
    pub space: TreeRoot,
    /// Blocks of the pool, the label's included.
    pub pool_blocks: u64,
}

impl Root {
    /// The slot that this root goes to.
    #[must_use]
    pub fn slot(&self) -> PageNumber {
        PageNumber(self.sequence % ROOT_SLOTS)
    }

    /// The page that holds it.
    #[must_use]
    pub fn encode(&self, pool: PoolId) -> Box<PageBytes> {
        let mut page = page::blank();
        put(&mut *page, 64, &self.session.to_le_bytes());
        put(&mut *page, 72, &self.log_position.to_le_bytes());
        put(&mut *page, 80, &self.commit.to_le_bytes());
        put(&mut *page, 88, &self.frame_checksum.to_le_bytes());
        put(&mut *page, 96, &self.next_volume_id.to_le_bytes());
        put(&mut *page, 104, &self.next_layer_id.to_le_bytes());
        self.catalogue.put(&mut *page, 112);
        self.space.put(&mut *page, 128);
        put(&mut *page, 144, &self.pool_blocks.to_le_bytes());
        page::seal(&mut page, &header(pool, self.slot(), self.sequence));
        page
    }

    /// Reads the root in `slot`.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(page: &PageBytes, pool: PoolId, slot: PageNumber) -> Result<Self, FormatError> {
        let (sequence, _) = page::open(page, &header(pool, slot, 0))?;
        if sequence % ROOT_SLOTS != slot.0 {
            return Err(FormatError::Field {
                field: "root sequence",
                value: sequence,
            });
        }
        let log_position = u64_at(page, 72);
        if !log_position.is_multiple_of(SECTOR_BYTES) {
            return Err(FormatError::Field {
                field: "log position",
                value: log_position,
            });
        }
        let pool_blocks = u64_at(page, 144);
        if !(POOL_BLOCKS_MIN..=PBA_END).contains(&pool_blocks) {
            return Err(FormatError::Field {
                field: "pool blocks",
                value: pool_blocks,
            });
        }
        for (field, at) in [("next volume id", 96), ("next layer id", 104)] {
            let value = u64_at(page, at);
            if !(1..=ID_END).contains(&value) {
                return Err(FormatError::Field { field, value });
            }
        }
        if u32_at(page, 92) != 0 || !is_zero(&page[152..]) {
            return Err(FormatError::Reserved { structure: "root" });
        }
        Ok(Self {
            sequence,
            session: u64_at(page, 64),
            log_position,
            commit: u64_at(page, 80),
            frame_checksum: u32_at(page, 88),
            next_volume_id: u64_at(page, 96),
            next_layer_id: u64_at(page, 104),
            catalogue: TreeRoot::at(page, 112)?,
            space: TreeRoot::at(page, 128)?,
            pool_blocks,
        })
    }
}

fn header(pool: PoolId, slot: PageNumber, sequence: u64) -> PageHeader {
    PageHeader {
        kind: PageKind::Root,
        level: 0,
        pool,
        page: slot,
        owner: 0,
        index: 0,
        sequence,
    }
}
