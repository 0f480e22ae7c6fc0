//! What a frame carries: changes of maps and catalogue, in the order in which they were applied.
//!
//! ```text
//! all      0 kind      u8      1 map, 2 unmap, 3 put, 4 gone
//!          1 reserved  u8
//!          2 bytes     u16     whole record, a multiple of 8
//!          4 domain    u32     0 the pool's
//!          8 layer     u64     0 for the catalogue's
//! map      1           the blocks of a run change from `old` to `new`
//!         16 lba       u64     below 2^38
//!         24 count     u32     1 to 512, all in one segment
//!         28 reserved  u32
//!         32 old       u64     entry of the first block; the others follow it in a run
//!         40 new       u64     likewise
//! unmap    2           whatever the blocks of a range are, they become `to`
//!         16 lba       u64     below 2^38
//!         24 count     u32     1 to 512, all in one segment
//!         28 to        u32     0 absent, 1 zero
//! put      3           the catalogue's slot holds this volume now
//!         16 slot      u64
//!         24 record    256 bytes, its map empty
//! gone     4           the catalogue's slot is free; the layer had nothing mapped
//!         16 slot      u64
//!         24 volume    u64
//! ```
//!
//! Kinds 16 and above are kept for sharing and layers. Replay compares `old` with the map, so a
//! record that does not fit the map it is applied to is found.

use crate::bytes::{is_zero, put, u16_at, u32_at, u64_at};
use crate::catalogue_page::{VOLUME_RECORD_BYTES, VolumeRecord};
use crate::entry::Entry;
use crate::error::FormatError;
use crate::frame::FRAME_PAYLOAD_MAX;
use crate::node::TreeRoot;
use crate::units::{BLOCKS_PER_SEGMENT, LayerId, Lba, VOLUME_BLOCKS_MAX, VolumeId, is_id};

const KIND_MAP: u8 = 1;
const KIND_UNMAP: u8 = 2;
const KIND_PUT: u8 = 3;
const KIND_GONE: u8 = 4;

const HEADER_BYTES: usize = 16;
const MAP_BYTES: usize = 48;
const UNMAP_BYTES: usize = 32;
const PUT_BYTES: usize = 24 + VOLUME_RECORD_BYTES;
const GONE_BYTES: usize = 32;

/// The longest record.
pub const RECORD_BYTES_MAX: usize = PUT_BYTES;

const _: () = assert!(
    MAP_BYTES.is_multiple_of(8)
        && UNMAP_BYTES.is_multiple_of(8)
        && PUT_BYTES.is_multiple_of(8)
        && GONE_BYTES.is_multiple_of(8)
);
const _: () =
    assert!(RECORD_BYTES_MAX <= u16::MAX as usize && RECORD_BYTES_MAX < FRAME_PAYLOAD_MAX);

/// What unmapped blocks become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmapTo {
    /// Whatever the layer below says.
    Absent,
    /// Zeros, hiding the layers below.
    Zero,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A run of blocks in one segment changes from `old` to `new`.
    Map {
        /// The layer whose map changes.
        layer: LayerId,
        /// First block of the run.
        lba: Lba,
        /// Blocks in the run, 1 to 512.
        count: u32,
        /// What the first block was; the others were its successors.
        old: Entry,
        /// What the first block is; the others are its successors.
        new: Entry,
    },
    /// A range of blocks in one segment gives up whatever it maps.
    Unmap {
        /// The layer whose map changes.
        layer: LayerId,
        /// First block of the range.
        lba: Lba,
        /// Blocks in the range, 1 to 512.
        count: u32,
        /// What they become.
        to: UnmapTo,
    },
    /// A slot of the catalogue holds this volume now.
    VolumePut {
        /// The slot.
        slot: u64,
        /// The volume; its map is empty, for that is the layers' business.
        volume: VolumeRecord,
    },
    /// A slot of the catalogue is free.
    VolumeGone {
        /// The slot.
        slot: u64,
        /// Whose it was.
        volume: VolumeId,
        /// Its live layer, in which nothing was mapped any more.
        layer: LayerId,
    },
}

