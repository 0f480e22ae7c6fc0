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
//! 152 next batch       u64    first batch number never used
//! 160 queue            tree root
//! 176 queue head       u64    number of the first element that is still queued
//! 184 queue end        u64    number that the next element will have
//! 192 batch            tree root   items of the open batch
//! 208 batch number     u64    0 where none is open, and so are the next four fields
//! 216 batch layer      u64    a finder batch's; 0 for the others
//! 224 batch kind       u32    1 finder, 2 collector, 3 counting
//! 228 batch items      u32    1 to 16,384
//! 232 batch done       u32    items that have their outcome, the first ones
//! 236 next domain id   u32    first id never used
//! 240 shrink to        u64    blocks that the pool is to have; 0 where it is not shrinking
//! 248 claims           tree root
//! 264 claims head      u64    number of the first claim that is not counted
//! 272 claims end       u64    number that the next claim will have
//! 280 exchanged        u64    number of the last exchange that is applied; 0 where there was none, and in a
//!                             pool that hosts do not share
//! 288 zeros
//! 4088 provisioning    u32    0 thin, 1 thick
//! 4092 when full       u32    0 writes wait, 1 writes fail
//! ```
//!
//! The header's sequence is the checkpoint's number; it goes to slot `sequence % 2`. A torn write
//! leaves the other slot, whose pages and log are still whole, since neither is reused before this
//! root is durable.

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::node::{ROOT_SLOTS, TreeRoot};
use crate::page::{self, PAGE_BYTES, PageBytes, PageHeader, PageKind};
use crate::queue_page::ELEMENTS_END;
use crate::record::BATCH_ITEMS_MAX;
use crate::units::{DOMAIN_END, ID_END, LayerId, PBA_END, PageNumber, PoolId, SECTOR_BYTES, is_id};

/// Fewest blocks of a pool: the label's and one for data.
pub const POOL_BLOCKS_MIN: u64 = 2;

const BATCH_OF_FINDER: u32 = 1;
const BATCH_OF_COLLECTOR: u32 = 2;
const BATCH_OF_COUNTING: u32 = 3;

/// Bytes that describe the open batch.
const OPEN_BATCH_BYTES: usize = 28;

/// Where [`Root::when_full`] is: settings fill the page from its end.
const WHEN_FULL: usize = PAGE_BYTES - 4;

/// Where [`Root::provisioning`] is.
const PROVISIONING: usize = WHEN_FULL - 4;

/// How the pool treats a write for which it has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "api",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize)
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[repr(u32)]
pub enum WhenFull {
    /// The write waits until there is room.
    #[default]
    Pause = 0,
    /// The write fails at once with ENOSPC.
    Fail = 1,
}

/// Whether the pool's data takes space on the host before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[repr(u32)]
pub enum Provisioning {
    /// The host allocates space as the pool fills, and gets back the space of free blocks.
    #[default]
    Thin = 0,
    /// All of the pool's space was allocated at creation, and is kept.
    Thick = 1,
}

/// The component whose batch is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// The finder, which has the index count references of this layer.
    Finder(LayerId),
    /// The collector, which has the index release references.
    Collector,
    /// Counting, which has the index count claims.
    Counting,
}

/// The batch whose intent is recorded but whose last outcome is not. Its items are the leaves of
/// [`Root::batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenBatchHead {
    /// The batch's number, 1 to 2^63 - 1.
    pub number: u64,
    /// The component that announced the batch.
    pub kind: BatchKind,
    /// Items in it, 1 to [`BATCH_ITEMS_MAX`].
    pub items: u32,
    /// Items that have their outcome, the first ones; at most [`OpenBatchHead::items`].
    pub done: u32,
}

