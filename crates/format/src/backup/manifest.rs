//! The object that makes a backup exist: its sealed chunk.
//!
//! ```text
//!   0 size          u64      bytes of the disk
//!   8 block size    u32      bytes
//!  12 changed by    u8       origin of the list of changes since the parent: 0 none, 1 the pool's layers
//!  13 zeros         3 bytes
//!  16 time          u64      of the backup's content: seconds since the Unix epoch
//!  24 parent        u64      number of the parent backup, or 0
//!  32 pool          16 bytes    of the volume, or zeros
//!  48 volume        u64      its number in the pool, or 0
//!  56 snapshot      u64      number of the base: the snapshot that was backed up, or 0
//!  64 logical       u64      blocks with data
//!  72 read          u64      blocks read from the source
//!  80 new           u64      blocks that were stored for the source itself
//!  88 stored        u64      bytes of the packs that were written for it
//!  96 popular       u64      blocks with data that are popular
//! 104 recipe pages  u32
//! 108 own runs      u32
//! 112 popular runs  u32
//! 116 tags          u32
//! 120 recipe        16 bytes    the witness of the recipe: the salt of its object
//! ```
//!
//! then the sealed bytes of each page of the recipe, a varint, 0 for a page of zeros; then the source's own numbers
//! that the backup uses, as runs in ascending order: two varints each, the blocks since the end of the run before, and
//! the length of the run; then the numbers of popular blocks in the same way; then the witness of each pack that has
//! any of the own numbers, 16 bytes each, in ascending order; then the witnesses of popular packs; then the name of the
//! host that made the backup, a text; then the name of the user's snapshot that was backed up, a text, empty if there
//! was none; then the tags, each a text.

use crate::bytes::is_zero;
use crate::cursor::{Cursor, impossible, put_text, put_varint};
use crate::error::FormatError;
use crate::units::{BLOCK_SIZES, PoolId, VolumeId};

use super::object::BackupNumber;
use super::pack::{BLOCKS_PER_PACK, Witness};
use super::recipe::{BLOCKS_PER_RECIPE_PAGE, NUMBER_END};

/// The origin of the list of changes since the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedBy {
    /// No such list: everything was read.
    Nobody,
    /// The pool's layers list the changes.
    Layers,
}

/// The figures of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks with data.
    pub logical_blocks: u64,
    /// Blocks read from the source.
    pub read_blocks: u64,
    /// Blocks that were stored for the source itself.
    pub new_blocks: u64,
    /// Bytes of the packs that were written for the backup.
    pub stored_bytes: u64,
    /// Blocks with data that are popular.
    pub popular_blocks: u64,
}

/// A snapshot of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// The pool.
    pub pool: PoolId,
    /// The volume's number.
    pub volume: VolumeId,
    /// The snapshot's number.
    pub snapshot: VolumeId,
}

/// Stored blocks with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRun {
    /// The first number.
    pub first: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// A pack that a backup needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackReference {
    /// The pack's number.
    pub number: u64,
    /// The pack's witness.
    pub witness: Witness,
}

/// The witness of pack `number`, if it is among `packs`.
#[must_use]
pub fn witness_of(packs: &[PackReference], number: u64) -> Option<Witness> {
    let found = packs.binary_search_by_key(&number, |pack| pack.number);
    found.ok().map(|at| packs[at].witness)
}

/// The numbers of the packs that contain any of these blocks, ascending and each once.
pub fn packs_of(runs: &[NumberRun]) -> impl Iterator<Item = u64> + '_ {
    let mut next = 0;
    runs.iter().flat_map(move |run| {
        let first = (run.first / BLOCKS_PER_PACK).max(next);
        let end = (run.first + run.blocks).div_ceil(BLOCKS_PER_PACK);
        next = end;
        first..end
    })
}

