//! Writing and reading packs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::mem::discriminant;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK, TRAILER_BYTES};
use onefold_format::backup::recipe::NUMBER_END;
use onefold_format::backup::{
    ObjectName, PackReference, PackTable, PackTrailer, Slot, SourceId, StoredGroup, TAG_BYTES,
    Witness,
};
use rustix::fs::FileType;

use crate::backup::NeededPacks;
use crate::disk::{joined, split};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::{NewObject, fill_random, random_number};
use crate::layout::{decimal, is_ours};
use crate::repository::Repository;
use crate::seal::ChunkKey;
use crate::sources::KnownSource;
use crate::writer::Writer;

/// The most bytes of a sealed table.
const TABLE_BYTES_MAX: u32 = 1 << 20;

/// A pack that is being written. Dropped, it is gone.
pub struct NewPack {
    path: String,
    object: BufWriter<NewObject>,
    key: Arc<ChunkKey>,
    /// Of popular packs it has all that it may refer to, until the pack is complete.
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

/// A group that was authenticated, and not decompressed.
pub struct OpenedGroup {
    bytes: Vec<u8>,
    is_compressed: bool,
}

/// A group that only has to be written.
pub struct SealedGroup {
    bytes: Vec<u8>,
    is_compressed: bool,
}

impl NewPack {
    /// Its number and witness, as a manifest names them.
    #[must_use]
    pub fn reference(&self) -> PackReference {
        PackReference {
            number: self.number,
            witness: self.table.witness,
        }
    }

    /// What seals its groups, at this level of zstd.
    #[must_use]
    pub fn sealer(&self, level: i32) -> GroupSealer {
        GroupSealer {
            path: self.path.clone(),
            key: Arc::clone(&self.key),
            level,
        }
    }

    /// Writes the next group, with what its numbers have.
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

    /// Makes known popular packs that moved blocks are in. They must be durable.
    pub fn refer_to(&mut self, packs: &[PackReference]) {
        let known = &mut self.table.popular_packs;
        for pack in packs {
            if let Err(at) = known.binary_search_by_key(&pack.number, |it| it.number) {
                known.insert(at, *pack);
            }
        }
    }

    /// Completes the pack and makes it durable. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Any failure of writing; `InUse` if another process has written this pack.
    pub fn finish(mut self) -> Result<u64> {
        let groups = self.table.groups.len() as u32;
        let known = std::mem::take(&mut self.table.popular_packs);
        self.table.popular_packs = PackTable::popular_packs_of(&self.table.slots, &known);
        let mut table = self.table.encode();
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
            position,
            ..
        } = self;
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
    /// Seals group `number` of the pack. Content that compression does not make a sixteenth smaller stays
    /// as it is.
    ///
    /// # Errors
    ///
    /// If a library refuses to compress or to seal.
    pub fn seal(&self, number: u32, blocks: &[u8]) -> Result<SealedGroup> {
        let compressed = zstd::bulk::compress(blocks, self.level)
            .map_err(|e| RepositoryError::io("cannot compress", &e))?;
        match compressed.len() <= blocks.len() - blocks.len() / 16 {
            true => self.seal_as_is(number, compressed, true),
            false => self.seal_as_is(number, blocks.to_vec(), false),
        }
    }

    /// Seals group `number` of the pack as another pack had it.
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

/// A pack that is read.
pub struct Pack {
    path: String,
    number: u64,
    file: File,
    key: ChunkKey,
    table: PackTable,
    /// Where each group begins.
    starts: Vec<u64>,
    stored_bytes: u64,
}

impl Writer<'_> {
    /// Starts pack `number` of the source, or of popular blocks.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn new_pack(&self, of: &KnownSource, number: u64) -> Result<NewPack> {
        let mut witness = Witness([0; 16]);
        fill_random(&mut witness.0).map_err(|e| RepositoryError::io("no random numbers", &e))?;
        self.start_pack(of, PackReference { number, witness }, 0)
    }