/// A checkpoint: the page from which everything else is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The minor version of the pool, in the page's header: a release that knows a lower one only reads the pool.
    pub minor: u8,
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
    /// The free-space map: a bit per block, set if a map refers to the block.
    pub space: TreeRoot,
    /// Blocks of the pool, the label's included.
    pub pool_blocks: u64,
    /// First batch number never used, 1 to 2^63.
    pub next_batch: u64,
    /// Dropped references, for the collector.
    pub queue: TreeRoot,
    /// Number of the queue's first element.
    pub queue_head: u64,
    /// Number that the next element will have; equal to [`Root::queue_head`] for an empty queue.
    pub queue_end: u64,
    /// The open batch's items; empty if no batch is open.
    pub batch: TreeRoot,
    /// The open batch, if there is one.
    pub open_batch: Option<OpenBatchHead>,
    /// First domain id never used, up to [`DOMAIN_END`].
    pub next_domain_id: u32,
    /// The number of blocks to which the pool is shrinking.
    pub shrink_to: Option<u64>,
    /// Claims: references that entries have and the index does not count yet.
    pub claims: TreeRoot,
    /// Number of the first claim.
    pub claims_head: u64,
    /// Number that the next claim will have; equal to [`Root::claims_head`] if there are none.
    pub claims_end: u64,
    /// How the pool treats a write for which there is no room.
    pub when_full: WhenFull,
    /// Whether the data part takes all of its space on the host.
    pub provisioning: Provisioning,
    /// Number of the group's last exchange of space extents that is applied, 1 to 2^63 - 1; 0 where
    /// there was none, and in a pool that hosts do not share.
    pub exchanged: u64,
}

impl Root {
    /// The slot of this root.
    #[must_use]
    pub fn slot(&self) -> PageNumber {
        PageNumber(self.sequence % ROOT_SLOTS)
    }

    /// The page that holds the root.
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
        put(&mut *page, 152, &self.next_batch.to_le_bytes());
        self.queue.put(&mut *page, 160);
        put(&mut *page, 176, &self.queue_head.to_le_bytes());
        put(&mut *page, 184, &self.queue_end.to_le_bytes());
        self.batch.put(&mut *page, 192);
        if let Some(open_batch) = &self.open_batch {
            open_batch.put(&mut *page, 208);
        }
        put(&mut *page, 236, &self.next_domain_id.to_le_bytes());
        put(&mut *page, 240, &self.shrink_to.unwrap_or(0).to_le_bytes());
        self.claims.put(&mut *page, 248);
        put(&mut *page, 264, &self.claims_head.to_le_bytes());
        put(&mut *page, 272, &self.claims_end.to_le_bytes());
        put(&mut *page, 280, &self.exchanged.to_le_bytes());
        put(
            &mut *page,
            WHEN_FULL,
            &(self.when_full as u32).to_le_bytes(),
        );
        put(
            &mut *page,
            PROVISIONING,
            &(self.provisioning as u32).to_le_bytes(),
        );
        let header = header(pool, self.slot(), self.sequence);
        page::seal_as(&mut page, &header, self.minor);
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
        check_ids(page)?;
        let next_domain_id = u32_at(page, 236);
        if next_domain_id > DOMAIN_END {
            return Err(FormatError::Field {
                field: "next domain id",
                value: u64::from(next_domain_id),
            });
        }
        if u32_at(page, 92) != 0 || !is_zero(&page[288..PROVISIONING]) {
            return Err(FormatError::Reserved { structure: "root" });
        }
        let root = Self {
            minor: page::minor(page),
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
            next_batch: u64_at(page, 152),
            queue: TreeRoot::at(page, 160)?,
            queue_head: u64_at(page, 176),
            queue_end: u64_at(page, 184),
            batch: TreeRoot::at(page, 192)?,
            open_batch: OpenBatchHead::at(page, 208)?,
            next_domain_id,
            shrink_to: shrink_to_at(page, pool_blocks)?,
            claims: TreeRoot::at(page, 248)?,
            claims_head: u64_at(page, 264),
            claims_end: u64_at(page, 272),
            when_full: when_full_at(page)?,
            provisioning: provisioning_at(page)?,
            exchanged: u64_at(page, 280),
        };
        root.check_sharing()?;
        Ok(root)
    }

    /// Whether the fields of queue, claims and open batch agree with each other.
    fn check_sharing(&self) -> Result<(), FormatError> {
        let field = |field, value| Err(FormatError::Field { field, value });
        let queues = [
            (
                ["queue end", "queue head"],
                self.queue,
                self.queue_head,
                self.queue_end,
            ),
            (
                ["claims end", "claims head"],
                self.claims,
                self.claims_head,
                self.claims_end,
            ),
        ];
        for ([end_field, head_field], tree, head, end) in queues {
            if end > ELEMENTS_END {
                return field(end_field, end);
            }
            if head > end {
                return field(head_field, head);
            }
            if head < end && tree.top.is_none() {
                return field("number of elements in an empty tree", end - head);
            }
        }
        if self.open_batch.is_some() != self.batch.top.is_some() {
            return field("levels of the batch's tree", self.batch.levels.into());
        }
        match self.open_batch {
            Some(open) if open.number >= self.next_batch => field("batch number", open.number),
            _ => Ok(()),
        }
    }
}

