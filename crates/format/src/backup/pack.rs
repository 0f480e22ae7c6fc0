//! A pack: up to 16,384 blocks of a source, in groups that are compressed and sealed together.
//!
//! ```text
//! object header   80 bytes
//! groups          one after the other: each the sealed chunk of its number
//! table           the sealed chunk after the last group's
//! trailer         32 bytes
//! ```
//!
//! The trailer:
//!
//! ```text
//!  0 magic     u32   "1FPT"
//!  4 groups    u32
//!  8 table at  u64   bytes from the start of the object
//! 16 table     u32   bytes of it, sealed
//! 20 zeros     8 bytes
//! 28 checksum  u32   CRC-32C of the trailer with this field zero
//! ```
//!
//! The table:
//!
//! ```text
//!  0 blocks      u32   numbers that the pack has
//!  4 block size  u32   bytes
//!  8 groups      u32
//! 12 zeros       4 bytes
//! 16 witness     16 bytes   drawn when the pack was first written
//! ```
//!
//! then for each group a `u32`: its sealed bytes, with the highest bit set if it is compressed; then for each block
//! a `u8`: 0 gone, 1 stored, 2 lost, 3 moved; then for each block 16 bytes: its fingerprint, or zeros if it is gone.
//! Block *n* belongs to group *n* / 64, which holds its stored blocks in order. A lost block was damaged; its
//! fingerprint identifies the content that can repair it.
//!
//! A moved block is stored as a popular block. For each of them, in order, a `u64` follows: its number there; then a
//! `u32`: the number of popular packs with these blocks; then for each pack, in ascending order, its number, a `u64`,
//! and its witness, 16 bytes.
//!
//! All generations of a pack have its witness, and no other pack has it. A manifest names the witness of each pack
//! that it needs, so that a different pack with the same number is never used instead.

use super::TAG_BYTES;
use super::manifest::{PackReference, witness_of};
use super::recipe::NUMBER_END;
use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::cursor::{Cursor, impossible};
use crate::error::FormatError;
use crate::units::BLOCK_SIZES;

/// Numbers in a pack.
pub const BLOCKS_PER_PACK: u64 = 16_384;

/// Numbers in a group.
pub const BLOCKS_PER_GROUP: usize = 64;

/// Bytes in the trailer.
pub const TRAILER_BYTES: usize = 32;

const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"1FPT");
const CHECKSUM_AT: usize = 28;
const COMPRESSED: u32 = 1 << 31;

/// The end of a pack, from which its other parts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackTrailer {
    /// How many groups there are.
    pub groups: u32,
    /// Where the table begins, in bytes.
    pub table_at: u64,
    /// Bytes of the sealed table.
    pub table_bytes: u32,
}

impl PackTrailer {
    /// The trailer's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        put(&mut bytes, 0, &TRAILER_MAGIC.to_le_bytes());
        put(&mut bytes, 4, &self.groups.to_le_bytes());
        put(&mut bytes, 8, &self.table_at.to_le_bytes());
        put(&mut bytes, 16, &self.table_bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        put(&mut bytes, CHECKSUM_AT, &checksum.to_le_bytes());
        bytes
    }

    /// Decodes a trailer.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8; TRAILER_BYTES]) -> Result<Self, FormatError> {
        let magic = u32_at(bytes, 0);
        if magic != TRAILER_MAGIC {
            return Err(FormatError::Magic {
                expected: TRAILER_MAGIC,
                found: magic,
            });
        }
        let mut blank = *bytes;
        put(&mut blank, CHECKSUM_AT, &[0; 4]);
        let (expected, found) = (u32_at(bytes, CHECKSUM_AT), crc32c::crc32c(&blank));
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        if !is_zero(&bytes[20..CHECKSUM_AT]) {
            return Err(FormatError::Reserved {
                structure: "pack trailer",
            });
        }
        let groups = u32_at(bytes, 4);
        if groups == 0 || u64::from(groups) > BLOCKS_PER_PACK / BLOCKS_PER_GROUP as u64 {
            return Err(impossible("groups", groups.into()));
        }
        Ok(Self {
            groups,
            table_at: u64_at(bytes, 8),
            table_bytes: u32_at(bytes, 16),
        })
    }
}

