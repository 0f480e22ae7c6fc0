//! The pool's identity: one page, written once when the pool is created.
//!
//! ```text
//! 64 block size   u32      bytes: 4096, 8192, 16384 or 65536
//! 68 index        u32      back end: 1 btree, 2 memory, 3 hash
//! 72 log bytes    u64      length of the ring, a multiple of 512
//! 80 created      u64      seconds since the Unix epoch
//! 88 group        u64      of a shared pool; 0 for a pool with one owner
//! 96 zeros
//! ```
//!
//! The superblock is written before any other part is used and never again, so a torn write can
//! only leave a pool that was never created.

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::page::{self, BODY, PageBytes, PageHeader, PageKind};
use crate::units::{BLOCK_SIZES, GroupId, ID_END, PageNumber, PoolId, SECTOR_BYTES};
use crate::{MINOR_OF_GROUPS, MINOR_VERSION};

/// Smallest ring: the records of one piece of a request fit several times over.
pub const LOG_BYTES_MIN: u64 = 256 << 10;

/// Largest ring: replaying it must stay a matter of seconds.
pub const LOG_BYTES_MAX: u64 = 1 << 30;

/// The back end that keeps the index of fingerprints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "api",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize)
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[repr(u32)]
pub enum IndexKind {
    /// On disk, made for fingerprints: a few bytes of memory for each block.
    Hash = 3,
    /// On disk, in a copy-on-write B-tree.
    Btree = 1,
    /// In memory: fast, bounded by the memory limit, and rebuilt from the pool after a crash.
    Memory = 2,
}

/// The permanent properties of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The pool's id.
    pub pool: PoolId,
    /// Bytes in a block.
    pub block_size: u32,
    /// The index's back end at creation; the index itself has its present one.
    pub index: IndexKind,
    /// Bytes in the log's ring.
    pub log_bytes: u64,
    /// When the pool was created, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// The group of a shared pool that this is; nothing for a pool with one owner.
    pub group: Option<GroupId>,
}

impl Superblock {
    /// The page that holds the superblock.
    #[must_use]
    pub fn encode(&self) -> Box<PageBytes> {
        let mut page = page::blank();
        put(&mut *page, 64, &self.block_size.to_le_bytes());
        put(&mut *page, 68, &(self.index as u32).to_le_bytes());
        put(&mut *page, 72, &self.log_bytes.to_le_bytes());
        put(&mut *page, 80, &self.created_unix_seconds.to_le_bytes());
        let group = self.group.unwrap_or_default();
        put(&mut *page, 88, &group.0.to_le_bytes());
        let minor = match self.group {
            Some(_) => MINOR_OF_GROUPS,
            None => MINOR_VERSION,
        };
        page::seal_as(&mut page, &header(self.pool), minor);
        page
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`]; [`FormatError::Newer`] has the version that can read it.
    pub fn decode(page: &PageBytes) -> Result<Self, FormatError> {
        let pool = page::claimed_pool(page);
        page::open(page, &header(pool))?;
        let block_size = u32_at(page, 64);
        if !BLOCK_SIZES.contains(&block_size) {
            return Err(FormatError::Field {
                field: "block size",
                value: u64::from(block_size),
            });
        }
        let index = match u32_at(page, 68) {
            1 => IndexKind::Btree,
            2 => IndexKind::Memory,
            3 => IndexKind::Hash,
            other => {
                return Err(FormatError::Field {
                    field: "index",
                    value: u64::from(other),
                });
            }
        };
        let log_bytes = u64_at(page, 72);
        let possible = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes)
            && log_bytes.is_multiple_of(SECTOR_BYTES);
        if !possible {
            return Err(FormatError::Field {
                field: "log size",
                value: log_bytes,
            });
        }
        if !is_zero(&page[96..]) {
            return Err(FormatError::Reserved {
                structure: "superblock",
            });
        }
        let group = u64_at(page, 88);
        let is_of_its_version = group == 0 || page::minor(page) >= MINOR_OF_GROUPS;
        if group >= ID_END || !is_of_its_version {
            return Err(FormatError::Field {
                field: "group",
                value: group,
            });
        }
        Ok(Self {
            pool,
            block_size,
            index,
            log_bytes,
            created_unix_seconds: u64_at(page, 80),
            group: Some(GroupId(group)).filter(|group| group.0 != 0),
        })
    }
}

fn header(pool: PoolId) -> PageHeader {
    PageHeader {
        kind: PageKind::Superblock,
        level: 0,
        pool,
        page: PageNumber(0),
        owner: 0,
        index: 0,
        sequence: 0,
    }
}

/// The first page of the data part. It identifies the pool, so that nothing is written to a foreign
/// device.
#[must_use]
pub fn encode_data_label(pool: PoolId) -> Box<PageBytes> {
    let mut page = page::blank();
    page::seal(
        &mut page,
        &PageHeader {
            kind: PageKind::DataLabel,
            ..header(pool)
        },
    );
    page
}

/// Checks that the data part belongs to `pool`.
///
/// # Errors
///
/// Any [`FormatError`]; [`FormatError::Pool`] where it belongs to another.
pub fn check_data_label(page: &PageBytes, pool: PoolId) -> Result<(), FormatError> {
    page::open(
        page,
        &PageHeader {
            kind: PageKind::DataLabel,
            ..header(pool)
        },
    )?;
    if is_zero(&page[BODY..]) {
        Ok(())
    } else {
        Err(FormatError::Reserved {
            structure: "data label",
        })
    }
}