/// The content of a manifest, which makes a backup exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the disk.
    pub size_bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The origin of the list of changes.
    pub changed_by: ChangedBy,
    /// The moment of the backup's content: seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// The parent backup.
    pub parent: Option<BackupNumber>,
    /// The snapshot that was backed up, if there was one.
    pub base: Option<PoolSnapshot>,
    /// The backup's figures.
    pub counts: Counts,
    /// Distinguishes the recipe from any other recipe with the same number: the salt of its object.
    pub recipe: Witness,
    /// Sealed bytes of each page of the recipe; 0 for a page of zeros.
    pub recipe_pages: Vec<u32>,
    /// The source's own blocks that the backup uses, in ascending order.
    pub own: Vec<NumberRun>,
    /// The popular blocks that the backup uses, in ascending order.
    pub popular: Vec<NumberRun>,
    /// The packs that contain the source's own blocks: [`packs_of`] their numbers.
    pub own_packs: Vec<PackReference>,
    /// The packs that contain the popular blocks: [`packs_of`] their numbers.
    pub popular_packs: Vec<PackReference>,
    /// The name of the host that made the backup.
    pub host: String,
    /// The name of the user's snapshot that was backed up, without the volume's name; empty if there was none.
    pub snapshot: String,
    /// The backup's tags.
    pub tags: Vec<String>,
}

impl Manifest {
    /// The number of blocks of the disk; the last one may be shorter.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.size_bytes.div_ceil(self.block_size.into())
    }

    /// The number of blocks in a page of the recipe.
    #[must_use]
    pub fn blocks_of_page(&self, page: u64) -> u64 {
        let first = page * BLOCKS_PER_RECIPE_PAGE;
        let left = self.blocks().saturating_sub(first);
        left.min(BLOCKS_PER_RECIPE_PAGE)
    }

    /// The chunk's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.size_bytes.to_le_bytes());
        out.extend(self.block_size.to_le_bytes());
        let changed_by = match self.changed_by {
            ChangedBy::Nobody => 0,
            ChangedBy::Layers => 1,
        };
        out.extend([changed_by, 0, 0, 0]);
        out.extend(self.unix_seconds.to_le_bytes());
        out.extend(self.parent.map_or(0, |parent| parent.0).to_le_bytes());
        let base = self.base;
        out.extend(base.map_or([0; 16], |base| base.pool.0));
        out.extend(base.map_or(0, |base| base.volume.0).to_le_bytes());
        out.extend(base.map_or(0, |base| base.snapshot.0).to_le_bytes());
        for count in [
            self.counts.logical_blocks,
            self.counts.read_blocks,
            self.counts.new_blocks,
            self.counts.stored_bytes,
            self.counts.popular_blocks,
        ] {
            out.extend(count.to_le_bytes());
        }
        for count in [
            self.recipe_pages.len(),
            self.own.len(),
            self.popular.len(),
            self.tags.len(),
        ] {
            out.extend((count as u32).to_le_bytes());
        }
        out.extend(self.recipe.0);
        for bytes in &self.recipe_pages {
            put_varint(&mut out, (*bytes).into());
        }
        put_numbers(&mut out, &self.own);
        put_numbers(&mut out, &self.popular);
        for packs in [&self.own_packs, &self.popular_packs] {
            packs.iter().for_each(|pack| out.extend(pack.witness.0));
        }
        put_text(&mut out, self.host.as_bytes());
        put_text(&mut out, self.snapshot.as_bytes());
        self.tags
            .iter()
            .for_each(|tag| put_text(&mut out, tag.as_bytes()));
        out
    }

    /// Decodes the chunk's content.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut rest = Cursor(bytes);
        let (size_bytes, block_size) = (rest.u64()?, rest.u32()?);
        if !BLOCK_SIZES.contains(&block_size) {
            return Err(impossible("block size", block_size.into()));
        }
        let [changed_by, zeros @ ..]: [u8; 4] = rest.take()?;
        let changed_by = match changed_by {
            0 => ChangedBy::Nobody,
            1 => ChangedBy::Layers,
            other => return Err(impossible("changed by", other.into())),
        };
        let (unix_seconds, parent) = (rest.u64()?, rest.u64()?);
        let base = decode_base(&mut rest)?;
        let counts = Counts {
            logical_blocks: rest.u64()?,
            read_blocks: rest.u64()?,
            new_blocks: rest.u64()?,
            stored_bytes: rest.u64()?,
            popular_blocks: rest.u64()?,
        };
        let (pages, own, popular, tags) = (rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?);
        let recipe = Witness(rest.take()?);
        if !is_zero(&zeros) {
            return Err(FormatError::Reserved {
                structure: "manifest",
            });
        }
        let blocks = size_bytes.div_ceil(block_size.into());
        if u64::from(pages) != blocks.div_ceil(BLOCKS_PER_RECIPE_PAGE) {
            return Err(impossible("recipe pages", pages.into()));
        }
        // Each item takes at least a byte, so a forged number cannot take much memory.
        let most = pages.max(own).max(popular).max(tags);
        if most as usize > bytes.len() {
            return Err(impossible("entries", most.into()));
        }
        let recipe_pages = (0..pages).map(|_| {
            let bytes = rest.varint()?;
            u32::try_from(bytes).map_err(|_| impossible("bytes of a recipe page", bytes))
        });
        let recipe_pages = recipe_pages.collect::<Result<_, _>>()?;
        let own = decode_numbers(&mut rest, own)?;
        let popular = decode_numbers(&mut rest, popular)?;
        let own_packs = decode_witnesses(&mut rest, &own)?;
        let popular_packs = decode_witnesses(&mut rest, &popular)?;
        let (host, snapshot) = (rest.utf8("host")?, rest.utf8("snapshot")?);
        let tags = (0..tags).map(|_| rest.utf8("tag"));
        let tags = tags.collect::<Result<_, _>>()?;
        rest.finish()?;
        Ok(Self {
            size_bytes,
            block_size,
            changed_by,
            unix_seconds,
            parent: (parent > 0).then_some(BackupNumber(parent)),
            base,
            counts,
            recipe,
            recipe_pages,
            own,
            popular,
            own_packs,
            popular_packs,
            host,
            snapshot,
            tags,
        })
    }
}