/// Distinguishes a pack from any other pack with the same number. All generations of the pack have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Witness(pub [u8; 16]);

/// A group as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredGroup {
    /// Bytes of the sealed chunk.
    pub bytes: u32,
    /// Whether its content is compressed.
    pub is_compressed: bool,
}

/// The content of a pack under one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Nothing: no backup needed the block.
    Gone,
    /// A block, with its fingerprint.
    Stored([u8; 16]),
    /// Nothing, though a backup needs it: the fingerprint of a damaged block.
    Lost([u8; 16]),
    /// Nothing: the block is stored as a popular block.
    Moved {
        /// The block's fingerprint.
        fingerprint: [u8; 16],
        /// The number of the popular block.
        number: u64,
    },
}

impl Slot {
    /// Whether the slot is anything but gone.
    #[must_use]
    pub fn is_any(self) -> bool {
        self != Self::Gone
    }

    /// The fingerprint, if the block is stored here.
    #[must_use]
    pub fn stored(self) -> Option<[u8; 16]> {
        match self {
            Self::Stored(fingerprint) => Some(fingerprint),
            Self::Gone | Self::Lost(_) | Self::Moved { .. } => None,
        }
    }

    /// The fingerprint, if the block is lost.
    #[must_use]
    pub fn lost(self) -> Option<[u8; 16]> {
        match self {
            Self::Lost(fingerprint) => Some(fingerprint),
            Self::Gone | Self::Stored(_) | Self::Moved { .. } => None,
        }
    }

    /// The fingerprint, if the block is stored here or as a popular block.
    #[must_use]
    pub fn content(self) -> Option<[u8; 16]> {
        match self {
            Self::Stored(fingerprint) | Self::Moved { fingerprint, .. } => Some(fingerprint),
            Self::Gone | Self::Lost(_) => None,
        }
    }

    /// The number of the popular block, if the block was moved.
    #[must_use]
    pub fn moved(self) -> Option<u64> {
        match self {
            Self::Moved { number, .. } => Some(number),
            Self::Gone | Self::Stored(_) | Self::Lost(_) => None,
        }
    }
}

/// The table of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackTable {
    /// Bytes of a block.
    pub block_size: u32,
    /// The pack's witness.
    pub witness: Witness,
    /// The groups, in order.
    pub groups: Vec<StoredGroup>,
    /// The slots, by number less the pack's first.
    pub slots: Vec<Slot>,
    /// The popular packs that have its moved blocks, in ascending order.
    pub popular_packs: Vec<PackReference>,
}

impl PackTable {
    /// The table's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((self.slots.len() as u32).to_le_bytes());
        out.extend(self.block_size.to_le_bytes());
        out.extend((self.groups.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.witness.0);
        for group in &self.groups {
            let flag = if group.is_compressed { COMPRESSED } else { 0 };
            out.extend((group.bytes | flag).to_le_bytes());
        }
        let coded = self.slots.iter().map(|slot| match slot {
            Slot::Gone => (0, [0; 16]),
            Slot::Stored(fingerprint) => (1, *fingerprint),
            Slot::Lost(fingerprint) => (2, *fingerprint),
            Slot::Moved { fingerprint, .. } => (3, *fingerprint),
        });
        out.extend(coded.clone().map(|(kind, _)| kind));
        coded.for_each(|(_, fingerprint)| out.extend(fingerprint));
        for number in self.slots.iter().filter_map(|slot| slot.moved()) {
            out.extend(number.to_le_bytes());
        }
        out.extend((self.popular_packs.len() as u32).to_le_bytes());
        for pack in &self.popular_packs {
            out.extend(pack.number.to_le_bytes());
            out.extend(pack.witness.0);
        }
        out
    }

