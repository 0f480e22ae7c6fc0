//! The packs of a source: lists them, and opens them by their own table, or by the copy of the table if that is
//! unreadable.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK, TRAILER_BYTES};
use onefold_format::backup::recipe::NUMBER_END;
use onefold_format::backup::{
    ObjectName, PackTable, PackTrailer, Slot, SourceId, TAG_BYTES, TableCopy,
};

use crate::disk::split;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::objects::Objects;
use crate::pack::{Pack, cannot_read};
use crate::table::Tables;

/// The most bytes of a sealed table.
const TABLE_BYTES_MAX: u32 = 1 << 20;

/// The packs of a source, or of popular blocks.
pub(crate) struct Packs<'a> {
    objects: &'a Objects,
    source: SourceId,
}

impl<'a> Packs<'a> {
    pub(crate) fn of(objects: &'a Objects, source: SourceId) -> Self {
        Self { objects, source }
    }

    fn name(&self, number: u64, generation: u32) -> ObjectName {
        let source = self.source;
        ObjectName::Pack {
            source,
            number,
            generation,
        }
    }

    /// The packs, in order: numbers and newest generations.
    pub(crate) fn newest(&self) -> Result<Vec<(u64, u32)>> {
        let mut packs = self.generations()?;
        packs.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = next.1;
            }
            same
        });
        Ok(packs)
    }

    /// All generations of the packs, in order.
    pub(crate) fn generations(&self) -> Result<Vec<(u64, u32)>> {
        let named = |number, generation| self.name(number, generation);
        self.objects
            .packs_below(&ObjectName::packs(self.source), named)
    }

    /// The packs in the same folder as the pack with this number: numbers and generations.
    pub(crate) fn beside(&self, number: u64) -> Result<Vec<(u64, u32)>> {
        let named = |number, generation| self.name(number, generation);
        self.objects
            .packs_in(split(&named(number, 0).path()).0, named)
    }

    /// The size of a pack's file, without opening it; `None` if it is not there.
    pub(crate) fn bytes_of(&self, number: u64, generation: u32) -> Result<Option<u64>> {
        let path = self.name(number, generation).path();
        let found = self.objects.root().stat(&path);
        let found = found.map_err(|e| cannot_read(&path, &e))?;
        Ok(found.map(|stat| stat.st_size as u64))
    }

    /// The bytes of all packs.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        let generations = self.generations()?.into_iter();
        let bytes = generations.map(|(number, generation)| self.bytes_of(number, generation));
        bytes.map(|bytes| Ok(bytes?.unwrap_or(0))).sum()
    }

    /// The error for a missing pack that a backup needs.
    pub(crate) fn missing(&self, number: u64) -> RepositoryError {
        RepositoryError::damaged(&self.name(number, 0).path(), "it is not there")
    }

    /// Whether a pack has moved blocks. Only packs that were written again can.
    pub(crate) fn has_moved(&self) -> Result<bool> {
        let mut packs = self.newest()?;
        packs.retain(|(_, generation)| *generation > 0);
        for (number, generation) in packs {
            match self.open_or_newer(number, generation) {
                Ok(Some(pack)) if !pack.popular_packs().is_empty() => return Ok(true),
                Err(error) if !error.is_of_object() => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Makes the names of packs durable, except of packs that are missing. A pack becomes visible when it gets its name,
    /// and its writer may die before the name is durable, so this must come before any durable object refers to the pack.
    pub(crate) fn sync(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        let paths = numbers.map(|number| self.name(number, 0).path());
        let mut folders: BTreeSet<_> = paths.map(|path| split(&path).0.to_owned()).collect();
        if !folders.is_empty() {
            folders.insert(ObjectName::packs(self.source));
        }
        let mut folders = folders.into_iter();
        folders.try_for_each(|folder| match self.objects.folder().sync(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => {
                synced.map_err(|e| RepositoryError::io(format_args!("cannot sync {folder}"), &e))
            }
        })
    }

    /// Opens a pack; if a concurrent prune has replaced the listed generation, opens the newer one. `None` if the
    /// pack is gone.
    pub(crate) fn open_or_newer(&self, number: u64, generation: u32) -> Result<Option<Pack>> {
        match self.open(number, generation) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
            opened => return opened.map(Some),
        }
        let listed = self.newest()?;
        let newest = listed.into_iter().find(|(listed, _)| *listed == number);
        let opened = newest.map(|(_, generation)| self.open(number, generation));
        opened.transpose()
    }

    /// Opens a pack: reads and authenticates its table, or the copy of the table if that fails.
    pub(crate) fn open(&self, number: u64, generation: u32) -> Result<Pack> {
        match self.whole(number, generation) {
            Err(error) if is_damage(&error) => {
                let path = self.name(number, generation).path();
                let file = self.objects.folder().open_file(&path);
                let file = file.map_err(|e| cannot_read(&path, &e))?;
                match Tables::of(self.objects, self.source).read(number, generation) {
                    Ok(copy) => self.by_copy(number, generation, Some(file), copy, error),
                    // Without a copy, the pack's own error counts.
                    Err(_) => Err(error),
                }
            }
            opened => opened,
        }
    }

    /// A missing pack, known by the copy of its table: all of its blocks are lost.
    pub(crate) fn lost(&self, number: u64, generation: u32) -> Result<Pack> {
        let copy = Tables::of(self.objects, self.source).read(number, generation)?;
        let path = self.name(number, generation).path();
        let error = RepositoryError::damaged(&path, "it is not there");
        self.by_copy(number, generation, None, copy, error)
    }

    fn whole(&self, number: u64, generation: u32) -> Result<Pack> {
        let name = self.name(number, generation);
        let path = name.path();
        let (file, key) = self.objects.open_object(name)?;
        let bytes = file.metadata().map_err(|e| cannot_read(&path, &e))?.len();
        let mut trailer = [0; TRAILER_BYTES];
        let trailer_at = bytes.checked_sub(TRAILER_BYTES as u64);
        let cut = || RepositoryError::damaged(&path, "it is cut");
        file.read_exact_at(&mut trailer, trailer_at.ok_or_else(cut)?)
            .map_err(|e| cannot_read(&path, &e))?;
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
            .map_err(|e| cannot_read(&path, &e))?;
        let opened = key.open(trailer.groups, &mut table);
        opened.map_err(|e| RepositoryError::damaged(&path, e))?;
        let table = PackTable::decode(&table).map_err(|e| RepositoryError::format(&path, e))?;
        let (starts, end) = starts_of(&table);
        if table.groups.len() != trailer.groups as usize || end != trailer.table_at {
            return Err(RepositoryError::damaged(&path, "its groups do not fill it"));
        }
        Ok(Pack {
            path,
            number,
            generation,
            file: Some(file),
            key,
            table,
            starts,
            stored_bytes: bytes,
            table_damage: None,
        })
    }

    fn by_copy(
        &self,
        number: u64,
        generation: u32,
        file: Option<File>,
        copy: TableCopy,
        table_damage: RepositoryError,
    ) -> Result<Pack> {
        let name = self.name(number, generation);
        let path = name.path();
        let key = self.objects.key_of_header(&path, name, copy.header)?;
        let stored_bytes = match &file {
            Some(file) => file.metadata().map_err(|e| cannot_read(&path, &e))?.len(),
            None => 0,
        };
        let mut table = copy.table;
        let (starts, _) = starts_of(&table);
        // Groups past the end of the pack are lost, as if a repair had taken them out.
        let ends = starts.iter().zip(&table.groups);
        let ends = ends.map(|(start, group)| start + u64::from(group.bytes));
        for (slots, end) in table.slots.chunks_mut(BLOCKS_PER_GROUP).zip(ends) {
            if end > stored_bytes {
                let stored = slots
                    .iter_mut()
                    .filter_map(|slot| Some((slot.stored()?, slot)));
                stored.for_each(|(fingerprint, slot)| *slot = Slot::Lost(fingerprint));
            }
        }
        Ok(Pack {
            path,
            number,
            generation,
            file,
            key,
            table,
            starts,
            stored_bytes,
            table_damage: Some(table_damage),
        })
    }
}

/// Draws a random number for the first of some popular packs, so that concurrent writers of such packs do not have to
/// coordinate.
pub(crate) fn draw_popular() -> Result<u64> {
    let drawn = random_number().map_err(|e| RepositoryError::io("no random numbers", &e))?;
    // In the lower half, so that the following packs stay below the largest number.
    Ok(drawn % (NUMBER_END / BLOCKS_PER_PACK / 2))
}

/// Whether the copy of the table may help against this error.
fn is_damage(error: &RepositoryError) -> bool {
    error.is_of_object() && error.kind() != RepositoryErrorKind::NotFound
}

/// The offset of each group, and the end of the last one.
fn starts_of(table: &PackTable) -> (Vec<u64>, u64) {
    let mut at = OBJECT_HEADER_BYTES as u64;
    let starts = table.groups.iter().map(|group| {
        let start = at;
        at += u64::from(group.bytes);
        start
    });
    (starts.collect(), at)
}

const _: () = assert!(
    36 + 4 * (BLOCKS_PER_PACK as usize / BLOCKS_PER_GROUP)
        // Every block moved, each into a popular pack of its own.
        + (17 + 8 + 24) * BLOCKS_PER_PACK as usize
        + TAG_BYTES
        < TABLE_BYTES_MAX as usize
);