    /// Starts a generation of a pack of the source, or of popular blocks. It knows the popular packs that the one
    /// before refers to.
    ///
    /// # Errors
    ///
    /// As [`Writer::new_pack`].
    pub fn new_generation(
        &self,
        of: &KnownSource,
        before: &Pack,
        generation: u32,
    ) -> Result<NewPack> {
        let mut pack = self.start_pack(of, before.reference(), generation)?;
        pack.refer_to(before.popular_packs());
        Ok(pack)
    }

    fn start_pack(
        &self,
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
        let (object, key) = self.create(name)?;
        Ok(NewPack {
            path: name.path(),
            object: BufWriter::with_capacity(1 << 20, object),
            key: Arc::new(key),
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
}

fn cannot_list(folder: &str, error: &std::io::Error) -> RepositoryError {
    RepositoryError::io(format_args!("cannot list the packs in {folder}"), error)
}

impl Repository {
    /// The packs of a source: numbers and newest generations, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn packs(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        let mut packs = self.pack_generations(source)?;
        packs.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = next.1;
            }
            same
        });
        Ok(packs)
    }

    /// All generations of the packs of a source, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn pack_generations(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        let folder = ObjectName::packs(source);
        let mut packs = Vec::new();
        let parts = self.folder.folders(&folder);
        let parts = parts.map_err(|e| cannot_list(&folder, &e))?;
        for part in parts {
            if is_ours(&joined(&folder, &part), FileType::Directory) {
                packs.extend(self.packs_in(source, &part)?);
            }
        }
        packs.sort_unstable();
        Ok(packs)
    }

    /// The packs in the folder in which one with this number is, if it is there: numbers and generations.
    pub(crate) fn packs_beside(&self, source: SourceId, number: u64) -> Result<Vec<(u64, u32)>> {
        let name = ObjectName::Pack {
            source,
            number,
            generation: 0,
        };
        let path = name.path();
        self.packs_in(source, split(split(&path).0).1)
    }

    fn packs_in(&self, source: SourceId, part: &str) -> Result<Vec<(u64, u32)>> {
        let folder = joined(&ObjectName::packs(source), part);
        let names = self.folder.objects(&folder);
        let names = names.map_err(|e| cannot_list(&folder, &e))?.into_iter();
        let packs = names.filter_map(|name| pack_named(source, &joined(part, &name)));
        Ok(packs.collect())
    }

    /// The number of the next pack of a source: higher than the number of every pack that is listed, that the source
    /// has ever removed, or that a backup needs.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn next_pack(&self, source: &KnownSource, needed: &NeededPacks) -> Result<u64> {
        let needed = needed.own.last_key_value().map(|(number, _)| *number);
        let next = needed.map_or(0, |last| last + 1);
        Ok(next.max(self.history(source.id)?.next_pack))
    }

    /// Opens a pack of which this generation was there a moment ago: somebody may prune meanwhile, and then a
    /// newer one is there before this one goes. None if the pack is gone.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn pack_or_newer(
        &self,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<Option<Pack>> {
        match self.pack(source, number, generation) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
            opened => return opened.map(Some),
        }
        let listed = self.packs(source)?;
        let newest = listed.into_iter().find(|(listed, _)| *listed == number);
        let opened = newest.map(|(_, generation)| self.pack(source, number, generation));
        opened.transpose()
    }

    /// The error for a pack that a backup needs and that is not there.
    #[must_use]
    pub fn missing_pack(&self, source: SourceId, number: u64) -> RepositoryError {
        let name = ObjectName::Pack {
            source,
            number,
            generation: 0,
        };
        RepositoryError::damaged(&name.path(), "it is not there")
    }

    /// The number of the first of some popular packs. It is drawn by lot, so that nobody who writes such packs
    /// at the same time has to be asked.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn draw_popular_pack() -> Result<u64> {
        let drawn = random_number().map_err(|e| RepositoryError::io("no random numbers", &e))?;
        // Others follow it, and none reaches the end of the numbers.
        Ok(drawn % (NUMBER_END / BLOCKS_PER_PACK / 2))
    }

    /// Opens a pack: its table is read and authenticated.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn pack(&self, source: SourceId, number: u64, generation: u32) -> Result<Pack> {
        let name = ObjectName::Pack {
            source,
            number,
            generation,
        };
        let path = name.path();
        let (file, key) = self.open_object(name)?;
        let failed =
            |e: &std::io::Error| RepositoryError::io(format_args!("cannot read object {path}"), e);
        let bytes = file.metadata().map_err(|e| failed(&e))?.len();
        let mut trailer = [0; TRAILER_BYTES];
        let trailer_at = bytes.checked_sub(TRAILER_BYTES as u64);
        let cut = || RepositoryError::damaged(&path, "it is cut");
        file.read_exact_at(&mut trailer, trailer_at.ok_or_else(cut)?)
            .map_err(|e| failed(&e))?;
        let trailer =
            PackTrailer::decode(&trailer).map_err(|e| RepositoryError::format(&path, e))?;
        let end = trailer.table_at.checked_add(trailer.table_bytes.into());
        if trailer.table_bytes > TABLE_BYTES_MAX || end != trailer_at {
            return Err(RepositoryError::damaged(
                &path,
                "its table is not where it should be",
            ));
        }
        let mut table = vec![0; trailer.table_bytes as usize];
        file.read_exact_at(&mut table, trailer.table_at)
            .map_err(|e| failed(&e))?;
        let opened = key.open(trailer.groups, &mut table);
        opened.map_err(|e| RepositoryError::damaged(&path, e))?;
        let table = PackTable::decode(&table).map_err(|e| RepositoryError::format(&path, e))?;
        let mut at = OBJECT_HEADER_BYTES as u64;
        let starts = table.groups.iter().map(|group| {
            let start = at;
            at += u64::from(group.bytes);
            start
        });
        let starts = starts.collect();
        if table.groups.len() != trailer.groups as usize || at != trailer.table_at {
            return Err(RepositoryError::damaged(&path, "its groups do not fill it"));
        }
        Ok(Pack {
            path,
            number,
            file,
            key,
            table,
            starts,
            stored_bytes: bytes,
        })
    }
}