impl Record {
    /// Appends the record to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        let (kind, size, layer) = match self {
            Self::Map { layer, .. } => (KIND_MAP, MAP_BYTES, layer.0),
            Self::Unmap { layer, .. } => (KIND_UNMAP, UNMAP_BYTES, layer.0),
            Self::VolumePut { .. } => (KIND_PUT, PUT_BYTES, 0),
            Self::VolumeGone { layer, .. } => (KIND_GONE, GONE_BYTES, layer.0),
        };
        bytes.resize(start + size, 0);
        let record = &mut bytes[start..];
        record[0] = kind;
        put(record, 2, &(size as u16).to_le_bytes());
        put(record, 8, &layer.to_le_bytes());
        match self {
            Self::Map {
                lba,
                count,
                old,
                new,
                ..
            } => {
                put(record, 16, &lba.0.to_le_bytes());
                put(record, 24, &count.to_le_bytes());
                put(record, 32, &old.to_bits().to_le_bytes());
                put(record, 40, &new.to_bits().to_le_bytes());
            }
            Self::Unmap { lba, count, to, .. } => {
                put(record, 16, &lba.0.to_le_bytes());
                put(record, 24, &count.to_le_bytes());
                put(record, 28, &u32::from(*to == UnmapTo::Zero).to_le_bytes());
            }
            Self::VolumePut { slot, volume } => {
                put(record, 16, &slot.to_le_bytes());
                VolumeRecord {
                    map: TreeRoot::default(),
                    ..volume.clone()
                }
                .put(record, 24);
            }
            Self::VolumeGone { slot, volume, .. } => {
                put(record, 16, &slot.to_le_bytes());
                put(record, 24, &volume.0.to_le_bytes());
            }
        }
    }

    /// Reads the record at the start of `bytes` and returns it with its length.
    ///
    /// # Errors
    ///
    /// [`FormatError`] for whatever no release writes.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        if bytes.len() < HEADER_BYTES {
            return Err(FormatError::Short {
                needed: HEADER_BYTES,
                got: bytes.len(),
            });
        }
        let needed = match bytes[0] {
            KIND_MAP => MAP_BYTES,
            KIND_UNMAP => UNMAP_BYTES,
            KIND_PUT => PUT_BYTES,
            KIND_GONE => GONE_BYTES,
            other => {
                return Err(FormatError::Field {
                    field: "record kind",
                    value: u64::from(other),
                });
            }
        };
        let size = usize::from(u16_at(bytes, 2));
        if size != needed {
            return Err(FormatError::Field {
                field: "record length",
                value: size as u64,
            });
        }
        if bytes.len() < needed {
            return Err(FormatError::Short {
                needed,
                got: bytes.len(),
            });
        }
        if bytes[1] != 0 || u32_at(bytes, 4) != 0 {
            return Err(FormatError::Reserved {
                structure: "record header",
            });
        }
        Ok((decode_body(&bytes[..needed])?, needed))
    }
}

/// Reads what follows the header of a record whose kind and length have been checked.
fn decode_body(bytes: &[u8]) -> Result<Record, FormatError> {
    match bytes[0] {
        KIND_MAP => decode_map(bytes),
        KIND_UNMAP => decode_unmap(bytes),
        KIND_PUT => decode_put(bytes),
        _ => decode_gone(bytes),
    }
}

fn decode_map(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let (lba, count) = range_at(bytes)?;
    if u32_at(bytes, 28) != 0 {
        return Err(FormatError::Reserved {
            structure: "map record",
        });
    }
    let old = Entry::from_bits(u64_at(bytes, 32))?;
    let new = Entry::from_bits(u64_at(bytes, 40))?;
    for entry in [old, new] {
        Entry::from_bits(entry.successor(u64::from(count) - 1).to_bits())?;
    }
    Ok(Record::Map {
        layer,
        lba,
        count,
        old,
        new,
    })
}

fn decode_unmap(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = layer_at(bytes)?;
    let (lba, count) = range_at(bytes)?;
    let to = match u32_at(bytes, 28) {
        0 => UnmapTo::Absent,
        1 => UnmapTo::Zero,
        other => {
            return Err(FormatError::Field {
                field: "unmap to",
                value: other.into(),
            });
        }
    };
    Ok(Record::Unmap {
        layer,
        lba,
        count,
        to,
    })
}

fn decode_put(bytes: &[u8]) -> Result<Record, FormatError> {
    let layer = u64_at(bytes, 8);
    match VolumeRecord::decode(&bytes[24..])? {
        Some(volume) if volume.map == TreeRoot::default() && layer == 0 => Ok(Record::VolumePut {
            slot: u64_at(bytes, 16),
            volume,
        }),
        _ => Err(FormatError::Reserved {
            structure: "volume record",
        }),
    }
}

fn decode_gone(bytes: &[u8]) -> Result<Record, FormatError> {
    let volume = u64_at(bytes, 24);
    if !is_id(volume) {
        return Err(FormatError::Field {
            field: "volume id",
            value: volume,
        });
    }
    Ok(Record::VolumeGone {
        slot: u64_at(bytes, 16),
        volume: VolumeId(volume),
        layer: layer_at(bytes)?,
    })
}

/// The layer that a record is about.
fn layer_at(bytes: &[u8]) -> Result<LayerId, FormatError> {
    let layer = u64_at(bytes, 8);
    if is_id(layer) {
        Ok(LayerId(layer))
    } else {
        Err(FormatError::Field {
            field: "layer id",
            value: layer,
        })
    }
}

/// A record's range, which must lie in one segment of a volume.
fn range_at(bytes: &[u8]) -> Result<(Lba, u32), FormatError> {
    let (lba, count) = (Lba(u64_at(bytes, 16)), u32_at(bytes, 24));
    if lba.0 >= VOLUME_BLOCKS_MAX {
        return Err(FormatError::Field {
            field: "block number",
            value: lba.0,
        });
    }
    let fits = count != 0 && lba.slot() as u64 + u64::from(count) <= BLOCKS_PER_SEGMENT;
    if fits {
        Ok((lba, count))
    } else {
        Err(FormatError::Field {
            field: "block count",
            value: u64::from(count),
        })
    }
}

/// The records in a frame's payload, one after the other; ends after the first error.
pub fn decode_all(payload: &[u8]) -> impl Iterator<Item = Result<Record, FormatError>> + '_ {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if is_zero(rest) {
            return None;
        }
        match Record::decode(rest) {
            Ok((record, size)) => {
                rest = &rest[size..];
                Some(Ok(record))
            }
            Err(error) => {
                rest = &[];
                Some(Err(error))
            }
        }
    })
}
