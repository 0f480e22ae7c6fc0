//! A pack that is opened, and its groups.

use std::fs::File;
use std::mem::discriminant;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use onefold_format::backup::pack::BLOCKS_PER_GROUP;
use onefold_format::backup::{PackReference, PackTable, Slot, TableCopy, Witness};

use crate::error::{RepositoryError, Result};
use crate::seal::ChunkKey;

/// A group that was authenticated, but not decompressed.
pub struct OpenedGroup {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_compressed: bool,
}

/// A pack that is opened for reading.
pub struct Pack {
    pub(crate) path: String,
    pub(crate) number: u64,
    pub(crate) generation: u32,
    /// The pack's file; `None` if only the copy of its table is there.
    pub(crate) file: Option<File>,
    pub(crate) key: ChunkKey,
    pub(crate) table: PackTable,
    /// The offset of each group.
    pub(crate) starts: Vec<u64>,
    pub(crate) stored_bytes: u64,
    /// If the pack was opened by the copy of its table, the reason.
    pub(crate) table_damage: Option<RepositoryError>,
}

/// The error for a failed read; an early end of the file is damage.
pub(crate) fn cannot_read(path: &str, error: &std::io::Error) -> RepositoryError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => RepositoryError::damaged(path, "it is cut"),
        _ => RepositoryError::io(format_args!("cannot read object {path}"), error),
    }
}

impl Pack {
    /// The number and witness of the pack, as a manifest names them.
    #[must_use]
    pub fn reference(&self) -> PackReference {
        PackReference {
            number: self.number,
            witness: self.table.witness,
        }
    }

    /// Checks that this is the pack with a witness.
    ///
    /// # Errors
    ///
    /// `Damaged` if it is a different pack with the same number.
    pub fn check_witness(&self, witness: Witness) -> Result<()> {
        if self.table.witness == witness {
            Ok(())
        } else {
            Err(RepositoryError::damaged(
                &self.path,
                "it is not the pack that the backup needs, but a different one with the same number",
            ))
        }
    }

    /// The generation of the pack.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// If the pack was opened by the copy of its table, the reason.
    #[must_use]
    pub fn table_damage(&self) -> Option<&RepositoryError> {
        self.table_damage.as_ref()
    }