/// The number and generation of the pack with this path below the packs of its source.
fn pack_named(source: SourceId, path: &str) -> Option<(u64, u32)> {
    let (number, generation) = split(path).1.split_once('.')?;
    let (number, generation) = (decimal(number)?, generation.parse().ok()?);
    let name = ObjectName::Pack {
        source,
        number,
        generation,
    };
    let is_it = number < NUMBER_END / BLOCKS_PER_PACK
        && name.path() == joined(&ObjectName::packs(source), path);
    is_it.then_some((number, generation))
}

impl Pack {
    /// Its number and witness, as a manifest names them.
    #[must_use]
    pub fn reference(&self) -> PackReference {
        PackReference {
            number: self.number,
            witness: self.table.witness,
        }
    }

    /// Checks that it is the pack with this witness.
    ///
    /// # Errors
    ///
    /// `Damaged`, if it is another pack with the same number.
    pub fn check_witness(&self, witness: Witness) -> Result<()> {
        match self.table.witness == witness {
            true => Ok(()),
            false => Err(RepositoryError::damaged(
                &self.path,
                "it is not the pack that the backup needs, but a different one with the same number",
            )),
        }
    }

    /// What it has, by number less its first.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.table.slots
    }

    /// The popular packs that have its moved blocks, in ascending order.
    #[must_use]
    pub fn popular_packs(&self) -> &[PackReference] {
        &self.table.popular_packs
    }

    /// How many groups it has.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.table.groups.len()
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.table.block_size
    }

    /// Its bytes in the repository.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The blocks of a group that are there, one after the other.
    ///
    /// # Errors
    ///
    /// `Damaged`, if it is not what was written.
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
        match bytes.len() == wanted {
            true => Ok(bytes),
            false => Err(damaged(&format_args!(
                "{} bytes instead of {wanted}",
                bytes.len()
            ))),
        }
    }

    /// A group as it was before it was sealed.
    ///
    /// # Errors
    ///
    /// `Damaged`, if it is not what was written.
    pub fn open_group(&self, group: usize) -> Result<OpenedGroup> {
        let (Some(stored), Some(start)) = (self.table.groups.get(group), self.starts.get(group))
        else {
            let message = format_args!("it has no group {group}");
            return Err(RepositoryError::damaged(&self.path, message));
        };
        let path = &self.path;
        let mut bytes = vec![0; stored.bytes as usize];
        self.file
            .read_exact_at(&mut bytes, *start)
            .map_err(|e| RepositoryError::io(format_args!("cannot read object {path}"), &e))?;
        self.open_sealed(group, bytes)
    }

    fn open_sealed(&self, group: usize, mut bytes: Vec<u8>) -> Result<OpenedGroup> {
        let path = &self.path;
        let opened = self.key.open(group as u32, &mut bytes);
        opened.map_err(|e| RepositoryError::damaged(path, format_args!("group {group}: {e}")))?;
        let stored = self.table.groups.get(group);
        Ok(OpenedGroup {
            bytes,
            is_compressed: stored.is_some_and(|it| it.is_compressed),
        })
    }

    /// The sealed bytes of neighbouring groups, with one read.
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
        let path = &self.path;
        let bytes: usize = stored.iter().map(|group| group.bytes as usize).sum();
        let mut all = vec![0; bytes];
        self.file
            .read_exact_at(&mut all, start)
            .map_err(|e| RepositoryError::io(format_args!("cannot read object {path}"), &e))?;
        let mut rest = all.as_slice();
        let each = stored.iter().map(|group| {
            let (bytes, after) = rest.split_at(group.bytes as usize);
            rest = after;
            bytes.to_vec()
        });
        Ok(each.collect())
    }

    /// The blocks of a group that was read with others, as [`Pack::read_group`].
    ///
    /// # Errors
    ///
    /// `Damaged`, if it is not what was written.
    pub fn open_read_group(&self, group: usize, sealed: &[u8]) -> Result<Vec<u8>> {
        self.decompressed(group, self.open_sealed(group, sealed.to_vec())?)
    }

    /// How many blocks from this one on are there, one after the other, `most` at most.
    #[must_use]
    pub fn stored_from(&self, block: usize, most: usize) -> usize {
        let following = self.table.slots.iter().skip(block).take(most);
        following.take_while(|slot| slot.stored().is_some()).count()
    }

    /// How many blocks from this one on share its damage, `most` at most: of one that is stored, those that follow it in its
    /// group; of one that is not, those that are absent like it.
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

    /// # Errors
    ///
    /// `Damaged`, unless its blocks have so many bytes.
    pub fn check_block_size(&self, bytes: u32) -> Result<()> {
        let found = self.table.block_size;
        if found == bytes {
            return Ok(());
        }
        let message = format_args!("it has blocks of {found} bytes, and its backup of {bytes}");
        Err(RepositoryError::damaged(&self.path, message))
    }

    /// The error for a popular block that was moved to a higher number.
    #[must_use]
    pub fn moved_in_circle(&self, block: usize) -> RepositoryError {
        let message = format_args!("its block {block} was moved to a higher number");
        RepositoryError::damaged(&self.path, message)
    }

    /// Where a block is: its group, and its place in what [`Pack::read_group`] returns, in bytes.
    ///
    /// # Errors
    ///
    /// `Damaged`, if the pack does not have it.
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

    /// How many of the first blocks of a group are there.
    fn stored_before(&self, group: usize, blocks: usize) -> usize {
        let first = group * BLOCKS_PER_GROUP;
        let of_group = self.table.slots.iter().skip(first).take(blocks);
        of_group.filter(|slot| slot.stored().is_some()).count()
    }
}

const _: () = assert!(
    36 + 4 * (BLOCKS_PER_PACK as usize / BLOCKS_PER_GROUP)
        // Each block moved, into a popular pack of its own.
        + (17 + 8 + 24) * BLOCKS_PER_PACK as usize
        + TAG_BYTES
        < TABLE_BYTES_MAX as usize
);