    /// Decodes a table.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let blocks = rest.u32()?;
        if blocks == 0 || u64::from(blocks) > BLOCKS_PER_PACK {
            return Err(impossible("blocks", blocks.into()));
        }
        let block_size = rest.u32()?;
        if !BLOCK_SIZES.contains(&block_size) {
            return Err(impossible("block size", block_size.into()));
        }
        let groups = rest.u32()?;
        if groups as usize != (blocks as usize).div_ceil(BLOCKS_PER_GROUP) {
            return Err(impossible("groups", groups.into()));
        }
        if rest.u32()? != 0 {
            return Err(FormatError::Reserved {
                structure: "pack table",
            });
        }
        let witness = Witness(rest.take()?);
        let groups = (0..groups).map(|_| {
            let word = rest.u32()?;
            let bytes = word & !COMPRESSED;
            let content_max = BLOCKS_PER_GROUP as u32 * block_size;
            if (bytes as usize) < TAG_BYTES || bytes as usize > content_max as usize + TAG_BYTES {
                return Err(impossible("bytes of a group", bytes.into()));
            }
            Ok(StoredGroup {
                bytes,
                is_compressed: word & COMPRESSED != 0,
            })
        });
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let kinds = rest.bytes(blocks as usize)?;
        let slots = kinds.iter().map(|kind| {
            let fingerprint = rest.take()?;
            match (kind, is_zero(&fingerprint)) {
                (0, true) => Ok(Slot::Gone),
                (0, false) => Err(FormatError::Reserved {
                    structure: "pack table",
                }),
                (1, _) => Ok(Slot::Stored(fingerprint)),
                (2, _) => Ok(Slot::Lost(fingerprint)),
                (3, _) => Ok(Slot::Moved {
                    fingerprint,
                    number: 0,
                }),
                (other, _) => Err(impossible("kind of a block", (*other).into())),
            }
        });
        let mut slots = slots.collect::<Result<Vec<_>, _>>()?;
        for slot in &mut slots {
            if let Slot::Moved { number, .. } = slot {
                *number = rest.u64()?;
            }
        }
        let popular_packs = decode_popular_packs(&mut rest, &slots)?;
        rest.finish()?;
        Ok(Self {
            block_size,
            witness,
            groups,
            slots,
            popular_packs,
        })
    }

    /// The packs among `known`, in ascending order, that contain moved blocks of these slots.
    #[must_use]
    pub fn popular_packs_of(slots: &[Slot], known: &[PackReference]) -> Vec<PackReference> {
        let numbers = slots.iter().filter_map(|slot| slot.moved());
        let mut packs: Vec<_> = numbers.map(|number| number / BLOCKS_PER_PACK).collect();
        packs.sort_unstable();
        packs.dedup();
        let known = packs.into_iter().filter_map(|number| {
            let witness = witness_of(known, number)?;
            Some(PackReference { number, witness })
        });
        known.collect()
    }
}

/// Decodes the popular packs; they must be exactly the packs with the moved blocks.
fn decode_popular_packs(
    rest: &mut Cursor<'_>,
    slots: &[Slot],
) -> Result<Vec<PackReference>, FormatError> {
    let count = rest.u32()?;
    if u64::from(count) > BLOCKS_PER_PACK {
        return Err(impossible("popular packs", count.into()));
    }
    let packs = (0..count).map(|_| {
        Ok(PackReference {
            number: rest.u64()?,
            witness: Witness(rest.take()?),
        })
    });
    let packs = packs.collect::<Result<Vec<_>, _>>()?;
    let mut moved = slots.iter().filter_map(|slot| slot.moved());
    let is_stray = |number: &u64| {
        *number >= NUMBER_END || witness_of(&packs, *number / BLOCKS_PER_PACK).is_none()
    };
    if let Some(number) = moved.find(is_stray) {
        return Err(impossible("number of a moved block", number));
    }
    if PackTable::popular_packs_of(slots, &packs) == packs {
        Ok(packs)
    } else {
        Err(impossible("popular packs", count.into()))
    }
}
