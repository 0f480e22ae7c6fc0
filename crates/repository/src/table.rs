//! Copies of the tables of packs, each an object of its own. A copy is durable before its pack appears and is removed
//! after it, so a pack is still known if it is gone, or if its own table is unreadable.

use std::io::Write;

use onefold_format::backup::{ObjectName, SourceId, TableCopy};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::NewObject;
use crate::pack::Pack;
use crate::repository::Repository;
use crate::seal::ChunkKey;
use crate::writer::Writer;

/// A copy of a table that is being written. Dropping it discards it.
pub(crate) struct NewTable {
    path: String,
    object: NewObject,
    key: ChunkKey,
    /// An earlier attempt at the same generation was not completed, so its copy may be there.
    may_be_there: bool,
}

impl NewTable {
    /// Makes the copy durable.
    pub(crate) fn finish(self, mut content: Vec<u8>) -> Result<()> {
        let Self {
            path,
            mut object,
            key,
            may_be_there,
        } = self;
        let sealed = key.seal(0, &mut content);
        sealed.map_err(|e| RepositoryError::damaged(&path, e))?;
        let written = object.write_all(&content);
        let written = written.and_then(|()| {
            if may_be_there {
                object.commit_over()
            } else {
                object.commit()
            }
        });
        written.map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))
    }
}

impl Writer<'_> {
    /// Starts the copy of the table of a pack.
    pub(crate) fn new_table(
        &self,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<NewTable> {
        let name = table_of(source, number, generation);
        let (object, key) = self.create(name)?;
        Ok(NewTable {
            path: name.path(),
            object,
            key,
            // The numbers of new packs are unused.
            may_be_there: generation > 0,
        })
    }

    /// Writes the copy of a pack's table again.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn put_table(&self, pack: &Pack) -> Result<()> {
        let name = table_of(self.source().id, pack.reference().number, pack.generation());
        let content = pack.table_copy().encode();
        self.put(name, content, NewObject::commit_over)
    }
}

impl Repository {
    /// The packs of a source whose tables have copies, in order: numbers and generations.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn tables(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        self.of_packs(&ObjectName::tables(source), |number, generation| {
            table_of(source, number, generation)
        })
    }

    pub(crate) fn table_copy(
        &self,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<TableCopy> {
        let name = table_of(source, number, generation);
        let content = self.read_sealed(name)?;
        TableCopy::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// Checks that the copy of a pack's table is there and matches.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn check_table(&self, source: SourceId, pack: &Pack) -> Result<()> {
        // The pack was opened by the copy, so the copy is intact.
        if pack.table_damage().is_some() {
            return Ok(());
        }
        let (number, generation) = (pack.reference().number, pack.generation());
        let path = table_of(source, number, generation).path();
        match self.table_copy(source, number, generation) {
            Ok(copy) if copy == pack.table_copy() => Ok(()),
            Ok(_) => Err(RepositoryError::damaged(&path, "it is of another pack")),
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                Err(RepositoryError::damaged(&path, "it is not there"))
            }
            Err(error) => Err(error),
        }
    }
}

fn table_of(source: SourceId, number: u64, generation: u32) -> ObjectName {
    ObjectName::Table {
        source,
        number,
        generation,
    }
}