    /// Whether the pack is missing, or ends before the end of its last group.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let last = self.starts.last().zip(self.table.groups.last());
        last.is_some_and(|(start, group)| self.stored_bytes < start + u64::from(group.bytes))
    }

    /// The copy of the pack's table.
    pub(crate) fn table_copy(&self) -> TableCopy {
        TableCopy {
            header: self.key.header(),
            table: self.table.clone(),
        }
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        let Some(file) = &self.file else {
            return Err(RepositoryError::damaged(&self.path, "it is not there"));
        };
        let read = file.read_exact_at(bytes, at);
        read.map_err(|e| cannot_read(&self.path, &e))
    }

    /// The pack's table.
    #[must_use]
    pub fn table(&self) -> &PackTable {
        &self.table
    }

    /// The slots of the pack, by number less the pack's first.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.table.slots
    }

    /// The popular packs that have its moved blocks, in ascending order.
    #[must_use]
    pub fn popular_packs(&self) -> &[PackReference] {
        &self.table.popular_packs
    }

    /// How many groups the pack has.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.table.groups.len()
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.table.block_size
    }

    /// The size of the pack's file.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Reads the stored blocks of a group, one after the other.
    ///
    /// # Errors
    ///
    /// `Damaged` if the group is not authentic.
    pub fn read_group(&self, group: usize) -> Result<Vec<u8>> {
        self.decompressed(group, self.open_group(group)?)
    }

    fn decompressed(&self, group: usize, opened: OpenedGroup) -> Result<Vec<u8>> {
        let OpenedGroup {
            mut bytes,
            is_compressed,
        } = opened;
        let damaged = |why: &dyn std::fmt::Display| {
            RepositoryError::damaged(&self.path, format_args!("group {group}: {why}"))
        };
        let wanted = self.stored_before(group, BLOCKS_PER_GROUP) * self.table.block_size as usize;
        if is_compressed {
            bytes = zstd::bulk::decompress(&bytes, wanted).map_err(|e| damaged(&e))?;
        }
        if bytes.len() == wanted {
            Ok(bytes)
        } else {
            Err(damaged(&format_args!(
                "{} bytes instead of {wanted}",
                bytes.len()
            )))
        }
    }

    /// Reads a group and opens it, without decompressing it.
    ///
    /// # Errors
    ///
    /// `Damaged` if the group is not authentic.
    pub fn open_group(&self, group: usize) -> Result<OpenedGroup> {
        let (Some(stored), Some(start)) = (self.table.groups.get(group), self.starts.get(group))
        else {
            let message = format_args!("it has no group {group}");
            return Err(RepositoryError::damaged(&self.path, message));
        };
        let mut bytes = vec![0; stored.bytes as usize];
        self.read_at(&mut bytes, *start)?;
        self.open_sealed(group, bytes)
    }

    fn open_sealed(&self, group: usize, mut bytes: Vec<u8>) -> Result<OpenedGroup> {
        let path = &self.path;
        let opened = self.key.open(group as u32, &mut bytes);
        opened.map_err(|e| RepositoryError::damaged(path, format_args!("group {group}: {e}")))?;
        let stored = self.table.groups.get(group);
        Ok(OpenedGroup {
            bytes,
            is_compressed: stored.is_some_and(|group| group.is_compressed),
        })
    }

    /// Reads the sealed bytes of neighbouring groups at once.
    ///
    /// # Errors
    ///
    /// `Damaged`, if there are no such groups; any failure of reading.
    pub fn read_groups(&self, groups: Range<usize>) -> Result<Vec<Vec<u8>>> {
        let stored = self.table.groups.get(groups.clone());
        let start = self.starts.get(groups.start).copied();
        let (Some(stored), Some(start)) = (stored, start) else {
            let message = format_args!("it has no groups {groups:?}");
            return Err(RepositoryError::damaged(&self.path, message));
        };
        let bytes: usize = stored.iter().map(|group| group.bytes as usize).sum();
        let mut all = vec![0; bytes];
        self.read_at(&mut all, start)?;
        let mut rest = all.as_slice();
        let each = stored.iter().map(|group| {
            let (bytes, after) = rest.split_at(group.bytes as usize);
            rest = after;
            bytes.to_vec()
        });
        Ok(each.collect())
    }

    /// Opens a group read by [`Pack::read_groups`], and returns its blocks as [`Pack::read_group`] does.
    ///
    /// # Errors
    ///
    /// `Damaged` if the group is not authentic.
    pub fn open_read_group(&self, group: usize, sealed: &[u8]) -> Result<Vec<u8>> {
        self.decompressed(group, self.open_sealed(group, sealed.to_vec())?)
    }

    /// How many consecutive blocks from this one on the pack stores, at most `most`.
    #[must_use]
    pub fn stored_from(&self, block: usize, most: usize) -> usize {
        let following = self.table.slots.iter().skip(block).take(most);
        following.take_while(|slot| slot.stored().is_some()).count()
    }

    /// How many blocks from this one on share its damage, at most `most`: for a stored block, the stored blocks that
    /// follow it in its group; for any other, the following blocks in the same state.
    #[must_use]
    pub fn alike_from(&self, block: usize, most: usize) -> usize {
        let left_in_group = BLOCKS_PER_GROUP - block % BLOCKS_PER_GROUP;
        let stored = self.stored_from(block, most.min(left_in_group));
        if stored > 0 {
            return stored;
        }
        let following = self.table.slots.get(block..).unwrap_or_default();
        let Some(first) = following.first().map(discriminant) else {
            return most;
        };
        let alike = following.iter().take(most);
        alike
            .take_while(|slot| discriminant(*slot) == first)
            .count()
    }

    /// Checks the size of the pack's blocks.
    ///
    /// # Errors
    ///
    /// `Damaged` unless its blocks have this size.
    pub fn check_block_size(&self, bytes: u32) -> Result<()> {
        let found = self.table.block_size;
        if found == bytes {
            return Ok(());
        }
        let message = format_args!("it has blocks of {found} bytes, and its backup of {bytes}");
        Err(RepositoryError::damaged(&self.path, message))
    }

    /// The error for a block that a verification has found damaged.
    #[must_use]
    pub fn found_damaged(&self, block: usize) -> RepositoryError {
        let message = format_args!("its block {block} was found damaged by a verification");
        RepositoryError::damaged(&self.path, message)
    }

    /// The error for a popular block that was moved to a higher number.
    #[must_use]
    pub fn moved_in_circle(&self, block: usize) -> RepositoryError {
        let message = format_args!("its block {block} was moved to a higher number");
        RepositoryError::damaged(&self.path, message)
    }

    /// Finds a stored block: its group, and its offset in the result of [`Pack::read_group`].
    ///
    /// # Errors
    ///
    /// `Damaged` if the pack does not store the block.
    pub fn find(&self, block: usize) -> Result<(usize, usize)> {
        let slot = self.table.slots.get(block).copied();
        if slot.and_then(Slot::stored).is_none() {
            let why = match slot {
                Some(Slot::Lost(_)) => "was damaged and is lost",
                Some(Slot::Moved { .. }) => "is popular now",
                _ => "is not there",
            };
            let message = format_args!("its block {block} {why}");
            return Err(RepositoryError::damaged(&self.path, message));
        }
        let (group, in_group) = (block / BLOCKS_PER_GROUP, block % BLOCKS_PER_GROUP);
        let before = self.stored_before(group, in_group);
        Ok((group, before * self.table.block_size as usize))
    }

    /// Whether the pack stores any block of a group.
    #[must_use]
    pub fn has_any(&self, group: usize) -> bool {
        self.stored_before(group, BLOCKS_PER_GROUP) > 0
    }

    /// How many of the first `blocks` blocks of a group the pack stores.
    fn stored_before(&self, group: usize, blocks: usize) -> usize {
        let first = group * BLOCKS_PER_GROUP;
        let of_group = self.table.slots.iter().skip(first).take(blocks);
        of_group.filter(|slot| slot.stored().is_some()).count()
    }
}