fn decode_base(rest: &mut Cursor<'_>) -> Result<Option<PoolSnapshot>, FormatError> {
    let pool: [u8; 16] = rest.take()?;
    let (volume, snapshot) = (rest.u64()?, rest.u64()?);
    match (is_zero(&pool), volume, snapshot) {
        (true, 0, 0) => Ok(None),
        (false, 1.., 1..) => Ok(Some(PoolSnapshot {
            pool: PoolId(pool),
            volume: VolumeId(volume),
            snapshot: VolumeId(snapshot),
        })),
        _ => Err(impossible("snapshot", snapshot)),
    }
}

fn decode_witnesses(
    rest: &mut Cursor<'_>,
    runs: &[NumberRun],
) -> Result<Vec<PackReference>, FormatError> {
    let packs = packs_of(runs).map(|number| {
        let witness = Witness(rest.take()?);
        Ok(PackReference { number, witness })
    });
    packs.collect()
}

/// Encodes runs in ascending order that do not touch.
pub(super) fn put_numbers(out: &mut Vec<u8>, runs: &[NumberRun]) {
    let mut end = 0;
    for run in runs {
        put_varint(out, run.first - end);
        put_varint(out, run.blocks);
        end = run.first + run.blocks;
    }
}

pub(super) fn decode_numbers(
    rest: &mut Cursor<'_>,
    runs: u32,
) -> Result<Vec<NumberRun>, FormatError> {
    let mut end = 0_u64;
    let numbers = (0..runs).map(|n| {
        let (gap, blocks) = (rest.varint()?, rest.varint()?);
        let first = end.saturating_add(gap);
        end = first.saturating_add(blocks);
        if blocks == 0 || end > NUMBER_END || gap == 0 && n > 0 {
            return Err(impossible("blocks of a run of numbers", blocks));
        }
        Ok(NumberRun { first, blocks })
    });
    numbers.collect()
}
