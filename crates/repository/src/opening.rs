//! Opens packs by their own table, or by the copy of the table if that is unreadable.

use std::fs::File;
use std::os::unix::fs::FileExt;

use onefold_format::backup::object::OBJECT_HEADER_BYTES;
use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK, TRAILER_BYTES};
use onefold_format::backup::{
    ObjectName, PackTable, PackTrailer, Slot, SourceId, TAG_BYTES, TableCopy,
};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::pack::{Pack, cannot_read};
use crate::repository::Repository;

/// The most bytes of a sealed table.
const TABLE_BYTES_MAX: u32 = 1 << 20;

impl Repository {
    /// Opens a pack; if a concurrent prune has replaced the listed generation, opens the newer one. `None` if the
    /// pack is gone.
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

    /// Opens a pack: reads and authenticates its table, or the copy of the table if that fails.
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
        match self.whole_pack(name, (number, generation)) {
            Err(error) if is_damage(&error) => {
                let path = name.path();
                let file = self.folder.open_file(&path);
                let file = file.map_err(|e| cannot_read(&path, &e))?;
                match self.table_copy(source, number, generation) {
                    Ok(copy) => {
                        self.pack_by_copy(name, (number, generation), Some(file), copy, error)
                    }
                    // Without a copy, the pack's own error counts.
                    Err(_) => Err(error),
                }
            }
            opened => opened,
        }
    }

    /// A missing pack, known by the copy of its table: all of its blocks are lost.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`; any failure of reading.
    pub fn lost_pack(&self, source: SourceId, number: u64, generation: u32) -> Result<Pack> {
        let name = ObjectName::Pack {
            source,
            number,
            generation,
        };
        let copy = self.table_copy(source, number, generation)?;
        let error = RepositoryError::damaged(&name.path(), "it is not there");
        self.pack_by_copy(name, (number, generation), None, copy, error)
    }

    fn whole_pack(&self, name: ObjectName, (number, generation): (u64, u32)) -> Result<Pack> {
        let path = name.path();
        let (file, key) = self.open_object(name)?;
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

    fn pack_by_copy(
        &self,
        name: ObjectName,
        (number, generation): (u64, u32),
        file: Option<File>,
        copy: TableCopy,
        table_damage: RepositoryError,
    ) -> Result<Pack> {
        let path = name.path();
        let key = self.key_of_header(&path, name, copy.header)?;
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
