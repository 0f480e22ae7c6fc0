//! Copies of the tables of packs, each an object of its own. A copy is durable before its pack appears and is removed
//! after it, so a pack is still known if it is gone, or if its own table is unreadable.

use std::io::Write;

use onefold_format::backup::{ObjectName, SourceId, TableCopy};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::fenced::Fenced;
use crate::folder::NewObject;
use crate::objects::Objects;
use crate::pack::Pack;
use crate::seal::ChunkKey;

/// A copy of a table that is being written. Dropping it discards it.
pub(crate) struct NewTable {
    path: String,
    object: NewObject,
    key: ChunkKey,
    /// An earlier attempt at the same generation was not completed, so its copy may be there.
    may_be_there: bool,
}

impl NewTable {
    /// Starts the copy of the table of a pack.
    pub(crate) fn start(
        fenced: &Fenced<'_>,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<NewTable> {
        let name = table_of(source, number, generation);
        let (object, key) = fenced.create(name)?;
        Ok(NewTable {
            path: name.path(),
            object,
            key,
            // The numbers of new packs are unused.
            may_be_there: generation > 0,
        })
    }

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

/// The copies of the tables of a source's packs.
pub(crate) struct Tables<'a> {
    objects: &'a Objects,
    source: SourceId,
}

impl<'a> Tables<'a> {
    pub(crate) fn of(objects: &'a Objects, source: SourceId) -> Self {
        Self { objects, source }
    }

    /// The packs whose tables have copies, in order: numbers and generations.
    pub(crate) fn all(&self) -> Result<Vec<(u64, u32)>> {
        let source = self.source;
        self.objects
            .packs_below(&ObjectName::tables(source), |number, generation| {
                table_of(source, number, generation)
            })
    }

    pub(crate) fn read(&self, number: u64, generation: u32) -> Result<TableCopy> {
        let name = table_of(self.source, number, generation);
        let content = self.objects.read_sealed(name)?;
        TableCopy::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// Checks that the copy of a pack's table is there and matches.
    pub(crate) fn check(&self, pack: &Pack) -> Result<()> {
        // The pack was opened by the copy, so the copy is intact.
        if pack.table_damage().is_some() {
            return Ok(());
        }
        let (number, generation) = (pack.reference().number, pack.generation());
        let path = table_of(self.source, number, generation).path();
        match self.read(number, generation) {
            Ok(copy) if copy == pack.table_copy() => Ok(()),
            Ok(_) => Err(RepositoryError::damaged(&path, "it is of another pack")),
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                Err(RepositoryError::damaged(&path, "it is not there"))
            }
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn table_of(source: SourceId, number: u64, generation: u32) -> ObjectName {
    ObjectName::Table {
        source,
        number,
        generation,
    }
}
