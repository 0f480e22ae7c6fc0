//! Numbers with a unit, which do not convert into one another by accident.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::ops::Add<u64> for $name {
            type Output = Self;

            fn add(self, count: u64) -> Self {
                Self(self.0 + count)
            }
        }
    };
}

unit! {
    /// A block's number in a volume.
    Lba
}
unit! {
    /// A block's number in the pool, below 2^40. Block 0 is the pool's label and never mapped.
    Pba
}
unit! {
    /// A segment's number in a layer: [`BLOCKS_PER_SEGMENT`] consecutive LBAs.
    SegmentIndex
}
unit! {
    /// Identifies a layer for ever; ids start at 1 and are never reused.
    LayerId
}
unit! {
    /// Identifies a volume for ever; ids start at 1 and are never reused.
    VolumeId
}
unit! {
    /// A metadata page's place, in pages from the start of the metadata part.
    PageNumber
}

unit! {
    /// Identifies a group of a shared pool for ever; ids start at 1 and are never reused.
    GroupId
}
unit! {
    /// A number of a space extent: [`BLOCKS_PER_SPACE_EXTENT`] consecutive blocks of a shared pool, which one group leases.
    SpaceExtent
}

/// A shard of the fingerprint index of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shard(pub u16);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a domain for ever: blocks are shared only inside one domain. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DomainId(pub u16);

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// First number that is not a valid [`DomainId`].
pub const DOMAIN_END: u32 = 1 << 16;

/// Blocks in a segment, the unit in which a map is loaded, checkpointed and tracked as changed.
pub const BLOCKS_PER_SEGMENT: u64 = 512;

/// Blocks in a space extent: one page of the free-space map.
pub const BLOCKS_PER_SPACE_EXTENT: u64 = 16_384;

/// Most shards of an index.
pub const SHARDS_MAX: u16 = 1024;

/// First number that is not a valid [`Pba`].
pub const PBA_END: u64 = 1 << 40;

/// Bytes in a sector: the largest write that a disk is trusted to do whole.
pub const SECTOR_BYTES: u64 = 512;

/// Block sizes that a pool can have, in bytes.
pub const BLOCK_SIZES: [u32; 4] = [4 << 10, 8 << 10, 16 << 10, 64 << 10];

/// Largest volume, in blocks: a map of four levels.
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 38;

/// First number that is not the id of a volume or a layer: the upper half is for the owners of
/// pages that belong to no layer.
pub const ID_END: u64 = 1 << 63;

/// Whether a volume or a layer can have this id, or a batch this number.
pub(crate) fn is_id(id: u64) -> bool {
    (1..ID_END).contains(&id)
}

/// Whether a run of `count` blocks, at least one, can start at this block.
pub(crate) fn is_run(pba: Pba, count: u64) -> bool {
    pba.0 != 0 && pba.0 < PBA_END && count != 0 && count <= PBA_END - pba.0
}

impl Lba {
    /// The segment that this block is in.
    #[must_use]
    pub fn segment(self) -> SegmentIndex {
        SegmentIndex(self.0 / BLOCKS_PER_SEGMENT)
    }

    /// The block's place in its segment, 0 to 511.
    #[must_use]
    pub fn slot(self) -> usize {
        (self.0 % BLOCKS_PER_SEGMENT) as usize
    }
}

impl Pba {
    /// The space extent that has this block.
    #[must_use]
    pub fn space_extent(self) -> SpaceExtent {
        SpaceExtent(self.0 / BLOCKS_PER_SPACE_EXTENT)
    }
}

impl SpaceExtent {
    /// The extent's first block.
    #[must_use]
    pub fn first(self) -> Pba {
        Pba(self.0 * BLOCKS_PER_SPACE_EXTENT)
    }
}

impl SegmentIndex {
    /// The segment's first block.
    #[must_use]
    pub fn first(self) -> Lba {
        Lba(self.0 * BLOCKS_PER_SEGMENT)
    }
}

/// Identifies a pool: 16 random bytes chosen at its creation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PoolId(pub [u8; 16]);

impl PoolId {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; 16];
        if text.len() != 2 * id.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(0..) {
            *byte = u8::from_str_radix(text.get(2 * pair..2 * pair + 2)?, 16).ok()?;
        }
        Some(Self(id))
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({self})")
    }
}