/// The size to which a pool of `pool_blocks` blocks is shrinking, if it is.
fn shrink_to_at(page: &PageBytes, pool_blocks: u64) -> Result<Option<u64>, FormatError> {
    match u64_at(page, 240) {
        0 => Ok(None),
        blocks if (POOL_BLOCKS_MIN..pool_blocks).contains(&blocks) => Ok(Some(blocks)),
        value => Err(FormatError::Field {
            field: "blocks to shrink to",
            value,
        }),
    }
}

impl OpenBatchHead {
    /// Encodes number, layer, kind, items and done: 28 bytes.
    fn put(&self, bytes: &mut [u8], at: usize) {
        let (kind, layer) = match self.kind {
            BatchKind::Finder(layer) => (BATCH_OF_FINDER, layer.0),
            BatchKind::Collector => (BATCH_OF_COLLECTOR, 0),
            BatchKind::Counting => (BATCH_OF_COUNTING, 0),
        };
        put(bytes, at, &self.number.to_le_bytes());
        put(bytes, at + 8, &layer.to_le_bytes());
        put(bytes, at + 16, &kind.to_le_bytes());
        put(bytes, at + 20, &self.items.to_le_bytes());
        put(bytes, at + 24, &self.done.to_le_bytes());
    }

    fn at(bytes: &[u8], at: usize) -> Result<Option<Self>, FormatError> {
        if is_zero(&bytes[at..at + OPEN_BATCH_BYTES]) {
            return Ok(None);
        }
        let field = |field, value| Err(FormatError::Field { field, value });
        let (number, layer) = (u64_at(bytes, at), u64_at(bytes, at + 8));
        let (items, done) = (u32_at(bytes, at + 20), u32_at(bytes, at + 24));
        let kind = match u32_at(bytes, at + 16) {
            BATCH_OF_FINDER if is_id(layer) => BatchKind::Finder(LayerId(layer)),
            BATCH_OF_COLLECTOR if layer == 0 => BatchKind::Collector,
            BATCH_OF_COUNTING if layer == 0 => BatchKind::Counting,
            BATCH_OF_FINDER | BATCH_OF_COLLECTOR | BATCH_OF_COUNTING => {
                return field("batch layer", layer);
            }
            other => return field("batch kind", other.into()),
        };
        if !is_id(number) {
            return field("batch number", number);
        }
        if !(1..=BATCH_ITEMS_MAX).contains(&items) {
            return field("batch items", items.into());
        }
        if done > items {
            return field("batch done", done.into());
        }
        Ok(Some(Self {
            number,
            kind,
            items,
            done,
        }))
    }
}

fn when_full_at(page: &PageBytes) -> Result<WhenFull, FormatError> {
    match u32_at(page, WHEN_FULL) {
        0 => Ok(WhenFull::Pause),
        1 => Ok(WhenFull::Fail),
        other => Err(FormatError::Field {
            field: "what happens when the pool is full",
            value: other.into(),
        }),
    }
}

fn provisioning_at(page: &PageBytes) -> Result<Provisioning, FormatError> {
    match u32_at(page, PROVISIONING) {
        0 => Ok(Provisioning::Thin),
        1 => Ok(Provisioning::Thick),
        other => Err(FormatError::Field {
            field: "provisioning",
            value: other.into(),
        }),
    }
}

fn check_ids(page: &PageBytes) -> Result<(), FormatError> {
    let ids = [
        ("next volume id", 96),
        ("next layer id", 104),
        ("next batch", 152),
    ];
    for (field, at) in ids {
        let value = u64_at(page, at);
        if !(1..=ID_END).contains(&value) {
            return Err(FormatError::Field { field, value });
        }
    }
    match u64_at(page, 280) {
        ..ID_END => Ok(()),
        value => Err(FormatError::Field {
            field: "exchanged",
            value,
        }),
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
