//! Leaf of the catalogue: fifteen records of 256 bytes, one for each volume.
//!
//! ```text
//! page     64 + 256 n   record n, 15 of them, then zeros; a record of zeros is a free slot
//! record    0 kind      u8      1 volume, with its live layer
//!           1 state     u8      1 importing, 2 ready, 3 deleting
//!           2 mode      u8      0 no deduplication
//!           3 name len  u8      bytes
//!           4 domain    u32     0 the pool's
//!           8 volume    u64
//!          16 layer     u64     the live one
//!          24 size      u64     bytes
//!          32 created   u64     seconds since the Unix epoch
//!          40 map       tree root of the live layer; empty in a log record
//!          56 zeros     72 bytes
//!         128 name      64 bytes, zero-padded
//!         192 zeros     64 bytes
//! ```

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::page::{BODY, PAGE_BYTES, PageBytes};
use crate::units::{BLOCK_SIZES, LayerId, VOLUME_BLOCKS_MAX, VolumeId, is_id};

/// Records in a page.
pub const RECORDS_PER_PAGE: usize = 15;

/// Bytes in a record.
pub const VOLUME_RECORD_BYTES: usize = 256;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

const KIND_VOLUME: u8 = 1;

/// Largest volume of any pool, in bytes.
const SIZE_BYTES_MAX: u64 = VOLUME_BLOCKS_MAX * BLOCK_SIZES[BLOCK_SIZES.len() - 1] as u64;

const _: () = assert!(BODY + RECORDS_PER_PAGE * VOLUME_RECORD_BYTES <= PAGE_BYTES);
const _: () = assert!(128 + NAME_BYTES_MAX < 192, "a name is followed by a zero");

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum VolumeState {
    /// Being loaded: recovery removes it.
    Importing = 1,
    /// In use.
    Ready = 2,
    /// Being removed: recovery finishes that.
    Deleting = 3,
}

/// What the catalogue says of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Names it for ever.
    pub id: VolumeId,
    /// Its live layer.
    pub layer: LayerId,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Size in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// When it was created, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// The live layer's map; empty in a log record.
    pub map: TreeRoot,
    /// Its name: see [`name_is_valid`].
    pub name: String,
}

/// Whether `name` can name a volume: a letter or digit, then up to 62 of those and `.`, `_`, `-`.
#[must_use]
pub fn name_is_valid(name: &str) -> bool {
    let starts_well = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    starts_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed)
}

impl VolumeRecord {
    /// Writes the record into 256 bytes of zeros at `at`.
    pub(crate) fn put(&self, bytes: &mut [u8], at: usize) {
        debug_assert!(name_is_valid(&self.name), "volume name {:?}", self.name);
        let head = [KIND_VOLUME, self.state as u8, 0, self.name.len() as u8];
        put(bytes, at, &head);
        put(bytes, at + 8, &self.id.0.to_le_bytes());
        put(bytes, at + 16, &self.layer.0.to_le_bytes());
        put(bytes, at + 24, &self.size_bytes.to_le_bytes());
        put(bytes, at + 32, &self.created_unix_seconds.to_le_bytes());
        self.map.put(bytes, at + 40);
        put(bytes, at + 128, self.name.as_bytes());
    }

    /// Reads the record in `bytes`, which are [`VOLUME_RECORD_BYTES`] long.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        if is_zero(bytes) {
            return Ok(None);
        }
        let field = |field, value| Err(FormatError::Field { field, value });
        if bytes[0] != KIND_VOLUME {
            return field("catalogue record kind", u64::from(bytes[0]));
        }
        let state = match bytes[1] {
            1 => VolumeState::Importing,
            2 => VolumeState::Ready,
            3 => VolumeState::Deleting,
            other => return field("volume state", u64::from(other)),
        };
        let (id, layer, size_bytes) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        if !is_id(id) {
            return field("volume id", id);
        }
        if !is_id(layer) {
            return field("layer id", layer);
        }
        let whole_blocks = size_bytes.is_multiple_of(u64::from(BLOCK_SIZES[0]));
        if !whole_blocks || !(1..=SIZE_BYTES_MAX).contains(&size_bytes) {
            return field("volume size", size_bytes);
        }
        let name_len = usize::from(bytes[3]);
        if name_len > NAME_BYTES_MAX {
            return field("name length", u64::from(bytes[3]));
        }
        let name = String::from_utf8_lossy(&bytes[128..128 + name_len]).into_owned();
        if !name_is_valid(&name) {
            return field("volume name", name_len as u64);
        }
        let reserved = [&bytes[56..128], &bytes[128 + name_len..]];
        if bytes[2] != 0 || u32_at(bytes, 4) != 0 || !reserved.iter().all(|part| is_zero(part)) {
            return Err(FormatError::Reserved {
                structure: "volume record",
            });
        }
        Ok(Some(Self {
            id: VolumeId(id),
            layer: LayerId(layer),
            state,
            size_bytes,
            created_unix_seconds: u64_at(bytes, 32),
            map: TreeRoot::at(bytes, 40)?,
            name,
        }))
    }
}

/// Writes the body of `page`. Records beyond the fifteenth are not looked at.
pub fn encode(records: &[Option<VolumeRecord>], page: &mut PageBytes) {
    for (slot, record) in records.iter().take(RECORDS_PER_PAGE).enumerate() {
        if let Some(record) = record {
            record.put(page, BODY + slot * VOLUME_RECORD_BYTES);
        }
    }
}

/// Reads the body of a page that has been checked: always [`RECORDS_PER_PAGE`] slots.
///
/// # Errors
///
/// [`FormatError`] for fields and reserved bytes that no release writes.
pub fn decode(page: &PageBytes) -> Result<Vec<Option<VolumeRecord>>, FormatError> {
    let (records, rest) = page[BODY..].split_at(RECORDS_PER_PAGE * VOLUME_RECORD_BYTES);
    if !is_zero(rest) {
        return Err(FormatError::Reserved {
            structure: "catalogue page",
        });
    }
    records
        .chunks_exact(VOLUME_RECORD_BYTES)
        .map(VolumeRecord::decode)
        .collect()
}
