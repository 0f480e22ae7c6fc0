//! Writes packs.

use std::io::{BufWriter, Write};
use std::sync::Arc;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::{
    ObjectName, PackReference, PackTable, PackTrailer, Slot, StoredGroup,
};

use crate::error::{RepositoryError, Result};
use crate::fenced::Fenced;
use crate::folder::NewObject;
use crate::pack::OpenedGroup;
use crate::seal::ChunkKey;
use crate::sources::KnownSource;
use crate::table::NewTable;

/// A pack that is being written. Dropping it discards it.
pub struct NewPack {
    path: String,
    object: BufWriter<NewObject>,
    key: Arc<ChunkKey>,
    copy: NewTable,
    /// The table so far. Until the pack is complete, its popular packs are all that its blocks may refer to.
    table: PackTable,
    number: u64,
    position: u64,
}

/// Compresses and seals the groups of a pack, on any thread.
#[derive(Clone)]
pub struct GroupSealer {
    path: String,
    key: Arc<ChunkKey>,
    level: i32,
}

/// A group that is ready to be written.
pub struct SealedGroup {
    bytes: Vec<u8>,
    is_compressed: bool,
}

impl NewPack {
    /// Starts a pack of the source, or of popular blocks.
    pub(crate) fn start(
        fenced: &Fenced<'_>,
        of: &KnownSource,
        pack: PackReference,
        generation: u32,
    ) -> Result<NewPack> {
        let PackReference { number, witness } = pack;
        let name = ObjectName::Pack {
            source: of.id,
            number,
            generation,
        };
        let (object, key) = fenced.create(name)?;
        Ok(NewPack {
            path: name.path(),
            object: BufWriter::with_capacity(1 << 20, object),
            key: Arc::new(key),
            copy: NewTable::start(fenced, of.id, number, generation)?,
            table: PackTable {
                block_size: of.source.block_size,
                witness,
                groups: Vec::new(),
                slots: Vec::new(),
                popular_packs: Vec::new(),
            },
            number,
            position: OBJECT_HEADER_BYTES as u64,
        })
    }

    /// The number and witness of the pack, as a manifest names them.
    #[must_use]
    pub fn reference(&self) -> PackReference {
        PackReference {
            number: self.number,
            witness: self.table.witness,
        }
    }

    /// A sealer for the pack's groups, with this zstd level.
    #[must_use]
    pub fn sealer(&self, level: i32) -> GroupSealer {
        GroupSealer {
            path: self.path.clone(),
            key: Arc::clone(&self.key),
            level,
        }
    }

    /// Writes the next group, and adds the slots of its numbers.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn push(
        &mut self,
        group: &SealedGroup,
        slots: impl IntoIterator<Item = Slot>,
    ) -> Result<()> {
        self.write(&group.bytes)?;
        self.table.groups.push(StoredGroup {
            bytes: group.bytes.len() as u32,
            is_compressed: group.is_compressed,
        });
        self.table.slots.extend(slots);
        Ok(())
    }

    /// Adds popular packs to which moved blocks may refer. Their names must be durable.
    pub fn refer_to(&mut self, packs: &[PackReference]) {
        let known = &mut self.table.popular_packs;
        for pack in packs {
            if let Err(at) = known.binary_search_by_key(&pack.number, |other| other.number) {
                known.insert(at, *pack);
            }
        }
    }

    /// Completes the pack and makes it durable, after the copy of its table. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Any failure of writing; `InUse` if another process has written this pack.
    pub fn finish(mut self) -> Result<u64> {
        let groups = self.table.groups.len() as u32;
        let known = std::mem::take(&mut self.table.popular_packs);
        self.table.popular_packs = PackTable::popular_packs_of(&self.table.slots, &known);
        let (header, mut table) = (self.key.header(), self.table.encode());
        let copied = [&header[..], &table].concat();
        let sealed = self.key.seal(groups, &mut table);
        sealed.map_err(|e| RepositoryError::damaged(&self.path, e))?;
        let trailer = PackTrailer {
            groups,
            table_at: self.position,
            table_bytes: table.len() as u32,
        };
        self.write(&table)?;
        self.write(&trailer.encode())?;
        let Self {
            path,
            object,
            copy,
            position,
            ..
        } = self;
        copy.finish(copied)?;
        NewObject::complete(object)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))?;
        Ok(position)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let path = &self.path;
        self.object
            .write_all(bytes)
            .map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

impl GroupSealer {
    /// Compresses and seals group `number` of the pack. Leaves content uncompressed that would shrink by less than a
    /// sixteenth.
    ///
    /// # Errors
    ///
    /// If a library refuses to compress or to seal.
    pub fn seal(&self, number: u32, blocks: &[u8]) -> Result<SealedGroup> {
        let compressed = zstd::bulk::compress(blocks, self.level)
            .map_err(|e| RepositoryError::io("cannot compress", &e))?;
        if compressed.len() <= blocks.len() - blocks.len() / 16 {
            self.seal_as_is(number, compressed, true)
        } else {
            self.seal_as_is(number, blocks.to_vec(), false)
        }
    }

    /// Seals group `number` of the pack with content opened from another pack.
    ///
    /// # Errors
    ///
    /// If a library refuses to seal.
    pub fn seal_again(&self, number: u32, group: OpenedGroup) -> Result<SealedGroup> {
        self.seal_as_is(number, group.bytes, group.is_compressed)
    }

    fn seal_as_is(
        &self,
        number: u32,
        mut bytes: Vec<u8>,
        is_compressed: bool,
    ) -> Result<SealedGroup> {
        let sealed = self.key.seal(number, &mut bytes);
        sealed.map_err(|e| RepositoryError::damaged(&self.path, e))?;
        Ok(SealedGroup {
            bytes,
            is_compressed,
        })
    }
}
